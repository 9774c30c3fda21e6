"""Interpolation at computed points, in standard ops: taps per axis, their products, and the adjoint.

A point between cells reads 1, 2 or 4 cells of each axis (nearest, linear, cubic). Cells are rows of a matrix
[images · cells, channels], so that one gather reads all channels of a tap for all points.

Source of the cubic weights: Keys, "Cubic convolution interpolation for digital image processing", 1981.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
_KEYS = -0.75  # Keys' parameter
_NEAR = (_KEYS + 2, -(_KEYS + 3), 0.0, 1.0)  # weight at a distance of 0 to 1, highest power first
_FAR = (_KEYS, -5 * _KEYS, 8 * _KEYS, -4 * _KEYS)  # at a distance of 1 to 2


@dataclass(frozen=True, slots=True)
class Tap:
    """One cell of an axis that each point reads; all values have, or broadcast to, the shape of the points."""

    cell: Val  # int64, inside the axis
    weight: Val
    slope: Val  # of the weight, by the coordinate


@dataclass(frozen=True, slots=True)
class Corner:
    """One cell that each point reads: a tap of every axis."""

    row: Val  # int64, of the matrix of cells
    weight: Val
    slopes: tuple[Val, ...]  # per axis


@dataclass(frozen=True, slots=True)
class Axis:
    """Length and border of an axis; `low` and `high` are where reflection turns and clamping begins."""

    length: int
    padding: str  # "zeros", "border" or "reflection"
    low: float
    high: float

    def fold(self, e: Emit, u: Val) -> tuple[Val, Val]:
        """The coordinate brought inside, and its slope."""
        one, zero = e.scalar_like(1, u), e.scalar_like(0, u)
        if self.padding == "border":
            outside = e.op("Or", e.op("Less", u, e.scalar_like(self.low, u)), e.op("Greater", u, self._high(e, u)))
            return e.where(outside, self._clip(e, u), u), e.where(outside, zero, one)
        if self.padding == "reflection":
            return self._reflect(e, u)
        return u, one

    def _reflect(self, e: Emit, u: Val) -> tuple[Val, Val]:
        span = self.high - self.low
        if span == 0:
            return e.mul(u, e.scalar_like(0, u)), e.scalar_like(0, u)
        distance = e.sub(u, e.scalar_like(self.low, u))
        within = e.op("Mod", e.op("Abs", distance), e.scalar_like(2 * span, u), fmod=1)
        back, sign = e.op("Greater", within, e.scalar_like(span, u)), e.op("Sign", distance)
        turned = e.where(back, e.sub(e.scalar_like(2 * span, u), within), within)
        return e.add(turned, e.scalar_like(self.low, u)), e.where(back, e.neg(sign), sign)

    def tap(self, e: Emit, cell: Val, weight: Val, slope: Val) -> Tap:
        """The tap of a cell that may lie outside; there, zeros have no weight."""
        if self.padding == "zeros":
            zero = e.scalar_like(0, cell)
            inside = e.op("And", e.op("GreaterOrEqual", cell, zero), e.op("LessOrEqual", cell, self._last(e, cell)))
            weight, slope = e.where(inside, weight, zero), e.where(inside, slope, zero)
        if self.padding == "reflection":
            cell = self._reflect(e, cell)[0]
        return Tap(e.cast(self._clip(e, cell), "int64"), weight, slope)

    def _clip(self, e: Emit, u: Val) -> Val:
        return e.op("Clip", u, e.scalar_like(0, u), self._last(e, u))  # type: ignore[no-any-return]

    def _last(self, e: Emit, u: Val) -> Val:
        return e.scalar_like(self.length - 1, u)

    def _high(self, e: Emit, u: Val) -> Val:
        return e.scalar_like(self.high, u)


def taps_of(e: Emit, u: Val, axis: Axis, mode: str) -> list[Tap]:
    """The taps of points at coordinate `u`, in cells, of an axis."""
    one = e.scalar_like(1, u)
    if mode == "nearest":
        return [axis.tap(e, e.op("Round", u), one, e.scalar_like(0, u))]
    if mode == "linear":
        u, turn = axis.fold(e, u)
        first = e.op("Floor", u)
        rest = e.sub(u, first)
        weights = [(0, e.sub(one, rest), e.neg(turn)), (1, rest, turn)]
    else:  # the four cells are folded one by one, as PyTorch does
        first = e.op("Floor", u)
        rest = e.sub(u, first)
        weights = [
            (-1, *_cubic(e, e.add(rest, one), _FAR, 1)),
            (0, *_cubic(e, rest, _NEAR, 1)),
            (1, *_cubic(e, e.sub(one, rest), _NEAR, -1)),
            (2, *_cubic(e, e.sub(e.scalar_like(2, u), rest), _FAR, -1)),
        ]
    return [axis.tap(e, e.add(first, e.scalar_like(offset, u)), w, s) for offset, w, s in weights]


def _cubic(e: Emit, distance: Val, powers: Sequence[float], sign: int) -> tuple[Val, Val]:
    """(weight at a distance, its slope by the coordinate); `sign` is that of the distance's slope."""
    derived = [sign * power * factor for power, factor in zip(powers[:3], (3, 2, 1), strict=True)]
    return _polynomial(e, distance, powers), _polynomial(e, distance, derived)


