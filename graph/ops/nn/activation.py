"""Elementwise activations and their gradients; one node each, so that no temporary is stored.

A gradient is written twice, on arrays and in standard ops; the contract test compares both.
"""

from __future__ import annotations

import math

import numpy as np

from graph.builder.emit import Emit
from graph.ir import Val
from graph.ops.numeric.elementwise_helpers import TRANSCENDENTAL, pointwise
from graph.ops.numeric.elementwise_helpers import pointwise_gradient as gradient_op
from graph.ops.numeric.special_functions import erf, sigmoid, softplus
from graph.ops.registry.registry import Call

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
SQRT_HALF, INVERSE_SQRT_PI = math.sqrt(0.5), 1 / math.sqrt(math.pi)
TANH_SCALE, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715  # Hendrycks, Gimpel, "Gaussian Error Linear Units", 2016


def _elu(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _celu(call: Call, x: np.ndarray) -> np.ndarray:
    alpha = call.attribute("alpha", 1.0)
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))


def _selu(call: Call, x: np.ndarray) -> np.ndarray:
    return np.asarray(call.attribute("gamma", SELU_GAMMA) * _elu(x, call.attribute("alpha", SELU_ALPHA)))


def _hard_sigmoid(call: Call, x: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(call.attribute("alpha", 0.2) * x + call.attribute("beta", 0.5), 0, 1))


def _gelu(call: Call, x: np.ndarray) -> np.ndarray:
    if call.attribute("approximate", "none") == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(TANH_SCALE * (x + TANH_CUBE * x * x * x))))
    return np.asarray(0.5 * x * (1 + erf(x * SQRT_HALF)))


def _shrink(call: Call, x: np.ndarray) -> np.ndarray:
    edge, bias = call.attribute("lambd", 0.5), call.attribute("bias", 0.0)
    return np.where(x < -edge, x + bias, np.where(x > edge, x - bias, 0))


pointwise("Relu", lambda c, x: np.maximum(x, 0), saves=("o0",))
pointwise("LeakyRelu", lambda c, x: np.where(x >= 0, x, c.attribute("alpha", 0.01) * x), saves=("i0",))
pointwise("ThresholdedRelu", lambda c, x: np.where(x > c.attribute("alpha", 1.0), x, 0), saves=("i0",))
pointwise("PRelu", lambda c, x, slope: np.where(x >= 0, x, slope * x), saves=("i0", "i1"))
pointwise("Elu", lambda c, x: _elu(x, c.attribute("alpha", 1.0)), flops=TRANSCENDENTAL, saves=("i0",))
pointwise("Selu", _selu, flops=TRANSCENDENTAL, saves=("i0",))
pointwise("Celu", _celu, flops=TRANSCENDENTAL, saves=("i0",))
pointwise("Sigmoid", lambda c, x: sigmoid(x), flops=TRANSCENDENTAL, saves=("o0",))
pointwise("Tanh", lambda c, x: np.tanh(x), flops=TRANSCENDENTAL, saves=("o0",))
pointwise("HardSigmoid", _hard_sigmoid, flops=3, saves=("i0",))
pointwise("HardSwish", lambda c, x: x * np.clip(x / 6 + 0.5, 0, 1), flops=4, saves=("i0",))
pointwise("Softplus", lambda c, x: softplus(x), flops=TRANSCENDENTAL, saves=("i0",))
pointwise("Softsign", lambda c, x: x / (1 + np.abs(x)), flops=3, saves=("i0",))
pointwise("Gelu", _gelu, flops=TRANSCENDENTAL, saves=("i0",))
pointwise("Mish", lambda c, x: x * np.tanh(softplus(x)), flops=2 * TRANSCENDENTAL, saves=("i0",))
pointwise("Swish", lambda c, x: x * sigmoid(c.attribute("alpha", 1.0) * x), flops=TRANSCENDENTAL, saves=("i0",))
pointwise("Shrink", _shrink, flops=3, saves=("i0",))


def _zeros_where_not(e: Emit, condition: Val, dy: Val) -> Val:
    return e.where(condition, dy, e.scalar_like(0, dy))


