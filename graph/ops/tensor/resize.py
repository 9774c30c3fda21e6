"""Resize as one weighted gather per axis, and its exact adjoint as one weighted scatter per axis.

Output cell o of an axis is at x = coordinate(o) in the input and reads the neighboring cells:

    base = ⌈x⌉ - 1, r = x - base in (0, 1]        y[o] = Σᵢ kernel(i - r) · in[clamp(base + i)]

Nearest reads one cell, linear two, cubic four (Keys, "Cubic convolution interpolation for digital
image processing", 1981); antialiasing stretches the kernel by 1/scale when shrinking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graph.ir import TensorType
from graph.ops.numeric.precision import downcast_like, upcast
from graph.ops.registry import onnx_fallback
from graph.ops.registry.registry import Call, Work, op

_POLICIES = {"not_larger": min, "not_smaller": max}
_TAPS = {"nearest": 0, "linear": 2, "cubic": 4}


@dataclass(frozen=True, slots=True)
class Taps:
    """Input cells and weights of each output cell of one axis."""

    axis: int
    length: int  # number of input cells
    cell: np.ndarray  # int64[outputs, taps]
    weight: np.ndarray  # float64[outputs, taps], zero in a row that extrapolates
    outside: np.ndarray  # bool[outputs]: gets the extrapolation value

    def gather(self, x: np.ndarray) -> np.ndarray:
        """The axis of `x` resized."""
        if self.is_selection:
            return x.take(self.cell[:, 0], axis=self.axis)
        y = np.zeros((*x.shape[: self.axis], len(self.cell), *x.shape[self.axis + 1 :]), x.dtype)
        for tap in range(self.cell.shape[1]):
            if self.weight[:, tap].any():
                y += x.take(self.cell[:, tap], axis=self.axis) * self._along(self.weight[:, tap], x)
        return y

    def scatter(self, dy: np.ndarray) -> np.ndarray:
        """The adjoint of `gather`; summands of a cell are added in order of output cell."""
        out, tap = np.nonzero(self.weight)
        cell = self.cell[out, tap]
        order = np.argsort(cell, kind="stable")
        shares = dy.take(out[order], axis=self.axis) * self._along(self.weight[out, tap][order], dy)
        touched, first = np.unique(cell[order], return_index=True)
        dx = np.zeros((*dy.shape[: self.axis], self.length, *dy.shape[self.axis + 1 :]), dy.dtype)
        if len(touched):
            dx[self._index(touched)] = np.add.reduceat(shares, first, axis=self.axis)
        return dx

    def matrix(self) -> np.ndarray:
        """float64[outputs, cells]: the map as a dense matrix."""
        dense = np.zeros((len(self.cell), self.length))
        np.add.at(dense, (np.arange(len(self.cell))[:, None], self.cell), self.weight)
        return dense

    @property
    def is_selection(self) -> bool:
        """True if each output is a copy of one input cell."""
        return self.cell.shape[1] == 1 and bool((self.weight == 1).all())

    def _index(self, cells: np.ndarray) -> tuple[Any, ...]:
        return (*(slice(None),) * self.axis, cells)

    def fill_outside(self, y: np.ndarray, value: float) -> None:
        """Write the extrapolation value to output cells outside the input."""
        y[self._index(self.outside)] = value

    def _along(self, v: np.ndarray, like: np.ndarray) -> np.ndarray:
        return v.astype(like.dtype).reshape(-1, *(1,) * (like.ndim - self.axis - 1))


def resize_taps(
    attributes: Mapping[str, Any],
    shape: Sequence[int],
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
    roi: np.ndarray | None,
    made: Sequence[int] | None = None,
) -> list[Taps]:
    """Taps of each resized axis. `made` is the output shape, if known. Crops are computed in the dtype of roi.

    Raises ValueError if attributes, scales and sizes do not match the shape.
    """
    rank = len(shape)
    axes = [int(a) % rank for a in attributes.get("axes") or range(rank)]
    scale, output = _lengths(attributes, shape, axes, scales, sizes)
    if made is not None:
        output = list(made)
    crops = text_attribute(attributes, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    if crops and (roi is None or len(roi) != 2 * len(axes)):
        raise ValueError(f"tf_crop_and_resize needs roi with {2 * len(axes)} entries, two per axis")
    found = []
    for axis in sorted(axes):
        place = axes.index(axis)
        start, end = (roi[place], roi[len(axes) + place]) if crops and roi is not None else (0.0, 1.0)
        same = math.isclose(scale[axis], 1) and output[axis] == shape[axis]
        if same and math.isclose(start, 0, abs_tol=1e-9) and math.isclose(end, 1):
            continue
        found.append(_taps(attributes, axis, shape[axis], output[axis], scale[axis], (start, end)))
    return found


def _lengths(
    attributes: Mapping[str, Any],
    shape: Sequence[int],
    axes: Sequence[int],
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
) -> tuple[list[float], list[int]]:
    """Scale and output length of every axis."""
    scale, output = [1.0] * len(shape), list(shape)
    if len(scales or sizes or ()) != len(axes):
        raise ValueError(f"scales or sizes must have {len(axes)} entries, one per resized axis")
    if scales:
        for axis, factor in zip(axes, scales, strict=True):
            scale[axis], output[axis] = float(factor), math.floor(float(factor) * shape[axis])
        return scale, output
    for axis, n in zip(axes, sizes or (), strict=True):
        scale[axis], output[axis] = n / max(1, shape[axis]), int(n)
    policy = text_attribute(attributes, "keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        if policy not in _POLICIES:
            raise ValueError(f"keep_aspect_ratio_policy {policy!r} must be stretch, not_larger or not_smaller")
        common = _POLICIES[policy](scale[a] for a in axes)
        for axis in axes:
            scale[axis], output[axis] = common, math.floor(common * shape[axis] + 0.5)
    return scale, output


def _taps(
    attributes: Mapping[str, Any], axis: int, length: int, count: int, scale: float, roi: tuple[float, float]
) -> Taps:
    x = _coordinates(attributes, length, count, scale, roi)
    crops = text_attribute(attributes, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    outside = (x < 0) | (x > length - 1) if crops else np.zeros(count, bool)
    mode = text_attribute(attributes, "mode", "nearest")
    if mode == "nearest":
        cell, weight = (
            _nearest(x, text_attribute(attributes, "nearest_mode", "round_prefer_floor"))[:, None],
            np.ones((count, 1)),
        )
    elif mode in _TAPS:
        base = np.ceil(x).astype(np.int64) - 1
        narrowing = min(scale, 1.0) if attributes.get("antialias", 0) else 1.0
        kernel, half = (_triangle, 1) if mode == "linear" else (_cubic(attributes.get("cubic_coeff_a", -0.75)), 2)
        first = math.floor(-half / narrowing) + 1
        offset = np.arange(first, 2 - first)
        weight = kernel(narrowing * (offset - (x - base)[:, None]))
        cell = base[:, None] + offset
        if attributes.get("exclude_outside", 0):
            weight[(cell < 0) | (cell >= length)] = 0
        total = weight.sum(axis=1, keepdims=True)
        weight /= np.where(total == 0, 1, total)
    else:
        raise ValueError(f"mode {mode!r} must be nearest, linear or cubic")
    weight[outside] = 0
    return Taps(axis, length, np.clip(cell, 0, max(0, length - 1)), weight, outside)


def _coordinates(
    attributes: Mapping[str, Any], length: int, count: int, scale: float, roi: tuple[float, float]
) -> np.ndarray:
    """float64[count]: input coordinate of each output cell."""
    mode = text_attribute(attributes, "coordinate_transformation_mode", "half_pixel")
    o = np.arange(count, dtype=np.float64)
    target = scale * length  # may be fractional
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and target != 1):
        return np.asarray((o + 0.5) / scale - 0.5)
    if mode == "pytorch_half_pixel":
        return np.full(count, -0.5)
    if mode == "half_pixel_symmetric":
        return np.asarray(length / 2 * (1 - count / target) + (o + 0.5) / scale - 0.5)
    if mode == "asymmetric":
        return np.asarray(o / scale)
    if mode == "align_corners":
        return o * 0 if target == 1 else o * (length - 1) / (target - 1)
    if mode == "tf_crop_and_resize":
        start, end = roi
        if target == 1:
            return np.full(count, (end - start) * (length - 1) / 2 + start * (length - 1))
        return np.asarray(o * (end - start) * (length - 1) / (target - 1) + start * (length - 1))
    raise ValueError(f"coordinate_transformation_mode {mode!r} is not in the standard")


def _nearest(x: np.ndarray, mode: str) -> np.ndarray:
    rounding: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    }
    if mode not in rounding:
        raise ValueError(f"nearest_mode {mode!r} must be one of {', '.join(rounding)}")
    return rounding[mode](x).astype(np.int64)


def _triangle(t: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(1 - np.abs(t), 0, 1))


def _cubic(a: float) -> Callable[[np.ndarray], np.ndarray]:
    """Keys' kernel with parameter `a`: continuously differentiable, zero from 2 on."""

    def kernel(t: np.ndarray) -> np.ndarray:
        t = np.abs(t)
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        return np.where(t <= 1, near, np.where(t < 2, far, 0.0))

    return kernel


