"""Normalizations. Statistics take two passes, in float32 at least.

    xhat = (x - mean) / √(var + epsilon)      y = xhat · scale + bias

Batch statistics run over all axes but the channels, layer statistics over the trailing axes, group
and instance statistics over each group of channels of each image.
"""

from __future__ import annotations

import math

import numpy as np

from graph.errors import CannotExecute
from graph.ir import TensorType
from graph.ops.nn.pooling import window_sums
from graph.ops.nn.windows import Windows
from graph.ops.numeric.precision import downcast_like, require_input_type, statistics_dtype, upcast
from graph.ops.registry.onnx_fallback import numpy_dtype
from graph.ops.registry.registry import Call, Work, WorkRule, op

_STASH = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}  # numbers of TensorProto.DataType

Axes = tuple[int, ...]


def moments(x: np.ndarray, axes: Axes) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population variance over `axes`, kept as lengths of 1; zeros over no elements."""
    count = x.dtype.type(max(1, math.prod(x.shape[a] for a in axes)))
    mean = x.sum(axis=axes, keepdims=True) / count
    centred = x - mean
    np.multiply(centred, centred, out=centred)
    return mean, centred.sum(axis=axes, keepdims=True) / count


def inverse_deviation(variance: np.ndarray, epsilon: float) -> np.ndarray:
    return np.asarray(1 / np.sqrt(variance + variance.dtype.type(epsilon)))


def normalised(x: np.ndarray, mean: np.ndarray, inv_std: np.ndarray) -> np.ndarray:
    xhat: np.ndarray = x - mean
    xhat *= inv_std
    return xhat


def scaled(xhat: np.ndarray, scale: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """xhat · scale + bias, written over xhat where it has the shape."""
    xhat *= scale
    if bias is not None:
        xhat += bias
    return xhat


def per_channel(v: np.ndarray, rank: int) -> np.ndarray:
    """A vector over the channels, to be broadcast against a tensor of `rank`."""
    return upcast(v).reshape(-1, *(1,) * (rank - 2))


def batch_axes(rank: int) -> Axes:
    return (0, *range(2, rank))


def trailing_axes(call: Call, rank: int) -> Axes:
    """Axes of a layer normalization. Raises ValueError for an axis out of range."""
    axis = int(call.attribute("axis", -1))
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is outside a tensor of rank {rank}; use {-rank} to {rank - 1}")
    return tuple(range(axis % rank, rank))


def grouped(x: np.ndarray, groups: int) -> np.ndarray:
    """`x` as (N, groups, cells of a group). Raises ValueError if the channels do not divide evenly."""
    if groups < 1 or x.shape[1] % groups:
        raise ValueError(f"{x.shape[1]} channels do not divide into {groups} groups")
    return x.reshape(x.shape[0], groups, x.shape[1] // groups * math.prod(x.shape[2:]))


def channel_scale(v: np.ndarray, channels: int) -> np.ndarray:
    """One value per channel, from one per channel or (before opset 21) per group."""
    return v if len(v) == channels else v.repeat(channels // len(v))


def lrn_windows(call: Call, shape: tuple[int, ...]) -> Windows:
    """Windows over the channels of (N, C, cells): `size` of them, the odd one after."""
    size = int(call.attribute("size", 1))
    channels, cells, before = shape[1], math.prod(shape[2:]), (size - 1) // 2
    return Windows((channels, cells), (size, 1), (1, 1), (1, 1), (before, 0), (size - 1 - before, 0), (channels, cells))


def lrn_base(call: Call, x: np.ndarray) -> np.ndarray:
    """bias + alpha/size · Σ x² over the window, of x as (N, C, cells)."""
    view = lrn_windows(call, x.shape)
    flat = x.reshape(x.shape[0], *view.input)
    total = window_sums(flat * flat, view)
    total *= total.dtype.type(call.attribute("alpha", 1e-4) / call.attribute("size", 1))
    total += total.dtype.type(call.attribute("bias", 1.0))
    return total


def norm_work(flops: int) -> WorkRule:
    """Work rule: `flops` per element of the first input; no workspace."""

    def rule(call: Call) -> Work:
        x = call.inputs[0]
        return Work(0 if x is None else flops * x.elements)

    return rule


def _lrn_work(call: Call) -> Work:
    x = call.inputs[0]
    return Work(0 if x is None else x.elements * (int(call.attribute("size", 1)) + 12))


@op("BatchNormalization", work=norm_work(4), takeover=((0, 0),), gradient_reads=("i0", "i1", "i3", "i4"))
def batch_normalization(
    call: Call, x: np.ndarray, scale: np.ndarray, bias: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray | None, ...]:
    """Y; in training mode from batch statistics, followed by the updated running mean and variance."""
    cells, rank, epsilon = upcast(x), x.ndim, call.attribute("epsilon", 1e-5)
    training = bool(call.attribute("training_mode", 0))
    if any(call.used[1:]) and not training:
        raise CannotExecute(
            f"{call.op} at opset {call.opset} outputs statistics without training_mode; set training_mode=1"
        )
    used_mean, used_variance = per_channel(mean, rank), per_channel(variance, rank)
    running: tuple[np.ndarray | None, ...] = ()
    if training:
        used_mean, used_variance = moments(cells, batch_axes(rank))
        keep = call.attribute("momentum", 0.9)
        running = (_moved(mean, used_mean, keep), _moved(variance, used_variance, keep))
    xhat = normalised(cells, used_mean.astype(cells.dtype), _inverse(used_variance, epsilon, cells))
    y = scaled(xhat, per_channel(scale, rank).astype(cells.dtype), per_channel(bias, rank).astype(cells.dtype))
    return (downcast_like(y, x), *running)[: len(call.used)]


def _inverse(variance: np.ndarray, epsilon: float, like: np.ndarray) -> np.ndarray:
    return inverse_deviation(variance, epsilon).astype(like.dtype)


def _moved(running: np.ndarray, batch: np.ndarray, keep: float) -> np.ndarray:
    before, now = upcast(running), upcast(batch.reshape(-1))
    return downcast_like(before * before.dtype.type(keep) + now * now.dtype.type(1 - keep), running)


def _infer_batch_norm(call: Call) -> tuple[TensorType | None, ...]:
    x, scale, bias = (require_input_type(t, name) for t, name in zip(call.inputs, ("x", "scale", "bias"), strict=True))
    if len(x.shape) < 2 or scale.shape != x.shape[1:2] or bias.shape != scale.shape:
        raise ValueError(f"scale {scale} and bias {bias} must have one entry a channel of x {x}")
    statistics = TensorType(statistics_dtype(x.dtype), scale.shape)
    return x, statistics, statistics


@op(
    "remat::BatchNorm",
    infer=_infer_batch_norm,
    work=norm_work(7),
    takeover=((0, 0),),
    gradient_reads=("i0", "i1", "o1", "o2"),
)
def batch_norm(call: Call, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """y, mean, inv_std from batch statistics."""
    cells = upcast(x)
    mean, variance = moments(cells, batch_axes(x.ndim))
    inv_std = inverse_deviation(variance, call.attribute("epsilon", 1e-5))
    y = None
    if call.used[0]:
        xhat = normalised(cells, mean, inv_std)
        y = downcast_like(scaled(xhat, per_channel(scale, x.ndim), per_channel(bias, x.ndim)), x)
    return y, mean.reshape(-1), inv_std.reshape(-1)


@op("LayerNormalization", work=norm_work(7), takeover=((0, 0),), gradient_reads=("i0", "i1", "o1", "o2"))
def layer_normalization(
    call: Call, x: np.ndarray, scale: np.ndarray, bias: np.ndarray | None = None
) -> tuple[np.ndarray | None, ...]:
    """Y, Mean, InvStdDev; the last two have the dtype `stash_type`."""
    cells = upcast(x)
    mean, variance = moments(cells, trailing_axes(call, x.ndim))
    inv_std = inverse_deviation(variance, call.attribute("epsilon", 1e-5))
    y = downcast_like(
        scaled(normalised(cells, mean, inv_std), upcast(scale), None if bias is None else upcast(bias)), x
    )
    stash = numpy_dtype(_STASH[int(call.attribute("stash_type", 1))])
    return (y, mean.astype(stash, copy=False), inv_std.astype(stash, copy=False))[: len(call.used)]


@op("RMSNormalization", work=norm_work(4), takeover=((0, 0),), gradient_reads=("i0", "i1"))
def rms_normalization(call: Call, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    cells = upcast(x)
    y = cells * root_mean_square(cells, trailing_axes(call, x.ndim), call.attribute("epsilon", 1e-5))
    y *= upcast(scale)
    return downcast_like(y, scale)


def root_mean_square(x: np.ndarray, axes: Axes, epsilon: float) -> np.ndarray:
    """1 / √(mean x² + epsilon) over `axes`."""
    count = x.dtype.type(max(1, math.prod(x.shape[a] for a in axes)))
    return inverse_deviation((x * x).sum(axis=axes, keepdims=True) / count, epsilon)


def _infer_group_norm(call: Call) -> tuple[TensorType | None, ...]:
    """The type of the input; the standard defines it by the function body only."""
    if len(call.inputs) != 3 or len(call.used) != 1:
        raise ValueError(f"has {len(call.inputs)} inputs and {len(call.used)} outputs; the op takes 3 and returns 1")
    x, groups = call.inputs[0], call.attribute("num_groups")
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"num_groups is {groups!r}; it must be 1 or more")
    if x is not None and (len(x.shape) < 2 or x.shape[1] % groups):
        raise ValueError(f"{x} has channels that do not divide into {groups} groups")
    entries = None if x is None else x.shape[1] if call.opset >= 21 else groups
    for v in call.inputs[1:]:
        if v is not None and (len(v.shape) != 1 or entries not in (None, v.shape[0])):
            raise ValueError(f"scale or bias is {v}; the op takes {entries} entries at opset {call.opset}")
    return (x,)


@op("GroupNormalization", infer=_infer_group_norm, work=norm_work(7), takeover=((0, 0),), gradient_reads=("i0", "i1"))
def group_normalization(call: Call, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Y; scale and bias have one value per channel, or per group before opset 21."""
    return _by_group(call, x, scale, bias, int(call.attribute("num_groups", 0)))


@op("InstanceNormalization", work=norm_work(7), takeover=((0, 0),), gradient_reads=("i0", "i1"))
def instance_normalization(call: Call, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return _by_group(call, x, scale, bias, x.shape[1])


def _by_group(call: Call, x: np.ndarray, scale: np.ndarray, bias: np.ndarray, groups: int) -> np.ndarray:
    cells = grouped(upcast(x), groups)
    mean, variance = moments(cells, (2,))
    xhat = normalised(cells, mean, inverse_deviation(variance, call.attribute("epsilon", 1e-5))).reshape(x.shape)
    scale, bias = (per_channel(channel_scale(v, x.shape[1]), x.ndim) for v in (scale, bias))
    return downcast_like(scaled(xhat, scale, bias), x)


@op("LRN", work=_lrn_work, gradient_reads=("i0",))
def lrn(call: Call, x: np.ndarray) -> np.ndarray:
    cells = upcast(x)
    base = lrn_base(call, cells)
    power = base ** base.dtype.type(-call.attribute("beta", 0.75))
    return downcast_like(cells * power.reshape(x.shape), x)
