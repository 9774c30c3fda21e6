"""Pooling. Windows are boxes, so maxima and sums are separable: one axis after the other.

A maximum carries its flat index. Axes run last to first, and only a strictly larger cell replaces an
earlier one, so ties go to the first in row-major order.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from graph.ir import TensorType
from graph.ops.nn.windows import Windows, windows
from graph.ops.numeric.precision import attribute_shape, chunks, downcast_like, upcast
from graph.ops.registry import onnx_fallback
from graph.ops.registry.registry import Call, Work, op

MaxIndices = np.ndarray  # int64[..., cells]: flat spatial index of the maximum, -1 in a window of padding only


def pool_windows(call: Call, spatial: tuple[int, ...]) -> Windows:
    """The windows of a pool over `spatial`. Raises ValueError without kernel_shape."""
    kernel = attribute_shape(call.attributes, "kernel_shape", call.op)
    return windows(call.attributes, spatial, kernel, ceil=bool(call.attribute("ceil_mode", 0)))


def window_max(x: np.ndarray, view: Windows) -> np.ndarray:
    """Maximum of each window; NaN if it contains a NaN."""
    for axis in reversed(range(view.rank)):
        first, outside = _firsts(view, axis)
        x = _largest(x, view, axis, first, outside)
    return x


def window_max_indices(x: np.ndarray, view: Windows) -> tuple[np.ndarray, MaxIndices]:
    """Maximum of each window and its row-major index among the spatial cells of `x`."""
    y = np.empty((*x.shape[:2], *view.output), x.dtype)
    places = np.empty(y.shape, np.int64)
    for image in range(len(x)):  # one image at a time fits in the cache
        y[image], places[image] = _places_in(x[image], view)
    for axis in range(view.rank):
        places[_index(2 + axis, _firsts(view, axis)[1])] = -1
    return y, places


def _places_in(x: np.ndarray, view: Windows) -> tuple[np.ndarray, np.ndarray]:
    """`window_max_indices` of one image, (C, cells)."""
    places: np.ndarray | None = None
    for axis in reversed(range(view.rank)):
        at, (first, outside) = axis - view.rank + x.ndim, _firsts(view, axis)
        start = np.arange(view.output[axis]) * view.stride[axis] - view.begin[axis]
        tap = np.empty(_resized(x, view, axis), np.int32)
        tap[...] = _column((first - start) // view.dilation[axis], x.ndim - at)
        x = _largest(x, view, axis, first, outside, tap)
        cell = tap.astype(np.int64)
        cell *= view.dilation[axis]
        cell += _column(start, x.ndim - at)
        np.clip(cell, 0, max(0, view.input[axis] - 1), out=cell)
        inner = None if places is None else np.take_along_axis(places, cell, axis=at)
        cell *= math.prod(view.input[axis + 1 :])
        places = cell if inner is None else cell + inner
    return x, np.zeros(x.shape, np.int64) if places is None else places


def _firsts(view: Windows, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """(first cell inside the input, True if there is none) per window along `axis`."""
    n, dilation = view.input[axis], view.dilation[axis]
    start = np.arange(view.output[axis]) * view.stride[axis] - view.begin[axis]
    first = start + np.maximum(0, -(start // dilation)) * dilation
    outside = (first >= n) | (first >= start + view.kernel[axis] * dilation)
    return np.where(outside, 0, first), outside


def _largest(
    x: np.ndarray, view: Windows, axis: int, first: np.ndarray, outside: np.ndarray, tap: np.ndarray | None = None
) -> np.ndarray:
    """Maxima along one axis, the lowest number in a window of padding; `tap` is set to the first maximum."""
    best = x.take(first, axis=axis - view.rank + x.ndim)
    for k in range(view.kernel[axis]):
        out, into = _along(view, axis, k, x.ndim)
        if tap is not None:
            better = x[into] > best[out]  # taps ascend, so ties keep the first
            np.maximum(tap[out], better * tap.dtype.type(k), out=tap[out])
        np.maximum(best[out], x[into], out=best[out])
    if outside.any():
        best[_index(axis - view.rank + x.ndim, outside)] = _lowest(x.dtype)
    return best


def _lowest(dtype: np.dtype[Any]) -> Any:
    """The value of padding under a maximum."""
    return np.iinfo(dtype).min if np.issubdtype(dtype, np.integer) else -np.inf


def window_sums(x: np.ndarray, view: Windows) -> np.ndarray:
    """Sum of the cells of each window, padding left out."""
    for axis in reversed(range(view.rank)):
        total = np.zeros(_resized(x, view, axis, view.output[axis]), x.dtype)
        for tap in range(view.kernel[axis]):
            out, into = _along(view, axis, tap, x.ndim)
            total[out] += x[into]
        x = total
    return x


def window_sums_adjoint(dy: np.ndarray, view: Windows) -> np.ndarray:
    """The adjoint of `window_sums`: each cell gets the sum over the windows that contain it."""
    for axis in range(view.rank):
        total = np.zeros(_resized(dy, view, axis, view.input[axis]), dy.dtype)
        for tap in range(view.kernel[axis]):
            out, into = _along(view, axis, tap, dy.ndim)
            total[into] += dy[out]
        dy = total
    return dy


def window_counts(view: Windows, include_pad: bool, dtype: np.typing.DTypeLike) -> np.ndarray:
    """Number of cells each window averages over; cells beyond the declared padding never count."""
    total: np.ndarray = np.ones((), np.float64)
    for axis in range(view.rank):
        start = np.arange(view.output[axis])[:, None] * view.stride[axis] - view.begin[axis]
        cell = start + np.arange(view.kernel[axis]) * view.dilation[axis]
        low, high = (-view.begin[axis], view.input[axis] + view.end[axis]) if include_pad else (0, view.input[axis])
        total = total[..., None] * ((cell >= low) & (cell < high)).sum(axis=1)
    return np.asarray(np.maximum(total, 1), dtype)


def scatter_to_max(dy: np.ndarray, places: MaxIndices, view: Windows) -> np.ndarray:
    """Each cell's sum of dy over windows whose maximum it is; float64 sums, in row-major order of dy."""
    rows, cells = math.prod(dy.shape[:2]), math.prod(view.input)
    incoming, targets = dy.reshape(rows, math.prod(view.output)), places.reshape(rows, math.prod(view.output))
    dx = np.empty((rows, cells), dy.dtype)
    for part in chunks(rows, 8 * (cells + 3 * incoming.shape[1])):
        some = targets[part]
        flat = some + np.arange(len(some))[:, None] * cells
        inside = some >= 0
        weights = np.where(inside, incoming[part], 0).ravel()
        total = np.bincount(np.where(inside, flat, 0).ravel(), weights, minlength=len(some) * cells)
        dx[part] = total.reshape(len(some), cells)
    return dx.reshape(*dy.shape[:2], *view.input)