gradient_op(
    "Relu",
    lambda c, dy, y: np.where(y > 0, dy, 0),
    lambda e, c, dy, y: _zeros_where_not(e, e.op("Greater", y, e.scalar_like(0, y)), dy),
)
gradient_op(
    "LeakyRelu",
    lambda c, dy, x: np.where(x >= 0, dy, c.attribute("alpha", 0.01) * dy),
    lambda e, c, dy, x: e.where(
        e.op("GreaterOrEqual", x, e.scalar_like(0, x)), dy, e.mul(dy, e.scalar_like(c.attribute("alpha", 0.01), dy))
    ),
)
gradient_op(
    "ThresholdedRelu",
    lambda c, dy, x: np.where(x > c.attribute("alpha", 1.0), dy, 0),
    lambda e, c, dy, x: _zeros_where_not(e, e.op("Greater", x, e.scalar_like(c.attribute("alpha", 1.0), x)), dy),
)
gradient_op(
    "Sigmoid",
    lambda c, dy, y: dy * y * (1 - y),
    lambda e, c, dy, y: e.mul(e.mul(dy, y), e.sub(e.scalar_like(1, y), y)),
    flops=3,
)
gradient_op(
    "Tanh",
    lambda c, dy, y: dy * (1 - y * y),
    lambda e, c, dy, y: e.mul(dy, e.sub(e.scalar_like(1, y), e.mul(y, y))),
    flops=3,
)


def _elu_slope(e: Emit, x: Val, alpha: float, scale: float = 1.0, width: float = 1.0) -> Val:
    """scale where x > 0, else scale * alpha * exp(x / width)."""
    below = e.op("Exp", e.div(e.op("Min", x, e.scalar_like(0, x)), e.scalar_like(width, x)))
    positive = e.op("Greater", x, e.scalar_like(0, x))
    return e.where(positive, e.scalar_like(scale, x), e.mul(below, e.scalar_like(scale * alpha, x)))


def _elu_factor(x: np.ndarray, alpha: float, width: float = 1.0) -> np.ndarray:
    return np.where(x > 0, 1, alpha * np.exp(np.minimum(x, 0) / width))


gradient_op(
    "Elu",
    lambda c, dy, x: dy * _elu_factor(x, c.attribute("alpha", 1.0)),
    lambda e, c, dy, x: e.mul(dy, _elu_slope(e, x, c.attribute("alpha", 1.0))),
    flops=TRANSCENDENTAL,
)
gradient_op(
    "Selu",
    lambda c, dy, x: dy * (c.attribute("gamma", SELU_GAMMA) * _elu_factor(x, c.attribute("alpha", SELU_ALPHA))),
    lambda e, c, dy, x: e.mul(dy, _elu_slope(e, x, c.attribute("alpha", SELU_ALPHA), c.attribute("gamma", SELU_GAMMA))),
    flops=TRANSCENDENTAL,
)
gradient_op(
    "Celu",
    lambda c, dy, x: dy * _elu_factor(x, 1.0, c.attribute("alpha", 1.0)),
    lambda e, c, dy, x: e.mul(dy, _elu_slope(e, x, 1.0, 1.0, c.attribute("alpha", 1.0))),
    flops=TRANSCENDENTAL,
)


def _within(e: Emit, x: Val, low: Val | float, high: Val | float) -> Val:
    """low < x < high"""
    bounds = [e.scalar_like(b, x) if isinstance(b, float | int) else b for b in (low, high)]
    inside: Val = e.op("And", e.op("Greater", x, bounds[0]), e.op("Less", x, bounds[1]))
    return inside


def _hard_sigmoid_edges(call: Call) -> tuple[float, float, float]:
    """(slope, lower and upper end of the linear part); the part is empty for slope 0."""
    alpha, beta = call.attribute("alpha", 0.2), call.attribute("beta", 0.5)
    if alpha == 0:
        return 0.0, 0.0, 0.0
    low, high = sorted((-beta / alpha, (1 - beta) / alpha))
    return alpha, low, high


