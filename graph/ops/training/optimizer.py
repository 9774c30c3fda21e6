"""Optimizer steps: SGD with momentum, Adam, Adafactor. Outputs overwrite the weights and states.

Computed in float32 at least, so that weights may be narrower than their states.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.numeric.elementwise_helpers import as_computable, as_new_array, elementwise_work
from graph.ops.registry.registry import Call, op


def _state_types(*states: int) -> Any:
    """Type rule: outputs have the types of the weight and states at these inputs, all of one shape."""

    def infer(call: Call) -> tuple[TensorType | None, ...]:
        known = [(i, t) for i, t in enumerate(call.inputs) if t is not None and i in (0, 1, *states)]
        for i, type in known:
            if type.shape != known[0][1].shape:
                raise ValueError(f"input {i} is {type}, not of the shape of the weight {known[0][1]}")
        types = [call.inputs[i] if i < len(call.inputs) else None for i in (0, *states)]
        return tuple(t if is_used else None for t, is_used in zip(types, call.used, strict=False))

    return infer


def _numbers(call: Call, **defaults: float) -> list[float]:
    return [float(call.attribute(name, default)) for name, default in defaults.items()]


def sgd_body(e: Emit, call: Call, w: Val, g: Val, velocity: Val | None = None) -> tuple[Val | None, ...]:
    lr, momentum, dampening, decay = _numbers(call, lr=0.01, momentum=0, dampening=0, weight_decay=0)
    dtype = "float64" if w.dtype == "float64" else "float32"
    wide, step = e.cast(w, dtype), e.cast(g, dtype)

    def times(x: Val, number: float) -> Val:
        return e.mul(x, e.scalar_like(number, x))

    if decay:
        step = e.add(step, times(wide, decay))
    moved = None
    if velocity is not None:
        moved = e.add(times(e.cast(velocity, dtype), momentum), times(step, 1 - dampening))
        step = e.add(step, times(moved, momentum)) if call.attribute("nesterov", 0) else moved
    new = e.cast(e.sub(wide, times(step, lr)), w.dtype)
    return (new,) if velocity is None or moved is None else (new, e.cast(moved, velocity.dtype))[: len(call.used)]


@op("remat::SGD", infer=_state_types(2), work=elementwise_work(3), takeover=((0, 0), (1, 2)), body=sgd_body)
def sgd(call: Call, w: np.ndarray, g: np.ndarray, velocity: np.ndarray | None = None) -> tuple[np.ndarray | None, ...]:
    """(w', velocity'): v' = momentum·v + (1 - dampening)·g, w' = w - lr·v'; without velocity, no momentum.

    Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum", ICML 2013.
    """
    lr, momentum, dampening, decay = _numbers(call, lr=0.01, momentum=0, dampening=0, weight_decay=0)
    wide, step = as_computable(w), as_computable(g)
    kind = wide.dtype.type
    if decay:
        step = step + kind(decay) * wide
    moved = None
    if velocity is not None:
        moved = kind(momentum) * as_computable(velocity) + kind(1 - dampening) * step
        step = step + kind(momentum) * moved if call.attribute("nesterov", 0) else moved
    new = as_new_array(wide - kind(lr) * step, w.dtype, w)
    if velocity is None or moved is None:
        return (new,)
    return (new, as_new_array(moved, velocity.dtype))[: len(call.used)]


_ADAM = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0}


def adam_body(e: Emit, call: Call, w: Val, g: Val, m: Val, v: Val, step: Val) -> tuple[Val | None, ...]:
    lr, beta1, beta2, epsilon, decay = _numbers(call, **_ADAM)
    dtype = "float64" if w.dtype == "float64" else "float32"
    wide, slope, count = e.cast(w, dtype), e.cast(g, dtype), e.cast(step, dtype)

    def times(x: Val, number: float) -> Val:
        return e.mul(x, e.scalar_like(number, x))

    def unbiased(beta: float) -> Val:
        return e.sub(e.scalar_like(1, count), e.op("Pow", e.scalar_like(beta, count), count))

    mean = e.add(times(e.cast(m, dtype), beta1), times(slope, 1 - beta1))
    square = e.add(times(e.cast(v, dtype), beta2), times(e.mul(slope, slope), 1 - beta2))
    width = e.add(e.op("Sqrt", e.div(square, unbiased(beta2))), e.scalar_like(epsilon, square))
    kept = times(wide, 1 - lr * decay) if decay else wide
    new = e.sub(kept, times(e.div(e.div(mean, unbiased(beta1)), width), lr))
    return e.cast(new, w.dtype), e.cast(mean, m.dtype), e.cast(square, v.dtype)


@op(
    "remat::Adam", infer=_state_types(2, 3), work=elementwise_work(5), takeover=((0, 0), (1, 2), (2, 3)), body=adam_body
)
def adam(
    call: Call, w: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray | None, ...]:
    """(w', m', v') of step `step`, counted from 1, with decoupled weight decay.

    Kingma, Ba, "Adam", ICLR 2015, algorithm 1; Loshchilov, Hutter, "Decoupled Weight Decay", ICLR 2019.
    """
    lr, beta1, beta2, epsilon, decay = _numbers(call, **_ADAM)
    wide, slope = as_computable(w), as_computable(g)
    kind, count = wide.dtype.type, as_computable(step).astype(wide.dtype).reshape(())
    mean = kind(beta1) * as_computable(m) + kind(1 - beta1) * slope
    square = kind(beta2) * as_computable(v) + kind(1 - beta2) * (slope * slope)
    width = np.sqrt(square / (1 - kind(beta2) ** count)) + kind(epsilon)
    decayed = kind(1 - lr * decay) * wide if decay else wide
    new = decayed - kind(lr) * (mean / (1 - kind(beta1) ** count) / width)
    outputs = (as_new_array(new, w.dtype, w), as_new_array(mean, m.dtype), as_new_array(square, v.dtype))
    return tuple(array if is_used else None for array, is_used in zip(outputs, call.used, strict=False))


_ADAFACTOR = {"lr": 0.01, "beta2_decay": -0.8, "epsilon1": 0.0, "epsilon2": 1e-3, "threshold": 1.0, "weight_decay": 0.0}


def _adafactor_type(call: Call) -> tuple[TensorType | None, ...]:
    """Types of the weight and of its states: one of its shape, or for rank 2 and more means over the last two axes."""
    weight, gradient, _, *states = call.inputs
    if weight is None or gradient is None or None in states:
        raise ValueError("remat::Adafactor takes a weight, a gradient, a step and one or two states, all with types")
    if gradient.shape != weight.shape:
        raise ValueError(f"the gradient is {gradient}, not of the shape of the weight {weight}")
    shape = weight.shape
    expected = [shape] if len(shape) < 2 else [(*shape[:-1], 1), (*shape[:-2], 1, shape[-1])]
    if [type.shape for type in states if type] != expected:
        raise ValueError(f"the states of a weight of shape {list(shape)} have the shapes {[list(s) for s in expected]}")
    return tuple(t if is_used else None for t, is_used in zip((weight, *states), call.used, strict=False))


def _adafactor_body(e: Emit, call: Call, w: Val, g: Val, step: Val, *states: Val) -> tuple[Val | None, ...]:
    lr, beta2_decay, epsilon1, epsilon2, threshold, decay = _numbers(call, **_ADAFACTOR)
    dtype = "float64" if w.dtype == "float64" else "float32"
    wide, slope, count = e.cast(w, dtype), e.cast(g, dtype), e.cast(step, dtype)
    tiny = e.scalar_like(epsilon1 or float(np.finfo(dtype).eps), wide)
    every = list(range(w.rank))

    def rms(x: Val) -> Val:
        return e.op("Sqrt", e.reduce_mean(e.mul(x, x), every, keepdims=False))  # type: ignore[no-any-return]

    def moved(state: Val, mean: Val) -> Val:
        return e.add(state, e.mul(e.sub(mean, state), share))

    share = e.op("Pow", count, e.scalar_like(beta2_decay, count))
    rate = e.op("Min", e.scalar_like(lr, wide), e.div(e.scalar_like(1, wide), e.op("Sqrt", count)))
    rate = e.mul(e.op("Max", e.scalar_like(epsilon2, wide), rms(wide)), rate)
    square = e.mul(slope, slope)
    means = [square] if w.rank < 2 else [e.reduce_mean(square, [axis]) for axis in (-1, -2)]
    new = [moved(state, mean) for state, mean in zip(states, means, strict=True)]
    variance = new[0]
    if w.rank >= 2:
        variance = e.div(e.mul(new[0], new[1]), e.op("Max", e.reduce_mean(new[0], [-2]), tiny))
    update = e.div(slope, e.op("Sqrt", e.op("Max", variance, e.mul(tiny, tiny))))
    bound = e.op("Max", e.scalar_like(1, wide), e.div(rms(update), e.scalar_like(threshold, wide)))
    kept = e.mul(wide, e.scalar_like(1 - lr * decay, wide)) if decay else wide
    return e.cast(e.sub(kept, e.mul(update, e.div(rate, bound))), w.dtype), *new


@op(
    "remat::Adafactor",
    infer=_adafactor_type,
    work=elementwise_work(6),
    takeover=((0, 0), (1, 3), (2, 4)),
    body=_adafactor_body,
)
def adafactor(
    call: Call, w: np.ndarray, g: np.ndarray, step: np.ndarray, *states: np.ndarray
) -> tuple[np.ndarray | None, ...]:
    """(w', states') of step `step`, counted from 1; the second moment of a matrix is the product of two vectors.

    Shazeer, Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", ICML 2018, algorithm 4, with the
    relative step size and the defaults of `torch.optim.Adafactor`.
    """
    lr, beta2_decay, epsilon1, epsilon2, threshold, decay = _numbers(call, **_ADAFACTOR)
    wide, slope = as_computable(w), as_computable(g)
    kind, count = wide.dtype.type, as_computable(step).astype(wide.dtype).reshape(())
    tiny = kind(epsilon1 or np.finfo(wide.dtype).eps)

    def rms(x: np.ndarray) -> Any:
        return np.sqrt(np.mean(x * x)) if x.size else kind(0)

    share = count ** kind(beta2_decay)
    rate = max(kind(epsilon2), rms(wide)) * min(kind(lr), 1 / np.sqrt(count))
    square = slope * slope
    if w.ndim < 2:
        new = [as_computable(states[0]) + (square - states[0]) * share]
        variance = new[0]
    else:
        means = [square.mean(axis, keepdims=True) if square.size else states[i] for i, axis in enumerate((-1, -2))]
        new = [as_computable(state) + (mean - state) * share for state, mean in zip(states, means, strict=True)]
        variance = new[0] * new[1] / np.maximum(new[0].mean(-2, keepdims=True) if square.size else tiny, tiny)
    update = slope / np.sqrt(np.maximum(variance, tiny * tiny))
    kept = kind(1 - lr * decay) * wide if decay else wide
    weight = as_new_array(kept - rate / max(kind(1), rms(update) / kind(threshold)) * update, w.dtype, w)
    outputs = (weight, *(as_new_array(state, old.dtype) for state, old in zip(new, states, strict=True)))
    return tuple(array if is_used else None for array, is_used in zip(outputs, call.used, strict=False))
