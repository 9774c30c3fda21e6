"""Gradients of normalizations. With g = dy · scale and means over the normalized elements:

    dx = (g - mean(g) - xhat · mean(g · xhat)) · inv_std         dscale = Σ dy · xhat       dbias = Σ dy

RMS normalization subtracts no mean, so mean(g) drops out. Each body is the decomposition into
standard ops, in float32 at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.nn.normalization import (
    Axes,
    batch_axes,
    channel_scale,
    grouped,
    inverse_deviation,
    lrn_base,
    lrn_windows,
    moments,
    norm_work,
    normalised,
    per_channel,
    root_mean_square,
    trailing_axes,
)
from graph.ops.nn.pooling import window_sums_adjoint
from graph.ops.numeric.precision import downcast_like, require_input_type, statistics_dtype, upcast
from graph.ops.registry.registry import OPS, Call, OutputInputPairs, body, op

Arrays = tuple[np.ndarray | None, ...]
Vals = tuple[Val | None, ...]
OVER_DY_OR_X: OutputInputPairs = ((0, 0), (0, 1))


def _input_gradient(
    g: np.ndarray, xhat: np.ndarray, inv_std: np.ndarray, axes: Axes, centred: bool = True
) -> np.ndarray:
    """dx from g = dy · scale; overwrites g."""
    count = g.dtype.type(max(1, math.prod(g.shape[a] for a in axes)))
    slope = (g * xhat).sum(axis=axes, keepdims=True) / count
    if centred:
        g -= g.sum(axis=axes, keepdims=True) / count
    g -= xhat * slope
    g *= inv_std
    return g


def _sum_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`array` summed down to the shape it was broadcast from."""
    lead = array.ndim - len(shape)
    axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 != array.shape[lead + i]))
    return np.asarray(array.sum(axis=axes).reshape(shape))


def _infer(call: Call) -> tuple[TensorType | None, ...]:
    """dx like x, dscale and dbias like scale."""
    dy, x, scale = (require_input_type(t, name) for t, name in zip(call.inputs[:3], ("dy", "x", "scale"), strict=True))
    if dy.shape != x.shape:
        raise ValueError(f"dy {dy} and x {x} must have one shape")
    return x, scale, scale


@op("remat::BatchNormGrad", infer=_infer, work=norm_work(10), takeover=OVER_DY_OR_X)
def batch_norm_grad(
    call: Call, dy: np.ndarray, x: np.ndarray, scale: np.ndarray, mean: np.ndarray, inv_std: np.ndarray
) -> Arrays:
    cells, incoming, axes = upcast(x), upcast(dy), batch_axes(x.ndim)
    inverse = per_channel(inv_std, x.ndim)
    xhat = normalised(cells, per_channel(mean, x.ndim), inverse)
    count = cells.dtype.type(max(1, math.prod(x.shape[a] for a in axes)))
    dbias = incoming.sum(axis=axes, keepdims=True)
    dscale = (incoming * xhat).sum(axis=axes, keepdims=True)
    dx = None
    if call.used[0]:
        xhat *= dscale / -count
        xhat += incoming
        xhat -= dbias / count
        xhat *= per_channel(scale, x.ndim) * inverse
        dx = downcast_like(xhat, x)
    return dx, downcast_like(dscale.reshape(-1), scale), downcast_like(dbias.reshape(-1), scale)


@op("remat::LayerNormGrad", infer=_infer, work=norm_work(11), takeover=OVER_DY_OR_X)
def layer_norm_grad(
    call: Call, dy: np.ndarray, x: np.ndarray, scale: np.ndarray, mean: np.ndarray, inv_std: np.ndarray
) -> Arrays:
    cells, incoming = upcast(x), upcast(dy)
    inverse = upcast(inv_std).astype(cells.dtype)
    xhat = normalised(cells, upcast(mean).astype(cells.dtype), inverse)
    dscale = downcast_like(_sum_to(incoming * xhat, scale.shape), scale)
    dbias = downcast_like(_sum_to(incoming, scale.shape), scale)
    dx = None
    if call.used[0]:
        dx = downcast_like(_input_gradient(incoming * upcast(scale), xhat, inverse, trailing_axes(call, x.ndim)), x)
    return dx, dscale, dbias


