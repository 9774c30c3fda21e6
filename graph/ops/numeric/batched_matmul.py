"""Batched matrix product with operands read transposed in place, as in the gradients of MatMul."""

from __future__ import annotations

import math

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.numeric.precision import downcast_like, upcast
from graph.ops.registry.registry import HEAVY, Call, Work, body, op


def _shapes(call: Call) -> tuple[TensorType, TensorType, tuple[int, ...], tuple[int, ...]]:
    """Both operands, and their shapes after the transposes. Raises ValueError."""
    a, b = call.inputs[0], call.inputs[1]
    if a is None or b is None:
        raise ValueError("remat::MatMul needs two typed operands")
    if len(a.shape) < 2 or len(b.shape) < 2 or a.dtype != b.dtype:
        raise ValueError(f"operands {a} and {b} must be stacks of matrices of one dtype")
    left = (*a.shape[:-2], a.shape[-1], a.shape[-2]) if call.attribute("trans_a") else a.shape
    right = (*b.shape[:-2], b.shape[-1], b.shape[-2]) if call.attribute("trans_b") else b.shape
    if left[-1] != right[-2]:
        raise ValueError(f"inner lengths {left[-1]} and {right[-2]} of {a} and {b} differ")
    return a, b, left, right


def _infer(call: Call) -> tuple[TensorType | None, ...]:
    a, _, left, right = _shapes(call)
    stack = np.broadcast_shapes(left[:-2], right[:-2])
    return (TensorType(a.dtype, (*stack, left[-2], right[-1])),)


def _work(call: Call) -> Work:
    _, _, left, _ = _shapes(call)
    made = call.outputs[0]
    return Work(2 * left[-1] * (made.elements if made is not None else 0))


@op("remat::MatMul", infer=_infer, work=_work, recompute=HEAVY, gradient_reads=("i0", "i1"))
def batched_matmul(call: Call, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    left, right = upcast(a), upcast(b)
    if call.attribute("trans_a"):
        left = left.swapaxes(-1, -2)
    if call.attribute("trans_b"):
        right = right.swapaxes(-1, -2)
    if math.prod(left.shape) == 0 or math.prod(right.shape) == 0:
        return np.zeros(
            (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1]), a.dtype
        )
    return downcast_like(np.matmul(left, right), a)


@body("remat::MatMul")
def _stacked_matmul(emit: Emit, call: Call, a: Val, b: Val) -> tuple[Val | None, ...]:
    def turned(x: Val, turn: bool) -> Val:
        return emit.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2]) if turn else x

    return (emit.matmul(turned(a, bool(call.attribute("trans_a"))), turned(b, bool(call.attribute("trans_b")))),)
