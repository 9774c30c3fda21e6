"""Pieces that the op tables of several frameworks are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graph.builder.emit import Emit
from graph.formats.shared.op_table import Unmapped
from graph.ir import ABSENT, DTYPE_BITS, FLOAT_DTYPES, TensorType, Val
from graph.ops.registry.onnx_fallback import numpy_dtype

MAX_LENGTH = 2**31 - 1


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape, of lengths a tensor can have. Raises ValueError."""
    if any(not 0 <= n <= MAX_LENGTH for n in shape) or math.prod(shape) >= 1 << 60:
        raise ValueError(f"shape {list(shape)[:8]} is not one a tensor can have")
    return tuple(shape)


def axis_of(x: Val, axis: int) -> int:
    """The axis counted from 0. Raises ValueError."""
    if not -x.rank <= axis < x.rank:
        raise ValueError(f"axis {axis} of a value of {x.rank} dimensions")
    return axis % x.rank


def filled(e: Emit, shape: Sequence[int], number: float, dtype: str) -> Val:
    """A tensor of one number, made by a node so that it is held only where it is needed."""
    shape = checked_shape(shape)
    if dtype not in DTYPE_BITS or DTYPE_BITS[dtype] < 8:
        raise Unmapped
    fill = np.full(1, number).astype(numpy_dtype(dtype))
    return e.op("ConstantOfShape", e.ints(shape), value=fill)


def flattened(e: Emit, x: Val, axis: int = 1) -> Val:
    """`x` as a matrix whose rows run over the dimensions before `axis`."""
    return x if x.rank == 2 and axis == 1 else e.op("Flatten", x, axis=axis)


def dense(e: Emit, x: Val, w: Val, bias: Val | None, *, rows: int = 1, outputs_first: bool = True) -> Val:
    """x · wᵀ + bias over the dimensions from `rows` on, or x · w; the dimensions before `rows` stay."""
    before = x.shape[:rows]
    matrix = flattened(e, x, rows)
    y = e.op("Gemm", matrix, w, *([] if bias is None else [bias]), transB=1 if outputs_first else None)
    return y if rows == 1 else e.reshape(y, (*before, y.shape[1]))


def aligned(e: Emit, x: Val, y: Val, axis: int) -> Val:
    """`y` with ones behind, so that its dimensions meet those of `x` from `axis` on; -1: they meet at the end."""
    if axis == -1 or y.rank == 0 or axis + y.rank == x.rank:
        return y
    if axis < 0 or axis + y.rank > x.rank:
        raise ValueError(f"axis {axis}: {y.type} does not fit into {x.type} there")
    return e.reshape(y, (*y.shape, *[1] * (x.rank - axis - y.rank)))


def integral(e: Emit, labels: Val) -> Val:
    """Labels as indices."""
    return labels if labels.dtype in ("int32", "int64") else e.cast(labels, "int64")


def picked_log(e: Emit, prob: Val, labels: Val) -> Val:
    """-log of the probability at each row's label: [rows, classes] and [rows] to [rows]."""
    at = e.reshape(integral(e, labels), (*prob.shape[:-1], 1))
    return e.neg(e.op("Log", e.op("GatherElements", prob, at, axis=prob.rank - 1)))


def squared(e: Emit, x: Val) -> Val:
    return e.mul(x, x)


def scaled(e: Emit, x: Val, factor: float) -> Val:
    return x if factor == 1 else e.op("Mul", x, e.scalar_like(factor, x))


def shifted(e: Emit, x: Val, term: float) -> Val:
    return x if term == 0 else e.op("Add", x, e.scalar_like(term, x))


def as_number(e: Emit, truth: Val, like: Val) -> Val:
    """A truth value in the element type of what was compared."""
    return e.cast(truth, like.dtype)


def reduced(e: Emit, op: str, x: Val, axes: Sequence[int], keepdims: bool) -> Val:
    """A reduction over axes, as ONNX spells it for the opset of the emitter."""
    axes = sorted({axis_of(x, a) for a in axes})
    if not axes:
        return e.op("Identity", x)
    return e.op(op, x, e.ints(axes), keepdims=int(keepdims))


def rows_of_matrix(x: Val) -> int:
    return math.prod(x.shape[:-1])


def floating(x: Val) -> str:
    """The element type of `x`, which must be floating."""
    if x.dtype not in FLOAT_DTYPES:
        raise ValueError(f"{x.type} is not floating")
    return x.dtype


def pads_both(pads: Sequence[int], rank: int) -> list[int]:
    """Equal pads on both sides, as ONNX lists them: all before, then all behind."""
    pads = list(pads) or [0] * rank
    if len(pads) != rank:
        raise ValueError(f"{len(pads)} pads for {rank} dimensions")
    return [*pads, *pads]


def same_each(lengths: Sequence[int], rank: int, default: int) -> list[int]:
    """One length per dimension; a single one counts for all."""
    found = list(lengths) or [default]
    found = found * rank if len(found) == 1 else found
    if len(found) != rank:
        raise ValueError(f"{len(found)} lengths for {rank} dimensions")
    return found


def sliced(e: Emit, x: Val, axes: Sequence[int], begin: Sequence[int], end: Sequence[int], step: Sequence[int]) -> Val:
    return e.op("Slice", x, e.ints(begin), e.ints(end), e.ints(axes), e.ints(step))


def split(e: Emit, x: Val, parts: int, axis: int, sizes: Sequence[int] | None = None) -> tuple[Val, ...]:
    """`x` cut into parts along an axis."""
    axis = axis_of(x, axis)
    if not 0 < parts <= 65_536:
        raise ValueError(f"{parts} parts")
    if sizes is None:
        if x.shape[axis] % parts:
            raise ValueError(f"{x.type} cannot be cut into {parts} equal parts along axis {axis}")
        sizes = [x.shape[axis] // parts] * parts
    if parts == 1:
        return (x,)
    return e.op("Split", x, e.ints(sizes), outputs=parts, axis=axis)


def opaque(e: Emit, op: str, inputs: Sequence[Val | None], types: Sequence[TensorType], **fields: Any) -> Any:
    """An op nobody knows whose types are known: a tuple of its outputs."""
    ids = e.builder.node(
        op,
        [ABSENT if x is None else x.id for x in inputs],
        name=e.prefix,
        outputs=len(types),
        types=list(types),
        phase=e.phase,
        **fields,
    )
    return tuple(e.val(v) for v in ids)
