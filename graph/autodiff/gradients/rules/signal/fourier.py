"""Gradients of Fourier transforms: linear maps, whose adjoints are transforms in the opposite direction."""

from __future__ import annotations

import numpy as np

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.autodiff.gradients.rules.tensor.shape import constant_of, scatter_along, slice_axis
from graph.builder.emit import Emit
from graph.ir import Val


@gradient("DFT")
def dft(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x = node.inputs[0]
    inverse, onesided = bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    if node.input(2) is not None:
        axis = int(constant_of(emit, node.input(2), "axis").reshape(-1)[0])
    else:
        axis = int(node.attribute("axis", -2 if _takes_axis(emit) else 1))
    axis %= x.rank
    length = dz.shape[axis]
    if onesided and not inverse:
        given = node.input(1)
        length = x.shape[axis] if given is None else int(constant_of(emit, given, "dft_length").reshape(-1)[0])
    found = _real_adjoint(emit, dz, axis) if onesided and inverse else _adjoint(emit, dz, axis, length, inverse)
    found = _fitted(emit, found, axis, x.shape[axis])
    dx = slice_axis(emit, found, x.rank - 1, 0, x.shape[-1])  # a real input has no imaginary part
    return (dx, *[None] * (len(node.inputs) - 1))


@gradient("STFT")
def stft(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """dz of each frame back to time, times the window, added where the frames overlap."""
    x, window = node.inputs[0], node.input(2)
    step = int(constant_of(emit, node.inputs[1], "frame_step").reshape(-1)[0])
    if window is not None:
        length = window.shape[0]
    else:
        given = node.input(3)
        length = x.shape[1] if given is None else int(constant_of(emit, given, "frame_length").reshape(-1)[0])
    places = np.add.outer(np.arange(dz.shape[1]) * step, np.arange(length))
    frames = slice_axis(emit, _adjoint(emit, dz, 2, length, inverse=False), 3, 0, x.shape[2])
    signal = into_window = None
    if node.needs[0]:
        weighted = frames if window is None else emit.mul(frames, emit.reshape(window, (length, 1)))
        flat = emit.reshape(weighted, (x.shape[0], places.size, x.shape[2]))
        signal = scatter_along(emit, flat, 1, places.reshape(-1).tolist(), x.shape[1])
    if node.needed(2):
        framed = emit.op("Gather", x, emit.constant(places), axis=1)
        into_window = emit.reduce_sum(emit.mul(frames, framed), [0, 1, 3], keepdims=False)
    return (signal, None, into_window, None)[: len(node.inputs)]


def _adjoint(emit: Emit, dz: Val, axis: int, length: int, inverse: bool) -> Val:
    """The adjoint of a complex transform of `length`: the other one, without the scale 1/length of the inverse.

    A spectrum without its second half is filled up with zeros.
    """
    found = _transform(emit, _fitted(emit, dz, axis, length), axis, inverse=not inverse)
    return emit.mul(found, emit.scalar_like(1 / length if inverse else length, dz))


def _real_adjoint(emit: Emit, dz: Val, axis: int) -> Val:
    """The adjoint of the inverse transform to a real signal: it counts all bins but the first and the middle twice."""
    length = dz.shape[axis]
    found = _transform(emit, dz, axis, inverse=False, onesided=True)
    counts = np.full(found.shape[axis], 2 / length)
    counts[0] = 1 / length
    if length % 2 == 0:
        counts[-1] = 1 / length
    return emit.mul(found, emit.constant(counts.reshape([-1, *[1] * (dz.rank - 1 - axis)]), dz.dtype))


def _transform(emit: Emit, x: Val, axis: int, inverse: bool, onesided: bool = False) -> Val:
    flags = {"inverse": int(inverse), "onesided": int(onesided)}
    if _takes_axis(emit):
        return emit.op("DFT", x, None, emit.constant(np.int64(axis)), **flags)  # type: ignore[no-any-return]
    return emit.op("DFT", x, axis=axis, **flags)  # type: ignore[no-any-return]


def _takes_axis(emit: Emit) -> bool:
    """From opset 20 on, the axis is an input."""
    return emit.builder.opset.get("", 21) >= 20


def _fitted(emit: Emit, x: Val, axis: int, length: int) -> Val:
    """`x` cut, or filled up with zeros, to a length along an axis."""
    missing = length - x.shape[axis]
    if missing <= 0:
        return slice_axis(emit, x, axis, 0, length)
    return emit.op("Pad", x, emit.ints([0] * (x.rank + axis) + [missing] + [0] * (x.rank - 1 - axis)))  # type: ignore[no-any-return]
