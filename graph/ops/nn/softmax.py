"""Softmax, its logarithm, Hardmax, and the gradients, along one axis.

dx = (dy - Σ dy·y) · y            of softmax, y its output
dx = dy - exp(y) · Σ dy           of log-softmax
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graph.builder.emit import Emit
from graph.ir import Val
from graph.ops.numeric.elementwise_helpers import (
    TRANSCENDENTAL,
    as_computable,
    as_new_array,
    elementwise_work,
    same_as_first,
)
from graph.ops.registry.registry import Call, op


def softmax(x: np.ndarray, axis: Any) -> np.ndarray:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(e / np.sum(e, axis=axis, keepdims=True))


def log_softmax(x: np.ndarray, axis: Any) -> np.ndarray:
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)))


def softmax_axes(call: Call, rank: int) -> Any:
    """Axes of the op: its axis; before opset 13, that axis and all following ones."""
    if call.opset >= 13 or call.op.startswith("remat::"):
        return int(call.attribute("axis", -1)) % max(rank, 1)
    return tuple(range(int(call.attribute("axis", 1)) % max(rank, 1), rank))


@op("Softmax", work=elementwise_work(TRANSCENDENTAL + 3), takeover=((0, 0),), gradient_reads=("o0",))
def softmax_kernel(call: Call, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return as_new_array(softmax(as_computable(x), softmax_axes(call, x.ndim)), x.dtype, x)


@op("LogSoftmax", work=elementwise_work(TRANSCENDENTAL + 3), takeover=((0, 0),), gradient_reads=("o0",))
def log_softmax_kernel(call: Call, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return as_new_array(log_softmax(as_computable(x), softmax_axes(call, x.ndim)), x.dtype, x)


@op("Hardmax", work=elementwise_work(2))
def hardmax(call: Call, x: np.ndarray) -> np.ndarray:
    """1 at the first maximum, else 0."""
    axis = softmax_axes(call, x.ndim)
    flat = as_computable(x) if isinstance(axis, int) else as_computable(x).reshape(*x.shape[: axis[0]], -1)
    along = axis if isinstance(axis, int) else -1
    result = np.zeros(flat.shape, flat.dtype)
    if flat.size:
        np.put_along_axis(result, np.expand_dims(np.argmax(flat, along), along), 1, along)
    return as_new_array(result.reshape(x.shape), x.dtype)


def _softmax_grad_body(e: Emit, call: Call, dy: Val, y: Val) -> tuple[Val, ...]:
    return (e.mul(e.sub(dy, e.reduce_sum(e.mul(dy, y), [softmax_axes(call, y.rank)])), y),)


def _log_softmax_grad_body(e: Emit, call: Call, dy: Val, y: Val) -> tuple[Val, ...]:
    return (e.sub(dy, e.mul(e.op("Exp", y), e.reduce_sum(dy, [softmax_axes(call, y.rank)]))),)


_GRADIENT: dict[str, Any] = {"infer": same_as_first, "takeover": ((0, 0), (0, 1))}


@op("remat::SoftmaxGrad", work=elementwise_work(4), body=_softmax_grad_body, **_GRADIENT)
def softmax_grad(call: Call, dy: np.ndarray, y: np.ndarray) -> np.ndarray:
    dy_wide, y_wide = as_computable(dy), as_computable(y)
    total = np.sum(dy_wide * y_wide, axis=softmax_axes(call, y.ndim), keepdims=True)
    return as_new_array((dy_wide - total) * y_wide, dy.dtype, dy, y)


@op("remat::LogSoftmaxGrad", work=elementwise_work(TRANSCENDENTAL + 3), body=_log_softmax_grad_body, **_GRADIENT)
def log_softmax_grad(call: Call, dy: np.ndarray, y: np.ndarray) -> np.ndarray:
    dy_wide, y_wide = as_computable(dy), as_computable(y)
    total = np.sum(dy_wide, axis=softmax_axes(call, y.ndim), keepdims=True)
    return as_new_array(dy_wide - np.exp(y_wide) * total, dy.dtype, dy, y)
