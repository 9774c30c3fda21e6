"""Converters of standard ops to Paddle operators, for the writer; `ops` holds the inverse translation.

The attributes of a converted op are the fields of its OpDesc without the type: slots with value names, and attributes
by kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graph.formats.paddle.mesh_attributes import AUTO_PARALLEL_SUFFIX, MAPPING, MESH, MESH_SHAPE, flat_mesh
from graph.formats.paddle.ops import DTYPE_NUMBERS, slots_of
from graph.formats.shared.op_writer import (
    FrameworkOp,
    NodeView,
    OpConverter,
    attribute,
    same_inputs,
    same_names,
    written,
)
from graph.ir import ABSENT, Phase
from graph.ops.registry.onnx_fallback import dtype_name

_ROLE = {Phase.FORWARD: 0, Phase.BACKWARD: 1, Phase.UPDATE: 2}


def op_attribute(name: str, value: Any) -> dict[str, Any]:
    """An OpAttr message as plain data."""
    if isinstance(value, bool):
        return {"name": name, "type": 6, "b": value}
    if isinstance(value, int):
        return {"name": name, "type": 0, "i": value}
    if isinstance(value, float):
        return {"name": name, "type": 1, "f": value}
    if isinstance(value, str):
        return {"name": name, "type": 2, "s": value}
    return {"name": name, "type": 3, "ints": list(value)}


def op_message(view: NodeView, converted: FrameworkOp) -> dict[str, Any]:
    """Fields of the OpDesc: slots filled by the inputs kept and by all outputs, and the attributes."""
    graph, node = view.graph, view.node
    op, attributes, kept = converted
    ins, outs = slots_of(op)
    inputs = [graph.values[node.inputs[i]].name for i in kept if i < len(node.inputs) and node.inputs[i] != ABSENT]
    outputs = [graph.values[v].name for v in node.outputs if v != ABSENT]
    attrs = [op_attribute(k, v) for k, v in attributes.items()]
    attrs.append(op_attribute("op_role", _ROLE[node.phase]))
    attrs += _distribution(node.annotations)
    return {"inputs": _slots(ins, inputs), "outputs": _slots(outs, outputs), "attrs": attrs}


def _distribution(annotations: Mapping[str, Any]) -> list[dict[str, Any]]:
    if MESH not in annotations:
        return []
    ids, shape = flat_mesh(annotations[MESH])
    found = [op_attribute(MESH + AUTO_PARALLEL_SUFFIX, ids), op_attribute(MESH_SHAPE, shape)]
    mappings = annotations.get(MAPPING, {})
    return found + [
        op_attribute(f"{MAPPING}@{name}{AUTO_PARALLEL_SUFFIX}", mapping) for name, mapping in mappings.items()
    ]


def _slots(slots: list[str], names: list[str]) -> list[dict[str, Any]]:
    filled = []
    for k, slot in enumerate(slots):
        arguments = names[k:] if slot.endswith("*") else names[k : k + 1]
        if arguments:
            filled.append({"parameter": slot.rstrip("*"), "arguments": arguments})
    return filled


def _norm_axis(view: NodeView) -> int | None:
    x = view.type(0)
    return None if x is None or len(view.node.outputs) > 1 else view.attribute("axis", -1) % len(x.shape)


def _cast(view: NodeView) -> FrameworkOp | None:
    x, to = view.type(0), dtype_name(view.attribute("to"))
    if x is None or to not in DTYPE_NUMBERS:
        return None
    return "cast", {"in_dtype": DTYPE_NUMBERS[x.dtype], "out_dtype": DTYPE_NUMBERS[to]}, [0]


_MATMUL = written(
    "matmul_v2",
    2,
    trans_x=lambda view: bool(view.attribute("trans_a", 0)),
    trans_y=lambda view: bool(view.attribute("trans_b", 0)),
)
_REDUCTION: dict[str, Any] = {
    "dim": NodeView.reduced_axes,
    "keep_dim": NodeView.keeps_dimensions,
    "reduce_all": NodeView.reduces_all,
}

OP_CONVERTERS: Mapping[str, OpConverter] = {
    "MatMul": _MATMUL,
    "remat::MatMul": _MATMUL,
    "Reshape": written("reshape2", shape=NodeView.static_shape),
    "Transpose": written("transpose2", axis=NodeView.permutation),
    "Softmax": written("softmax", axis=attribute("axis", -1)),
    "LogSoftmax": written("log_softmax", axis=attribute("axis", -1)),
    "Concat": written("concat", None, axis=attribute("axis")),
    "Split": written("split", axis=attribute("axis", 0), sections=NodeView.split_sizes, num=lambda view: 0),
    "ReduceSum": written("reduce_sum", **_REDUCTION),
    "ReduceMean": written("reduce_mean", **_REDUCTION),
    "ReduceMax": written("reduce_max", **_REDUCTION),
    "LayerNormalization": written(
        "layer_norm", 3, begin_norm_axis=_norm_axis, epsilon=lambda view: float(view.attribute("epsilon", 1e-5))
    ),
    "Cast": _cast,
    "Gelu": written("gelu", approximate=lambda view: view.attribute("approximate", "none") in ("tanh", b"tanh")),
    "Sum": same_inputs("sum"),
    **same_names("Add Sub Mul Div", lambda op: f"elementwise_{op.lower()}"),
    **same_names("Relu Tanh Sigmoid Exp Log Sqrt Abs Erf Where", str.lower),
    "Identity": same_inputs("assign"),
}
