"""Reductions over axes, cumulative sums, ArgMax and ArgMin, axis normalizations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graph.ir import TensorType
from graph.ops.numeric.elementwise_helpers import TRANSCENDENTAL, as_computable, as_new_array
from graph.ops.registry import onnx_fallback
from graph.ops.registry.registry import Call, Work, op, register_standard


def reduction_axes(call: Call, rank: int, given: np.ndarray | None) -> tuple[int, ...] | None:
    """Nonnegative axes of a reduction; None if it is the identity.

    Axes are an attribute or the second input; absent or empty means all, unless `noop_with_empty_axes`.
    """
    axes = call.attribute("axes") if given is None else given.reshape(-1).tolist()
    if not axes:
        return None if call.attribute("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({int(axis) % max(rank, 1) for axis in axes})) if rank else ()


def _reduction(call: Call) -> Work:
    """Work: one flop per input element."""
    return Work(0 if call.inputs[0] is None else call.inputs[0].elements)


def _reducer(name: str, formula: Callable[..., Any], saves: tuple[str, ...], flops: int = 1) -> None:
    """Register a reduction; `formula(x, axes, keepdims)` sees at least float32."""

    def work(call: Call) -> Work:
        return Work(flops * (0 if call.inputs[0] is None else call.inputs[0].elements))

    @op(name, work=work, gradient_reads=saves)
    def kernel(call: Call, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
        over = reduction_axes(call, x.ndim, axes)
        with np.errstate(all="ignore"):
            wide = as_computable(x)
            if over is None:
                return as_new_array(_alone(name, wide), x.dtype, x)
            return as_new_array(formula(wide, over, bool(call.attribute("keepdims", 1))), x.dtype, x)


def _alone(name: str, x: Any) -> Any:
    """Result of a reduction over no axes, elementwise."""
    if name in ("ReduceSumSquare",):
        return x * x
    if name in ("ReduceL1", "ReduceL2"):
        return np.abs(x)
    return np.log(x) if name == "ReduceLogSum" else x


def _log_sum_exp(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    """log Σ exp, shifted by the largest element so that nothing overflows."""
    if not x.size:
        return np.asarray(np.log(np.sum(np.exp(x), axis=axes, keepdims=keepdims)))
    high = np.max(x, axis=axes, keepdims=True)
    shift = np.where(np.isfinite(high), high, 0).astype(x.dtype)
    total = np.log(np.sum(np.exp(x - shift), axis=axes, keepdims=True)) + shift
    return np.asarray(total if keepdims else np.squeeze(total, axes))


def _extreme(function: Callable[..., Any], worst: Callable[[np.dtype[Any]], Any]) -> Callable[..., Any]:
    """Maximum or minimum; `worst` of the dtype over no elements."""

    def formula(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> Any:
        if x.dtype == bool:
            return function(x.astype(np.uint8), axis=axes, keepdims=keepdims, initial=worst(np.dtype(bool)))
        return function(x, axis=axes, keepdims=keepdims, initial=worst(x.dtype))

    return formula


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else 0 if dtype.kind == "b" else np.iinfo(dtype).min


def _highest(dtype: np.dtype[Any]) -> Any:
    return np.inf if dtype.kind == "f" else 1 if dtype.kind == "b" else np.iinfo(dtype).max


def _mean(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> Any:
    if x.dtype.kind == "f":
        return np.mean(x, axis=axes, keepdims=keepdims)
    return np.mean(x.astype(np.float64), axis=axes, keepdims=keepdims)


_reducer("ReduceSum", lambda x, a, k: np.sum(x, axis=a, keepdims=k, dtype=x.dtype), ())
_reducer("ReduceMean", _mean, ())
_reducer("ReduceProd", lambda x, a, k: np.prod(x, axis=a, keepdims=k, dtype=x.dtype), ("i0",))
_reducer("ReduceMax", _extreme(np.max, _lowest), ("i0", "o0"))
_reducer("ReduceMin", _extreme(np.min, _highest), ("i0", "o0"))
_reducer("ReduceSumSquare", lambda x, a, k: np.sum(x * x, axis=a, keepdims=k, dtype=x.dtype), ("i0",), 2)
_reducer("ReduceL1", lambda x, a, k: np.sum(np.abs(x), axis=a, keepdims=k, dtype=x.dtype), ("i0",), 2)
_reducer("ReduceL2", lambda x, a, k: np.sqrt(np.sum(x * x, axis=a, keepdims=k, dtype=x.dtype)), ("i0", "o0"), 2)
_reducer("ReduceLogSum", lambda x, a, k: np.log(np.sum(x, axis=a, keepdims=k, dtype=x.dtype)), ("o0",))
_reducer("ReduceLogSumExp", _log_sum_exp, ("i0", "o0"), TRANSCENDENTAL)


def _position(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    def kernel(call: Call, x: np.ndarray) -> np.ndarray:
        axis = call.attribute("axis", 0) % x.ndim
        wide: Any = as_computable(x)
        if call.attribute("select_last_index", 0):
            found = x.shape[axis] - 1 - function(np.flip(wide, axis), axis=axis)
        else:
            found = function(wide, axis=axis)
        made = np.asarray(found, np.int64)
        return np.expand_dims(made, axis) if call.attribute("keepdims", 1) else made

    return kernel


op("ArgMax", work=_reduction)(_position(np.argmax))
op("ArgMin", work=_reduction)(_position(np.argmin))


@op("CumSum", work=_reduction, takeover=((0, 0),), gradient_reads=("i1",))
def cumulative_sum(call: Call, x: np.ndarray, axis: np.ndarray) -> np.ndarray:
    along = int(axis.reshape(-1)[0]) % x.ndim
    wide: Any = as_computable(x)
    if call.attribute("reverse", 0):
        wide = np.flip(wide, along)
    total = np.cumsum(wide, axis=along, dtype=wide.dtype)
    if call.attribute("exclusive", 0):
        total = total - wide if wide.dtype.kind in "iu" else _shifted(total, along)
    if call.attribute("reverse", 0):
        total = np.flip(total, along)
    return as_new_array(total, x.dtype, x)


def _shifted(total: np.ndarray, axis: int) -> np.ndarray:
    """Exclusive sums: shifted by one position, 0 first."""
    moved = np.roll(total, 1, axis)
    if total.shape[axis]:
        moved[(slice(None),) * axis + (0,)] = 0
    return moved


def _as_input(call: Call) -> tuple[TensorType | None, ...]:
    """The type of the input; the standard defines it by the function body only."""
    onnx_fallback.infer(call)
    return call.inputs[:1]


@op("MeanVarianceNormalization", work=_reduction, infer=_as_input, takeover=((0, 0),), gradient_reads=("i0", "o0"))
def mean_variance_normalization(call: Call, x: np.ndarray) -> np.ndarray:
    """(x - mean) / (deviation + 1e-9) over `axes`; by default all but the channels."""
    axes, wide = tuple(call.attribute("axes", (0, 2, 3))), as_computable(x)
    centred = wide - np.mean(wide, axis=axes, keepdims=True)
    deviation = np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True))
    return as_new_array(centred / (deviation + np.asarray(1e-9, wide.dtype)), x.dtype, x)


@op("LpNormalization", work=_reduction, takeover=((0, 0),), gradient_reads=("i0", "o0"))
def lp_normalization(call: Call, x: np.ndarray) -> np.ndarray:
    """x over its 1-norm or 2-norm along an axis; 0 where the norm is 0."""
    axis, wide = call.attribute("axis", -1), as_computable(x)
    if call.attribute("p", 2) == 1:
        norm = np.sum(np.abs(wide), axis=axis, keepdims=True)
    else:
        norm = np.sqrt(np.sum(wide * wide, axis=axis, keepdims=True))
    with np.errstate(all="ignore"):
        return as_new_array(np.where(norm == 0, 0, wide / norm), x.dtype, x)


register_standard("TopK", work=_reduction, gradient_reads=("o1",))
register_standard("CumProd", work=_reduction, takeover=((0, 0),), gradient_reads=("i0", "i1"))
