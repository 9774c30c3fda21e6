"""Pooling of regions of interest: RoiAlign (averages of interpolated samples) and MaxRoiPool (maxima of cells).

Sources: He, Gkioxari, Dollár, Girshick, "Mask R-CNN", 2017, section 3; Girshick, "Fast R-CNN", 2015, section 2.1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graph.builder.emit import Emit
from graph.errors import CannotExecute
from graph.ir import TensorType, Val
from graph.ops.nn.interpolation import (
    TAPS,
    Axis,
    Corner,
    Tap,
    cells_of,
    column,
    corners_of,
    image_of,
    interpolate,
    scatter,
    taps_of,
)
from graph.ops.numeric.by_body import kernel_of
from graph.ops.numeric.precision import attribute_shape, require_input_type, statistics_dtype, upcast
from graph.ops.registry.registry import HEAVY, Call, Work, op

MAX_SAMPLES = 64  # per bin and axis, without a sampling ratio


@dataclass(frozen=True, slots=True)
class _Line:
    """The samples of one axis in every bin of every region."""

    taps: tuple[tuple[Tap, ...], ...]  # per sample
    present: tuple[Val, ...]  # per sample, bool: the region has that many
    count: Val  # samples per bin, by region


def _lines(e: Emit, call: Call, rois: Val, spatial: Sequence[int], wide: str) -> list[_Line]:
    """Per axis its samples, [regions, bins, 1] for rows and [regions, 1, bins] for columns."""
    scale, half = float(call.attribute("spatial_scale", 1.0)), _is_half_pixel(call)
    boxes = e.mul(e.cast(rois, wide), e.constant(scale, wide))
    boxes = e.sub(boxes, e.constant(0.5, wide)) if half else boxes
    lines = []
    for axis, name in enumerate(("output_height", "output_width")):
        bins, length = int(call.attribute(name, 1)), spatial[axis]
        shape = (rois.shape[0], 1, 1)
        start, end = (e.reshape(e.op("Gather", boxes, e.ints([i]), axis=1), shape) for i in (1 - axis, 3 - axis))
        size = e.sub(end, start)
        size = size if half else e.op("Max", size, e.scalar_like(1, size))  # at least one cell
        width = e.div(size, e.scalar_like(bins, size))
        ratio = int(call.attribute("sampling_ratio", 0))
        count = e.expand(e.scalar_like(ratio, size), shape) if ratio > 0 else e.op("Ceil", width)
        most = ratio if ratio > 0 else _most_samples(e.known(rois), scale, half, axis, bins, length)
        place = np.arange(bins).reshape((bins, 1) if axis == 0 else (1, bins))
        bin_start = e.add(start, e.mul(width, e.constant(place, wide)))
        taps, present = [], []
        for sample in range(most):
            u = e.add(bin_start, e.div(e.mul(width, e.scalar_like(sample + 0.5, width)), count))
            taps.append(tuple(_clamped_taps(e, u, length)))
            present.append(e.op("Less", e.scalar_like(sample, count), count))
        lines.append(_Line(tuple(taps), tuple(present), count))
    return lines


def _is_half_pixel(call: Call) -> bool:
    """Before opset 16 the op had no such shift."""
    default = "half_pixel" if call.opset >= 16 else "output_half_pixel"
    return bool(call.attribute("coordinate_transformation_mode", default) == "half_pixel")


def _most_samples(rois: np.ndarray | None, scale: float, half: bool, axis: int, bins: int, length: int) -> int:
    """The most samples a bin has; for unknown regions, as if none were longer than twice the image.

    Raises CannotExecute for regions far beyond any image.
    """
    if rois is None:
        return math.ceil(2 * length / bins)
    if not len(rois):
        return 1
    longest = float((rois[:, 3 - axis].astype(np.float64) - rois[:, 1 - axis].astype(np.float64)).max()) * scale
    found = max(longest, 0.0 if half else 1.0) / bins
    if not found <= MAX_SAMPLES:
        raise CannotExecute(f"a region of {longest:g} cells has more than {MAX_SAMPLES} samples per bin and axis")
    return math.ceil(found) + 1  # one more for the rounding of the regions


def _clamped_taps(e: Emit, u: Val, length: int) -> list[Tap]:
    """Taps of points up to one cell outside, which count as on the border; points further out have no weight."""
    zero = e.scalar_like(0, u)
    near = e.op("GreaterOrEqual", u, e.scalar_like(-1, u))
    near = e.op("And", near, e.op("LessOrEqual", u, e.scalar_like(length, u)))
    inside = e.op("Clip", u, zero, e.scalar_like(length - 1, u))
    taps = taps_of(e, inside, Axis(length, "border", 0.0, length - 1.0), "linear")
    return [Tap(tap.cell, e.where(near, tap.weight, zero), zero) for tap in taps]


def _samples(e: Emit, lines: Sequence[_Line], spatial: Sequence[int], batch: Val) -> Iterator[tuple[list[Corner], Val]]:
    """(corners, present) of every sample of a bin, for points [regions, bins, bins]."""
    image = e.reshape(e.cast(batch, "int64"), (batch.shape[0], 1, 1))
    down, across = lines
    for i, j in itertools.product(range(len(down.taps)), range(len(across.taps))):
        corners = list(corners_of(e, (down.taps[i], across.taps[j]), spatial, image))
        yield corners, e.op("And", down.present[i], across.present[j])


def _bin_count(e: Emit, lines: Sequence[_Line]) -> Val:
    """Samples per bin, at least 1."""
    total = e.mul(lines[0].count, lines[1].count)
    return e.op("Max", total, e.scalar_like(1, total))  # type: ignore[no-any-return]


def _aligned(e: Emit, call: Call, x: Val, rois: Val, batch: Val) -> tuple[Val, ...]:
    wide, spatial = statistics_dtype(x.dtype), x.shape[2:]
    cells, lines = e.cast(cells_of(e, x), wide), _lines(e, call, rois, spatial, wide)
    samples = list(_samples(e, lines, spatial, batch))
    if call.attribute("mode", "avg") == "max":
        y = _highest(e, cells, samples)
    else:
        zero = e.scalar_like(0, cells)
        parts = [e.where(column(e, present), interpolate(e, cells, c), zero) for c, present in samples]
        y = e.div(e.op("Sum", *parts), column(e, _bin_count(e, lines)))
    return (e.cast(e.transpose(y, [0, 3, 1, 2]), x.dtype),)


def _weighted(e: Emit, cells: Val, corner: Corner) -> Val:
    return e.mul(e.op("Gather", cells, corner.row, axis=0), column(e, corner.weight))


def _highest(e: Emit, cells: Val, samples: Sequence[tuple[list[Corner], Val]]) -> Val:
    """The largest weighted corner of all samples, as the standard has it; 0 in a bin without samples."""
    lowest = e.scalar_like(-np.inf, cells)
    parts = [
        e.where(column(e, present), _weighted(e, cells, corner), lowest)
        for corners, present in samples
        for corner in corners
    ]
    y = e.op("Max", *parts)
    return e.where(e.op("Equal", y, lowest), e.scalar_like(0, y), y)


def _align_work(call: Call) -> Work:
    """Work: four multiply-adds per sample and channel; without a sampling ratio, for two samples per axis."""
    y = call.inputs[0] if "Grad" in call.op else call.outputs[0]
    ratio = int(call.attribute("sampling_ratio", 0)) or 2
    return Work(0 if y is None else y.elements * ratio**2 * TAPS["linear"] ** 2 * 2)


op("RoiAlign", work=_align_work, recompute=HEAVY, gradient_reads=("i0", "i1", "i2"))(
    kernel_of(_aligned, sized_by_content=True)
)


def _gradient_type(call: Call) -> tuple[TensorType | None, ...]:
    dy, shape = require_input_type(call.inputs[0], "dy"), attribute_shape(call.attributes, "input_shape", call.op)
    return (TensorType(dy.dtype, shape),)


def _aligned_gradient(
    e: Emit, call: Call, dy: Val, rois: Val, batch: Val, x: Val | None = None
) -> tuple[Val | None, ...]:
    """dx: dy, spread over the samples of a bin. With `x`, of mode max: dy to the largest corner, shared in a tie."""
    wide, shape = statistics_dtype(dy.dtype), attribute_shape(call.attributes, "input_shape", call.op)
    lines = _lines(e, call, rois, shape[2:], wide)
    samples = list(_samples(e, lines, shape[2:], batch))
    incoming = e.transpose(e.cast(dy, wide), [0, 2, 3, 1])
    cells = TensorType(wide, (shape[0] * math.prod(shape[2:]), shape[1]))
    zero = e.scalar_like(0, incoming)
    if x is None:
        share = e.div(incoming, column(e, _bin_count(e, lines)))
        corners = [
            Corner(corner.row, e.where(present, corner.weight, zero), ())
            for corners, present in samples
            for corner in corners
        ]
        return (e.cast(image_of(e, scatter(e, share, cells, corners), shape), dy.dtype),)
    rows = e.cast(cells_of(e, x), wide)
    y = _highest(e, rows, samples)
    hits = [
        (corner, e.op("And", column(e, present), e.op("Equal", _weighted(e, rows, corner), y)))
        for corners, present in samples
        for corner in corners
    ]
    ties = e.op("Sum", *(e.cast(hit, wide) for _, hit in hits))
    share = e.div(incoming, e.op("Max", ties, e.scalar_like(1, ties)))
    total = e.zeros(cells)
    for corner, hit in hits:
        part = e.where(hit, e.mul(share, column(e, corner.weight)), zero)
        total = e.op("ScatterND", total, column(e, corner.row), part, reduction="add")
    return (e.cast(image_of(e, total, shape), dy.dtype),)


op("remat::RoiAlignGrad", infer=_gradient_type, work=_align_work, recompute=HEAVY, body=_aligned_gradient)(
    kernel_of(_aligned_gradient, sized_by_content=True)
)


def _bins(
    call: Call, rois: np.ndarray, spatial: Sequence[int]
) -> Iterator[tuple[int, tuple[int, int, int], slice, slice]]:
    """(region, (image, bin row, bin column), rows, columns) of every bin that is not empty."""
    bins, scale = call.attributes["pooled_shape"], call.attribute("spatial_scale", 1.0)
    for r, (image, *box) in enumerate(rois.astype(np.float64)):
        edges = []
        for axis in range(2):
            first, last = (_round_half_away(box[i] * scale) for i in (1 - axis, 3 - axis))
            width = max(last - first + 1, 1) / bins[axis]
            cuts = [(math.floor(k * width) + first, math.ceil((k + 1) * width) + first) for k in range(bins[axis])]
            edges.append([slice(min(max(a, 0), spatial[axis]), min(max(b, 0), spatial[axis])) for a, b in cuts])
        for i, j in itertools.product(range(bins[0]), range(bins[1])):
            rows, columns = edges[0][i], edges[1][j]
            if rows.start < rows.stop and columns.start < columns.stop:
                yield r, (int(image), i, j), rows, columns


def _round_half_away(x: float) -> int:
    """The nearest integer; halves away from zero, as `round` of C."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def _pool_work(call: Call) -> Work:
    """Work: a comparison per cell, if the regions cover the image once."""
    x = call.inputs[1] if "Grad" in call.op else call.inputs[0]
    return Work(0 if x is None else x.elements)


