"""Ops of ours in standard ops, as their `body` in the op table says."""

from __future__ import annotations

from graph.builder import Builder
from graph.emit import Emit, Val
from graph.ir import ABSENT, Graph, Node, Role
from graph.ops import known
from graph.ops.table import call_of


def spelled_out(graph: Graph, node: Node) -> Graph | None:
    """A graph of what the node does, or None when it stands as it is.

    Its inputs are the node's present inputs in order, its outputs the node's wanted outputs in order,
    each written by a node of its own; nothing in it is left unread.
    """
    record = known(node.op)
    if record is None or record.body is None or node.bodies:
        return None
    builder = Builder(node.name, graph.opset)
    emit = Emit(builder, node.name, node.phase)
    inputs: list[Val | None] = []
    for v in node.inputs:
        value = None if v == ABSENT else graph.values[v]
        inputs.append(None if value is None else emit.val(builder.value(value.name, value.type, Role.INPUT)))
    made = record.body(emit, call_of(graph, node), *inputs)
    results = made if isinstance(made, tuple) else (made,)
    outputs: list[int] = []
    written = {v for part in builder.nodes for v in part.writes}
    for i, v in enumerate(node.outputs):
        if v == ABSENT:
            continue
        result = results[i] if i < len(results) else None
        if result is None:
            raise ValueError(f"the body of {node.op} does not make output {i}, which {node.name} has")
        if result.id not in written or result.id in outputs:  # an input, a constant, or given twice
            result = emit.op("Identity", result)
        outputs.append(result.id)
    nodes = _read(builder.nodes, outputs)
    return Graph(node.name, tuple(builder.values), nodes, tuple(outputs), tuple(builder.inputs), builder.opset)


def _read(nodes: list[Node], outputs: list[int]) -> tuple[Node, ...]:
    """The nodes the outputs need, in order."""
    needed = set(outputs)
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.writes):
            needed.update(node.reads)
            kept.append(node)
    return tuple(reversed(kept))
