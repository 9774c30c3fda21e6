"""Ops that update training state: running statistics, gradient sums, averaged and copied weights.

Each overwrites the state it reads (`in_place` on the node), so it runs once per training step.
"""

from __future__ import annotations

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.numeric.precision import downcast_like, require_input_type, upcast
from graph.ops.registry.onnx_fallback import onnx_dtype
from graph.ops.registry.registry import Call, Work, WorkRule, op


def _like_first(call: Call) -> tuple[TensorType | None, ...]:
    """The type of the state; all other inputs must have its shape."""
    first = require_input_type(call.inputs[0], "the state")
    for i, type in enumerate(call.inputs[1:], 1):
        if type is not None and type.shape != first.shape:
            raise ValueError(f"input {i} is {type}; the state has shape {list(first.shape)}")
    return (first,)


def _work(flops: int) -> WorkRule:
    def work(call: Call) -> Work:
        return Work(flops * sum(t.elements for t in call.outputs if t is not None))

    return work


def _infer_statistics(call: Call) -> tuple[TensorType | None, ...]:
    types = [
        require_input_type(t, name)
        for t, name in zip(call.inputs, ("mean", "variance", "batch mean", "inv_std"), strict=True)
    ]
    if len({t.shape for t in types}) != 1:
        raise ValueError(f"running and batch statistics must have one shape: {', '.join(map(str, types))}")
    return types[0], types[1]


def _statistics_body(e: Emit, call: Call, mean: Val, variance: Val, now: Val, inv_std: Val) -> tuple[Val | None, ...]:
    momentum, epsilon = float(call.attribute("momentum", 0.9)), float(call.attribute("epsilon", 1e-5))
    deviation = e.op("Reciprocal", inv_std)
    spread = e.sub(e.mul(deviation, deviation), e.scalar_like(epsilon, inv_std))

    def mixed(old: Val, new: Val) -> Val:
        kept = e.mul(e.cast(old, new.dtype), e.scalar_like(momentum, new))
        return e.cast(e.add(kept, e.mul(new, e.scalar_like(1 - momentum, new))), old.dtype)

    return mixed(mean, now), mixed(variance, spread)


@op("remat::RunningStatistics", infer=_infer_statistics, work=_work(8), body=_statistics_body)
def running_statistics(
    call: Call, mean: np.ndarray, variance: np.ndarray, now: np.ndarray, inv_std: np.ndarray
) -> tuple[np.ndarray, ...]:
    """(mean', variance') = momentum · old + (1 - momentum) · batch statistics, as in BatchNormalization."""
    batch, deviation = upcast(now), 1 / upcast(inv_std)
    kind = batch.dtype.type
    momentum, rest = kind(call.attribute("momentum", 0.9)), kind(1 - call.attribute("momentum", 0.9))
    spread = deviation * deviation - kind(call.attribute("epsilon", 1e-5))
    return (
        downcast_like(momentum * upcast(mean) + rest * batch, mean),
        downcast_like(momentum * upcast(variance) + rest * spread, variance),
    )


def _assign_body(e: Emit, call: Call, old: Val, new: Val) -> tuple[Val | None, ...]:
    return (e.op("Cast", new, to=_number_of(old)),)


def _number_of(x: Val) -> int:
    return onnx_dtype(x.dtype)


@op("remat::Assign", infer=_like_first, work=_work(0), body=_assign_body)
def assign(call: Call, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The new content in the old one's dtype."""
    return np.array(downcast_like(upcast(new), old))


@op("remat::Clear", infer=_like_first, work=_work(0), body=lambda e, call, x: (e.zeros(TensorType(x.dtype, x.shape)),))
def clear(call: Call, state: np.ndarray) -> np.ndarray:
    """Zeros."""
    return np.zeros_like(state)


def _average_body(e: Emit, call: Call, average: Val, now: Val) -> tuple[Val | None, ...]:
    decay = float(call.attribute("decay", 0.999))
    kept = e.mul(average, e.scalar_like(decay, average))
    return (e.add(kept, e.mul(e.cast(now, average.dtype), e.scalar_like(1 - decay, average))),)


@op("remat::MovingAverage", infer=_like_first, work=_work(3), body=_average_body)
def moving_average(call: Call, average: np.ndarray, now: np.ndarray) -> np.ndarray:
    """decay · average + (1 - decay) · now.

    Polyak, Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992, with exponential weights.
    """
    old = upcast(average)
    decay = old.dtype.type(call.attribute("decay", 0.999))
    return downcast_like(decay * old + (1 - decay) * upcast(now), average)


def _infer_norm(call: Call) -> tuple[TensorType | None, ...]:
    return (TensorType("float64" if require_input_type(call.inputs[0], "x").dtype == "float64" else "float32", ()),)


def _norm_work(call: Call) -> Work:
    return Work(2 * require_input_type(call.inputs[0], "x").elements)


def _norm_body(e: Emit, call: Call, x: Val) -> tuple[Val | None, ...]:
    cells = e.cast(x, "float64" if x.dtype == "float64" else "float32")
    return (e.op("ReduceSumSquare", cells, keepdims=0),)


@op("remat::SquaredNorm", infer=_infer_norm, work=_norm_work, body=_norm_body)
def squared_norm(call: Call, x: np.ndarray) -> np.ndarray:
    """The sum of squares in float32 at least, so that half precision does not overflow."""
    cells = upcast(x).reshape(-1)
    return np.asarray(np.dot(cells, cells), cells.dtype)
