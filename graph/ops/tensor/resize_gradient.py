"""The gradient of Resize: its exact adjoint, axis after axis from the last to the first."""

from __future__ import annotations

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.numeric.precision import attribute_shape, downcast_like, require_input_type, statistics_dtype, upcast
from graph.ops.registry.registry import Call, op
from graph.ops.tensor.resize import Taps, resize_taps, resize_work


def forward_taps(call: Call, made: tuple[int, ...]) -> list[Taps]:
    """Taps of the forward op. Without attributes `scales` and `sizes`, a scale is the length of dy over that of x."""
    attributes, shape = call.attributes, attribute_shape(call.attributes, "input_shape", call.op)
    scales, sizes = attributes.get("scales"), attributes.get("sizes")
    if not scales and not sizes:
        axes = attributes.get("axes") or range(len(shape))
        sizes = [made[int(a) % len(shape)] for a in axes]
    roi = None if attributes.get("roi") is None else np.asarray(attributes["roi"], np.float32)
    return resize_taps(attributes, shape, scales, sizes, roi, made)


def _infer(call: Call) -> tuple[TensorType | None, ...]:
    dy, shape = require_input_type(call.inputs[0], "dy"), attribute_shape(call.attributes, "input_shape", call.op)
    if len(dy.shape) != len(shape):
        raise ValueError(f"dy {dy} and input_shape {list(shape)} must have one rank")
    taps = forward_taps(call, dy.shape)
    changed = {t.axis for t in taps}
    for axis, (a, b) in enumerate(zip(dy.shape, shape, strict=True)):
        if a != b and axis not in changed:
            raise ValueError(f"axis {axis} has length {b} in x and {a} in dy, but is not resized")
    return (TensorType(dy.dtype, shape),)


def _body(emit: Emit, call: Call, dy: Val) -> tuple[Val, ...]:
    """Decomposition: one product with a dense matrix per axis."""
    dx = emit.cast(dy, statistics_dtype(dy.dtype))
    for taps in reversed(forward_taps(call, dy.shape)):
        swap = list(range(dx.rank))
        swap[taps.axis], swap[-1] = swap[-1], swap[taps.axis]
        product = emit.matmul(emit.transpose(dx, swap), emit.constant(taps.matrix(), dx.dtype))
        dx = emit.transpose(product, swap)
    return (emit.cast(dx, dy.dtype),)


@op("remat::ResizeGrad", infer=_infer, work=resize_work, body=_body)
def resize_grad(call: Call, dy: np.ndarray) -> np.ndarray:
    """dx; cells with the extrapolation value contribute no gradient."""
    dx = upcast(dy)
    for taps in reversed(forward_taps(call, dy.shape)):
        dx = taps.scatter(dx)
    return downcast_like(dx.copy() if dx is dy else dx, dy)
