"""Standard ops in Caffe2's words; `ops.py` is the way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graph.formats.shared.op_writer import NodeView, OpConverter

Caffe2Op = tuple[str, dict[str, Any], list[int]]


def argument(name: str, value: Any) -> dict[str, Any]:
    """An argument as plain data of its message."""
    if isinstance(value, list):
        return {"name": name, "ints": [str(n) for n in value]}
    if isinstance(value, bool | int):
        return {"name": name, "i": str(int(value))}
    return {"name": name, "f": value}


def _said(op: str, inputs: list[int], **arguments: Any) -> Caffe2Op:
    return op, {"arg": [argument(k, v) for k, v in arguments.items()]} if arguments else {}, inputs


def _plain(op: str) -> OpConverter:
    def spelling(look: NodeView) -> Caffe2Op | None:
        return _said(op, list(range(len(look.node.inputs)))) if not look.node.attributes else None

    return spelling


def _gemm(look: NodeView) -> Caffe2Op | None:
    plain = look.attribute("alpha", 1.0) == look.attribute("beta", 1.0) == 1.0 and not look.attribute("transA", 0)
    bias, w = look.type(2), look.type(1)
    if not plain or bias is None or w is None:
        return None
    outputs = w.shape[0] if look.attribute("transB", 0) else w.shape[1]
    return (
        _said("FC" if look.attribute("transB", 0) else "FCTransposed", [0, 1, 2]) if bias.shape == (outputs,) else None
    )


def _matmul(look: NodeView) -> Caffe2Op | None:
    x, y = look.type(0), look.type(1)
    return _said("MatMul", [0, 1]) if x is not None and y is not None and len(x.shape) == len(y.shape) == 2 else None


def _window(look: NodeView) -> dict[str, Any] | None:
    x = look.type(0)
    if x is None or look.attribute("auto_pad", "NOTSET") not in ("NOTSET", b"NOTSET"):
        return None
    rank = len(x.shape) - 2
    return {
        "strides": list(look.attribute("strides", [1] * rank)),
        "pads": list(look.attribute("pads", [0] * 2 * rank)),
        "dilations": list(look.attribute("dilations", [1] * rank)),
    }


def _conv(look: NodeView) -> Caffe2Op | None:
    window, w = _window(look), look.type(1)
    if window is None or w is None:
        return None
    return _said("Conv", [0, 1, 2], kernels=list(w.shape[2:]), group=look.attribute("group", 1), **window)


def _pool(op: str) -> OpConverter:
    def spelling(look: NodeView) -> Caffe2Op | None:
        window = _window(look)
        if window is None or look.attribute("ceil_mode", 0) or len(look.node.outputs) > 1:
            return None
        counted = {} if op == "MaxPool" else {"count_include_pad": look.attribute("count_include_pad", 0)}
        return _said(op, [0], kernels=list(look.attribute("kernel_shape")), **window, **counted)

    return spelling


def _softmax(op: str) -> OpConverter:
    def spelling(look: NodeView) -> Caffe2Op | None:
        x = look.type(0)
        axis = look.attribute("axis", -1)
        return _said(op, [0], axis=axis % len(x.shape)) if x is not None and axis in (-1, len(x.shape) - 1) else None

    return spelling


def _reshape(look: NodeView) -> Caffe2Op | None:
    made = look.made
    return None if made is None or 0 in made.shape else _said("Reshape", [0], shape=list(made.shape))


def _transpose(look: NodeView) -> Caffe2Op | None:
    x = look.type(0)
    return None if x is None else _said("Transpose", [0], axes=list(look.attribute("perm", range(len(x.shape))[::-1])))


def _concat(look: NodeView) -> Caffe2Op | None:
    return _said("Concat", list(range(len(look.node.inputs))), axis=look.attribute("axis"))


def _split(look: NodeView) -> Caffe2Op | None:
    sizes = look.content(1)
    if sizes is None:
        return None
    return _said("Split", [0], axis=look.attribute("axis", 0), split=[int(n) for n in sizes.reshape(-1)])


def _reduction(op: str) -> OpConverter:
    def spelling(look: NodeView) -> Caffe2Op | None:
        x, axes = look.type(0), look.content(1)
        if x is None or (axes is None and len(look.node.inputs) > 1):
            return None
        over = [int(a) for a in axes.reshape(-1)] if axes is not None else list(range(len(x.shape)))
        return _said(op, [0], axes=over, keepdims=look.attribute("keepdims", 1))

    return spelling


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
        op: _plain(word)
        for op, word in (
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
