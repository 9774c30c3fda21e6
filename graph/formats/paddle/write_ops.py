"""Converters of standard ops to Paddle operators, for the writer; `ops.py` holds the inverse translation.

The attributes of a converted op are the fields of its OpDesc without the type: slots with value names, and attributes
by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graph.formats.paddle.mesh_attributes import AUTO_PARALLEL_SUFFIX, MAPPING, MESH, MESH_SHAPE, flat_mesh
from graph.formats.paddle.ops import DTYPES, slots_of
from graph.formats.shared.op_writer import FrameworkOp, NodeView, OpConverter
from graph.ir import ABSENT, Phase
from graph.ops.registry.onnx_fallback import dtype_name

_ROLE = {Phase.FORWARD: 0, Phase.BACKWARD: 1, Phase.UPDATE: 2}
_NUMBERS = {name: number for number, name in DTYPES.items()}
AttributeDict = dict[str, Any]


def attribute(name: str, value: Any) -> dict[str, Any]:
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


def paddle_op(view: NodeView, op: str, kept: list[int], **attributes: Any) -> FrameworkOp:
    """The op with its slots filled by the inputs at the positions `kept` and all outputs."""
    graph, node = view.graph, view.node
    ins, outs = slots_of(op)
    names = [graph.values[node.inputs[i]].name for i in kept if i < len(node.inputs) and node.inputs[i] != ABSENT]
    results = [graph.values[v].name for v in node.outputs if v != ABSENT]
    notes = [attribute(k, v) for k, v in attributes.items()]
    notes.append(attribute("op_role", _ROLE[node.phase]))
    notes += _distribution(node.annotations)
    return op, {"inputs": _slots(ins, names), "outputs": _slots(outs, results), "attrs": notes}, kept


def _distribution(annotations: Mapping[str, Any]) -> list[dict[str, Any]]:
    if MESH not in annotations:
        return []
    ids, shape = flat_mesh(annotations[MESH])
    found = [attribute(MESH + AUTO_PARALLEL_SUFFIX, ids), attribute(MESH_SHAPE, shape)]
    mappings = annotations.get(MAPPING, {})
    return found + [attribute(f"{MAPPING}@{name}{AUTO_PARALLEL_SUFFIX}", mapping) for name, mapping in mappings.items()]


def _slots(slots: list[str], names: list[str]) -> list[dict[str, Any]]:
    filled = []
    for k, slot in enumerate(slots):
        arguments = names[k:] if slot.endswith("*") else names[k : k + 1]
        if arguments:
            filled.append({"parameter": slot.rstrip("*"), "arguments": arguments})
    return filled


def _plain(op: str) -> OpConverter:
    return lambda view: None if view.node.attributes else paddle_op(view, op, view.all_inputs())


def _with(op: str, attributes: Callable[[NodeView], AttributeDict | None], kept: int = 1) -> OpConverter:
    def convert(view: NodeView) -> FrameworkOp | None:
        found = attributes(view)
        return None if found is None else paddle_op(view, op, list(range(kept)), **found)

    return convert


def _reshape(view: NodeView) -> AttributeDict | None:
    shape = view.static_shape()
    return None if shape is None else {"shape": shape}


def _transpose(view: NodeView) -> AttributeDict | None:
    axes = view.permutation()
    return None if axes is None else {"axis": axes}


def _reduction(view: NodeView) -> AttributeDict | None:
    x, axes = view.type(0), view.reduced_axes()
    if x is None or axes is None:
        return None
    keeps = bool(view.attribute("keepdims", 1))
    return {"dim": axes, "keep_dim": keeps, "reduce_all": len(axes) == len(x.shape)}


def _layer_norm(view: NodeView) -> AttributeDict | None:
    x = view.type(0)
    if x is None or len(view.node.outputs) > 1:
        return None
    return {
        "begin_norm_axis": view.attribute("axis", -1) % len(x.shape),
        "epsilon": float(view.attribute("epsilon", 1e-5)),
    }


def _cast(view: NodeView) -> AttributeDict | None:
    x = view.type(0)
    to = dtype_name(view.attribute("to"))
    return {"in_dtype": _NUMBERS[x.dtype], "out_dtype": _NUMBERS[to]} if x is not None and to in _NUMBERS else None


def _gelu(view: NodeView) -> AttributeDict | None:
    return {"approximate": view.attribute("approximate", "none") in ("tanh", b"tanh")}


def _matmul(view: NodeView) -> AttributeDict | None:
    return {"trans_x": bool(view.attribute("trans_a", 0)), "trans_y": bool(view.attribute("trans_b", 0))}


def _split(view: NodeView) -> AttributeDict | None:
    sizes = view.split_sizes()
    return None if sizes is None else {"axis": view.attribute("axis", 0), "sections": sizes, "num": 0}


OP_CONVERTERS: Mapping[str, OpConverter] = {
    "MatMul": _with("matmul_v2", _matmul, 2),
    "remat::MatMul": _with("matmul_v2", _matmul, 2),
    "Reshape": _with("reshape2", _reshape),
    "Transpose": _with("transpose2", _transpose),
    "Softmax": _with("softmax", lambda view: {"axis": view.attribute("axis", -1)}),
    "LogSoftmax": _with("log_softmax", lambda view: {"axis": view.attribute("axis", -1)}),
    "Concat": lambda view: paddle_op(view, "concat", view.all_inputs(), axis=view.attribute("axis")),
    "Split": _with("split", _split),
    "ReduceSum": _with("reduce_sum", _reduction),
    "ReduceMean": _with("reduce_mean", _reduction),
    "ReduceMax": _with("reduce_max", _reduction),
    "LayerNormalization": _with("layer_norm", _layer_norm, 3),
    "Cast": _with("cast", _cast),
    "Gelu": _with("gelu", _gelu),
    "Sum": lambda view: paddle_op(view, "sum", view.all_inputs()),
    **{
        op: _plain(paddle_op_type)
        for op, paddle_op_type in (
            ("Add", "elementwise_add"),
            ("Sub", "elementwise_sub"),
            ("Mul", "elementwise_mul"),
            ("Div", "elementwise_div"),
            ("Relu", "relu"),
            ("Tanh", "tanh"),
            ("Sigmoid", "sigmoid"),
            ("Exp", "exp"),
            ("Log", "log"),
            ("Sqrt", "sqrt"),
            ("Abs", "abs"),
            ("Erf", "erf"),
            ("Identity", "assign"),
            ("Where", "where"),
        )
    },
}
