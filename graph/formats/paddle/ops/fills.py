"""Ops of Paddle that need no data: constants, ranges, random numbers."""

from __future__ import annotations

import math
from typing import Any

from graph.builder.emit import Emit
from graph.formats.paddle.ops.table import PADDLE, dtype_attribute
from graph.formats.shared.op_helpers import checked_shape, filled, known_integers, literal, random
from graph.formats.shared.op_table import OpUse, Unmapped
from graph.ir import Val


@PADDLE.op("fill_constant", "full")
def fill_constant(e: Emit, use: OpUse, shape: Val | None = None) -> Val:
    stated = use.integers("shape", default=())
    lengths = stated if shape is None else known_integers(e, shape)
    return filled(e, lengths, _fill_number(use), dtype_attribute(use, "float32"))


def _fill_number(use: OpUse) -> float:
    """The number to fill with; its text takes precedence."""
    text, number = use.text("str_value", default=""), use.number("value", default=0.0)
    return float(text) if text else number


@PADDLE.op("fill_constant_batch_size_like")
def fill_like_batch(e: Emit, use: OpUse, like: Val) -> Val:
    lengths = list(use.integers("shape"))
    lengths[use.integer("output_dim_idx", default=0)] = like.shape[use.integer("input_dim_idx", default=0)]
    return filled(e, lengths, _fill_number(use), dtype_attribute(use, "float32"))


@PADDLE.op("fill_any_like", "full_like", "fill_zeros_like")
def fill_like(e: Emit, use: OpUse, x: Val, *_: Val) -> Val:
    return filled(e, x.shape, use.number("value", default=0.0), dtype_attribute(use, x.dtype))


@PADDLE.op("assign_value")
def assign_value(e: Emit, use: OpUse) -> Val:
    dtype, shape = dtype_attribute(use, "float32"), checked_shape(use.integers("shape"))
    names = ("values", "fp32_values", "fp64_values", "int32_values", "int64_values", "bool_values")
    for numbers in [use.raw((name,)) for name in names]:
        if isinstance(numbers, list | tuple) and len(numbers) == math.prod(shape):
            return literal(e, numbers, shape, dtype)
    raise Unmapped


@PADDLE.op("gaussian_random")
def gaussian_random(e: Emit, use: OpUse) -> Val:
    mean, deviation = use.number("mean", default=0.0), use.number("std", default=1.0)
    return random(e, "RandomNormal", use, dtype_attribute(use, "float32"), mean=mean, scale=deviation)


@PADDLE.op("uniform_random")
def uniform_random(e: Emit, use: OpUse) -> Val:
    low, high = use.number("min", default=-1.0), use.number("max", default=1.0)
    return random(e, "RandomUniform", use, dtype_attribute(use, "float32"), low=low, high=high)


@PADDLE.op("seed")
def seed(e: Emit, use: OpUse) -> Any:
    """The state of a draw: one int32, drawn once and held."""
    return e.op("remat::Seed", seed=use.integer("seed", default=0) or None)
