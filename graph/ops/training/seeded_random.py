"""Random ops with the seed as an input value: the seed is drawn once and saved, masks are recomputed from it.

A mask is a function of (seed, element index) in integer arithmetic, which ONNX can express as well.
Source of the mixing steps: Wellons, "Prospecting for Hash Functions", 2018 (lowbias32).
"""

from __future__ import annotations

import numpy as np

from graph.builder.emit import Emit
from graph.ir import Effect, TensorType, Val
from graph.ops.numeric.elementwise_helpers import as_computable, as_new_array, elementwise_work
from graph.ops.registry.onnx_fallback import onnx_dtype
from graph.ops.registry.registry import CHEAP, NEVER, Call, Work, op
from graph.ops.training.random import generator

SEED_TYPE = TensorType("int32", (1,))
#: x ^= x >> shift, then x *= factor; the last step only shifts.
MIX_ROUNDS: tuple[tuple[int, int | None], ...] = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None))
GOLDEN_RATIO = 0x9E3779B9  # decorrelates neighboring seeds


def _seed_body(e: Emit, call: Call) -> tuple[Val, ...]:
    fixed = int(call.attribute("seed", 0))
    if fixed:
        return (e.op("Identity", e.constant([fixed], "int32")),)
    drawn = e.op("RandomUniform", shape=[1], low=1.0, high=float(2**31 - 129), dtype=onnx_dtype("float32"))
    return (e.cast(drawn, "int32"),)


@op(
    "remat::Seed",
    infer=lambda call: (SEED_TYPE,),
    work=lambda call: Work(1),
    effect=Effect.RANDOM,
    recompute=NEVER,
    body=_seed_body,
)
def seed(call: Call) -> np.ndarray:
    """One int32: the attribute `seed`, or a random number of the run if that is 0."""
    fixed = int(call.attribute("seed", 0))
    return np.array([fixed or generator(call).integers(1, 2**31)], np.int64).astype(np.int32)


def _seeded_dropout_type(call: Call) -> tuple[TensorType | None, ...]:
    if len(call.inputs) != 2:
        raise ValueError(f"{call.op} has {len(call.inputs)} inputs; it takes the value and the seed")
    x, given = call.inputs
    if given is not None and given != SEED_TYPE:
        raise ValueError(f"the seed is {given}; it must be {SEED_TYPE}")
    return x, None if x is None else TensorType("bool", x.shape)


def _uniform(places: np.ndarray, given: np.ndarray) -> np.ndarray:
    """float32 in [0, 1) per element index, with 24 random bits."""
    return (_mixed(places ^ _mixed(given.astype(np.uint32) * np.uint32(GOLDEN_RATIO))) >> np.uint32(8)) * np.float32(
        2**-24
    )


def _mixed(x: np.ndarray) -> np.ndarray:
    for shift, factor in MIX_ROUNDS:
        x = x ^ (x >> np.uint32(shift))
        x = x if factor is None else x * np.uint32(factor)
    return x


def _seeded_dropout_body(e: Emit, call: Call, x: Val, given: Val) -> tuple[Val, ...]:
    ratio, shape = float(call.attribute("ratio", 0.5)), x.shape

    def number(n: int) -> Val:
        return e.constant([n], "uint32")

    def mixed(y: Val) -> Val:
        for shift, factor in MIX_ROUNDS:
            y = e.op("BitwiseXor", y, e.op("BitShift", y, number(shift), direction="RIGHT"))
            y = y if factor is None else e.mul(y, number(factor))
        return y

    key = mixed(e.mul(e.cast(given, "uint32"), number(GOLDEN_RATIO)))
    count = e.op("Range", e.constant(0, "int64"), e.constant(x.type.elements, "int64"), e.constant(1, "int64"))
    bits = mixed(e.op("BitwiseXor", e.cast(count, "uint32"), key))
    drawn = e.mul(
        e.cast(e.op("BitShift", bits, number(8), direction="RIGHT"), "float32"), e.constant(2**-24, "float32")
    )
    mask = e.reshape(e.op("GreaterOrEqual", drawn, e.constant(ratio, "float32")), shape)
    return e.where(mask, e.mul(x, e.scalar_like(_inverse(ratio), x)), e.scalar_like(0, x)), mask


def _inverse(ratio: float) -> float:
    """Scale of the kept elements."""
    return 0.0 if ratio >= 1 else 1 / (1 - ratio)


@op(
    "remat::SeededDropout",
    infer=_seeded_dropout_type,
    work=elementwise_work(16),
    takeover=((0, 0),),
    gradient_reads=("o1",),
    recompute=CHEAP,
    body=_seeded_dropout_body,
)
def seeded_dropout(call: Call, x: np.ndarray, given: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """(y, mask) of Dropout in training mode, with the attribute `ratio`."""
    ratio = float(call.attribute("ratio", 0.5))
    mask = _uniform(np.arange(x.size, dtype=np.uint32), given).reshape(x.shape) >= np.float32(ratio)
    wide = as_computable(x)
    y = np.where(mask, wide * wide.dtype.type(_inverse(ratio)), 0)
    return tuple((as_new_array(y, x.dtype, x), mask)[: len(call.used)])
