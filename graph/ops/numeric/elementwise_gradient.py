"""Gradients of elementwise functions, powers, and ops with bounds or slopes as inputs."""

from __future__ import annotations

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.numeric.elementwise_helpers import TRANSCENDENTAL, as_computable, as_new_array, broadcast
from graph.ops.numeric.elementwise_helpers import pointwise_gradient as gradient_op
from graph.ops.registry.registry import Call, Work, op


def _one(e: Emit, x: Val) -> Val:
    return e.scalar_like(1, x)


gradient_op("Sqrt", lambda c, dy, y: 0.5 * dy / y, lambda e, c, dy, y: e.div(e.mul(dy, e.scalar_like(0.5, dy)), y))
gradient_op("Reciprocal", lambda c, dy, y: -dy * y * y, lambda e, c, dy, y: e.neg(e.mul(e.mul(dy, y), y)), flops=3)
gradient_op("Abs", lambda c, dy, x: dy * np.sign(x), lambda e, c, dy, x: e.mul(dy, e.op("Sign", x)))
gradient_op(
    "Erf",
    lambda c, dy, x: dy * ((2 / np.sqrt(np.pi)).astype(x.dtype) * np.exp(-x * x)),
    lambda e, c, dy, x: e.mul(dy, e.mul(e.op("Exp", e.neg(e.mul(x, x))), e.scalar_like(2 / float(np.sqrt(np.pi)), x))),
    flops=TRANSCENDENTAL,
)
gradient_op("Sin", lambda c, dy, x: dy * np.cos(x), lambda e, c, dy, x: e.mul(dy, e.op("Cos", x)), flops=TRANSCENDENTAL)
gradient_op(
    "Cos", lambda c, dy, x: -dy * np.sin(x), lambda e, c, dy, x: e.mul(e.neg(dy), e.op("Sin", x)), flops=TRANSCENDENTAL
)
gradient_op("Tan", lambda c, dy, y: dy * (1 + y * y), lambda e, c, dy, y: e.mul(dy, e.add(_one(e, y), e.mul(y, y))))


def _over_root(e: Emit, dy: Val, square: Val) -> Val:
    return e.div(dy, e.op("Sqrt", square))


gradient_op(
    "Asin",
    lambda c, dy, x: dy / np.sqrt(1 - x * x),
    lambda e, c, dy, x: _over_root(e, dy, e.sub(_one(e, x), e.mul(x, x))),
    flops=4,
)
gradient_op(
    "Acos",
    lambda c, dy, x: -dy / np.sqrt(1 - x * x),
    lambda e, c, dy, x: _over_root(e, e.neg(dy), e.sub(_one(e, x), e.mul(x, x))),
    flops=4,
)
gradient_op(
    "Atan", lambda c, dy, x: dy / (1 + x * x), lambda e, c, dy, x: e.div(dy, e.add(_one(e, x), e.mul(x, x))), flops=3
)
gradient_op(
    "Asinh",
    lambda c, dy, x: dy / np.sqrt(x * x + 1),
    lambda e, c, dy, x: _over_root(e, dy, e.add(e.mul(x, x), _one(e, x))),
    flops=4,
)
gradient_op(
    "Acosh",
    lambda c, dy, x: dy / np.sqrt(x * x - 1),
    lambda e, c, dy, x: _over_root(e, dy, e.sub(e.mul(x, x), _one(e, x))),
    flops=4,
)
gradient_op(
    "Atanh", lambda c, dy, x: dy / (1 - x * x), lambda e, c, dy, x: e.div(dy, e.sub(_one(e, x), e.mul(x, x))), flops=3
)


def _clip(
    call: Call, dy: np.ndarray, x: np.ndarray, low: np.ndarray | None = None, high: np.ndarray | None = None
) -> np.ndarray:
    inside = np.ones(x.shape, bool)
    if low is not None:
        inside &= x >= low
    if high is not None:
        inside &= x <= high
    return np.where(inside, dy, 0)


def _clip_body(e: Emit, call: Call, dy: Val, x: Val, low: Val | None = None, high: Val | None = None) -> Val:
    zero, result = e.scalar_like(0, dy), dy
    if low is not None:
        result = e.where(e.op("GreaterOrEqual", x, low), result, zero)
    if high is not None:
        result = e.where(e.op("LessOrEqual", x, high), result, zero)
    return result if result is not dy else e.mul(dy, _one(e, dy))