@op("MaxRoiPool", work=_pool_work, gradient_reads=("i0", "i1"))
def max_roi_pool(call: Call, x: np.ndarray, rois: np.ndarray) -> np.ndarray:
    """The largest cell of each bin; 0 in an empty bin."""
    y = np.zeros((len(rois), x.shape[1], *call.attributes["pooled_shape"]), x.dtype)
    for r, (image, i, j), rows, columns in _bins(call, rois, x.shape[2:]):
        y[r, :, i, j] = x[image, :, rows, columns].max(axis=(1, 2))
    return y


def _pooled_gradient(e: Emit, call: Call, dy: Val, x: Val, rois: Val) -> tuple[Val, ...]:
    """Maxima of masked cells, the columns first; dy goes to the largest cell of a bin, shared in a tie."""
    wide, spatial, bins = statistics_dtype(x.dtype), x.shape[2:], [int(n) for n in call.attributes["pooled_shape"]]
    count, channels = rois.shape[0], x.shape[1]
    image = e.reshape(e.cast(e.op("Gather", rois, e.ints([0]), axis=1), "int64"), (count,))
    masks = [_bin_mask(e, call, rois, axis, bins[axis], n) for axis, n in enumerate(spatial)]
    rows = e.reshape(masks[0], (count, 1, bins[0], 1, spatial[0], 1))
    inside = e.op("And", rows, e.reshape(masks[1], (count, 1, 1, bins[1], 1, spatial[1])))
    cells = e.reshape(e.op("Gather", e.cast(x, wide), image, axis=0), (count, channels, 1, 1, *spatial))
    seen = e.where(inside, cells, e.scalar_like(-np.inf, cells))
    hit = e.op("And", inside, e.op("Equal", seen, e.op("ReduceMax", seen, e.ints([4, 5]))))
    hits = e.cast(hit, wide)
    ties = e.reduce_sum(hits, [4, 5])
    incoming = e.reshape(e.cast(dy, wide), (count, channels, *bins, 1, 1))
    share = e.div(incoming, e.op("Max", ties, e.scalar_like(1, ties)))
    each = e.reduce_sum(e.mul(hits, share), [2, 3], keepdims=False)
    zeros = e.zeros(TensorType(wide, x.shape))
    dx = e.op("ScatterND", zeros, e.reshape(image, (count, 1)), each, reduction="add")
    return (e.cast(dx, x.dtype),)