def text_attribute(attributes: Mapping[str, Any], name: str, default: str) -> str:
    found = attributes.get(name, default)
    return found.decode() if isinstance(found, bytes) else str(found)


def apply_taps(x: np.ndarray, taps: Sequence[Taps], extrapolation: float) -> np.ndarray:
    """`x` resized, in its own type: floats in computing precision, integers rounded to even and clipped."""
    if all(t.is_selection for t in taps):
        for t in taps:
            x = t.gather(x)
        return x.copy() if not taps else x
    whole = np.issubdtype(x.dtype, np.integer) or x.dtype == np.bool_
    y = np.asarray(x, np.float64, order="C") if whole else upcast(x)
    for t in taps:
        y = t.gather(y)
        t.fill_outside(y, extrapolation)
    if not whole:
        return downcast_like(y, x)
    bounds = (0, 1) if x.dtype == np.bool_ else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    return np.asarray(np.clip(np.rint(y), *bounds).astype(x.dtype))


def resize_work(call: Call) -> Work:
    """Work: one multiply-add per tap of each resized axis, on the larger side."""
    x, y = call.inputs[0], call.outputs[0]
    if x is None or y is None:
        return Work()
    changed = sum(a != b for a, b in zip(x.shape, y.shape, strict=True))
    taps = _TAPS.get(text_attribute(call.attributes, "mode", "nearest"), 4)
    return Work(max(1, 2 * taps * changed) * max(x.elements, y.elements))


