"""Ops of Caffe2 that need no data: constants, ranges, random numbers."""

from __future__ import annotations

import math

from graph.builder.emit import Emit
from graph.formats.caffe2.ops.table import CAFFE2, dtype_of
from graph.formats.shared.op_helpers import checked_shape, filled, known_integers, literal, random
from graph.formats.shared.op_table import OpUse
from graph.ir import TensorType, Val

GIVEN_DTYPES = {
    "GivenTensorFill": "float32",
    "GivenTensorByteStringToUInt8Fill": "uint8",
    "GivenTensorInt16Fill": "int16",
    "GivenTensorIntFill": "int32",
    "GivenTensorInt64Fill": "int64",
    "GivenTensorBoolFill": "bool",
    "GivenTensorDoubleFill": "float64",
}


@CAFFE2.op("ConstantFill", "Const")
def constant_fill(e: Emit, use: OpUse, like: Val | None = None) -> Val:
    """A shape of its own, of an input, or the content of an input."""
    dtype = dtype_of(use.integer("dtype", default=1))
    shape, extra = use.integers("shape", default=()), use.integers("extra_shape", default=())
    if use.flag("input_as_shape") and like is not None:
        shape = known_integers(e, like)
    elif like is not None:
        shape = (*like.shape, *extra)
    return filled(e, shape, use.number("value", default=0.0), dtype)


@CAFFE2.op(*GIVEN_DTYPES)
def given_tensor_fill(e: Emit, use: OpUse) -> Val:
    dtype, shape = GIVEN_DTYPES[use.op], checked_shape(use.integers("shape"))
    numbers, count = use.raw(("values",)), math.prod(shape)
    if not isinstance(numbers, list | tuple) or len(numbers) != count or count > 1 << 16:
        return filled(e, shape, 0, dtype)
    return literal(e, numbers, shape, dtype)


@CAFFE2.op("UniformFill")
def uniform_fill(e: Emit, use: OpUse) -> Val:
    return random(e, "RandomUniform", use, low=use.number("min", default=0.0), high=use.number("max", default=1.0))


@CAFFE2.op("XavierFill")
def xavier_fill(e: Emit, use: OpUse) -> Val:
    limit = math.sqrt(3 / _fan_in(use))
    return random(e, "RandomUniform", use, low=-limit, high=limit)


@CAFFE2.op("GaussianFill", "MSRAFill")
def gaussian_fill(e: Emit, use: OpUse) -> Val:
    deviation = use.number("std", default=1.0) if use.op == "GaussianFill" else math.sqrt(2 / _fan_in(use))
    return random(e, "RandomNormal", use, mean=use.number("mean", default=0.0), scale=deviation)


def _fan_in(use: OpUse) -> int:
    return math.prod(use.integers("shape")[1:]) or 1


def fill_type(op: str, use: OpUse) -> TensorType | None:
    """Output type of a fill op of an init net, from its arguments alone; None for other ops."""
    if op in GIVEN_DTYPES:
        return TensorType(GIVEN_DTYPES[op], checked_shape(use.integers("shape")))
    if op in ("UniformFill", "XavierFill", "MSRAFill", "GaussianFill"):
        return TensorType("float32", checked_shape(use.integers("shape")))
    if op in ("ConstantFill", "UniformIntFill", "UniqueUniformFill"):
        known = dtype_of(use.integer("dtype", default=1 if op == "ConstantFill" else 2))
        return TensorType(known, checked_shape(use.integers("shape", default=())))
    return None
