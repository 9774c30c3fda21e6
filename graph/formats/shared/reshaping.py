"""Rules and fragments that move or select elements: reshape codes, axes, stack, split, slice, tile, pad, resize."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from graph.builder.emit import Emit
from graph.formats.shared.op_helpers import axis_of, checked_shape
from graph.formats.shared.op_table import OpUse
from graph.ir import Val


def reshaped(e: Emit, x: Val, shape: Sequence[int]) -> Val:
    """A Reshape node, also where the shape stays the same."""
    return e.op("Reshape", x, e.ints(shape), allowzero=1)


def matrix(e: Emit, x: Val, axis: int) -> Val:
    """`x` as a matrix whose rows are the dimensions before `axis`."""
    if axis > x.rank:
        raise ValueError(f"axis {axis} of a value of {x.rank} dimensions")
    return e.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def decoded_shape(shape: Sequence[int], codes: Sequence[int]) -> tuple[int, ...]:
    """Target of a reshape: 0 copies the length at its position, -1 is inferred. Raises ValueError."""
    return inferred_shape([shape[i] if n == 0 else n for i, n in enumerate(codes)], math.prod(shape))


def inferred_shape(lengths: list[int], elements: int) -> tuple[int, ...]:
    """The shape with its single -1 inferred. Raises ValueError when it does not match the element count."""
    if lengths.count(-1) == 1:
        rest = -math.prod(lengths)
        lengths[lengths.index(-1)] = elements // rest if rest else 0
    if min(lengths, default=0) < 0 or math.prod(lengths) != elements:
        raise ValueError(f"{elements} elements do not have the shape {lengths[:12]}")
    return checked_shape(lengths)


def reshape_like(e: Emit, use: OpUse, x: Val, like: Val) -> Val:
    return e.reshape(x, like.shape)


def transpose(e: Emit, use: OpUse, x: Val) -> Val:
    """Transpose by the attribute `axes`, or with all axes reversed."""
    axes = use.integers("axes", default=()) or tuple(range(x.rank))[::-1]
    return e.op("Transpose", x, perm=[axis_of(x, a) for a in axes])


def without_axes(e: Emit, x: Val, axes: Collection[int]) -> Val:
    """`x` without dimensions of length 1."""
    return e.reshape(x, [n for i, n in enumerate(x.shape) if i not in axes])


def with_axes(e: Emit, x: Val, axes: Sequence[int]) -> Val:
    """`x` with dimensions of length 1 inserted one after another. Raises ValueError for an axis out of range."""
    shape = list(x.shape)
    for axis in axes:
        at = axis + len(shape) + 1 if axis < 0 else axis
        if not 0 <= at <= len(shape):
            raise ValueError(f"axis {axis} of {x.type}")
        shape.insert(at, 1)
    return e.reshape(x, shape)


def stack(e: Emit, use: OpUse, *parts: Val) -> Val:
    """Parts of one shape joined along a new axis."""
    return stacked(e, parts, use.integer("axis", default=0))


def stacked(e: Emit, parts: Sequence[Val], axis: int) -> Val:
    at = axis + parts[0].rank + 1 if axis < 0 else axis
    return e.op("Concat", *[with_axes(e, x, [at]) for x in parts], axis=at)


def split(e: Emit, x: Val, parts: int, axis: int, sizes: Sequence[int] | None = None) -> tuple[Val, ...]:
    """`x` split along an axis, equally unless `sizes` are given. Raises ValueError."""
    axis = axis_of(x, axis)
    if not 0 < parts <= 65_536:
        raise ValueError(f"{parts} parts")
    if sizes is None:
        if x.shape[axis] % parts:
            raise ValueError(f"{x.type} cannot be split into {parts} equal parts along axis {axis}")
        sizes = [x.shape[axis] // parts] * parts
    if parts == 1:
        return (x,)
    return e.op("Split", x, e.ints(sizes), outputs=parts, axis=axis)


def sliced(e: Emit, x: Val, axes: Sequence[int], begin: Sequence[int], end: Sequence[int], step: Sequence[int]) -> Val:
    return e.op("Slice", x, e.ints(begin), e.ints(end), e.ints(axes), e.ints(step))


def tiled(e: Emit, x: Val, times: Sequence[int]) -> Val:
    """`x` repeated along its dimensions; the shorter of shape and `times` is preceded by ones. Raises ValueError."""
    rank = max(len(times), x.rank)
    wide = e.reshape(x, (*[1] * (rank - x.rank), *x.shape))
    times = [*[1] * (rank - len(times)), *times]
    checked_shape([n * k for n, k in zip(wide.shape, times, strict=True)])
    return e.op("Tile", wide, e.ints(times))


def pad(e: Emit, x: Val, pads: Sequence[int], mode: str, number: float) -> Val:
    """Pad with ONNX pads: all begins, then all ends; `number` fills in constant mode."""
    fill = e.scalar_like(number, x)
    return e.op("Pad", x, e.ints(pads), *([fill] if mode == "constant" else []), mode=mode)


def resize_nearest(e: Emit, x: Val, height: float, width: float) -> Val:
    """Image [batch, channels, height, width] scaled by repeating pixels."""
    scales = e.constant(np.array([1, 1, height, width], np.float32))
    return e.op(
        "Resize", x, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
