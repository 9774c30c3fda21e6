"""Checks of attributes and graph fragments that the rules of several frameworks are built from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from graph.builder.emit import Emit
from graph.formats.shared.op_table import OpUse, Unmapped
from graph.ir import ABSENT, DTYPE_BITS, FROZEN, TensorType, Val
from graph.ops.registry.onnx_fallback import numpy_dtype, onnx_dtype

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


def same_each(lengths: Sequence[int], rank: int, default: int) -> list[int]:
    """One length per dimension; a single length is repeated for all dimensions."""
    each = list(lengths) or [default]
    each = each * rank if len(each) == 1 else each
    if len(each) != rank:
        raise ValueError(f"{len(each)} lengths for {rank} dimensions")
    return each


def present(*inputs: Val | None) -> list[Val]:
    """The inputs that are given."""
    return [x for x in inputs if x is not None]


def known_integers(e: Emit, x: Val) -> tuple[int, ...]:
    """Content of an integer input. Raises Unmapped when it is not constant."""
    data = e.known(x)
    if data is None:
        raise Unmapped
    return tuple(int(n) for n in data.reshape(-1))


def integral(e: Emit, labels: Val) -> Val:
    """Labels as int32 or int64 indices."""
    return labels if labels.dtype in ("int32", "int64") else e.cast(labels, "int64")


def scaled(e: Emit, x: Val, factor: float) -> Val:
    return x if factor == 1 else e.op("Mul", x, e.scalar_like(factor, x))


def shifted(e: Emit, x: Val, term: float) -> Val:
    return x if term == 0 else e.op("Add", x, e.scalar_like(term, x))


def reduced(e: Emit, op: str, x: Val, axes: Sequence[int], keepdims: bool = False) -> Val:
    """Reduction over axes, with the axes as an input (ONNX opset 18)."""
    axes = sorted({axis_of(x, a) for a in axes})
    if not axes:
        return e.op("Identity", x)
    return e.op(op, x, e.ints(axes), keepdims=int(keepdims))


def arg_extreme(e: Emit, op: str, x: Val, axis: int | None, keepdims: bool) -> Val:
    """ArgMax or ArgMin along an axis; over all elements when `axis` is None."""
    if axis is None:
        x, axis = e.reshape(x, (math.prod(x.shape),)), 0
    return e.op(op, x, axis=axis_of(x, axis), keepdims=int(keepdims))


def filled(e: Emit, shape: Sequence[int], number: float, dtype: str) -> Val:
    """Tensor filled with one number, as a node: its lifetime is limited to its readers."""
    shape = checked_shape(shape)
    if dtype not in DTYPE_BITS or DTYPE_BITS[dtype] < 8:
        raise Unmapped
    fill = np.full(1, number).astype(numpy_dtype(dtype))
    return e.op("ConstantOfShape", e.ints(shape), value=fill)


def literal(e: Emit, numbers: Any, shape: Sequence[int], dtype: str) -> Val:
    """Tensor of the numbers, as a node."""
    return e.op("Identity", e.constant(np.asarray(numbers).reshape(shape), dtype))


def random(e: Emit, op: str, use: OpUse, dtype: str = "float32", **numbers: Any) -> Val:
    """RandomUniform or RandomNormal in the shape given by the attribute `shape`."""
    return e.op(op, shape=list(checked_shape(use.integers("shape"))), dtype=onnx_dtype(dtype), **numbers)


def frozen(e: Emit) -> Emit:
    """Emit of nodes that stay in inference mode in training."""
    return Emit(e.builder, e.prefix, e.phase, e.constants, e.zeros_made, annotations=MappingProxyType({FROZEN: True}))


def check_lengths(name: str, stated: int | Sequence[int] | None, lengths: int | Sequence[int]) -> None:
    """Raise ValueError where an attribute states other lengths than the weight has; None: absent."""
    if stated is not None and stated != lengths:
        raise ValueError(f"attribute {name} is {stated}, but the weight has {lengths}")


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
