"""Gradients of pooling. Positions of maxima are recomputed from the input, so no indices are saved."""

from __future__ import annotations

import math

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.autodiff.gradients.rules.tensor.shape import slice_axis
from graph.builder.emit import Emit
from graph.ir import Val


@gradient("MaxPool")
def max_pool(emit: Emit, node: ForwardNode, dz: Val, _: Val | None = None) -> InputGradients:
    return (emit.op("remat::MaxPoolGrad", dz, node.inputs[0], **node.attributes),)


@gradient("AveragePool")
def average_pool(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    shape = list(node.inputs[0].shape)
    return (emit.op("remat::AveragePoolGrad", dz, **node.attributes, input_shape=shape),)


@gradient("LpPool")
def lp_pool(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return (emit.op("remat::LpPoolGrad", dz, node.inputs[0], node.outputs[0], **node.attributes),)


@gradient("GlobalAveragePool")
def global_average_pool(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    shape = node.inputs[0].shape
    return (emit.expand(emit.div_by(dz, max(1, math.prod(shape[2:]))), shape),)


@gradient("GlobalMaxPool")
def global_max_pool(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x = node.inputs[0]
    return (emit.op("remat::MaxPoolGrad", dz, x, kernel_shape=list(x.shape[2:])),)


@gradient("GlobalLpPool")
def global_lp_pool(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x = node.inputs[0]
    window = list(x.shape[2:])
    return (emit.op("remat::LpPoolGrad", dz, x, node.outputs[0], kernel_shape=window, p=node.attribute("p", 2)),)


@gradient("MaxUnpool")
def max_unpool(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """Each element takes the gradient of its place; places that `output_shape` adds at the ends were never written."""
    x, indices = node.inputs[0], node.inputs[1]
    window = list(node.attribute("kernel_shape"))
    rank = len(window)
    strides, pads = list(node.attribute("strides") or [1] * rank), list(node.attribute("pads") or [0] * (2 * rank))
    for i in range(rank):
        length = (x.shape[2 + i] - 1) * strides[i] + window[i] - pads[i] - pads[rank + i]
        dz = slice_axis(emit, dz, 2 + i, 0, min(length, dz.shape[2 + i]))
    dx = emit.op("Gather", emit.reshape(dz, (math.prod(dz.shape),)), indices, axis=0)
    return (dx, *[None] * (len(node.inputs) - 1))
