"""Fourier transforms, windows of signals and determinants."""

from __future__ import annotations

import math

import numpy as np

from graph.ir import TensorType
from graph.ops.numeric.elementwise_helpers import TRANSCENDENTAL, as_computable, as_new_array, elementwise_work
from graph.ops.registry import onnx_fallback
from graph.ops.registry.registry import HEAVY, Call, Work, op, register_standard


def _transform_work(call: Call) -> Work:
    """Work: 5 n log2 n flops per transform of n points."""
    x, y = call.inputs[0], call.outputs[0]
    if x is None or y is None:
        return Work()
    axis = 2 if call.op == "STFT" else _axis(call) % len(y.shape)
    points = max(y.shape[axis], 1 if call.op == "STFT" else x.shape[axis])
    transforms = y.elements // max(1, y.shape[axis] * y.shape[-1])
    return Work(math.ceil(5 * points * math.log2(max(2, points))) * transforms)


def _axis(call: Call) -> int:
    """The axis of a DFT: an attribute before opset 20, else an input."""
    known = call.constant(2)
    if known is not None:
        return int(known.reshape(-1)[0])
    return int(call.attribute("axis", 1 if call.opset < 20 else -2))


register_standard("DFT", work=_transform_work, recompute=HEAVY)


def _spectrum_type(call: Call) -> tuple[TensorType | None, ...]:
    """Type of an STFT from constant lengths; the standard's inference overlooks defaults."""
    types, signal, step = onnx_fallback.infer(call), call.inputs[0], call.constant(1)
    window = call.inputs[2] if len(call.inputs) > 2 else None
    given = call.constant(3)
    if signal is None or step is None or (window is None and given is None and len(call.inputs) > 3):
        return types
    length = window.shape[0] if window is not None else signal.shape[1] if given is None else int(given.reshape(-1)[0])
    frames = (signal.shape[1] - length) // int(step.reshape(-1)[0]) + 1
    if length < 1 or frames < 1:
        raise ValueError(f"a frame of {length} does not fit {signal}")
    bins = length // 2 + 1 if call.attribute("onesided", 1) else length
    return (TensorType(signal.dtype, (signal.shape[0], frames, bins, 2)),)


register_standard("STFT", infer=_spectrum_type, work=_transform_work, recompute=HEAVY, gradient_reads=("i0", "i2"))
register_standard("HannWindow", "HammingWindow", "BlackmanWindow", work=elementwise_work(2 * TRANSCENDENTAL))
register_standard("MelWeightMatrix", work=elementwise_work(4))


def _elimination(call: Call) -> Work:
    """Work: 2/3 n³ flops per matrix, by elimination."""
    x = call.inputs[0]
    return Work(0 if x is None else 2 * x.elements * x.shape[-1] // 3)


@op("Det", work=_elimination, gradient_reads=("i0",))
def determinant(call: Call, x: np.ndarray) -> np.ndarray:
    return as_new_array(np.linalg.det(as_computable(x)), x.dtype)
