"""Nodes in simpler standard ops: ops of ours by their `body`, and ops of the standard that are functions of others.

onnxruntime has no kernel for some standard ops and expands them itself, at the end of its list of nodes,
where a planned order is lost. Those are expanded here, in place, by the standard's own definition.
"""

from __future__ import annotations

from onnx import helper, inliner

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.formats.onnx.read import load
from graph.ir import ABSENT, Graph, Node, Role, Val
from graph.limits import Limits, ShapeOverrides
from graph.ops.registry import find_op
from graph.ops.registry.onnx_fallback import attribute_proto, onnx_dtype, schema_of
from graph.ops.registry.registry import make_call

#: Standard ops onnxruntime 1.31 expands (found by profiling each function op of the standard).
_EXPANDED = frozenset(
    {
        "CastLike",
        "GroupNormalization",
        "HardSwish",
        "Mish",
        "NegativeLogLikelihoodLoss",
        "SoftmaxCrossEntropyLoss",
        "Swish",
    }
)
_IR_VERSION = 10


def decomposed(graph: Graph, node: Node) -> Graph | None:
    """A graph of what the node does, or None when it stands as it is.

    Its inputs are the node's present inputs in order, its outputs the node's wanted outputs in order,
    each written by a node of its own; nothing in it is left unread.
    """
    if node.op in _EXPANDED:
        return _by_standard(graph, node)
    record = find_op(node.op)
    if record is None or record.body is None or node.bodies:
        return None
    builder = Builder(node.name, graph.opset)
    emit = Emit(builder, node.name, node.phase)
    inputs: list[Val | None] = []
    for v in node.inputs:
        value = None if v == ABSENT else graph.values[v]
        inputs.append(None if value is None else emit.val(builder.value(value.name, value.type, Role.INPUT)))
    made = record.body(emit, make_call(graph, node), *inputs)
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


def _by_standard(graph: Graph, node: Node) -> Graph | None:
    """The standard's own definition of the node's op for its types, read as any other model."""
    opset = graph.opset.get("", 21)
    schema = schema_of(node.op, opset)
    types = graph.types_of(node.inputs)
    if schema is None or any(t is None for t, v in zip(types, node.inputs, strict=True) if v != ABSENT):
        return None
    inputs = ["" if v == ABSENT else f"i{k}" for k, v in enumerate(node.inputs)]
    outputs = ["" if v == ABSENT else f"o{k}" for k, v in enumerate(node.outputs)]
    call = helper.make_node(node.op, inputs, outputs, name=node.name)
    for key, value in node.attributes.items():
        call.attribute.append(attribute_proto(key, value, schema.attributes[key].type))
    given = [
        helper.make_tensor_value_info(name, onnx_dtype(t.dtype), t.shape)
        for name, t in zip(inputs, types, strict=True)
        if t is not None
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs if name]
    one = helper.make_model(
        helper.make_graph([call], node.name, given, results),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=_IR_VERSION,
    )
    expanded = inliner.inline_selected_functions(one, [("", node.op)], inline_schema_functions=True)
    found = load(expanded.SerializeToString(), Limits(), ShapeOverrides())
    parts = _read(list(found.nodes), list(found.outputs))
    if any(part.op == node.op for part in parts) or any(v.role is Role.PARAMETER for v in found.values):
        return None  # the standard does not define it for these types
    return Graph(node.name, found.values, parts, found.outputs, found.inputs, found.opset)


def _read(nodes: list[Node], outputs: list[int]) -> tuple[Node, ...]:
    """The nodes the outputs need, in order."""
    needed = set(outputs)
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.writes):
            needed.update(node.reads)
            kept.append(node)
    return tuple(reversed(kept))
