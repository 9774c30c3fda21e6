"""Storage aliasing: views and in-place candidates, declared by the document or by the op registry.

x ──Reshape──▶ v ──Identity──▶ w        storage_roots: x x x             one storage, three names
x ──Relu────▶ y                         inplace_candidates: (0, 0)       y may be written over x
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graph.ir import ABSENT, Graph, Node
from graph.ops.registry.registry import OutputInputPairs, find_op


def views_of(graph: Graph, node: Node) -> OutputInputPairs:
    """(output, input) pairs of a node that share bytes: declared ones first, then those of the op registry."""
    record = find_op(node.op)
    if not node.views and (record is None or not record.views):
        return ()
    pairs: dict[int, int] = {}
    for output, source in (*node.views, *(record.views if record is not None else ())):
        if _is_present(node, output, source) and not any(output == o for o, _ in node.in_place):
            pairs.setdefault(output, source)
    return tuple(pairs.items())


def nodes_that_may_view(graph: Graph) -> list[int]:
    """Nodes that declare views, or whose op has views in the op registry; no other node makes a view."""
    viewing = {op for op in {node.op for node in graph.nodes} if (record := find_op(op)) is not None and record.views}
    return [n for n, node in enumerate(graph.nodes) if node.views or node.op in viewing]


def inplace_candidates(graph: Graph, node: Node, by_registry: bool = True) -> OutputInputPairs:
    """(output, input) pairs where the output may overwrite an input at its last use, in order of preference.

    Pairs that the node declares come first, then, with `by_registry`, those of the op registry. Excluded: pairs of
    different dtypes; pairs of different element counts, since a broadcast element is read after it would have been
    overwritten; outputs that are views or declared in place.
    """
    record = find_op(node.op) if by_registry else None
    if not node.takeover and (record is None or not record.takeover):
        return ()
    settled = {output for output, _ in (*views_of(graph, node), *node.in_place)}
    values, pairs = graph.values, []
    for output, source in (*node.takeover, *(() if record is None else record.takeover)):
        if output in settled or not _is_present(node, output, source):
            continue
        new, old = values[node.outputs[output]], values[node.inputs[source]]
        if new.nbytes > old.nbytes or new.type is None or old.type is None:
            continue
        if new.type.elements == old.type.elements and new.type.dtype == old.type.dtype:
            pairs.append((output, source))
    return tuple(pairs)


def is_view(graph: Graph, node: Node) -> bool:
    """True if every output of the node is a view, so that no kernel runs."""
    views = views_of(graph, node)
    return bool(views) and len(views) == len(node.writes)


def storage_roots(graph: Graph, may_view: Sequence[int] | None = None) -> list[int]:
    """Per value the value that owns its storage; itself unless it is a view. O(nodes + values).

    `may_view` are the nodes of `nodes_that_may_view`, if they are known.
    An output in place owns its entry: it has the bytes of its input, but another content.
    """
    roots = list(range(len(graph.values)))
    for n in nodes_that_may_view(graph) if may_view is None else may_view:
        node = graph.nodes[n]
        for output, source in views_of(graph, node):
            roots[node.outputs[output]] = roots[node.inputs[source]]
    return roots


def last_uses(storage: Sequence[int], uses: Iterable[Iterable[int]]) -> dict[int, int]:
    """Storage -> the last node that uses it, in order of first use; `uses` are the values used, per node."""
    last: dict[int, int] = {}
    for n, values in enumerate(uses):
        for v in values:
            last[storage[v]] = n
    return last


def _is_present(node: Node, output: int, source: int) -> bool:
    """True if neither the output nor the input is absent."""
    return (
        output < len(node.outputs)
        and source < len(node.inputs)
        and node.outputs[output] != ABSENT
        and node.inputs[source] != ABSENT
    )