def _bin_mask(e: Emit, call: Call, rois: Val, axis: int, bins: int, length: int) -> Val:
    """bool[regions, bins, cells]: the cells of each bin along an axis."""
    boxes = e.mul(e.cast(rois, "float64"), e.constant(float(call.attribute("spatial_scale", 1.0)), "float64"))
    edges = []
    for i in (2 - axis, 4 - axis):
        edge = e.op("Gather", boxes, e.ints([i]), axis=1)
        whole = e.op("Floor", e.add(e.op("Abs", edge), e.scalar_like(0.5, edge)))
        edges.append(e.mul(e.op("Sign", edge), whole))
    one = e.scalar_like(1, edges[0])
    width = e.op("Max", e.add(e.sub(edges[1], edges[0]), one), one)
    width = e.div(width, e.scalar_like(bins, width))
    place = e.constant(np.arange(bins), "float64")
    low = e.add(edges[0], e.op("Floor", e.mul(width, place)))
    high = e.add(edges[0], e.op("Ceil", e.mul(width, e.add(place, one))))
    low, high = (e.reshape(v, (*v.shape, 1)) for v in (low, high))
    cell = e.constant(np.arange(length), "float64")
    return e.op("And", e.op("LessOrEqual", low, cell), e.op("Less", cell, high))  # type: ignore[no-any-return]


def _like_second(call: Call) -> tuple[TensorType | None, ...]:
    return (require_input_type(call.inputs[1], "x"),)


@op("remat::MaxRoiPoolGrad", infer=_like_second, work=_pool_work, body=_pooled_gradient)
def max_roi_pool_grad(call: Call, dy: np.ndarray, x: np.ndarray, rois: np.ndarray) -> np.ndarray:
    """dx: dy of each bin at its largest cell, shared in a tie."""
    wide, incoming = upcast(x), upcast(dy)
    dx = np.zeros_like(wide)
    for r, (image, i, j), rows, columns in _bins(call, rois, x.shape[2:]):
        block = wide[image, :, rows, columns]
        hit = block == block.max(axis=(1, 2), keepdims=True)
        share = incoming[r, :, i, j] / hit.sum(axis=(1, 2))
        dx[image, :, rows, columns] += hit * share[:, None, None]
    return dx.astype(x.dtype)
