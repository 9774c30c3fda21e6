"""Gradients of pooling, with decompositions into standard ops.

The maximum of a window is recomputed from x, and dy goes to its position. A mean distributes dy evenly over
its window, which a ConvTranspose with a kernel of ones adds up.
"""

from __future__ import annotations

import math

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.nn.pooling import (
    pool_windows,
    scatter_to_max,
    to_comparable,
    window_counts,
    window_max_indices,
    window_sums_adjoint,
)
from graph.ops.nn.windows import Windows
from graph.ops.numeric.precision import attribute_shape, downcast_like, require_input_type, upcast
from graph.ops.registry.registry import Call, Work, op


def _pool_grad_work(call: Call) -> Work:
    dy = call.inputs[0]
    return Work(0 if dy is None else 2 * dy.elements * math.prod(call.attribute("kernel_shape", (1,))))


def _max_body(emit: Emit, call: Call, dy: Val, x: Val) -> tuple[Val, ...]:
    attributes = {k: v for k, v in call.attributes.items() if k != "storage_order"}
    _, places = emit.op("MaxPool", x, outputs=2, **attributes)
    cells = math.prod(x.shape)
    zeros = emit.zeros(TensorType(dy.dtype, (cells,)))
    flat = emit.reshape(places, [math.prod(dy.shape)])
    total = emit.op("ScatterElements", zeros, flat, emit.reshape(dy, [math.prod(dy.shape)]), axis=0, reduction="add")
    return (emit.reshape(total, x.shape),)


def _spread_body(emit: Emit, dy: Val, view: Windows) -> Val:
    """`spread` as a ConvTranspose over single channels."""
    pads, extra = view.transpose_pads()
    rows = math.prod(dy.shape[:2])
    room = [max(s, d) - 1 for s, d in zip(view.stride, view.dilation, strict=True)]
    made = [min(a, b) for a, b in zip(extra, room, strict=True)]
    short = [a - b for a, b in zip(extra, made, strict=True)]
    ones = emit.ones(TensorType(dy.dtype, (1, 1, *view.kernel)))
    dx = emit.op(
        "ConvTranspose",
        emit.reshape(dy, [rows, 1, *view.output]),
        ones,
        strides=list(view.stride),
        dilations=list(view.dilation),
        pads=pads,
        output_padding=made,
    )
    if any(short):
        dx = emit.op("Pad", dx, emit.ints([0] * (view.rank + 4) + short))
    return emit.reshape(dx, [*dy.shape[:2], *view.input])


def _average_body(emit: Emit, call: Call, dy: Val) -> tuple[Val, ...]:
    shape = attribute_shape(call.attributes, "input_shape", call.op)
    view = pool_windows(call, shape[2:])
    share = emit.constant(window_counts(view, bool(call.attribute("count_include_pad", 0)), np.float64), dy.dtype)
    return (_spread_body(emit, emit.div(dy, share), view),)


def _lp_body(emit: Emit, call: Call, dy: Val, x: Val, y: Val) -> tuple[Val, ...]:
    power = call.attribute("p", 2)
    positive = emit.op("Greater", y, emit.scalar_like(0, y))
    steady = emit.where(positive, y, emit.scalar_like(1, y))
    share = emit.mul(dy, emit.op("Pow", steady, emit.scalar_like(1 - power, y)))
    share = emit.where(positive, share, emit.scalar_like(0, y))
    slope = emit.mul(emit.op("Sign", x), emit.op("Pow", emit.op("Abs", x), emit.scalar_like(power - 1, x)))
    return (emit.mul(slope, _spread_body(emit, share, pool_windows(call, x.shape[2:]))),)


def _check_incoming(call: Call, dy: TensorType, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless dy has the output shape of the pool over `shape`."""
    made = (*shape[:2], *pool_windows(call, shape[2:]).output)
    if dy.shape != made:
        raise ValueError(f"dy is {dy}, but the pool returns {list(made)} for {list(shape)}")


def _infer_from_x(call: Call) -> tuple[TensorType | None, ...]:
    dy, x = require_input_type(call.inputs[0], "dy"), require_input_type(call.inputs[1], "x")
    _check_incoming(call, dy, x.shape)
    return (TensorType(dy.dtype, x.shape),)


@op("remat::MaxPoolGrad", infer=_infer_from_x, work=_pool_grad_work, body=_max_body)
def max_pool_grad(call: Call, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dx: dy at the first maximum of each window, which is recomputed."""
    view = pool_windows(call, x.shape[2:])
    _, places = window_max_indices(to_comparable(x), view)
    return downcast_like(scatter_to_max(upcast(dy), places, view), dy)


def _infer_average_grad(call: Call) -> tuple[TensorType | None, ...]:
    dy, shape = require_input_type(call.inputs[0], "dy"), attribute_shape(call.attributes, "input_shape", call.op)
    _check_incoming(call, dy, shape)
    return (TensorType(dy.dtype, shape),)


@op("remat::AveragePoolGrad", infer=_infer_average_grad, work=_pool_grad_work, body=_average_body)
def average_pool_grad(call: Call, dy: np.ndarray) -> np.ndarray:
    shape = attribute_shape(call.attributes, "input_shape", call.op)
    view = pool_windows(call, shape[2:])
    shares = upcast(dy) / window_counts(view, bool(call.attribute("count_include_pad", 0)), upcast(dy).dtype)
    return downcast_like(window_sums_adjoint(shares, view), dy)


@op("remat::LpPoolGrad", infer=_infer_from_x, work=_pool_grad_work, body=_lp_body)
def lp_pool_grad(call: Call, dy: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """dx = sign(x) |x|^(p-1) · Σ over its windows of dy y^(1-p); zero where all of the window is 0."""
    power, view = call.attribute("p", 2), pool_windows(call, x.shape[2:])
    norm, cells = upcast(y), upcast(x)
    shares = upcast(dy) * np.where(norm > 0, norm, 1) ** (1 - power) * (norm > 0)
    return downcast_like(np.sign(cells) * np.abs(cells) ** (power - 1) * window_sums_adjoint(shares, view), dy)