def _along(view: Windows, axis: int, tap: int, ndim: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    out, into = view.tap_slices(axis, tap)
    at = axis - view.rank + ndim
    whole = (slice(None),) * at
    return (*whole, out), (*whole, into)


def _index(axis: int, where: np.ndarray) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, where)


def _column(v: np.ndarray, rank: int) -> np.ndarray:
    """A vector along the first of the last `rank` axes."""
    return v.reshape(-1, *(1,) * (rank - 1))


def _resized(x: np.ndarray, view: Windows, axis: int, length: int | None = None) -> tuple[int, ...]:
    """The shape of x with length `length` on `axis`; None: the number of windows."""
    at = axis - view.rank + x.ndim
    return (*x.shape[:at], view.output[axis] if length is None else length, *x.shape[at + 1 :])


def to_comparable(x: np.ndarray) -> np.ndarray:
    """`x` in a dtype with comparisons: integers unchanged, floats in computing precision."""
    return np.ascontiguousarray(x) if np.issubdtype(x.dtype, np.integer) else upcast(x)


def _pool_work(call: Call) -> Work:
    y = call.outputs[0]
    return Work(0 if y is None else y.elements * math.prod(call.attribute("kernel_shape", (1,))))


def _global_work(call: Call) -> Work:
    x = call.inputs[0]
    return Work(0 if x is None else x.elements)


def _infer(call: Call) -> tuple[TensorType | None, ...]:
    """Types by opset 22: before it, the standard counted windows beyond the input that runtimes omit."""
    return onnx_fallback.infer(replace(call, opset=max(call.opset, 22)))


@op("MaxPool", infer=_infer, work=_pool_work, gradient_reads=("i0",))
def max_pool(call: Call, x: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """Y, and if used Indices into the flattened x."""
    view = pool_windows(call, x.shape[2:])
    if len(call.used) < 2 or not call.used[1]:
        return (downcast_like(window_max(to_comparable(x), view), x),)
    y, places = window_max_indices(to_comparable(x), view)
    if call.attribute("storage_order", 0):
        inside = np.unravel_index(np.maximum(places, 0), view.input)
        places = np.asarray(np.ravel_multi_index(inside[::-1], view.input[::-1]), np.int64)
    rows = np.arange(math.prod(x.shape[:2]), dtype=np.int64).reshape(*x.shape[:2], *(1,) * view.rank)
    return downcast_like(y, x), places + rows * math.prod(view.input)


@op("AveragePool", infer=_infer, work=_pool_work)
def average_pool(call: Call, x: np.ndarray) -> np.ndarray:
    view = pool_windows(call, x.shape[2:])
    total = window_sums(upcast(x), view)
    total /= window_counts(view, bool(call.attribute("count_include_pad", 0)), total.dtype)
    return downcast_like(total, x)


@op("LpPool", infer=_infer, work=_pool_work, gradient_reads=("i0", "o0"))
def lp_pool(call: Call, x: np.ndarray) -> np.ndarray:
    power = call.attribute("p", 2)
    total = window_sums(np.abs(upcast(x)) ** power, pool_windows(call, x.shape[2:]))
    return downcast_like(total ** (1 / power), x)


@op("GlobalAveragePool", work=_global_work)
def global_average_pool(call: Call, x: np.ndarray) -> np.ndarray:
    cells = max(1, math.prod(x.shape[2:]))
    return downcast_like(upcast(x).sum(axis=tuple(range(2, x.ndim)), keepdims=True) / upcast(x).dtype.type(cells), x)


@op("GlobalMaxPool", work=_global_work, gradient_reads=("i0",))
def global_max_pool(call: Call, x: np.ndarray) -> np.ndarray:
    return np.asarray(np.ascontiguousarray(x).max(axis=tuple(range(2, x.ndim)), keepdims=True))


@op("GlobalLpPool", work=_global_work, gradient_reads=("i0", "o0"))
def global_lp_pool(call: Call, x: np.ndarray) -> np.ndarray:
    power = call.attribute("p", 2)
    total = (np.abs(upcast(x)) ** power).sum(axis=tuple(range(2, x.ndim)), keepdims=True)
    return downcast_like(total ** (1 / power), x)
