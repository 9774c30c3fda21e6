"""Gradients of quantization by the straight-through estimator: rounding counts as the identity, saturation as constant.

    q = clip(round(x / s) + z)     dx = dq / s inside, 0 where saturated      ds = -Σ dx · x / s
    y = (q - z) · s                dq = dy · s                                ds = Σ dy · (q - z)

Together dx = dy inside, and ds = Σ dy · (round(x / s) - x / s) inside, Σ dy · (bound - z) where saturated: for x as in
Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018,
section 3; for s as in Esser et al., "Learned Step Size Quantization", 2020, section 2.1. Zero points are fixed.
The gradient of an integer q has the float type of its reader.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.ir import Val
from graph.ops.registry.onnx_fallback import numpy_dtype


@gradient("QuantizeLinear", is_estimate=True)
def quantize(emit: Emit, node: ForwardNode, dq: Val) -> InputGradients:
    x, scale, zero_point = node.inputs[0], node.inputs[1], node.input(2)
    step = _spread(emit, node, scale)
    shift = [] if zero_point is None else [_spread(emit, node, zero_point)]
    low, high = _bounds(node.outputs[0].dtype)
    rounded = int("float" not in node.outputs[0].dtype)
    operands = [emit.cast(dq, x.dtype), x, step, *shift]
    dx = emit.op("remat::QuantizeLinearGrad", *operands, low=low, high=high, rounded=rounded)
    dscale = None
    if node.needs[1]:
        total = _group_sum(emit, node, emit.mul(dx, x))
        dscale = emit.neg(emit.div(emit.cast(total, scale.dtype), scale))
    return (dx if node.needs[0] else None, dscale, None)[: len(node.inputs)]


@gradient("DequantizeLinear")
def dequantize(emit: Emit, node: ForwardNode, dy: Val) -> InputGradients:
    q, scale, zero_point = node.inputs[0], node.inputs[1], node.input(2)
    dq = emit.mul(dy, emit.cast(_spread(emit, node, scale), dy.dtype)) if node.needs[0] else None
    dscale = None
    if node.needs[1]:
        level = emit.cast(q, dy.dtype)
        if zero_point is not None:
            level = emit.sub(level, emit.cast(_spread(emit, node, zero_point), dy.dtype))
        dscale = emit.cast(_group_sum(emit, node, emit.mul(dy, level)), scale.dtype)
    return (dq, dscale, None)[: len(node.inputs)]


def _bounds(dtype: str) -> tuple[float, float]:
    """The smallest and largest number of a quantized type."""
    made = numpy_dtype(dtype)
    limits: Any = ml_dtypes.finfo(made) if "float" in dtype else ml_dtypes.iinfo(made)  # type: ignore[no-untyped-call]
    return float(limits.min), float(limits.max)


def _spread(emit: Emit, node: ForwardNode, v: Val) -> Val:
    """A scale or zero point per tensor, per slice of `axis` or per block, in a shape that broadcasts with the input."""
    x = node.inputs[0]
    if node.attribute("block_size", 0):
        return emit.op("Gather", v, emit.constant(_blocks(node)), axis=_axis(node))  # type: ignore[no-any-return]
    if v.rank == 0 or v.shape == (1,):
        return emit.reshape(v, ())
    return emit.reshape(v, [n if i == _axis(node) else 1 for i, n in enumerate(x.shape)])


def _group_sum(emit: Emit, node: ForwardNode, each: Val) -> Val:
    """The sum over the elements that share a scale: the adjoint of `_spread`."""
    scale = node.inputs[1]
    if node.attribute("block_size", 0):
        shape, blocks = list(scale.shape), emit.constant(_blocks(node))
        return emit.op("remat::GatherGrad", each, blocks, axis=_axis(node), input_shape=shape)  # type: ignore[no-any-return]
    one = scale.rank == 0 or scale.shape == (1,)
    axes = [axis for axis in range(each.rank) if one or axis != _axis(node)]
    return emit.reshape(emit.reduce_sum(each, axes, keepdims=False), scale.shape)


def _axis(node: ForwardNode) -> int:
    return int(node.attribute("axis", 1) % max(1, node.inputs[0].rank))


def _blocks(node: ForwardNode) -> np.ndarray:
    """Along the axis, the block of each element."""
    return np.arange(node.inputs[0].shape[_axis(node)]) // int(node.attribute("block_size"))
