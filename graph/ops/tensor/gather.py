"""Gathers, scatters, and gradients of gathers: scatter-adds into zeros, in index order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.numeric.elementwise_helpers import as_computable, as_new_array
from graph.ops.numeric.precision import attribute_shape
from graph.ops.registry import onnx_fallback
from graph.ops.registry.registry import Call, Work, op, register_standard
from graph.ops.tensor.shape import copy_work, output_copy_work

_ADDING: dict[str, Callable[..., Any]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _nonnegative(indices: np.ndarray, length: int) -> np.ndarray:
    """Nonnegative indices. Raises IndexError naming an index out of range."""
    found = indices.astype(np.int64)
    found = np.where(found < 0, found + length, found)
    if found.size and (found.min() < 0 or found.max() >= length):
        bad = indices.reshape(-1)[int(np.argmax(((found < 0) | (found >= length)).reshape(-1)))]
        raise IndexError(f"index {bad} is out of range for a length of {length}")
    return found


@op("Gather", work=output_copy_work, gradient_reads=("i1",))
def gather(call: Call, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    axis = call.attribute("axis", 0) % x.ndim
    return np.array(np.take(x, _nonnegative(indices, x.shape[axis]), axis=axis), order="C")


@op("GatherElements", work=output_copy_work, gradient_reads=("i1",))
def gather_elements(call: Call, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.array(x[_element_index(x.shape, indices, call.attribute("axis", 0))], order="C")


@op("GatherND", work=output_copy_work, gradient_reads=("i1",))
def gather_nd(call: Call, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.array(x[_tuple_index(x.shape, indices, call.attribute("batch_dims", 0))], order="C")


def _element_index(shape: tuple[int, ...], indices: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    """Index arrays of the elements that GatherElements reads and ScatterElements writes."""
    axis %= len(shape)
    index = list(np.ogrid[tuple(slice(n) for n in indices.shape)]) if indices.ndim else []
    index[axis] = _nonnegative(indices, shape[axis])
    return tuple(index)


def _tuple_index(shape: tuple[int, ...], indices: np.ndarray, batch_dims: int) -> tuple[np.ndarray, ...]:
    """Index arrays of the slices given by index tuples, batch axes first."""
    depth = indices.shape[-1]
    batch = np.ogrid[tuple(slice(n) for n in indices.shape[:-1])] if indices.ndim > 1 else []
    named = (_nonnegative(indices[..., i], shape[batch_dims + i]) for i in range(depth))
    return (*batch[:batch_dims], *named)


def _scattered(call: Call, x: np.ndarray, index: tuple[np.ndarray, ...], updates: np.ndarray) -> np.ndarray:
    """A copy of `x` with updates written, or reduced in index order."""
    reduction = call.attribute("reduction", "none")
    if reduction == "none":
        result = np.array(x, order="C")
        result[index] = updates
        return result
    wide = as_computable(x).copy()
    _ADDING[reduction](wide, index, as_computable(updates))
    return as_new_array(wide, x.dtype, x)


def _scatter_work(call: Call) -> Work:
    """Work: the tensor is copied once, the updates are moved three times."""
    x, updates = call.inputs[0], call.inputs[2]
    if x is None or updates is None:
        return Work()
    return Work(updates.elements, 2 * x.nbytes + 3 * updates.nbytes)


_SCATTER: dict[str, Any] = {"work": _scatter_work, "gradient_reads": ("i0", "i1", "i2", "o0")}


@op("ScatterElements", **_SCATTER)
def scatter_elements(call: Call, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    return _scattered(call, x, _element_index(x.shape, indices, call.attribute("axis", 0)), updates)


@op("Scatter", work=_scatter_work)
def scatter(call: Call, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """ScatterElements before opset 11."""
    return _scattered(call, x, _element_index(x.shape, indices, call.attribute("axis", 0)), updates)


@op("ScatterND", **_SCATTER)
def scatter_nd(call: Call, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    return _scattered(call, x, _tuple_index(x.shape, indices, 0), updates)


def _gradient_type(call: Call) -> tuple[TensorType | None, ...]:
    """dy's dtype over `input_shape`."""
    shape = attribute_shape(call.attributes, "input_shape", call.op)
    if len(call.inputs) != 2:
        raise ValueError(f"{call.op} has {len(call.inputs)} inputs; it takes the incoming gradient and the indices")
    dy = call.inputs[0]
    return (None if dy is None else TensorType(dy.dtype, shape),)


def _gradient_work(call: Call) -> Work:
    """Work: zeros are written once, the incoming gradient is moved three times."""
    dy, dx = call.inputs[0], call.outputs[0]
    if dy is None or dx is None:
        return Work()
    return Work(dy.elements, dx.nbytes + 3 * dy.nbytes)


