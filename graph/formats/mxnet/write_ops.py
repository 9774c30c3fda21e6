"""Standard ops in MXNet's words; `ops.py` is the way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graph.formats.shared.op_writer import NodeView, OpConverter

MxnetOp = tuple[str, dict[str, Any], list[int]]


def _plain(op: str, **attributes: Any) -> OpConverter:
    def spelling(look: NodeView) -> MxnetOp | None:
        return (op, dict(attributes), list(range(len(look.node.inputs)))) if not look.node.attributes else None

    return spelling


def _activation(kind: str) -> OpConverter:
    return lambda look: ("Activation", {"act_type": kind}, [0])


def _scalar_or(op: str, scalar: str, reversed_scalar: str = "") -> OpConverter:
    """By a value, or by a number where one operand is a constant of one element."""

    def spelling(look: NodeView) -> MxnetOp | None:
        for position, word in ((1, scalar), (0, reversed_scalar)):
            number, other = look.content(position), look.type(1 - position)
            if number is not None and number.size == 1 and word and look.made == other:
                return word, {"scalar": repr(float(number.reshape(-1)[0]))}, [1 - position]
        return op, {}, [0, 1]

    return spelling


def _gemm(look: NodeView) -> MxnetOp | None:
    w, bias = look.type(1), look.type(2)
    plain = look.attribute("alpha", 1.0) == look.attribute("beta", 1.0) == 1.0 and not look.attribute("transA", 0)
    if not plain or not look.attribute("transB", 0) or w is None or (bias is not None and bias.shape != w.shape[:1]):
        return None
    attributes = {"num_hidden": w.shape[0], "no_bias": bias is None}
    return "FullyConnected", attributes, [0, 1] if bias is None else [0, 1, 2]


def _matmul(look: NodeView) -> MxnetOp | None:
    x, y = look.type(0), look.type(1)
    if x is None or y is None:
        return None
    if len(x.shape) == len(y.shape) == 2:
        return "dot", {}, [0, 1]
    return ("batch_dot", {}, [0, 1]) if x.shape[:-2] == y.shape[:-2] and len(x.shape) == 3 else None


def _window(look: NodeView) -> dict[str, Any] | None:
    """Kernel, stride and equal pads; None where the pads differ."""
    x = look.type(0)
    if x is None or look.attribute("auto_pad", "NOTSET") not in ("NOTSET", b"NOTSET"):
        return None
    rank = len(x.shape) - 2
    pads = list(look.attribute("pads", [0] * 2 * rank))
    if pads[:rank] != pads[rank:]:
        return None
    return {"stride": list(look.attribute("strides", [1] * rank)), "pad": pads[:rank]}


def _conv(look: NodeView) -> MxnetOp | None:
    window, w = _window(look), look.type(1)
    if window is None or w is None:
        return None
    attributes = {
        "kernel": list(w.shape[2:]),
        "num_filter": w.shape[0],
        "num_group": look.attribute("group", 1),
        "dilate": list(look.attribute("dilations", [1] * (len(w.shape) - 2))),
        "no_bias": len(look.node.inputs) < 3,
        **window,
    }
    return "Convolution", attributes, [0, 1, 2]


def _pool(kind: str) -> OpConverter:
    def spelling(look: NodeView) -> MxnetOp | None:
        window = _window(look)
        dilated = any(d != 1 for d in look.attribute("dilations", []))
        if window is None or dilated or len(look.node.outputs) > 1:
            return None
        attributes = {"kernel": list(look.attribute("kernel_shape")), "pool_type": kind, **window}
        if look.attribute("ceil_mode", 0):
            attributes["pooling_convention"] = "full"
        if kind == "avg":
            attributes["count_include_pad"] = bool(look.attribute("count_include_pad", 0))
        return "Pooling", attributes, [0]

    return spelling


def _global(kind: str) -> OpConverter:
    return lambda look: ("Pooling", {"kernel": [1], "global_pool": True, "pool_type": kind}, [0])


def _batch_norm(look: NodeView) -> MxnetOp | None:
    if len(look.node.outputs) > 1:
        return None
    momentum, eps = look.attribute("momentum", 0.9), look.attribute("epsilon", 1e-5)
    return "BatchNorm", {"eps": repr(eps), "momentum": repr(momentum), "fix_gamma": False}, [0, 1, 2, 3, 4]


def _layer_norm(look: NodeView) -> MxnetOp | None:
    x = look.type(0)
    if x is None or len(look.node.outputs) > 1 or look.attribute("axis", -1) not in (-1, len(x.shape) - 1):
        return None
    return "LayerNorm", {"axis": -1, "eps": repr(look.attribute("epsilon", 1e-5))}, [0, 1, 2]


def _reshape(look: NodeView) -> MxnetOp | None:
    made = look.made
    return None if made is None or 0 in made.shape else ("Reshape", {"shape": list(made.shape)}, [0])


def _transpose(look: NodeView) -> MxnetOp | None:
    x = look.type(0)
    return None if x is None else ("transpose", {"axes": list(look.attribute("perm", range(len(x.shape))[::-1]))}, [0])


def _flatten(look: NodeView) -> MxnetOp | None:
    return ("Flatten", {}, [0]) if look.attribute("axis", 1) == 1 else None


def _concat(look: NodeView) -> MxnetOp | None:
    return "Concat", {"dim": look.attribute("axis"), "num_args": len(look.node.inputs)}, [*range(len(look.node.inputs))]


def _split(look: NodeView) -> MxnetOp | None:
    sizes = look.content(1)
    if sizes is not None and len(set(sizes.tolist())) > 1:
        return None
    return "SliceChannel", {"axis": look.attribute("axis", 0), "num_outputs": len(look.node.outputs)}, [0]


def _softmax(op: str) -> OpConverter:
    return lambda look: (op, {"axis": look.attribute("axis", -1)}, [0])


def _reduction(op: str) -> OpConverter:
    def spelling(look: NodeView) -> MxnetOp | None:
        x, axes, keepdims = look.type(0), look.content(1), bool(look.attribute("keepdims", 1))
        if x is None or (axes is None and len(look.node.inputs) > 1):
            return None
        over = [int(a) for a in axes.reshape(-1)] if axes is not None else list(range(len(x.shape)))
        if len(over) == len(x.shape) and not keepdims:
            return None  # MXNet 1.x has no values without dimensions
        return op, {"axis": over, "keepdims": keepdims}, [0]

    return spelling


def _dropout(look: NodeView) -> MxnetOp | None:
    ratio = look.content(1)
    if len(look.node.inputs) > 2 and look.content(2) is None:
        return None
    return "Dropout", {"p": repr(0.5 if ratio is None else float(np.float32(ratio.reshape(-1)[0])))}, [0]


def _gather(look: NodeView) -> MxnetOp | None:
    return "take", {"axis": look.attribute("axis", 0)}, [0, 1]


OP_CONVERTERS: Mapping[str, OpConverter] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Conv": _conv,
    "MaxPool": _pool("max"),
    "AveragePool": _pool("avg"),
    "GlobalMaxPool": _global("max"),
    "GlobalAveragePool": _global("avg"),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "Relu": _activation("relu"),
    "Sigmoid": _activation("sigmoid"),
    "Tanh": _activation("tanh"),
    "Softplus": _activation("softrelu"),
    "Softsign": _activation("softsign"),
    "Add": _scalar_or("broadcast_add", "_plus_scalar", "_plus_scalar"),
    "Sub": _scalar_or("broadcast_sub", "_minus_scalar", "_rminus_scalar"),
    "Mul": _scalar_or("broadcast_mul", "_mul_scalar", "_mul_scalar"),
    "Div": _scalar_or("broadcast_div", "_div_scalar", "_rdiv_scalar"),
    "Pow": _scalar_or("broadcast_power", "_power_scalar", "_rpower_scalar"),
    "Max": _scalar_or("broadcast_maximum", "_maximum_scalar"),
    "Min": _scalar_or("broadcast_minimum", "_minimum_scalar"),
    "Sum": _plain("add_n"),
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Flatten": _flatten,
    "Concat": _concat,
    "Split": _split,
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "ReduceSum": _reduction("sum"),
    "ReduceMean": _reduction("mean"),
    "ReduceMax": _reduction("max"),
    "Dropout": _dropout,
    "Gather": _gather,
    **{
        op: _plain(word)
        for op, word in (
            ("Exp", "exp"),
            ("Log", "log"),
            ("Sqrt", "sqrt"),
            ("Abs", "abs"),
            ("Neg", "negative"),
            ("Sign", "sign"),
            ("Floor", "floor"),
            ("Ceil", "ceil"),
            ("Reciprocal", "reciprocal"),
            ("Sin", "sin"),
            ("Cos", "cos"),
            ("Erf", "erf"),
            ("Identity", "identity"),
            ("remat::StopGradient", "BlockGrad"),
        )
    },
}
