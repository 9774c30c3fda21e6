"""Decomposition of nodes into simpler standard ops: `remat` ops by their `body`, ONNX function ops by their definition.

An `Einsum` of more than two operands is contracted in pairs: onnxruntime contracts from the left, whose products may be
larger than all operands.

onnxruntime has no kernel for some ONNX function ops. It would inline them at the end of its node list, which loses the
planned order; these ops are expanded here, in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from onnx import ModelProto, NodeProto, helper, inliner

from graph.builder.builder import Builder
from graph.builder.contraction import contracted, index_terms
from graph.builder.emit import Emit
from graph.formats.onnx.read import load
from graph.ir import ABSENT, Graph, Node, Role, TensorType, Val, Value
from graph.limits import Limits, ShapeOverrides
from graph.ops.registry import find_op
from graph.ops.registry.onnx_fallback import attribute_proto, onnx_dtype, schema_of
from graph.ops.registry.registry import Call, make_call

#: Standard ops that onnxruntime 1.31 expands (determined by profiling every function op of the standard).
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
_PAIR = 2  # operands

T = TypeVar("T")


def decomposed(graph: Graph, node: Node) -> Graph | None:
    """Graph equivalent to the node; None when the node needs no decomposition, or an input is of unknown type.

    Inputs and outputs are those present on the node, in order. Each output is written by a different node; dead nodes
    are removed. Raises ValueError when the body of the op lacks an output of the node.
    """
    if node.op in _EXPANDED:
        return _by_standard(graph, node)
    if node.op == "Einsum" and len(node.inputs) > _PAIR and None not in graph.types_of(node.inputs):
        return _by_body(graph, node, _in_pairs)
    record = find_op(node.op)
    if record is None or record.body is None or not node.op.startswith("remat::") or node.bodies:
        return None
    if None in graph.types_of([v for v in node.inputs if v != ABSENT]):
        return None
    return _by_body(graph, node, record.body)


def flattened(
    graph: Graph, node: Node, of: Mapping[int, T], make: Callable[[str, Value], T]
) -> list[tuple[Node, Mapping[int, T]]]:
    """The node, or its parts, recursively, each with what stands for the values of its graph.

    `of` has that for the values of `graph`; `make` returns it for a value within a node, from the node's name.
    """
    body = decomposed(graph, node)
    if body is None:
        return [(node, of)]
    inner = dict(zip(body.inputs, (of[v] for v in node.inputs if v != ABSENT), strict=True))
    inner.update(zip(body.outputs, (of[v] for v in node.outputs if v != ABSENT), strict=True))
    for v in dict.fromkeys(v for part in body.nodes for v in (*part.reads, *part.writes)):
        if v not in inner:
            inner[v] = make(node.name, body.values[v])
    return [found for part in body.nodes for found in flattened(body, part, inner, make)]


def _in_pairs(emit: Emit, call: Call, *operands: Val) -> Val:
    terms, result = index_terms(call.attribute("equation", ""), [x.rank for x in operands])
    return contracted(emit, terms, operands, result)


def _by_body(graph: Graph, node: Node, body: Callable[..., Any]) -> Graph:
    builder = Builder(node.name, graph.opset)
    emit = Emit(builder, node.name, node.phase)
    inputs: list[Val | None] = []
    for v in node.inputs:
        value = None if v == ABSENT else graph.values[v]
        inputs.append(None if value is None else emit.val(builder.value(value.name, value.type, Role.INPUT)))
    returned = body(emit, make_call(graph, node), *inputs)
    outputs = _written_outputs(emit, node, returned if isinstance(returned, tuple) else (returned,))
    nodes = _needed(builder.nodes, outputs)
    return Graph(node.name, tuple(builder.values), nodes, tuple(outputs), tuple(builder.inputs), builder.opset)


def _written_outputs(emit: Emit, node: Node, results: Sequence[Val | None]) -> list[int]:
    """Ids of the present outputs; an input, a constant or a repeated result is copied by an Identity node."""
    outputs: list[int] = []
    written = {v for part in emit.builder.nodes for v in part.writes}
    for i, v in enumerate(node.outputs):
        if v == ABSENT:
            continue
        result = results[i] if i < len(results) else None
        if result is None:
            raise ValueError(f"the body of {node.op} lacks output {i} of node {node.name}")
        if result.id not in written or result.id in outputs:
            result = emit.op("Identity", result)
        outputs.append(result.id)
    return outputs


def _by_standard(graph: Graph, node: Node) -> Graph | None:
    """Graph of the ONNX function definition of the node's op for its input types; None without a definition."""
    opset = graph.opset.get("", 21)
    schema = schema_of(node.op, opset)
    types = graph.types_of(node.inputs)
    if schema is None or any(t is None for t, v in zip(types, node.inputs, strict=True) if v != ABSENT):
        return None
    call = helper.make_node(
        node.op,
        ["" if v == ABSENT else f"i{k}" for k, v in enumerate(node.inputs)],
        ["" if v == ABSENT else f"o{k}" for k, v in enumerate(node.outputs)],
        name=node.name,
    )
    for key, value in node.attributes.items():
        call.attribute.append(attribute_proto(key, value, schema.attributes[key].type))
    model = _model_of(call, types, opset)
    inlined = inliner.inline_selected_functions(model, [("", node.op)], inline_schema_functions=True)
    expanded = load(inlined.SerializeToString(), Limits(), ShapeOverrides())
    parts = _needed(list(expanded.nodes), list(expanded.outputs))
    if any(part.op == node.op for part in parts) or any(v.role is Role.PARAMETER for v in expanded.values):
        return None  # no definition for these types
    return Graph(node.name, expanded.values, parts, expanded.outputs, expanded.inputs, expanded.opset)


def _model_of(call: NodeProto, types: Sequence[TensorType | None], opset: int) -> ModelProto:
    """Model with a single node; `types` are those of its inputs."""
    given = [
        helper.make_tensor_value_info(name, onnx_dtype(t.dtype), t.shape)
        for name, t in zip(call.input, types, strict=True)
        if t is not None
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in call.output if name]
    return helper.make_model(
        helper.make_graph([call], call.name, given, results),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=_IR_VERSION,
    )


def _needed(nodes: list[Node], outputs: list[int]) -> tuple[Node, ...]:
    """Nodes that the outputs depend on, in order."""
    needed = set(outputs)
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.writes):
            needed.update(node.reads)
            kept.append(node)
    return tuple(reversed(kept))
