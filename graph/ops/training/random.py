"""Random ops. Numbers depend on (seed, stream) only: a rerun with the same stream draws the same numbers.

Philox: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from graph.builder.emit import Emit
from graph.ir import Effect, TensorType, Val
from graph.ops.numeric.elementwise_helpers import TRANSCENDENTAL, as_computable, as_new_array, elementwise_work
from graph.ops.registry import onnx_fallback
from graph.ops.registry.registry import NEVER, Call, op


def generator(call: Call) -> np.random.Generator:
    """The generator of a call's stream; the `seed` attribute of standard ops is part of the key."""
    seed = call.attribute("seed")
    text = f"{call.seed}\0{call.stream}\0{'' if seed is None else seed}"
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))


_RANDOM: dict[str, Any] = {"effect": Effect.RANDOM, "recompute": NEVER}


def _ratio(ratio: np.ndarray | None) -> float:
    return 0.5 if ratio is None else float(ratio.reshape(-1)[0])


def _passes_through(call: Call) -> bool:
    """True for Dropout in inference mode, which draws no numbers."""
    training = call.constant(2)
    absent = len(call.inputs) < 3 or (call.inputs[2] is None and training is None)
    return absent or (training is not None and not training.reshape(-1)[0])


@op("Dropout", work=elementwise_work(2), takeover=((0, 0),), gradient_reads=("o1",), idle=_passes_through, **_RANDOM)
def dropout(
    call: Call, x: np.ndarray, ratio: np.ndarray | None = None, training: np.ndarray | None = None
) -> tuple[np.ndarray | None, ...]:
    """(y, mask); in inference y is x and the mask is all true."""
    p = _ratio(ratio) if call.opset >= 12 else float(call.attribute("ratio", 0.5))
    active = training is not None and bool(training.reshape(-1)[0]) and p > 0
    mask = generator(call).random(x.shape, np.float32) >= p if active else np.ones(x.shape, bool)
    wide = as_computable(x)
    y = np.where(mask, wide * wide.dtype.type(_inverse(p)), 0) if active else wide
    return tuple((as_new_array(y, x.dtype, x), mask)[: len(call.used)])


def _inverse(ratio: float) -> float:
    """Scale of the kept elements."""
    return 0.0 if ratio >= 1 else 1 / (1 - ratio)


def _dropout_grad_type(call: Call) -> tuple[TensorType | None, ...]:
    if len(call.inputs) != 2:
        raise ValueError(f"{call.op} has {len(call.inputs)} inputs; it takes the incoming gradient and the mask")
    dy, mask = call.inputs
    if dy is not None and mask is not None and mask != TensorType("bool", dy.shape):
        raise ValueError(f"the mask is {mask}; it must be bool in the shape of {dy}")
    return (dy,)


def _dropout_grad_body(e: Emit, call: Call, dy: Val, mask: Val) -> tuple[Val, ...]:
    scaled = e.mul(dy, e.scalar_like(_inverse(call.attribute("ratio", 0.5)), dy))
    return (e.where(mask, scaled, e.scalar_like(0, dy)),)


@op(
    "remat::DropoutGrad",
    infer=_dropout_grad_type,
    work=elementwise_work(2),
    takeover=((0, 0),),
    body=_dropout_grad_body,
)
def dropout_grad(call: Call, dy: np.ndarray, mask: np.ndarray) -> np.ndarray:
    wide = as_computable(dy)
    scale = wide.dtype.type(_inverse(call.attribute("ratio", 0.5)))
    return as_new_array(np.where(mask, wide * scale, 0), dy.dtype, dy)


def _drawn(call: Call, shape: tuple[int, ...], like: np.dtype[Any] | None) -> np.ndarray:
    """Normal or uniform numbers, by the op's name and attributes."""
    to = call.attribute("dtype")
    fallback = np.dtype(np.float32) if like is None else like
    dtype = fallback if to is None else onnx_fallback.numpy_dtype(onnx_fallback.dtype_name(int(to)))
    draws = generator(call)
    if "Normal" in call.op:
        numbers = draws.normal(call.attribute("mean", 0.0), call.attribute("scale", 1.0), shape)
    else:
        numbers = draws.uniform(call.attribute("low", 0.0), call.attribute("high", 1.0), shape)
    return as_new_array(numbers, dtype)


def _random(call: Call) -> np.ndarray:
    return _drawn(call, tuple(int(n) for n in call.attributes["shape"]), None)


def _random_like(call: Call, x: np.ndarray) -> np.ndarray:
    return _drawn(call, x.shape, x.dtype)


for _name in ("RandomNormal", "RandomUniform"):
    op(_name, work=elementwise_work(TRANSCENDENTAL), **_RANDOM)(_random)
    op(f"{_name}Like", work=elementwise_work(TRANSCENDENTAL), shape_only=(0,), **_RANDOM)(_random_like)


@op("Bernoulli", work=elementwise_work(2), **_RANDOM)
def bernoulli(call: Call, x: np.ndarray) -> np.ndarray:
    """1 with the probability in each element, else 0."""
    to = call.attribute("dtype")
    dtype = x.dtype if to is None else onnx_fallback.numpy_dtype(onnx_fallback.dtype_name(int(to)))
    return as_new_array(generator(call).random(x.shape) < as_computable(x), dtype)


@op("Multinomial", work=elementwise_work(TRANSCENDENTAL), **_RANDOM)
def multinomial(call: Call, x: np.ndarray) -> np.ndarray:
    """Classes drawn from unnormalized log-probabilities, row by row."""
    dtype = onnx_fallback.numpy_dtype(onnx_fallback.dtype_name(int(call.attribute("dtype", 6))))
    weight = np.exp(as_computable(x).astype(np.float64) - np.max(as_computable(x), axis=1, keepdims=True))
    share = np.cumsum(weight, axis=1) / np.sum(weight, axis=1, keepdims=True)
    draws = generator(call).random((x.shape[0], call.attribute("sample_size", 1)))
    chosen = (share[:, None, :] <= draws[:, :, None]).sum(axis=2)
    return np.asarray(np.minimum(chosen, x.shape[1] - 1), dtype)
