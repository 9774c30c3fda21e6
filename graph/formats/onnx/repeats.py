"""Whether repeats of a rewritten graph lower the peak of onnxruntime enough to be guarded.

A guard costs memory with onnxruntime's default options: values around it have pieces of their own in the arena, which
stay there once free. Where one op alone takes the peak, repeats that free less than that are left to the optimizers,
which merge them with their first run. Elsewhere guards also keep the order, which may save without repeats.
"""

from __future__ import annotations

from collections.abc import Sequence

from graph.analysis.aliasing import last_uses, storage_roots
from graph.analysis.effects import effect_of
from graph.formats.onnx.runtime_workspace import runtime_workspace
from graph.ir import ABSENT, Effect, Graph, Node, Role

_MIN_SAVED = 0.1  # of the largest result of a repeat


def repeats_pay(graph: Graph) -> bool:
    """True if repeats lower the peak by a tenth of their largest result, or if it is above that of one op by as much.

    Also True if a repeat is not pure.

    The peak without repeats is that of first runs in the same order, whose results all reads take. Repeats that draw
    random numbers need guards to draw those of their first run. O(nodes + reads).
    """
    first: dict[str, Node] = {}
    repeats: list[Node] = []
    for node in graph.nodes:
        name, run = node.annotations.get("origin", (node.name, 0))
        if run > 0 and name in first:
            repeats.append(node)
        else:
            first[name] = node
    if not repeats:
        return False
    if any(effect_of(graph, node) is not Effect.PURE for node in repeats):
        return True
    roots = storage_roots(graph)
    of_first = {
        copy: roots[v]
        for node in repeats
        for copy, v in zip(node.outputs, first[node.annotations["origin"][0]].outputs, strict=False)
        if ABSENT not in (copy, v)
    }
    merged = [of_first.get(root, root) for root in roots]
    largest = max((graph.values[v].nbytes for node in repeats for v in node.writes), default=0)
    (peak, of_one), (unrepeated, _) = _peaks(graph, graph.nodes, roots), _peaks(graph, list(first.values()), merged)
    return max(unrepeated - peak, peak - of_one) >= max(1, _MIN_SAVED * largest)


def _peaks(graph: Graph, nodes: Sequence[Node], storage: Sequence[int]) -> tuple[int, int]:
    """(most bytes live at once, most that one node needs alone) in onnxruntime, without inputs and residents."""
    size = {v: value.nbytes for v, value in enumerate(graph.values) if value.role is Role.ACTIVATION}
    last = last_uses(storage, ((*node.reads, *node.writes) for node in nodes))
    kept = {storage[v] for v in graph.outputs}
    live: dict[int, int] = {}  # storage -> bytes
    total = highest = alone = 0
    for n, node in enumerate(nodes):
        for v in (storage[v] for v in node.writes):
            if v in size and v not in live:
                live[v] = size[v]
                total += size[v]
        dying = {v for v in node.reads if last[storage[v]] == n and storage[v] in live.keys() - kept}
        workspace = runtime_workspace(graph, node, dying)
        used = {storage[v] for v in (*node.reads, *node.writes)}
        highest = max(highest, total + workspace)
        alone = max(alone, sum(live.get(v, 0) for v in used) + workspace)
        for v in used:
            if last[v] == n and v in live and v not in kept:
                total -= live.pop(v)
    return highest, alone
