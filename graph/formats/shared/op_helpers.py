"""Graph fragments shared by the op tables of several frameworks."""

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
    """The shape as a tuple, once every length and the element count are in range. Raises ValueError."""
    if any(not 0 <= n <= MAX_LENGTH for n in shape) or math.prod(shape) >= 1 << 60:
        raise ValueError(f"shape {list(shape)[:8]} is negative or too large")
    return tuple(shape)


def axis_of(x: Val, axis: int) -> int:
    """Non-negative index of the axis. Raises ValueError when out of range."""
    if not -x.rank <= axis < x.rank:
        raise ValueError(f"axis {axis} of a value of {x.rank} dimensions")
    return axis % x.rank


def filled(e: Emit, shape: Sequence[int], number: float, dtype: str) -> Val:
    """Tensor filled with one number, as a node: its lifetime is limited to its readers."""
    shape = checked_shape(shape)
    if dtype not in DTYPE_BITS or DTYPE_BITS[dtype] < 8:
        raise Unmapped
    fill = np.full(1, number).astype(numpy_dtype(dtype))
    return e.op("ConstantOfShape", e.ints(shape), value=fill)


def flattened(e: Emit, x: Val, axis: int = 1) -> Val:
    """`x` reshaped to a matrix; dimensions before `axis` form the rows."""
    return x if x.rank == 2 and axis == 1 else e.op("Flatten", x, axis=axis)


def dense(e: Emit, x: Val, w: Val, bias: Val | None, *, rows: int = 1, outputs_first: bool = True) -> Val:
    """x · wᵀ + bias (x · w + bias with `outputs_first=False`) over the dimensions of x from `rows` on."""
    before = x.shape[:rows]
    matrix = flattened(e, x, rows)
    y = e.op("Gemm", matrix, w, *([] if bias is None else [bias]), transB=1 if outputs_first else None)
    return y if rows == 1 else e.reshape(y, (*before, y.shape[1]))


def aligned(e: Emit, x: Val, y: Val, axis: int) -> Val:
    """`y` with trailing dimensions of length 1, to broadcast against `x` from `axis` on; -1 aligns at the end."""
    if axis == -1 or y.rank == 0 or axis + y.rank == x.rank:
        return y
    if axis < 0 or axis + y.rank > x.rank:
        raise ValueError(f"axis {axis}: {y.type} does not broadcast to {x.type} there")
    return e.reshape(y, (*y.shape, *[1] * (x.rank - axis - y.rank)))


def integral(e: Emit, labels: Val) -> Val:
    """Labels as int32 or int64 indices."""
    return labels if labels.dtype in ("int32", "int64") else e.cast(labels, "int64")


def picked_log(e: Emit, prob: Val, labels: Val) -> Val:
    """Negative log-likelihood of each row's label: [rows, classes] and [rows] to [rows]."""
    at = e.reshape(integral(e, labels), (*prob.shape[:-1], 1))
    return e.neg(e.op("Log", e.op("GatherElements", prob, at, axis=prob.rank - 1)))


def squared(e: Emit, x: Val) -> Val:
    return e.mul(x, x)


def scaled(e: Emit, x: Val, factor: float) -> Val:
    return x if factor == 1 else e.op("Mul", x, e.scalar_like(factor, x))


def shifted(e: Emit, x: Val, term: float) -> Val:
    return x if term == 0 else e.op("Add", x, e.scalar_like(term, x))


def as_number(e: Emit, truth: Val, like: Val) -> Val:
    """A boolean cast to the element type of `like`."""
    return e.cast(truth, like.dtype)


def reduced(e: Emit, op: str, x: Val, axes: Sequence[int], keepdims: bool) -> Val:
    """Reduction over axes, with the axes as an input (ONNX opset 18)."""
    axes = sorted({axis_of(x, a) for a in axes})
    if not axes:
        return e.op("Identity", x)
    return e.op(op, x, e.ints(axes), keepdims=int(keepdims))


def rows_of_matrix(x: Val) -> int:
    return math.prod(x.shape[:-1])


def floating(x: Val) -> str:
    """Element type of `x`. Raises ValueError unless floating point."""
    if x.dtype not in FLOAT_DTYPES:
        raise ValueError(f"{x.type} is not floating point")
    return x.dtype


def pads_both(pads: Sequence[int], rank: int) -> list[int]:
    """Symmetric pads in ONNX order: all begins, then all ends."""
    pads = list(pads) or [0] * rank
    if len(pads) != rank:
        raise ValueError(f"{len(pads)} pads for {rank} dimensions")
    return [*pads, *pads]


def same_each(lengths: Sequence[int], rank: int, default: int) -> list[int]:
    """One length per dimension; a single length is repeated for all dimensions."""
    each = list(lengths) or [default]
    each = each * rank if len(each) == 1 else each
    if len(each) != rank:
        raise ValueError(f"{len(each)} lengths for {rank} dimensions")
    return each


def sliced(e: Emit, x: Val, axes: Sequence[int], begin: Sequence[int], end: Sequence[int], step: Sequence[int]) -> Val:
    return e.op("Slice", x, e.ints(begin), e.ints(end), e.ints(axes), e.ints(step))


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


def opaque(e: Emit, op: str, inputs: Sequence[Val | None], types: Sequence[TensorType], **fields: Any) -> Any:
    """Outputs of an opaque op with the output types given, as a tuple."""
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