def _resized_type(call: Call) -> tuple[TensorType | None, ...]:
    """Types by the standard; a declared output must have the rank of the input."""
    types = onnx_fallback.infer(call)
    x, y = call.inputs[0], types[0] if types else None
    if x is not None and y is not None and len(x.shape) != len(y.shape):
        raise ValueError(f"{x} cannot become {y}, which has another rank")
    return types


@op("Resize", infer=_resized_type, work=resize_work)
def resize(
    call: Call,
    x: np.ndarray,
    roi: np.ndarray | None = None,
    scales: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
) -> np.ndarray:
    made = call.outputs[0].shape if call.outputs and call.outputs[0] is not None else None
    factors, lengths = (None if v is None or v.size == 0 else v.tolist() for v in (scales, sizes))
    taps = resize_taps(call.attributes, x.shape, factors, lengths, roi, made)
    return apply_taps(x, taps, call.attribute("extrapolation_value", 0.0))


@op("Upsample", work=resize_work)
def upsample(call: Call, x: np.ndarray, scales: np.ndarray | None = None) -> np.ndarray:
    """The predecessor of Resize (opset 7 to 9): asymmetric coordinates, rounded down for nearest."""
    mode = text_attribute(call.attributes, "mode", "nearest")
    how = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    factors = call.attribute("scales") if scales is None else scales.tolist()  # an attribute before opset 9
    return apply_taps(x, resize_taps(how, x.shape, factors, None, None), 0.0)
