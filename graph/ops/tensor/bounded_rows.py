"""Tensors with a bounded number of rows: cut to the actual rows, or padded to the bound."""

from __future__ import annotations

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.registry.registry import Call, body, op
from graph.ops.tensor.shape import copy_work


def _same_type(call: Call) -> tuple[TensorType | None, ...]:
    if len(call.inputs) != 2:
        raise ValueError(
            f"{call.op} has {len(call.inputs)} inputs; it takes a tensor and a tensor whose shape it reads"
        )
    return (call.inputs[0],)


@op("remat::RowsLike", infer=_same_type, work=copy_work, shape_only=(1,), takeover=((0, 0),))
def rows_like(call: Call, x: np.ndarray, like: np.ndarray) -> np.ndarray:
    """`x` cut on every axis to the length of `like`."""
    return np.array(x[tuple(slice(length) for length in like.shape)], order="C")


@body("remat::RowsLike")
def _rows_like_body(e: Emit, call: Call, x: Val, like: Val) -> tuple[Val, ...]:
    inputs = [x, e.ints([0] * x.rank), e.op("Shape", like), e.ints(range(x.rank))]
    return (e.op_of_type("Slice", inputs, x.type),)


def _first_rows_type(call: Call) -> tuple[TensorType | None, ...]:
    if len(call.inputs) != 2:
        raise ValueError(f"{call.op} has {len(call.inputs)} inputs; it takes a tensor and the lengths to keep")
    return (call.inputs[0],)


@op("remat::FirstRows", infer=_first_rows_type, work=copy_work, gradient_reads=("o0",))
def first_rows(call: Call, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """`x` cut on every axis to `lengths`; the declared type is the upper bound.

    Its gradient reads the actual lengths of the output.
    """
    return np.array(x[tuple(slice(int(length)) for length in lengths)], order="C")


@body("remat::FirstRows")
def _first_rows_body(e: Emit, call: Call, x: Val, lengths: Val) -> tuple[Val, ...]:
    inputs = [x, e.ints([0] * x.rank), lengths, e.ints(range(x.rank))]
    return (e.op_of_type("Slice", inputs, x.type),)


def _padded_type(call: Call) -> tuple[TensorType | None, ...]:
    if len(call.inputs) != 1:
        raise ValueError(f"{call.op} has {len(call.inputs)} inputs; it takes one tensor")
    return (call.inputs[0],)


@op("remat::PadRows", infer=_padded_type, work=copy_work)
def pad_rows(call: Call, x: np.ndarray) -> np.ndarray:
    """`x` padded with zeros at the end of each axis to `shape`."""
    full = np.zeros(tuple(call.attributes["shape"]), x.dtype)
    full[tuple(slice(length) for length in x.shape)] = x
    return full


@body("remat::PadRows")
def _pad_rows_body(e: Emit, call: Call, x: Val) -> tuple[Val, ...]:
    missing = e.sub(e.ints(call.attributes["shape"]), e.op("Shape", x))
    pads = e.op("Concat", e.ints([0] * x.rank), missing, axis=0)
    return (e.op_of_type("Pad", [x, pads], x.type),)