gradient_op("Clip", _clip, _clip_body)


def _broadcast_first(call: Call) -> tuple[TensorType | None, ...]:
    """The broadcast shape of all inputs in the first one's dtype."""
    shape, first = broadcast(*call.inputs), call.inputs[0]
    if len(call.inputs) != 3:
        raise ValueError(f"{call.op} has {len(call.inputs)} inputs; it takes 3")
    return (None if shape is None or first is None else TensorType(first.dtype, shape),)


def _power(call: Call, dy: np.ndarray, x: np.ndarray, p: np.ndarray) -> np.ndarray:
    """dy · p · x^(p-1), with 0 · 0^-1 = 0."""
    p = p.astype(x.dtype)
    return np.asarray(dy * np.where(p == 0, 0, p * np.power(x, np.where(p == 0, 1, p - 1))))


def _power_body(e: Emit, call: Call, dy: Val, x: Val, p: Val) -> Val:
    p = e.cast(p, x.dtype)
    is_zero, zero, one = e.op("Equal", p, e.scalar_like(0, p)), e.scalar_like(0, x), _one(e, x)
    power = e.op("Pow", x, e.where(is_zero, one, e.sub(p, one)))
    return e.mul(dy, e.where(is_zero, zero, e.mul(p, power)))


def _exponent(call: Call, dy: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """dy · y · log(x), 0 where x is not positive."""
    return np.where(x > 0, dy * y * np.log(np.where(x > 0, x, 1)), 0)


def _exponent_body(e: Emit, call: Call, dy: Val, x: Val, y: Val) -> Val:
    positive = e.op("Greater", x, e.scalar_like(0, x))
    log = e.op("Log", e.where(positive, x, _one(e, x)))
    return e.where(positive, e.mul(e.mul(dy, y), log), e.scalar_like(0, dy))


gradient_op("Pow", _power, _power_body, flops=2 * TRANSCENDENTAL, infer=_broadcast_first)
gradient_op("PowExponent", _exponent, _exponent_body, flops=TRANSCENDENTAL, infer=_broadcast_first)


def _prelu_types(call: Call) -> tuple[TensorType | None, ...]:
    if len(call.inputs) != 3 or len(call.used) > 2:
        raise ValueError(f"{call.op} takes the incoming gradient, the input and the slope, and returns two gradients")
    dy, x, slope = call.inputs
    if dy is not None and x is not None and dy != x:
        raise ValueError(f"input 1 is {x} but input 0, whose gradient it belongs to, is {dy}")
    return tuple(t if is_used else None for t, is_used in zip((x, slope), call.used, strict=False))


def _prelu_body(e: Emit, call: Call, dy: Val, x: Val, slope: Val) -> tuple[Val | None, ...]:
    positive, zero = e.op("GreaterOrEqual", x, e.scalar_like(0, x)), e.scalar_like(0, x)
    dx = e.where(positive, dy, e.mul(dy, slope))
    dslope = e.sum_to(e.where(positive, zero, e.mul(dy, x)), slope)
    return tuple(g if is_used else None for g, is_used in zip((dx, dslope), call.used, strict=False))


def _prelu_work(call: Call) -> Work:
    elements = 0 if call.inputs[0] is None else call.inputs[0].elements
    return Work(2 * elements * sum(call.used))


@op("remat::PReluGrad", infer=_prelu_types, work=_prelu_work, takeover=((0, 0), (0, 1)), body=_prelu_body)
def prelu_grad(call: Call, dy: np.ndarray, x: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """Gradients of x and of the slope, the second summed to the slope's shape."""
    wide_dy, wide_x, wide_slope = (as_computable(a) for a in (dy, x, slope))
    gradients: list[np.ndarray | None] = []
    for position, is_used in enumerate(call.used):
        if not is_used:
            gradients.append(None)
        elif position == 0:
            gradients.append(as_new_array(np.where(wide_x >= 0, wide_dy, wide_slope * wide_dy), dy.dtype, dy))
        else:
            gradients.append(
                as_new_array(sum_to_shape(np.where(wide_x >= 0, 0, wide_x * wide_dy), slope.shape), slope.dtype)
            )
    return tuple(gradients)


def sum_to_shape(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`x` summed over the axes that were broadcast from `shape`."""
    lead = x.ndim - len(shape)
    axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 != x.shape[lead + i]))
    return np.asarray(x.sum(axis=axes).reshape(shape)) if axes else x
