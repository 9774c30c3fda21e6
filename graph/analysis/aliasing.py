"""Which values share bytes: views declared by the document or known to the op table, and takeovers.

x ──Reshape──▶ v ──Identity──▶ w        storage_roots: x x x      one storage, three names
x ──Relu────▶ y                         takeovers_of: (0, 0)      y may be written over x
"""

from __future__ import annotations

from graph.ir import ABSENT, Graph, Node
from graph.ops.registry.registry import OutputInputPairs, find_op


def views_of(graph: Graph, node: Node) -> OutputInputPairs:
    """(output, input) pairs of a node that show the same bytes: what is declared, then the op table's."""
    record = find_op(node.op)
    if not node.views and (record is None or not record.views):
        return ()
    pairs: dict[int, int] = {}
    for output, source in (*node.views, *(record.views if record is not None else ())):
        if _joins(node, output, source) and not any(output == o for o, _ in node.in_place):
            pairs.setdefault(output, source)
    return tuple(pairs.items())


def inplace_candidates(graph: Graph, node: Node) -> OutputInputPairs:
    """(output, input) pairs where the output may be written over an input that dies, by preference.

    Left out are pairs of other element types, pairs whose element counts differ, since a broadcast
    element is read again after it would have been overwritten, and outputs that show or replace an input.
    """
    record = find_op(node.op)
    if record is None or not record.takeover:
        return ()
    settled = {output for output, _ in (*views_of(graph, node), *node.in_place)}
    values, pairs = graph.values, []
    for output, source in record.takeover:
        if output in settled or not _joins(node, output, source):
            continue
        made, taken = values[node.outputs[output]], values[node.inputs[source]]
        if made.nbytes > taken.nbytes or made.type is None or taken.type is None:
            continue
        if made.type.elements == taken.type.elements and made.type.dtype == taken.type.dtype:
            pairs.append((output, source))
    return tuple(pairs)


def is_view(graph: Graph, node: Node) -> bool:
    """True when every output of the node shows an input's bytes, so that it runs no kernel."""
    shown = views_of(graph, node)
    return bool(shown) and len(shown) == len(node.writes)


def storage_roots(graph: Graph) -> list[int]:
    """Per value the value whose storage it shows; itself when it has its own. O(nodes + values).

    An output in place has its own entry: it has the bytes of its input, but not its content.
    """
    roots = list(range(len(graph.values)))
    for node in graph.nodes:
        for output, source in views_of(graph, node):
            roots[node.outputs[output]] = roots[node.inputs[source]]
    return roots


def _joins(node: Node, output: int, source: int) -> bool:
    """True when both ends of a pair are there."""
    return (
        output < len(node.outputs)
        and source < len(node.inputs)
        and node.outputs[output] != ABSENT
        and node.inputs[source] != ABSENT
    )
