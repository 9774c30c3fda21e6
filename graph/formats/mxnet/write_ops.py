"""Converters of standard ops to MXNet ops, for the writer; `ops` holds the inverse translation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graph.formats.shared.op_writer import (
    FrameworkOp,
    NodeView,
    OpConverter,
    attribute,
    same_inputs,
    same_names,
    written,
)


def _scalar_or(op: str, scalar: str, reversed_scalar: str = "") -> OpConverter:
    """The broadcast op, or its scalar form when one operand is a constant with a single element."""

    def convert(view: NodeView) -> FrameworkOp | None:
        for position, scalar_op in ((1, scalar), (0, reversed_scalar)):
            number, other = view.content(position), view.type(1 - position)
            if number is not None and number.size == 1 and scalar_op and view.output_type == other:
                return scalar_op, {"scalar": repr(float(number.reshape(-1)[0]))}, [1 - position]
        return op, {}, [0, 1]

    return convert


def _gemm(view: NodeView) -> FrameworkOp | None:
    w, bias = view.type(1), view.type(2)
    if not view.is_unscaled_gemm() or not view.attribute("transB", 0) or w is None:
        return None
    if bias is not None and bias.shape != w.shape[:1]:
        return None
    attributes = {"num_hidden": w.shape[0], "no_bias": bias is None}
    return "FullyConnected", attributes, [0, 1] if bias is None else [0, 1, 2]


def _matmul(view: NodeView) -> FrameworkOp | None:
    x, y = view.type(0), view.type(1)
    if x is None or y is None:
        return None
    if len(x.shape) == len(y.shape) == 2:
        return "dot", {}, [0, 1]
    return ("batch_dot", {}, [0, 1]) if x.shape[:-2] == y.shape[:-2] and len(x.shape) == 3 else None


def _window(view: NodeView) -> dict[str, Any] | None:
    """Stride and symmetric pads; None where the pads are asymmetric or implicit."""
    x = view.type(0)
    if x is None or not view.pools_explicitly():
        return None
    rank = len(x.shape) - 2
    pads = list(view.attribute("pads", [0] * 2 * rank))
    if pads[:rank] != pads[rank:]:
        return None
    return {"stride": list(view.attribute("strides", [1] * rank)), "pad": pads[:rank]}


def _conv(view: NodeView) -> FrameworkOp | None:
    window, w = _window(view), view.type(1)
    if window is None or w is None:
        return None
    attributes = {
        "kernel": list(w.shape[2:]),
        "num_filter": w.shape[0],
        "num_group": view.attribute("group", 1),
        "dilate": list(view.attribute("dilations", [1] * (len(w.shape) - 2))),
        "no_bias": len(view.node.inputs) < 3,
        **window,
    }
    return "Convolution", attributes, [0, 1, 2]


def _pool(kind: str) -> OpConverter:
    def convert(view: NodeView) -> FrameworkOp | None:
        window = _window(view)
        dilated = any(d != 1 for d in view.attribute("dilations", []))
        if window is None or dilated or len(view.node.outputs) > 1:
            return None
        attributes = {"kernel": list(view.attribute("kernel_shape")), "pool_type": kind, **window}
        if view.attribute("ceil_mode", 0):
            attributes["pooling_convention"] = "full"
        if kind == "avg":
            attributes["count_include_pad"] = bool(view.attribute("count_include_pad", 0))
        return "Pooling", attributes, [0]

    return convert


def _batch_norm(view: NodeView) -> FrameworkOp | None:
    if len(view.node.outputs) > 1:
        return None
    momentum, eps = view.attribute("momentum", 0.9), view.attribute("epsilon", 1e-5)
    return "BatchNorm", {"eps": repr(eps), "momentum": repr(momentum), "fix_gamma": False}, [0, 1, 2, 3, 4]


def _layer_norm(view: NodeView) -> FrameworkOp | None:
    x = view.type(0)
    if x is None or len(view.node.outputs) > 1 or view.attribute("axis", -1) not in (-1, len(x.shape) - 1):
        return None
    return "LayerNorm", {"axis": -1, "eps": repr(view.attribute("epsilon", 1e-5))}, [0, 1, 2]


def _split(view: NodeView) -> FrameworkOp | None:
    sizes = view.content(1)
    if sizes is not None and len(set(sizes.tolist())) > 1:
        return None
    return "SliceChannel", {"axis": view.attribute("axis", 0), "num_outputs": len(view.node.outputs)}, [0]


def _reduction(op: str) -> OpConverter:
    def convert(view: NodeView) -> FrameworkOp | None:
        keepdims, reduces_all = view.keeps_dimensions(), view.reduces_all()
        if reduces_all is None or (reduces_all and not keepdims):
            return None  # MXNet 1.x has no values without dimensions
        return op, {"axis": view.reduced_axes(), "keepdims": keepdims}, [0]

    return convert


def _dropout(view: NodeView) -> FrameworkOp | None:
    ratio = view.content(1)
    if len(view.node.inputs) > 2 and view.content(2) is None:
        return None
    return "Dropout", {"p": repr(0.5 if ratio is None else float(np.float32(ratio.reshape(-1)[0])))}, [0]


def _activation(kind: str) -> OpConverter:
    return written("Activation", act_type=lambda view: kind)


def _global_pool(kind: str) -> OpConverter:
    return lambda view: ("Pooling", {"kernel": [1], "global_pool": True, "pool_type": kind}, [0])


OP_CONVERTERS: Mapping[str, OpConverter] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Conv": _conv,
    "MaxPool": _pool("max"),
    "AveragePool": _pool("avg"),
    "GlobalMaxPool": _global_pool("max"),
    "GlobalAveragePool": _global_pool("avg"),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    **{op: _activation(op.lower()) for op in ("Relu", "Sigmoid", "Tanh", "Softsign")},
    "Softplus": _activation("softrelu"),
    "Add": _scalar_or("broadcast_add", "_plus_scalar", "_plus_scalar"),
    "Sub": _scalar_or("broadcast_sub", "_minus_scalar", "_rminus_scalar"),
    "Mul": _scalar_or("broadcast_mul", "_mul_scalar", "_mul_scalar"),
    "Div": _scalar_or("broadcast_div", "_div_scalar", "_rdiv_scalar"),
    "Pow": _scalar_or("broadcast_power", "_power_scalar", "_rpower_scalar"),
    "Max": _scalar_or("broadcast_maximum", "_maximum_scalar"),
    "Min": _scalar_or("broadcast_minimum", "_minimum_scalar"),
    "Reshape": written("Reshape", shape=NodeView.static_shape),
    "Transpose": written("transpose", axes=NodeView.permutation),
    "Flatten": lambda view: ("Flatten", {}, [0]) if view.attribute("axis", 1) == 1 else None,
    "Concat": written("Concat", None, dim=attribute("axis"), num_args=lambda view: len(view.node.inputs)),
    "Split": _split,
    "Softmax": written("softmax", axis=attribute("axis", -1)),
    "LogSoftmax": written("log_softmax", axis=attribute("axis", -1)),
    "ReduceSum": _reduction("sum"),
    "ReduceMean": _reduction("mean"),
    "ReduceMax": _reduction("max"),
    "Dropout": _dropout,
    "Gather": written("take", 2, axis=attribute("axis", 0)),
    **same_names("Exp Log Sqrt Abs Sign Floor Ceil Reciprocal Sin Cos Erf Identity", str.lower),
    "Sum": same_inputs("add_n"),
    "Neg": same_inputs("negative"),
    "remat::StopGradient": same_inputs("BlockGrad"),
}
