"""Converters of standard ops to Caffe2 operators, for the writer; `ops` holds the inverse translation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graph.formats.caffe2.compat.devices import COPY_BETWEEN, COPY_OPS, copy_op
from graph.formats.shared.op_writer import (
    FrameworkOp,
    NodeView,
    OpConverter,
    attribute,
    same_inputs,
    same_names,
    written,
)
from graph.transforms.device_placement import copy_route


def argument(name: str, value: Any) -> dict[str, Any]:
    """An Argument message as plain data: ints for a list, else i or f."""
    if isinstance(value, list):
        return {"name": name, "ints": [str(n) for n in value]}
    if isinstance(value, bool | int):
        return {"name": name, "i": str(int(value))}
    return {"name": name, "f": value}


def arguments(view: NodeView, converted: FrameworkOp) -> dict[str, Any]:
    """The attributes of a converted op as arguments of its OperatorDef."""
    return {"arg": [argument(k, v) for k, v in converted[1].items()]} if converted[1] else {}


def _gemm(view: NodeView) -> FrameworkOp | None:
    bias, w = view.type(2), view.type(1)
    if not view.is_unscaled_gemm() or bias is None or w is None:
        return None
    op, outputs = ("FC", w.shape[0]) if view.attribute("transB", 0) else ("FCTransposed", w.shape[1])
    return (op, {}, [0, 1, 2]) if bias.shape == (outputs,) else None


def _matmul(view: NodeView) -> FrameworkOp | None:
    x, y = view.type(0), view.type(1)
    if x is None or y is None or not len(x.shape) == len(y.shape) == 2:
        return None
    return "MatMul", {}, [0, 1]


def _window(view: NodeView) -> dict[str, Any] | None:
    x = view.type(0)
    if x is None or not view.pools_explicitly():
        return None
    rank = len(x.shape) - 2
    return {
        "strides": list(view.attribute("strides", [1] * rank)),
        "pads": list(view.attribute("pads", [0] * 2 * rank)),
        "dilations": list(view.attribute("dilations", [1] * rank)),
    }


def _conv(view: NodeView) -> FrameworkOp | None:
    window, w = _window(view), view.type(1)
    if window is None or w is None:
        return None
    return "Conv", {"kernels": list(w.shape[2:]), "group": view.attribute("group", 1), **window}, [0, 1, 2]


def _pool(op: str) -> OpConverter:
    def convert(view: NodeView) -> FrameworkOp | None:
        window = _window(view)
        if window is None or view.attribute("ceil_mode", 0) or len(view.node.outputs) > 1:
            return None
        counted = {} if op == "MaxPool" else {"count_include_pad": view.attribute("count_include_pad", 0)}
        return op, {"kernels": list(view.attribute("kernel_shape")), **window, **counted}, [0]

    return convert


def _last_axis(view: NodeView) -> int | None:
    """Axis of a softmax over the last dimension; None for another axis."""
    x, axis = view.type(0), view.attribute("axis", -1)
    return axis % len(x.shape) if x is not None and axis in (-1, len(x.shape) - 1) else None


def _copy(view: NodeView) -> FrameworkOp | None:
    route = copy_route(view.node)
    op = "Copy" if route is None else copy_op(str(route[0]), str(route[1])).removeprefix("caffe2::")
    return op, {}, [0]


_REDUCTION: dict[str, Any] = {"axes": NodeView.reduced_axes, "keepdims": attribute("keepdims", 1)}

OP_CONVERTERS: Mapping[str, OpConverter] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Conv": _conv,
    "MaxPool": _pool("MaxPool"),
    "AveragePool": _pool("AveragePool"),
    "Softmax": written("Softmax", axis=_last_axis),
    "LogSoftmax": written("LogSoftmax", axis=_last_axis),
    "Reshape": written("Reshape", shape=NodeView.static_shape),
    "Transpose": written("Transpose", axes=NodeView.permutation),
    "Concat": written("Concat", None, axis=attribute("axis")),
    "Split": written("Split", axis=attribute("axis", 0), split=NodeView.split_sizes),
    "ReduceSum": written("ReduceSum", **_REDUCTION),
    "ReduceMean": written("ReduceMean", **_REDUCTION),
    **same_names("Add Sub Mul Div Relu Tanh Sigmoid Exp Log Sqrt Abs Sum Max Min Softsign Softplus Where"),
    "Neg": same_inputs("Negative"),
    "remat::StopGradient": same_inputs("StopGradient"),
    "remat::Copy": _copy,
    **{f"caffe2::{op}": same_inputs(op) for op in (*COPY_OPS.values(), COPY_BETWEEN)},
    "Identity": same_inputs("Alias"),
}
