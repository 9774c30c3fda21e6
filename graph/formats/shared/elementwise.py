"""Rules of elementwise ops: ops with a standard counterpart, scalar operands, and short formulas."""

from __future__ import annotations

from collections.abc import Callable

from graph.builder.emit import Emit
from graph.formats.shared.attributes import AttributeReader
from graph.formats.shared.op_helpers import scaled
from graph.formats.shared.op_table import OpUse, TranslationRule
from graph.ir import FLOAT_DTYPES, Val


def capitalized(names: str) -> dict[str, str]:
    """Rows of ops that are called like the standard op, in lower case: {"Relu": "relu"}."""
    return {name.capitalize(): name for name in names.split()}


def unary(op: str) -> TranslationRule:
    """The standard op on one input, without attributes."""

    def unary_rule(e: Emit, use: OpUse, x: Val) -> Val:
        return e.op(op, x)

    return unary_rule


def variadic(op: str) -> TranslationRule:
    """The standard op on any number of inputs, without attributes."""

    def variadic_rule(e: Emit, use: OpUse, *terms: Val) -> Val:
        return e.op(op, *terms)

    return variadic_rule


def binary(op: str, axis: Callable[[OpUse], int] = lambda use: -1) -> TranslationRule:
    """The op of `combined` on two inputs; the second one broadcasts from `axis` on."""

    def binary_rule(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
        return combined(e, op, x, aligned(e, x, y, axis(use)))

    return binary_rule


def with_scalar(op: str, number: AttributeReader, reverse: bool = False) -> TranslationRule:
    """The op of `combined` on the input and the number in an attribute; the number comes first with `reverse`."""

    def scalar_rule(e: Emit, use: OpUse, x: Val) -> Val:
        scalar = e.scalar_like(number(use), x)
        return combined(e, op, scalar, x) if reverse else combined(e, op, x, scalar)

    return scalar_rule


def with_attributes(op: str, inputs: int = 1, **attributes: AttributeReader) -> TranslationRule:
    """The standard op on `inputs` inputs, with the attributes read from the framework's."""

    def attribute_rule(e: Emit, use: OpUse, *given: Val) -> Val:
        if len(given) != inputs:
            raise TypeError(f"{len(given)} inputs")
        return e.op(op, *given, **{name: read(use) for name, read in attributes.items()})

    attribute_rule.__name__ = op
    return attribute_rule


def combined(e: Emit, op: str, x: Val, y: Val) -> Val:
    """Op of two operands. NotEqual is a negated Equal; Mod takes the sign of the divisor."""
    if op == "NotEqual":
        return e.op("Not", e.op("Equal", x, y))
    return _floor_mod(e, x, y) if op == "Mod" else e.op(op, x, y)


def _floor_mod(e: Emit, x: Val, y: Val) -> Val:
    """x - y · floor(x / y), exactly: fmod(x, y), plus y where the signs differ."""
    if x.dtype not in FLOAT_DTYPES:
        return e.op("Mod", x, y)
    rest = e.op("Mod", x, y, fmod=1)
    signs = e.mul(e.op("Sign", rest), e.op("Sign", y))
    return e.where(e.op("Less", signs, e.scalar_like(0, x)), e.add(rest, y), rest)


def aligned(e: Emit, x: Val, y: Val, axis: int) -> Val:
    """`y` with trailing dimensions of length 1, to broadcast against `x` from `axis` on; -1 aligns at the end."""
    if axis == -1 or y.rank == 0 or axis + y.rank == x.rank:
        return y
    if axis < 0 or axis + y.rank > x.rank:
        raise ValueError(f"axis {axis}: {y.type} does not broadcast to {x.type} there")
    return e.reshape(y, (*y.shape, *[1] * (x.rank - axis - y.rank)))


def squared(e: Emit, x: Val) -> Val:
    return e.mul(x, x)


def square(e: Emit, use: OpUse, x: Val) -> Val:
    return squared(e, x)


def rsqrt(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("Reciprocal", e.op("Sqrt", x))


def swish(e: Emit, use: OpUse, x: Val) -> Val:
    """x · sigmoid(beta · x)."""
    return e.mul(x, e.op("Sigmoid", scaled(e, x, use.number("beta", default=1.0))))


def clip(low: AttributeReader, high: AttributeReader) -> TranslationRule:
    def clip_rule(e: Emit, use: OpUse, x: Val) -> Val:
        return e.op("Clip", x, e.scalar_like(low(use), x), e.scalar_like(high(use), x))

    return clip_rule


def prelu(e: Emit, use: OpUse, x: Val, slope: Val) -> Val:
    """PRelu with one slope per channel."""
    return e.op("PRelu", x, aligned(e, x, slope, 1))


def where(e: Emit, use: OpUse, condition: Val, x: Val, y: Val) -> Val:
    """Where; a condition of fewer dimensions broadcasts from the first dimension on."""
    return e.where(aligned(e, x, condition, 0) if condition.rank < x.rank else condition, x, y)