def _added(call: Call, dy: np.ndarray, index: tuple[Any, ...], shape: tuple[int, ...]) -> np.ndarray:
    wide = as_computable(dy)
    dx = np.zeros(shape, wide.dtype)
    np.add.at(dx, index, wide)
    return as_new_array(dx, dy.dtype)


def _gather_axes(call: Call, indices_shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """(shape of x, gathered axis, shape of dy with the axes of the indices flattened)."""
    shape = attribute_shape(call.attributes, "input_shape", call.op)
    axis = call.attribute("axis", 0) % len(shape)
    count = int(np.prod(indices_shape, dtype=np.int64))
    return shape, axis, (*shape[:axis], count, *shape[axis + 1 :])


def _gather_body(e: Emit, call: Call, dy: Val, indices: Val) -> tuple[Val, ...]:
    shape, axis, flat = _gather_axes(call, indices.shape)
    lengths = [flat[axis] if i == axis else 1 for i in range(len(shape))]
    spread = e.expand(e.reshape(indices, lengths), flat)
    zeros = e.zeros(TensorType(dy.dtype, shape))
    return (e.op("ScatterElements", zeros, spread, e.reshape(dy, flat), axis=axis, reduction="add"),)


_GRADIENT: dict[str, Any] = {"infer": _gradient_type, "work": _gradient_work}


@op("remat::GatherGrad", body=_gather_body, **_GRADIENT)
def gather_grad(call: Call, dy: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """dy added at the indices of an axis; the other lengths are those of dy, of which the type is an upper bound."""
    shape, axis, _ = _gather_axes(call, indices.shape)
    before, after = dy.shape[:axis], dy.shape[axis + indices.ndim :]
    where = _nonnegative(indices, shape[axis]).reshape(-1)
    rows = dy.reshape(*before, where.size, *after)
    return _added(call, rows, (slice(None),) * axis + (where,), (*before, shape[axis], *after))


def _gather_elements_body(e: Emit, call: Call, dy: Val, indices: Val) -> tuple[Val, ...]:
    shape = attribute_shape(call.attributes, "input_shape", call.op)
    axis, zeros = call.attribute("axis", 0), e.zeros(TensorType(dy.dtype, shape))
    return (e.op("ScatterElements", zeros, indices, dy, axis=axis, reduction="add"),)


@op("remat::GatherElementsGrad", body=_gather_elements_body, **_GRADIENT)
def gather_elements_grad(call: Call, dy: np.ndarray, indices: np.ndarray) -> np.ndarray:
    shape = attribute_shape(call.attributes, "input_shape", call.op)
    return _added(call, dy, _element_index(shape, indices, call.attribute("axis", 0)), shape)


def _gather_nd_body(e: Emit, call: Call, dy: Val, indices: Val) -> tuple[Val, ...]:
    shape, batch = attribute_shape(call.attributes, "input_shape", call.op), call.attribute("batch_dims", 0)
    named = e.cast(indices, "int64")
    if batch:
        lead = indices.shape[:-1]
        grids = [np.broadcast_to(g, lead) for g in np.ogrid[tuple(slice(n) for n in lead)][:batch]]
        named = e.op("Concat", e.constant(np.stack(grids, -1), "int64"), named, axis=-1)
    return (e.op("ScatterND", e.zeros(TensorType(dy.dtype, shape)), named, dy, reduction="add"),)


@op("remat::GatherNDGrad", body=_gather_nd_body, **_GRADIENT)
def gather_nd_grad(call: Call, dy: np.ndarray, indices: np.ndarray) -> np.ndarray:
    shape = attribute_shape(call.attributes, "input_shape", call.op)
    return _added(call, dy, _tuple_index(shape, indices, call.attribute("batch_dims", 0)), shape)


def _cache_work(call: Call) -> Work:
    """Work: the cache is copied once, the update is moved twice."""
    cache, update = call.inputs[:2]
    return Work() if cache is None or update is None else Work(0, 2 * (cache.nbytes + update.nbytes))


register_standard("TensorScatter", work=_cache_work, takeover=((0, 0),), gradient_reads=("i2",))


def _unpooled_type(call: Call) -> tuple[TensorType | None, ...]:
    """Type by the standard, or as declared; a constant `output_shape` gives it."""
    types, x, shape = onnx_fallback.infer(call), call.inputs[0], call.constant(2)
    if x is None or shape is None:
        return types
    if len(shape) != len(x.shape) or min(shape) < 0:
        raise ValueError(f"output_shape {shape.tolist()} is no shape of the rank of {x}")
    return (TensorType(x.dtype, tuple(int(n) for n in shape)),)


register_standard("MaxUnpool", infer=_unpooled_type, work=copy_work, gradient_reads=("i1",))
