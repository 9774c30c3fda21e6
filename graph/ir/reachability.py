"""Which nodes others need: one walk back from what is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def reachable_nodes(
    wanted: Iterable[int], reads: Sequence[Sequence[int]], producer: Sequence[int], after: Sequence[Sequence[int]]
) -> bytearray:
    """Per node 1 where it is wanted or needed by one that is: it makes what that reads, or must run before it.

    `producer` is the node that makes a value, or -1; a value of -1 is absent. O(nodes + reads).
    """
    alive = bytearray(len(reads))
    pending = list(wanted)
    while pending:
        n = pending.pop()
        if alive[n]:
            continue
        alive[n] = 1
        pending.extend([producer[v] for v in reads[n] if v >= 0 and producer[v] >= 0])
        pending.extend(after[n])
    return alive
