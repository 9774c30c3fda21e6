"""Ops of MXNet that need no data: constants, ranges, random numbers."""

from __future__ import annotations

import math

import numpy as np

from graph.builder.emit import Emit
from graph.formats.mxnet.ops.table import MXNET, dtype_attribute
from graph.formats.shared.op_helpers import filled, literal, random
from graph.formats.shared.op_table import OpUse, Unmapped
from graph.ir import Val


@MXNET.op("_zeros", "_ones", "_full", "zeros", "ones", "full")
def constant_fill(e: Emit, use: OpUse) -> Val:
    return filled(e, use.integers("shape"), _fill_number(use, "value", "fill_value"), dtype_attribute(use))


@MXNET.op("zeros_like", "ones_like", "full_like")
def fill_like(e: Emit, use: OpUse, x: Val) -> Val:
    return filled(e, x.shape, _fill_number(use, "fill_value", "value"), x.dtype)


def _fill_number(use: OpUse, *names: str) -> float:
    if "full" in use.op:
        return use.number(*names)
    return 1.0 if "ones" in use.op else 0.0


@MXNET.op("_arange")
def arange(e: Emit, use: OpUse) -> Val:
    start, stop, step = use.number("start", default=0.0), use.raw(("stop",)), use.number("step", default=1.0)
    times = use.integer("repeat", default=1)
    start, stop = (0.0, start) if stop is None else (start, float(stop))
    count = max(0, math.ceil((stop - start) / step))
    if times != 1 or count > 1 << 20:
        raise Unmapped
    return literal(e, start + step * np.arange(count), (count,), dtype_attribute(use))


@MXNET.op("_random_uniform", "random_uniform", "uniform")
def random_uniform(e: Emit, use: OpUse) -> Val:
    low, high = use.number("low", default=0.0), use.number("high", default=1.0)
    return random(e, "RandomUniform", use, dtype_attribute(use), low=low, high=high)


@MXNET.op("_random_normal", "random_normal", "normal")
def random_normal(e: Emit, use: OpUse) -> Val:
    mean, deviation = use.number("loc", default=0.0), use.number("scale", default=1.0)
    return random(e, "RandomNormal", use, dtype_attribute(use), mean=mean, scale=deviation)