def _polynomial(e: Emit, x: Val, powers: Sequence[float]) -> Val:
    """The value at `x` of a polynomial, highest power first."""
    total = e.scalar_like(powers[0], x)
    for power in powers[1:]:
        total = e.mul(total, x)
        total = total if power == 0 else e.add(total, e.scalar_like(power, x))
    return total


def corners_of(e: Emit, taps: Sequence[Sequence[Tap]], lengths: Sequence[int], image: Val) -> Iterator[Corner]:
    """Every combination of one tap per axis; `image` is the image of each point."""
    for chosen in itertools.product(*taps):
        row = image
        for tap, length in zip(chosen, lengths, strict=True):
            row = e.add(e.mul(row, e.scalar_like(length, row)), tap.cell)
        weights = [tap.weight for tap in chosen]
        slopes = [_product(e, [*weights[:axis], tap.slope, *weights[axis + 1 :]]) for axis, tap in enumerate(chosen)]
        yield Corner(row, _product(e, weights), tuple(slopes))


def _product(e: Emit, factors: Sequence[Val]) -> Val:
    total = factors[0]
    for factor in factors[1:]:
        total = e.mul(total, factor)
    return total


def cells_of(e: Emit, x: Val) -> Val:
    """[images · cells, channels] of [images, channels, ...]."""
    images, channels = x.shape[:2]
    cells = math.prod(x.shape[2:])
    flat = e.transpose(e.reshape(x, (images, channels, cells)), [0, 2, 1])
    return e.reshape(flat, (images * cells, channels))


def image_of(e: Emit, cells: Val, shape: Sequence[int]) -> Val:
    """The inverse of `cells_of`, to [images, channels, ...]."""
    flat = e.reshape(cells, (shape[0], math.prod(shape[2:]), shape[1]))
    return e.reshape(e.transpose(flat, [0, 2, 1]), shape)


def column(e: Emit, weight: Val) -> Val:
    """A weight per point, to multiply all channels by."""
    return e.reshape(weight, (*weight.shape, 1))


def interpolate(e: Emit, cells: Val, corners: Sequence[Corner]) -> Val:
    """[points, channels]: the weighted sum over the corners."""
    parts = [e.mul(e.op("Gather", cells, c.row, axis=0), column(e, c.weight)) for c in corners]
    return parts[0] if len(parts) == 1 else e.op("Sum", *parts)


def scatter(e: Emit, dy: Val, cells: TensorType, corners: Sequence[Corner]) -> Val:
    """The adjoint of `interpolate` in the cells: dy [points, channels], weighted, added at each corner."""
    total = e.zeros(cells)
    for c in corners:
        share = e.mul(dy, column(e, c.weight))
        total = e.op("ScatterND", total, column(e, c.row), share, reduction="add")
    return total


def coordinate_gradients(e: Emit, dy: Val, cells: Val, corners: Sequence[Corner]) -> list[Val]:
    """Per axis the gradient of the points' coordinates: Σ over corners and channels of dy · cell · slope."""
    inner = []
    for c in corners:
        product = e.mul(dy, e.op("Gather", cells, c.row, axis=0))
        inner.append(e.reduce_sum(product, [product.rank - 1], keepdims=False))
    found = []
    for axis in range(len(corners[0].slopes)):
        parts = [e.mul(total, c.slopes[axis]) for total, c in zip(inner, corners, strict=True)]
        found.append(parts[0] if len(parts) == 1 else e.op("Sum", *parts))
    return found


def image_numbers(e: Emit, images: int, rank: int) -> Val:
    """int64[images, 1, ...]: the number of each image, for points of this rank."""
    return e.constant(np.arange(images).reshape([images, *[1] * (rank - 1)]))
