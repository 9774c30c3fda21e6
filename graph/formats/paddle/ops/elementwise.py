"""Elementwise ops of Paddle."""

from __future__ import annotations

from functools import partial

from graph.builder.emit import Emit
from graph.formats.paddle.ops.table import PADDLE, dtype_of
from graph.formats.shared import elementwise, reshaping
from graph.formats.shared.attributes import number
from graph.formats.shared.elementwise import aligned, unary, variadic, with_attributes, with_scalar
from graph.formats.shared.op_helpers import scaled, shifted
from graph.formats.shared.op_table import OpUse
from graph.ir import Val


def _axis(use: OpUse) -> int:
    return use.integer("axis", default=-1)


UNARY = {
    **elementwise.capitalized(
        "relu tanh sigmoid exp log sqrt abs sign floor ceil round softsign sin cos reciprocal erf mish"
    ),
    "Identity": "assign c_identity",
    "Not": "logical_not",
}
BINARY = {
    "Add": "elementwise_add Add",
    "Sub": "elementwise_sub minus Sub",
    "Mul": "elementwise_mul Mul",
    "Div": "elementwise_div Div",
    "Pow": "elementwise_pow Pow",
    "Max": "elementwise_max",
    "Min": "elementwise_min",
    "Equal": "equal",
    "NotEqual": "not_equal",
    "Less": "less_than",
    "LessOrEqual": "less_equal",
    "Greater": "greater_than",
    "GreaterOrEqual": "greater_equal",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
}
PADDLE.rows(unary, UNARY)
PADDLE.rows(partial(elementwise.binary, axis=_axis), BINARY)
PADDLE.rows(lambda op: with_scalar(op, number("scalar")), {op: f"{op}Scalar" for op in ("Add", "Sub", "Mul")})

PADDLE.rules_of(
    {
        "elementwise_mod": elementwise.binary("Mod", _axis),
        "increment": with_scalar("Add", number("step", "value", default=1.0)),
        "pow": with_scalar("Pow", number("factor", "y", default=1.0)),
        "RSubScalar": with_scalar("Sub", number("scalar"), reverse=True),
        "sum add_n": variadic("Sum"),
        "square": elementwise.square,
        "rsqrt": elementwise.rsqrt,
        "swish": elementwise.swish,
        "clip": elementwise.clip(number("min"), number("max")),
        "relu6": elementwise.clip(lambda use: 0, number("threshold", default=6.0)),
        "leaky_relu": with_attributes("LeakyRelu", alpha=number("alpha", "negative_slope", default=0.02)),
        "elu": with_attributes("Elu", alpha=number("alpha", default=1.0)),
        "hard_sigmoid": with_attributes(
            "HardSigmoid", alpha=number("slope", default=0.2), beta=number("offset", default=0.5)
        ),
        "gelu": lambda e, use, x: e.op("Gelu", x, approximate="tanh" if use.flag("approximate") else "none"),
        "silu": lambda e, use, x: e.mul(x, e.op("Sigmoid", x)),
        "where": lambda e, use, condition, x, y: e.where(condition, x, y),
    }
)


@PADDLE.op("softplus")
def softplus(e: Emit, use: OpUse, x: Val) -> Val:
    """log(1 + exp(beta · x)) / beta; x where beta · x is above the threshold."""
    beta, threshold = use.number("beta", default=1.0), use.number("threshold", default=20.0)
    inner = scaled(e, x, beta)
    smooth = scaled(e, e.op("Softplus", inner), 1 / beta)
    if threshold >= 20:  # the two agree to rounding
        return smooth
    return e.where(e.op("Greater", inner, e.scalar_like(threshold, x)), x, smooth)


@PADDLE.op("hard_swish")
def hard_swish(e: Emit, use: OpUse, x: Val) -> Val:
    """x · clip(x + offset, 0, threshold) / scale."""
    numbers = [use.number(name, default=default) for name, default in (("offset", 3), ("threshold", 6), ("scale", 6))]
    if numbers == [3, 6, 6]:
        return e.op("HardSwish", x)
    offset, threshold, divisor = numbers
    gate = e.op("Clip", shifted(e, x, offset), e.scalar_like(0, x), e.scalar_like(threshold, x))
    return scaled(e, e.mul(x, gate), 1 / divisor)


@PADDLE.op("scale")
def scale(e: Emit, use: OpUse, x: Val) -> Val:
    """scale · x + bias, or scale · (x + bias)."""
    factor, bias = use.number("scale", default=1.0), use.number("bias", default=0.0)
    if use.flag("bias_after_scale", default=True):
        return shifted(e, scaled(e, x, factor), bias)
    return scaled(e, shifted(e, x, bias), factor)


@PADDLE.op("swiglu")
def swiglu(e: Emit, use: OpUse, x: Val, y: Val | None = None) -> Val:
    if y is None:
        x, y = reshaping.split(e, x, 2, -1)
    return e.mul(e.mul(x, e.op("Sigmoid", x)), y)


@PADDLE.op("prelu")
def prelu(e: Emit, use: OpUse, x: Val, slope: Val | None = None) -> Val:
    return e.op("PRelu", x, aligned(e, x, slope, 1) if slope is not None and slope.rank == 1 else slope)


@PADDLE.op("cast")
def cast(e: Emit, use: OpUse, x: Val) -> Val:
    raw = use.raw(("out_dtype", "dtype"))
    if raw is None:
        raise ValueError("attribute out_dtype is missing")
    return e.cast(x, dtype_of(raw))
