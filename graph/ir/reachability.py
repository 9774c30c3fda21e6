"""Backward reachability of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def reachable_nodes(
    roots: Iterable[int], reads: Sequence[Sequence[int]], producer: Sequence[int], after: Sequence[Sequence[int]]
) -> bytearray:
    """Per node 1 if it is in `roots` or an ancestor of one, by data (`reads`, `producer`) or by order (`after`).

    `producer` is the node that writes a value, or -1; value id -1 is absent. O(nodes + reads).
    """
    alive = bytearray(len(reads))
    pending = list(roots)
    while pending:
        n = pending.pop()
        if alive[n]:
            continue
        alive[n] = 1
        pending.extend([producer[v] for v in reads[n] if v >= 0 and producer[v] >= 0])
        pending.extend(after[n])
    return alive
