"""Converters of standard ops to Caffe2 operators, for the writer; `ops.py` holds the inverse translation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graph.formats.shared.op_writer import FrameworkOp, NodeView, OpConverter, same_inputs


def argument(name: str, value: Any) -> dict[str, Any]:
    """An Argument message as plain data: ints for a list, else i or f."""
    if isinstance(value, list):
        return {"name": name, "ints": [str(n) for n in value]}
    if isinstance(value, bool | int):
        return {"name": name, "i": str(int(value))}
    return {"name": name, "f": value}


def _operator(op: str, inputs: list[int], **arguments: Any) -> FrameworkOp:
    return op, {"arg": [argument(k, v) for k, v in arguments.items()]} if arguments else {}, inputs


def _gemm(view: NodeView) -> FrameworkOp | None:
    bias, w = view.type(2), view.type(1)
    if not view.is_unscaled_gemm() or bias is None or w is None:
        return None
    op, outputs = ("FC", w.shape[0]) if view.attribute("transB", 0) else ("FCTransposed", w.shape[1])
    return _operator(op, [0, 1, 2]) if bias.shape == (outputs,) else None


def _matmul(view: NodeView) -> FrameworkOp | None:
    x, y = view.type(0), view.type(1)
    return (
        _operator("MatMul", [0, 1]) if x is not None and y is not None and len(x.shape) == len(y.shape) == 2 else None
    )


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
    return _operator("Conv", [0, 1, 2], kernels=list(w.shape[2:]), group=view.attribute("group", 1), **window)


def _pool(op: str) -> OpConverter:
    def convert(view: NodeView) -> FrameworkOp | None:
        window = _window(view)
        if window is None or view.attribute("ceil_mode", 0) or len(view.node.outputs) > 1:
            return None
        counted = {} if op == "MaxPool" else {"count_include_pad": view.attribute("count_include_pad", 0)}
        return _operator(op, [0], kernels=list(view.attribute("kernel_shape")), **window, **counted)

    return convert


def _softmax(op: str) -> OpConverter:
    def convert(view: NodeView) -> FrameworkOp | None:
        x = view.type(0)
        axis = view.attribute("axis", -1)
        return (
            _operator(op, [0], axis=axis % len(x.shape)) if x is not None and axis in (-1, len(x.shape) - 1) else None
        )

    return convert


def _reshape(view: NodeView) -> FrameworkOp | None:
    shape = view.static_shape()
    return None if shape is None else _operator("Reshape", [0], shape=shape)


def _transpose(view: NodeView) -> FrameworkOp | None:
    axes = view.permutation()
    return None if axes is None else _operator("Transpose", [0], axes=axes)


def _concat(view: NodeView) -> FrameworkOp | None:
    return _operator("Concat", view.all_inputs(), axis=view.attribute("axis"))


def _split(view: NodeView) -> FrameworkOp | None:
    sizes = view.split_sizes()
    return None if sizes is None else _operator("Split", [0], axis=view.attribute("axis", 0), split=sizes)


def _reduction(op: str) -> OpConverter:
    def convert(view: NodeView) -> FrameworkOp | None:
        axes = view.reduced_axes()
        return None if axes is None else _operator(op, [0], axes=axes, keepdims=view.attribute("keepdims", 1))

    return convert


OP_CONVERTERS: Mapping[str, OpConverter] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Conv": _conv,
    "MaxPool": _pool("MaxPool"),
    "AveragePool": _pool("AveragePool"),
    "Softmax": _softmax("Softmax"),
    "LogSoftmax": _softmax("LogSoftmax"),
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "ReduceSum": _reduction("ReduceSum"),
    "ReduceMean": _reduction("ReduceMean"),
    **{
        op: same_inputs(caffe2_op)
        for op, caffe2_op in (
            ("Add", "Add"),
            ("Sub", "Sub"),
            ("Mul", "Mul"),
            ("Div", "Div"),
            ("Relu", "Relu"),
            ("Tanh", "Tanh"),
            ("Sigmoid", "Sigmoid"),
            ("Exp", "Exp"),
            ("Log", "Log"),
            ("Sqrt", "Sqrt"),
            ("Abs", "Abs"),
            ("Neg", "Negative"),
            ("Sum", "Sum"),
            ("Max", "Max"),
            ("Min", "Min"),
            ("Softsign", "Softsign"),
            ("Softplus", "Softplus"),
            ("Where", "Where"),
            ("remat::StopGradient", "StopGradient"),
            ("remat::Copy", "Copy"),
            ("Identity", "Alias"),
        )
    },
}