@op("remat::RMSNormGrad", infer=_infer, work=norm_work(10), takeover=OVER_DY_OR_X)
def rms_norm_grad(call: Call, dy: np.ndarray, x: np.ndarray, scale: np.ndarray) -> Arrays:
    """dx, dscale; a third output is the gradient of a bias added after it."""
    cells, incoming, axes = upcast(x), upcast(dy), trailing_axes(call, x.ndim)
    inverse = root_mean_square(cells, axes, call.attribute("epsilon", 1e-5))
    xhat = cells * inverse
    dscale = downcast_like(_sum_to(incoming * xhat, scale.shape), scale)
    dbias = downcast_like(_sum_to(incoming, scale.shape), scale)
    dx = downcast_like(_input_gradient(incoming * upcast(scale), xhat, inverse, axes, centred=False), x)
    return dx, dscale, dbias


def _by_group(call: Call, dy: np.ndarray, x: np.ndarray, scale: np.ndarray, groups: int) -> Arrays:
    cells, incoming, channels = grouped(upcast(x), groups), upcast(dy), x.shape[1]
    mean, variance = moments(cells, (2,))
    inverse = inverse_deviation(variance, call.attribute("epsilon", 1e-5))
    xhat = normalised(cells, mean, inverse)
    g = incoming * per_channel(channel_scale(scale, channels), x.ndim)
    dx = _input_gradient(grouped(g, groups), xhat, inverse, (2,)).reshape(x.shape)
    axes = batch_axes(x.ndim)
    dscale, dbias = (incoming * xhat.reshape(x.shape)).sum(axis=axes), incoming.sum(axis=axes)
    if len(scale) != channels:
        dscale, dbias = (v.reshape(len(scale), channels // len(scale)).sum(axis=1) for v in (dscale, dbias))
    return downcast_like(dx, x), downcast_like(dscale, scale), downcast_like(dbias, scale)


@op("remat::GroupNormGrad", infer=_infer, work=norm_work(14), takeover=OVER_DY_OR_X)
def group_norm_grad(call: Call, dy: np.ndarray, x: np.ndarray, scale: np.ndarray) -> Arrays:
    return _by_group(call, dy, x, scale, int(call.attribute("num_groups", 0)))


@op("remat::InstanceNormGrad", infer=_infer, work=norm_work(14), takeover=OVER_DY_OR_X)
def instance_norm_grad(call: Call, dy: np.ndarray, x: np.ndarray, scale: np.ndarray) -> Arrays:
    return _by_group(call, dy, x, scale, x.shape[1])


def _infer_lrn_grad(call: Call) -> tuple[TensorType | None, ...]:
    dy, x = require_input_type(call.inputs[0], "dy"), require_input_type(call.inputs[1], "x")
    if dy != x:
        raise ValueError(f"dy {dy} and x {x} must have one type")
    return (x,)


@op("remat::LRNGrad", infer=_infer_lrn_grad, work=OPS["LRN"].work)
def lrn_grad(call: Call, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dx = dy s^-beta - 2 alpha beta / size · x · Σ dy x s^(-beta-1) over the windows a channel lies in."""
    cells, view = upcast(x), lrn_windows(call, x.shape)
    flat, incoming = cells.reshape(x.shape[0], *view.input), upcast(dy).reshape(x.shape[0], *view.input)
    base, beta = lrn_base(call, cells), call.attribute("beta", 0.75)
    real = base.dtype.type
    power = base ** real(-beta)
    shares = window_sums_adjoint(incoming * flat * power / base, view)
    shares *= flat
    shares *= real(-2 * call.attribute("alpha", 1e-4) * beta / call.attribute("size", 1))
    shares += incoming * power
    return downcast_like(shares.reshape(x.shape), x)


class _Wide:
    """Casts of an emitter's inputs to computing precision, and of results back."""

    def __init__(self, emit: Emit, like: Val):
        self.emit, self.dtype, self.narrow = emit, statistics_dtype(like.dtype), like.dtype

    def __call__(self, x: Val) -> Val:
        return self.emit.cast(x, self.dtype)

    def channel(self, v: Val, rank: int) -> Val:
        return self(self.emit.reshape(v, [v.shape[0], *[1] * (rank - 2)]))


def _mean(emit: Emit, x: Val, axes: Sequence[int]) -> Val:
    return emit.reduce_mean(x, axes)


def _deviation(emit: Emit, x: Val, axes: Sequence[int], epsilon: float) -> Val:
    """1 / √(mean x² + epsilon)."""
    return emit.op(  # type: ignore[no-any-return]
        "Reciprocal", emit.op("Sqrt", emit.add(_mean(emit, emit.mul(x, x), axes), emit.scalar_like(epsilon, x)))
    )


def _input_gradient_body(emit: Emit, g: Val, xhat: Val, inverse: Val, axes: Sequence[int], centred: bool = True) -> Val:
    slope = emit.mul(xhat, _mean(emit, emit.mul(g, xhat), axes))
    if centred:
        g = emit.sub(g, _mean(emit, g, axes))
    return emit.mul(emit.sub(g, slope), inverse)


@body("remat::BatchNorm")
def _batch_norm_body(emit: Emit, call: Call, x: Val, scale: Val, bias: Val) -> Vals:
    to, axes = _Wide(emit, x), batch_axes(x.rank)
    cells = to(x)
    mean = _mean(emit, cells, axes)
    centred = emit.sub(cells, mean)
    inverse = _deviation(emit, centred, axes, call.attribute("epsilon", 1e-5))
    y = emit.mul(emit.mul(centred, inverse), to.channel(scale, x.rank))
    y = emit.cast(emit.add(y, to.channel(bias, x.rank)), x.dtype)
    return y, emit.reshape(mean, scale.shape), emit.reshape(inverse, scale.shape)


@body("remat::BatchNormGrad")
def _batch_norm_grad_body(emit: Emit, call: Call, dy: Val, x: Val, scale: Val, mean: Val, inv_std: Val) -> Vals:
    to, axes = _Wide(emit, x), batch_axes(x.rank)
    incoming, inverse = to(dy), to.channel(inv_std, x.rank)
    xhat = emit.mul(emit.sub(to(x), to.channel(mean, x.rank)), inverse)
    g = emit.mul(incoming, to.channel(scale, x.rank))
    dx = emit.cast(_input_gradient_body(emit, g, xhat, inverse, axes), x.dtype)
    return dx, *_parameter_body(emit, incoming, xhat, scale, [0, *range(2, x.rank)])


def _parameter_body(emit: Emit, dy: Val, xhat: Val, scale: Val, axes: Sequence[int]) -> tuple[Val, Val]:
    return (
        emit.cast(emit.reduce_sum(emit.mul(dy, xhat), axes, keepdims=False), scale.dtype),
        emit.cast(emit.reduce_sum(dy, axes, keepdims=False), scale.dtype),
    )


@body("remat::LayerNormGrad")
def _layer_norm_grad_body(emit: Emit, call: Call, dy: Val, x: Val, scale: Val, mean: Val, inv_std: Val) -> Vals:
    to = _Wide(emit, x)
    incoming, inverse = to(dy), to(inv_std)
    xhat = emit.mul(emit.sub(to(x), to(mean)), inverse)
    return _trailing_body(emit, call, to, incoming, scale, xhat, inverse, centred=True)


@body("remat::RMSNormGrad")
def _rms_norm_grad_body(emit: Emit, call: Call, dy: Val, x: Val, scale: Val) -> Vals:
    to = _Wide(emit, x)
    cells = to(x)
    inverse = _deviation(emit, cells, trailing_axes(call, x.rank), call.attribute("epsilon", 1e-5))
    return _trailing_body(emit, call, to, to(dy), scale, emit.mul(cells, inverse), inverse, centred=False)


def _trailing_body(
    emit: Emit, call: Call, to: _Wide, dy: Val, scale: Val, xhat: Val, inverse: Val, centred: bool
) -> Vals:
    g = emit.mul(dy, to(scale))
    dx = _input_gradient_body(emit, g, xhat, inverse, trailing_axes(call, xhat.rank), centred)
    dscale = emit.cast(emit.sum_to(emit.mul(dy, xhat), scale), scale.dtype)
    return emit.cast(dx, to.narrow), dscale, emit.cast(emit.sum_to(dy, scale), scale.dtype)


def _group_body(emit: Emit, call: Call, dy: Val, x: Val, scale: Val, groups: int) -> Vals:
    to, channels, cells = _Wide(emit, x), x.shape[1], math.prod(x.shape[2:])
    shape = [x.shape[0], groups, channels // groups, cells]
    flat, incoming = emit.reshape(to(x), shape), emit.reshape(to(dy), shape)
    centred = emit.sub(flat, _mean(emit, flat, (2, 3)))
    inverse = _deviation(emit, centred, (2, 3), call.attribute("epsilon", 1e-5))
    xhat = emit.mul(centred, inverse)
    a_group = scale.shape[0] == groups != channels
    wide_scale = emit.reshape(to(scale), [groups, 1 if a_group else channels // groups, 1])
    dx = _input_gradient_body(emit, emit.mul(incoming, wide_scale), xhat, inverse, (2, 3))
    dx = emit.cast(emit.reshape(dx, x.shape), x.dtype)
    dscale, dbias = _parameter_body(emit, incoming, xhat, scale, [0, 2, 3] if a_group else [0, 3])
    return dx, emit.reshape(dscale, scale.shape), emit.reshape(dbias, scale.shape)


@body("remat::GroupNormGrad")
def _group_norm_grad_body(emit: Emit, call: Call, dy: Val, x: Val, scale: Val) -> Vals:
    return _group_body(emit, call, dy, x, scale, int(call.attribute("num_groups", 0)))


@body("remat::InstanceNormGrad")
def _instance_norm_grad_body(emit: Emit, call: Call, dy: Val, x: Val, scale: Val) -> Vals:
    return _group_body(emit, call, dy, x, scale, x.shape[1])


@body("remat::LRNGrad")
def _lrn_grad_body(emit: Emit, call: Call, dy: Val, x: Val) -> Vals:
    to, view = _Wide(emit, x), lrn_windows(call, x.shape)
    size, beta = int(call.attribute("size", 1)), call.attribute("beta", 0.75)
    shape, (before, after) = [x.shape[0], 1, *view.input], (view.begin[0], view.end[0])
    flat, incoming = emit.reshape(to(x), shape), emit.reshape(to(dy), shape)
    ones = emit.ones(TensorType(to.dtype, (1, 1, size, 1)))
    total = emit.op("Conv", emit.mul(flat, flat), ones, pads=[before, 0, after, 0])
    factor = call.attribute("alpha", 1e-4) / size
    base = emit.add(
        emit.mul(total, emit.scalar_like(factor, total)), emit.scalar_like(call.attribute("bias", 1.0), total)
    )
    power = emit.op("Pow", base, emit.scalar_like(-beta, base))
    shares = emit.div(emit.mul(emit.mul(incoming, flat), power), base)
    shares = emit.op("Conv", shares, ones, pads=[after, 0, before, 0])
    shares = emit.mul(emit.mul(flat, shares), emit.scalar_like(-2 * factor * beta, base))
    return (emit.cast(emit.reshape(emit.add(emit.mul(incoming, power), shares), x.shape), x.dtype),)
