"""Optimizer steps with 8-bit states: dequantize, update in float32, quantize, in one node.

    state  =  code value [ codes ]  ·  scale of the block     codes: uint8 in the weight's shape; scale: float32[blocks]

A block is `BLOCK` consecutive elements with their largest absolute value as the scale. The 256 code values are those of
dynamic quantization: seven decades below 1, each with twice as many values as the one below it.
Source: Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit Optimizers via Block-wise Quantization", ICLR 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.numeric.elementwise_helpers import elementwise_work
from graph.ops.numeric.precision import require_input_type
from graph.ops.registry.registry import Call, Decomposition, Kernel, op
from graph.ops.training.optimizer import adam, adam_body, sgd, sgd_body

BLOCK = 256  # elements; 2048 in the paper, 256 in today's libraries
CODES = "uint8"
_DECADES = 7


def blocks(elements: int) -> int:
    """Number of blocks, the last one possibly short."""
    return -(-elements // BLOCK)


@cache
def code_values(signed: bool) -> np.ndarray:
    """float32[256], ascending: centers of equal parts of [0.1, 1] in every decade, 0 and 1; `signed` adds negatives."""
    found = [0.0, 1.0]
    for decade in range(_DECADES):
        edges = np.linspace(0.1, 1, (1 if signed else 2) * 2**decade + 1)
        centers = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade + 1 - _DECADES)
        found += [*centers, *(-centers if signed else ())]
    return np.sort(np.array(found)).astype(np.float32)


@cache
def _limits(signed: bool) -> np.ndarray:
    """float32[255]: a number above limit i has a code above i."""
    values = code_values(signed)
    return np.asarray((values[:-1] + values[1:]) / np.float32(2))


def quantized(state: np.ndarray, signed: bool) -> tuple[np.ndarray, np.ndarray]:
    """(codes in the shape of `state`, scale of each block)."""
    padded = np.zeros((blocks(state.size), BLOCK), np.float32)
    padded.reshape(-1)[: state.size] = state.reshape(-1)
    scale = np.abs(padded).max(axis=1)
    parts = padded / np.where(scale > 0, scale, np.float32(1))[:, None]
    codes = np.searchsorted(_limits(signed), parts.reshape(-1)[: state.size])
    return codes.astype(np.uint8).reshape(state.shape), scale


def dequantized(codes: np.ndarray, scale: np.ndarray, signed: bool) -> np.ndarray:
    """float32 in the shape of `codes`."""
    each = np.repeat(scale, BLOCK)[: codes.size].reshape(codes.shape)
    return np.asarray(code_values(signed)[codes] * each)


def _quantized_body(e: Emit, state: Val, signed: bool) -> tuple[Val, Val]:
    elements, shape = state.type.elements, (blocks(state.type.elements), BLOCK)
    rest = e.zeros(TensorType("float32", (shape[0] * BLOCK - elements,)))
    padded = e.reshape(e.op("Concat", e.reshape(state, (elements,)), rest, axis=0), shape)
    scale = e.op("ReduceMax", e.op("Abs", padded), e.ints([1]), keepdims=1)
    zero, one = e.constant(0, "float32"), e.constant(1, "float32")
    parts = e.div(padded, e.where(e.op("Greater", scale, zero), scale, one))
    codes = e.zeros(TensorType("int32", shape))
    for step in (128, 64, 32, 16, 8, 4, 2, 1):  # binary search
        limit = e.op("Gather", e.constant(_limits(signed)[step - 1 :]), codes, axis=0)
        above = e.op("Greater", parts, limit)
        codes = e.add(codes, e.mul(e.cast(above, "int32"), e.constant(step, "int32")))
    codes = e.op("Slice", e.reshape(codes, (shape[0] * BLOCK,)), e.ints([0]), e.ints([elements]))
    return e.cast(e.reshape(codes, state.shape), CODES), e.reshape(scale, shape[:1])


def _dequantized_body(e: Emit, codes: Val, scale: Val, signed: bool) -> Val:
    (count,) = scale.shape
    each = e.reshape(e.expand(e.reshape(scale, (count, 1)), (count, BLOCK)), (count * BLOCK,))
    each = e.reshape(e.op("Slice", each, e.ints([0]), e.ints([codes.type.elements])), codes.shape)
    return e.mul(e.op("Gather", e.constant(code_values(signed)), e.cast(codes, "int32"), axis=0), each)


def _blockwise(base: str, kernel: Kernel, body: Decomposition, signs: Sequence[bool]) -> None:
    """Register op `base` + "8bit": each state of `base` is two inputs and two outputs, codes and scale.

    `signs`: per state whether it has negative elements.
    """
    name, count = f"{base}8bit", len(signs)

    def infer(call: Call) -> tuple[TensorType | None, ...]:
        weight, *rest = (require_input_type(type, "an input") for type in call.inputs)
        expected = [TensorType(CODES, weight.shape), TensorType("float32", (blocks(weight.elements),))] * count
        if rest[0].shape != weight.shape or rest[1 : 1 + 2 * count] != expected:
            raise ValueError(
                f"a weight {weight} has a gradient of its shape and per state {expected[0]} and {expected[1]}, "
                f"not {', '.join(map(str, rest[: 1 + 2 * count]))}"
            )
        return tuple(t if is_used else None for t, is_used in zip((weight, *expected), call.used, strict=False))

    def inner(call: Call) -> Call:
        return replace(call, op=base, used=(True,) * (1 + count))

    def compute(call: Call, w: np.ndarray, g: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray | None, ...]:
        states = [dequantized(rest[2 * i], rest[2 * i + 1], signed) for i, signed in enumerate(signs)]
        new, *moved = kernel(inner(call), w, g, *states, *rest[2 * count :])
        parts = [part for state, signed in zip(moved, signs, strict=True) for part in quantized(state, signed)]
        return tuple(x if is_used else None for x, is_used in zip((new, *parts), call.used, strict=False))

    def decomposed(e: Emit, call: Call, w: Val, g: Val, *rest: Val) -> tuple[Val | None, ...]:
        states = [_dequantized_body(e, rest[2 * i], rest[2 * i + 1], signed) for i, signed in enumerate(signs)]
        new, *moved = body(e, inner(call), w, g, *states, *rest[2 * count :])
        made = [(state, signed) for state, signed in zip(moved, signs, strict=True) if state is not None]
        parts = [part for state, signed in made for part in _quantized_body(e, state, signed)]
        return (new, *parts)[: len(call.used)]

    overwritten = ((0, 0), *((1 + i, 2 + i) for i in range(2 * count)))
    op(name, infer=infer, work=elementwise_work(5 + 20 * count), takeover=overwritten, body=decomposed)(compute)


_blockwise("remat::SGD", sgd, sgd_body, (True,))
_blockwise("remat::Adam", adam, adam_body, (True, False))
