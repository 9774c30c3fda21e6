"""Gradients of convolutions: one node for the input, one for the weights, a sum for the bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.autodiff.gradients.rules.tensor.shape import constant_of, slice_axis
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate
from graph.ir import Val


@gradient("Conv")
def conv(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x, w = node.inputs[0], node.inputs[1]
    dx = dw = None
    if node.needs[0]:
        dx = emit.op("remat::ConvGradInput", dz, w, **node.attributes, input_shape=list(x.shape))
    if node.needs[1]:
        dw = emit.op("remat::ConvGradWeight", dz, x, **node.attributes, weight_shape=list(w.shape))
    return (dx, dw, _bias(emit, node, dz))[: len(node.inputs)]


@gradient("ConvTranspose")
def conv_transpose(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """A transposed convolution is the input gradient of a convolution, so that convolution is its gradient."""
    x, w = node.inputs[0], node.inputs[1]
    attributes = _convolution_back(node, dz)
    dx = dw = None
    if node.needs[0]:
        dx = emit.op("Conv", dz, w, **attributes)
        for axis in range(2, x.rank):  # elements from output padding only
            dx = slice_axis(emit, dx, axis, 0, x.shape[axis])
    if node.needs[1]:
        dw = emit.op("remat::ConvGradWeight", x, dz, **attributes, weight_shape=list(w.shape))
    return (dx, dw, _bias(emit, node, dz))[: len(node.inputs)]


def _bias(emit: Emit, node: ForwardNode, dz: Val) -> Val | None:
    return emit.reduce_sum(dz, [0, *range(2, dz.rank)], keepdims=False) if node.needed(2) else None


def _convolution_back(node: ForwardNode, dz: Val) -> dict[str, Any]:
    """Attributes of the convolution from the output of a transposed one back to its input, with explicit pads."""
    x, w = node.inputs[0], node.inputs[1]
    rank = x.rank - 2
    strides = list(node.attribute("strides") or [1] * rank)
    dilations = list(node.attribute("dilations") or [1] * rank)
    extra = list(node.attribute("output_padding") or [0] * rank)
    automatic = node.attribute("auto_pad", "NOTSET")
    automatic = automatic.decode() if isinstance(automatic, bytes) else automatic
    pads = list(node.attribute("pads") or [0] * (2 * rank))
    if automatic != "NOTSET" or node.attribute("output_shape"):
        for i in range(rank):
            reach = (w.shape[2 + i] - 1) * dilations[i] + 1
            total = max(0, strides[i] * (x.shape[2 + i] - 1) + extra[i] + reach - dz.shape[2 + i])
            front = total // 2 if automatic != "SAME_LOWER" else total - total // 2
            if automatic == "NOTSET":
                front = total - total // 2
            pads[i], pads[rank + i] = front, total - front
    if any(pad < 0 for pad in pads):
        raise CannotDifferentiate(f"pads {pads}", "use pads of zero or more")
    return {
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "group": node.attribute("group", 1),
        "kernel_shape": list(w.shape[2:]),
    }


@gradient("Col2Im")
def col2im(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """Each column takes the block of dz it was added to: one gather per axis from the padded gradient."""
    x = node.inputs[0]
    block = constant_of(emit, node.inputs[2], "block_shape").tolist()
    rank = len(block)
    strides, dilations = (list(node.attribute(name) or [1] * rank) for name in ("strides", "dilations"))
    pads = list(node.attribute("pads") or [0] * (2 * rank))
    columns = dz
    if any(pads):
        columns = emit.op("Pad", dz, emit.ints([0, 0, *pads[:rank], 0, 0, *pads[rank:]]))
    for axis in range(rank):
        at = 2 + 2 * axis  # each axis before it has become two: the cell of the block, the block
        count = (columns.shape[at] - (block[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1
        cells = np.add.outer(np.arange(block[axis]) * dilations[axis], np.arange(count) * strides[axis])
        columns = emit.op("Gather", columns, emit.constant(cells), axis=at)
    columns = emit.transpose(columns, [0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 2 + 2 * rank, 2)])
    return emit.reshape(columns, x.shape), None, None