def _hard_sigmoid_gradient(call: Call, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    slope, low, high = _hard_sigmoid_edges(call)
    return np.where((x > low) & (x < high), slope * dy, 0)


def _hard_sigmoid_body(e: Emit, call: Call, dy: Val, x: Val) -> Val:
    slope, low, high = _hard_sigmoid_edges(call)
    return _zeros_where_not(e, _within(e, x, low, high), e.mul(dy, e.scalar_like(slope, dy)))


def _hard_swish_gradient(call: Call, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.asarray(dy * np.where(x <= -3, 0, np.where(x >= 3, 1, x / 3 + 0.5)))


def _hard_swish_body(e: Emit, call: Call, dy: Val, x: Val) -> Val:
    middle = e.add(e.div(x, e.scalar_like(3, x)), e.scalar_like(0.5, x))
    above = e.where(e.op("GreaterOrEqual", x, e.scalar_like(3, x)), e.scalar_like(1, x), middle)
    return e.mul(dy, e.where(e.op("LessOrEqual", x, e.scalar_like(-3, x)), e.scalar_like(0, x), above))


gradient_op("HardSigmoid", _hard_sigmoid_gradient, _hard_sigmoid_body)
gradient_op("HardSwish", _hard_swish_gradient, _hard_swish_body, flops=4)
gradient_op(
    "Softplus",
    lambda c, dy, x: dy * sigmoid(x),
    lambda e, c, dy, x: e.mul(dy, e.op("Sigmoid", x)),
    flops=TRANSCENDENTAL,
)
gradient_op(
    "Softsign",
    lambda c, dy, x: dy / np.square(1 + np.abs(x)),
    lambda e, c, dy, x: e.div(dy, _squared(e, e.add(e.op("Abs", x), e.scalar_like(1, x)))),
    flops=4,
)


def _squared(e: Emit, x: Val) -> Val:
    return e.mul(x, x)


def _gelu_gradient(call: Call, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dy · (Φ(x) + x φ(x)), or the derivative of the tanh form."""
    if call.attribute("approximate", "none") == "tanh":
        t = np.tanh(TANH_SCALE * (x + TANH_CUBE * x * x * x))
        inner = TANH_SCALE * (1 + 3 * TANH_CUBE * x * x)
        return np.asarray(dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner))
    density = np.exp(-0.5 * x * x) * (INVERSE_SQRT_PI * SQRT_HALF)
    return np.asarray(dy * (0.5 * (1 + erf(x * SQRT_HALF)) + x * density))


def _gelu_body(e: Emit, call: Call, dy: Val, x: Val) -> Val:
    def number(value: float) -> Val:
        return e.scalar_like(value, x)

    square, half, one = e.mul(x, x), number(0.5), number(1)
    if call.attribute("approximate", "none") == "tanh":
        inner = e.mul(x, e.add(number(TANH_SCALE), e.mul(square, number(TANH_SCALE * TANH_CUBE))))
        t = e.op("Tanh", inner)
        slope = e.add(number(TANH_SCALE), e.mul(square, number(3 * TANH_SCALE * TANH_CUBE)))
        curved = e.mul(e.mul(e.mul(half, x), e.sub(one, e.mul(t, t))), slope)
        return e.mul(dy, e.add(e.mul(half, e.add(one, t)), curved))
    density = e.mul(e.op("Exp", e.mul(square, number(-0.5))), number(INVERSE_SQRT_PI * SQRT_HALF))
    area = e.mul(half, e.add(one, e.op("Erf", e.mul(x, number(SQRT_HALF)))))
    return e.mul(dy, e.add(area, e.mul(x, density)))


def _mish_gradient(call: Call, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    t = np.tanh(softplus(x))
    return np.asarray(dy * (t + x * (1 - t * t) * sigmoid(x)))


def _mish_body(e: Emit, call: Call, dy: Val, x: Val) -> Val:
    t = e.op("Tanh", e.op("Softplus", x))
    rest = e.mul(e.mul(x, e.sub(e.scalar_like(1, x), e.mul(t, t))), e.op("Sigmoid", x))
    return e.mul(dy, e.add(t, rest))


def _swish_gradient(call: Call, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    z = call.attribute("alpha", 1.0) * x
    s = sigmoid(z)
    return np.asarray(dy * (s * (1 + z * (1 - s))))


def _swish_body(e: Emit, call: Call, dy: Val, x: Val) -> Val:
    one = e.scalar_like(1, x)
    z = e.mul(x, e.scalar_like(call.attribute("alpha", 1.0), x))
    s = e.op("Sigmoid", z)
    return e.mul(dy, e.mul(s, e.add(one, e.mul(z, e.sub(one, s)))))


def _shrink_body(e: Emit, call: Call, dy: Val, x: Val) -> Val:
    edge = call.attribute("lambd", 0.5)
    outside = e.op("Or", e.op("Less", x, e.scalar_like(-edge, x)), e.op("Greater", x, e.scalar_like(edge, x)))
    return _zeros_where_not(e, outside, dy)


def _shrink_gradient(call: Call, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    edge = call.attribute("lambd", 0.5)
    return np.where((x < -edge) | (x > edge), dy, 0)


gradient_op("Gelu", _gelu_gradient, _gelu_body, flops=2 * TRANSCENDENTAL)
gradient_op("Mish", _mish_gradient, _mish_body, flops=3 * TRANSCENDENTAL)
gradient_op("Swish", _swish_gradient, _swish_body, flops=TRANSCENDENTAL)
gradient_op("Shrink", _shrink_gradient, _shrink_body)
