"""Standard ops in Paddle's words; `ops.py` is the way back.

What is noted of an op is its message without its type: slots with their names, and attributes by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graph.formats.paddle.mesh_attributes import AUTO_PARALLEL_SUFFIX, MAPPING, MESH, MESH_SHAPE, flat_mesh
from graph.formats.paddle.ops import DTYPES, slots_of
from graph.formats.shared.op_writer import NodeView, OpConverter
from graph.ir import ABSENT, Phase
from graph.ops.registry.onnx_fallback import dtype_name

_ROLE = {Phase.FORWARD: 0, Phase.BACKWARD: 1, Phase.UPDATE: 2}
_NUMBERS = {name: number for number, name in DTYPES.items()}
AttributeDict = dict[str, Any]


def attribute(name: str, value: Any) -> dict[str, Any]:
    """An attribute as plain data of its message."""
    if isinstance(value, bool):
        return {"name": name, "type": 6, "b": value}
    if isinstance(value, int):
        return {"name": name, "type": 0, "i": value}
    if isinstance(value, float):
        return {"name": name, "type": 1, "f": value}
    if isinstance(value, str):
        return {"name": name, "type": 2, "s": value}
    return {"name": name, "type": 3, "ints": list(value)}


def paddle_op(look: NodeView, op: str, kept: list[int], **attributes: Any) -> tuple[str, dict[str, Any], list[int]]:
    """The op with its slots filled by the inputs kept and all outputs."""
    graph, node = look.graph, look.node
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
    found = []
    for k, slot in enumerate(slots):
        mine = names[k:] if slot.endswith("*") else names[k : k + 1]
        if mine:
            found.append({"parameter": slot.rstrip("*"), "arguments": mine})
    return found


def _plain(op: str) -> OpConverter:
    return lambda look: paddle_op(look, op, list(range(len(look.node.inputs)))) if not look.node.attributes else None


def _with(op: str, attributes: Callable[[NodeView], AttributeDict | None], kept: int = 1) -> OpConverter:
    def spelling(look: NodeView) -> tuple[str, dict[str, Any], list[int]] | None:
        found = attributes(look)
        return None if found is None else paddle_op(look, op, list(range(kept)), **found)

    return spelling


def _reshape(look: NodeView) -> AttributeDict | None:
    return None if look.made is None or 0 in look.made.shape else {"shape": list(look.made.shape)}


def _transpose(look: NodeView) -> AttributeDict | None:
    x = look.type(0)
    return None if x is None else {"axis": list(look.attribute("perm", range(len(x.shape))[::-1]))}


def _reduction(look: NodeView) -> AttributeDict | None:
    x, axes = look.type(0), look.content(1)
    if x is None or (axes is None and len(look.node.inputs) > 1):
        return None
    over = [int(a) for a in axes.reshape(-1)] if axes is not None else list(range(len(x.shape)))
    keeps = bool(look.attribute("keepdims", 1))
    return {"dim": over, "keep_dim": keeps, "reduce_all": len(over) == len(x.shape)}


def _layer_norm(look: NodeView) -> AttributeDict | None:
    x = look.type(0)
    if x is None or len(look.node.outputs) > 1:
        return None
    return {
        "begin_norm_axis": look.attribute("axis", -1) % len(x.shape),
        "epsilon": float(look.attribute("epsilon", 1e-5)),
    }


def _cast(look: NodeView) -> AttributeDict | None:
    x = look.type(0)
    to = dtype_name(look.attribute("to"))
    return {"in_dtype": _NUMBERS[x.dtype], "out_dtype": _NUMBERS[to]} if x is not None and to in _NUMBERS else None


def _gelu(look: NodeView) -> AttributeDict | None:
    return {"approximate": look.attribute("approximate", "none") in ("tanh", b"tanh")}


def _matmul(look: NodeView) -> AttributeDict | None:
    return {"trans_x": bool(look.attribute("trans_a", 0)), "trans_y": bool(look.attribute("trans_b", 0))}


def _split(look: NodeView) -> AttributeDict | None:
    sizes = look.content(1)
    if sizes is None:
        return None
    return {"axis": look.attribute("axis", 0), "sections": [int(n) for n in sizes.reshape(-1)], "num": 0}


OP_CONVERTERS: Mapping[str, OpConverter] = {
    "MatMul": _with("matmul_v2", _matmul, 2),
    "remat::MatMul": _with("matmul_v2", _matmul, 2),
    "Reshape": _with("reshape2", _reshape),
    "Transpose": _with("transpose2", _transpose),
    "Softmax": _with("softmax", lambda look: {"axis": look.attribute("axis", -1)}),
    "LogSoftmax": _with("log_softmax", lambda look: {"axis": look.attribute("axis", -1)}),
    "Concat": lambda look: paddle_op(look, "concat", list(range(len(look.node.inputs))), axis=look.attribute("axis")),
    "Split": _with("split", _split),
    "ReduceSum": _with("reduce_sum", _reduction),
    "ReduceMean": _with("reduce_mean", _reduction),
    "ReduceMax": _with("reduce_max", _reduction),
    "LayerNormalization": _with("layer_norm", _layer_norm, 3),
    "Cast": _with("cast", _cast),
    "Gelu": _with("gelu", _gelu),
    "Sum": lambda look: paddle_op(look, "sum", list(range(len(look.node.inputs)))),
    **{
        op: _plain(word)
        for op, word in (
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
