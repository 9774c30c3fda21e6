"""Elementwise ops of Caffe2."""

from __future__ import annotations

from functools import partial

from graph.builder.emit import Emit
from graph.formats.caffe2.ops.table import CAFFE2, dtype_of
from graph.formats.shared import elementwise
from graph.formats.shared.attributes import number
from graph.formats.shared.elementwise import squared, unary, variadic, with_attributes
from graph.formats.shared.op_helpers import scaled
from graph.formats.shared.op_table import OpUse
from graph.ir import Val

MAX_FLOAT = 3.4028234e38
_SAME_NAME = "Relu Tanh Sigmoid Exp Log Sqrt Abs Sign Softsign Softplus Sin Cos Floor Ceil Not Reciprocal Erf"


def _broadcast_axis(use: OpUse) -> int:
    """Ranks are aligned at the end, or with `broadcast` from `axis` on."""
    axis = use.integer("axis", default=-1)
    return axis if use.flag("broadcast") else -1


UNARY = {
    **{name: name for name in _SAME_NAME.split()},
    "Neg": "Negative",
    "Identity": "Alias EnsureCPUOutput EnsureDense",
    # Copies between devices are identities that write: a copy has bytes of its own.
    "remat::Copy": "Copy CopyGPUToCPU CopyCPUToGPU CopyGPUToGPU CopyToCPU CopyFromCPUInput",
}
BINARY = {
    **{name: name for name in ("Add", "Sub", "Mul", "Div", "And", "Or", "Xor")},
    "Equal": "EQ",
    "NotEqual": "NE",
    "Less": "LT",
    "LessOrEqual": "LE",
    "Greater": "GT",
    "GreaterOrEqual": "GE",
}
CAFFE2.rows(unary, UNARY)
CAFFE2.rows(partial(elementwise.binary, axis=_broadcast_axis), BINARY)
CAFFE2.rows(variadic, {name: name for name in ("Sum", "Max", "Min", "Mean")})
CAFFE2.rules_of(
    {
        **{name: unary(name) for name in ("Gelu", "Shape", "Size")},
        "StopGradient": unary("remat::StopGradient"),
        "Sqr": elementwise.square,
        "Rsqrt": elementwise.rsqrt,
        "Clip": elementwise.clip(number("min", default=-MAX_FLOAT), number("max", default=MAX_FLOAT)),
        "LeakyRelu": with_attributes("LeakyRelu", alpha=number("alpha", default=0.01)),
        "Elu": with_attributes("Elu", alpha=number("alpha", default=1.0)),
        "Selu": with_attributes(
            "Selu", alpha=number("alpha", default=1.6732632423543772), gamma=number("scale", default=1.0507009873554805)
        ),
        "PRelu": elementwise.prelu,
        "Swish": elementwise.swish,
        "Where": elementwise.where,
        "Cube": lambda e, use, x: e.mul(squared(e, x), x),
        "NegateGradient": lambda e, use, x: e.op("remat::GradientScale", x, scale=-1.0),
        "Cast": lambda e, use, x: e.cast(x, dtype_of(use.integer("to"))),
        "Scale": lambda e, use, x: scaled(e, x, use.number("scale", default=1.0)),
        "FloatToHalf HalfToFloat": lambda e, use, x: e.cast(x, "float16" if use.op == "FloatToHalf" else "float32"),
    }
)


@CAFFE2.op("WeightedSum")
def weighted_sum(e: Emit, use: OpUse, *pairs: Val) -> Val:
    return e.op("Sum", *(e.mul(x, w) for x, w in zip(pairs[::2], pairs[1::2], strict=True)))


@CAFFE2.op("Pow")
def power(e: Emit, use: OpUse, x: Val, exponent: Val | None = None) -> Val:
    axis = _broadcast_axis(use)
    if exponent is None:
        return e.op("Pow", x, e.scalar_like(use.number("exponent"), x))
    return e.op("Pow", x, elementwise.aligned(e, x, exponent, axis))
