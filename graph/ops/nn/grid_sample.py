"""GridSample and AffineGrid: sampling of images at given points.

Source: Jaderberg, Simonyan, Zisserman, Kavukcuoglu, "Spatial Transformer Networks", 2015, section 3.3.
"""

from __future__ import annotations

import math

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.nn.interpolation import (
    TAPS,
    Axis,
    Corner,
    cells_of,
    coordinate_gradients,
    corners_of,
    image_numbers,
    image_of,
    interpolate,
    scatter,
    taps_of,
)
from graph.ops.numeric.by_body import kernel_of
from graph.ops.numeric.elementwise_helpers import as_computable, as_new_array
from graph.ops.numeric.precision import require_input_type, statistics_dtype
from graph.ops.registry.registry import HEAVY, Call, Work, op

_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # names before opset 20


def _mode(call: Call) -> str:
    mode = str(call.attribute("mode", "linear"))
    return _MODES.get(mode, mode)


def _sample_work(call: Call) -> Work:
    """Work: per point and tap a multiply-add for each channel, and about ten operations for the weight."""
    x, grid = (call.inputs[1], call.inputs[2]) if "Grad" in call.op else call.inputs[:2]
    if x is None or grid is None:
        return Work()
    taps = TAPS.get(_mode(call), 1) ** (len(x.shape) - 2)
    points = grid.elements // max(1, grid.shape[-1])
    return Work(points * taps * ((4 if "Grad" in call.op else 2) * x.shape[1] + 10))


def _points(e: Emit, call: Call, x: Val, grid: Val) -> tuple[list[Corner], list[float]]:
    """The corners of all points [images, points], and per axis the cells that one unit of the grid spans."""
    spatial, aligned = x.shape[2:], bool(call.attribute("align_corners", 0))
    rank = len(spatial)
    flat = e.cast(e.reshape(grid, (grid.shape[0], math.prod(grid.shape[1:-1]), rank)), statistics_dtype(x.dtype))
    taps, spans = [], []
    for axis, length in enumerate(spatial):
        span = (length - 1) / 2 if aligned else length / 2
        last = e.op("Gather", flat, e.constant(np.int64(rank - 1 - axis)), axis=2)  # the grid names the last axis first
        u = e.mul(e.add(last, e.scalar_like(1, last)), e.scalar_like(span, last))
        u = u if aligned else e.sub(u, e.scalar_like(0.5, u))
        low, high = (0.0, length - 1.0) if aligned else (-0.5, length - 0.5)
        padding = str(call.attribute("padding_mode", "zeros"))
        taps.append(taps_of(e, u, Axis(length, padding, low, high), _mode(call)))
        spans.append(span)
    return list(corners_of(e, taps, spatial, image_numbers(e, x.shape[0], 2))), spans


def _sampled(e: Emit, call: Call, x: Val, grid: Val) -> tuple[Val, ...]:
    corners, _ = _points(e, call, x, grid)
    y = interpolate(e, e.cast(cells_of(e, x), statistics_dtype(x.dtype)), corners)
    return (e.cast(e.reshape(e.transpose(y, [0, 2, 1]), (*x.shape[:2], *grid.shape[1:-1])), x.dtype),)


op("GridSample", work=_sample_work, recompute=HEAVY, gradient_reads=("i0", "i1"))(kernel_of(_sampled))


def _gradient_types(call: Call) -> tuple[TensorType | None, ...]:
    x, grid = (require_input_type(t, name) for t, name in zip(call.inputs[1:3], ("x", "grid"), strict=True))
    return x, grid


def _sampled_gradient(e: Emit, call: Call, dy: Val, x: Val, grid: Val) -> tuple[Val | None, ...]:
    """dx: dy added at the corners, weighted. dgrid: the slopes of the weights, times the cells."""
    wide, points = statistics_dtype(x.dtype), math.prod(grid.shape[1:-1])
    corners, spans = _points(e, call, x, grid)
    incoming = e.cast(e.transpose(e.reshape(dy, (*x.shape[:2], points)), [0, 2, 1]), wide)
    dx = dgrid = None
    if call.used[0]:
        cells = TensorType(wide, (x.shape[0] * math.prod(x.shape[2:]), x.shape[1]))
        dx = e.cast(image_of(e, scatter(e, incoming, cells, corners), x.shape), x.dtype)
    if call.used[1]:
        found = coordinate_gradients(e, incoming, e.cast(cells_of(e, x), wide), corners)
        parts = [
            e.reshape(e.mul(du, e.scalar_like(span, du)), (*du.shape, 1))
            for du, span in zip(reversed(found), reversed(spans), strict=True)
        ]
        dgrid = e.cast(e.reshape(e.op("Concat", *parts, axis=2), grid.shape), grid.dtype)
    return dx, dgrid


op("remat::GridSampleGrad", infer=_gradient_types, work=_sample_work, recompute=HEAVY, body=_sampled_gradient)(
    kernel_of(_sampled_gradient)
)


def _grid_work(call: Call) -> Work:
    """Work: one product of a point and a matrix per point."""
    theta, grid = call.inputs[0], call.outputs[0]
    return Work(0 if theta is None or grid is None else 2 * theta.shape[-1] * grid.elements)


@op("AffineGrid", work=_grid_work)
def affine_grid(call: Call, theta: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Points of a regular grid from -1 to 1, last axis first, mapped by theta."""
    wide, spatial = as_computable(theta), [int(n) for n in size[2:]]
    aligned = bool(call.attribute("align_corners", 0))
    lines = []
    for n in spatial:
        cells = np.arange(n, dtype=wide.dtype)
        lines.append(cells * 2 / (n - 1) - 1 if aligned and n > 1 else (2 * cells + 1) / n - 1)
    axes = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*axes[::-1], np.ones(spatial, wide.dtype)], axis=-1).reshape(-1, len(spatial) + 1)
    found = points.astype(wide.dtype) @ np.swapaxes(wide, 1, 2)
    return as_new_array(found.reshape(len(theta), *spatial, len(spatial)), theta.dtype)
