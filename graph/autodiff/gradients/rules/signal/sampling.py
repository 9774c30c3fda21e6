"""Gradients of sampling at computed points: grids, deformable windows, regions of interest.

Regions get no gradient: detectors treat the proposals as given (Ren, He, Girshick, Sun, "Faster R-CNN", 2015,
section 3.2, approximate joint training), and PyTorch's `roi_align` does too.
"""

from __future__ import annotations

import math

import numpy as np

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.ir import Val


@gradient("GridSample")
def grid_sample(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return emit.op("remat::GridSampleGrad", dz, *node.inputs, outputs=node.needs, **node.attributes)  # type: ignore[no-any-return]


@gradient("AffineGrid")
def affine_grid(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """z = theta (p, 1) for points p of a fixed grid, the image of the identity: dtheta = Σ dz (p, 1)ᵀ."""
    theta = node.inputs[0]
    spatial, rank = dz.shape[1:-1], dz.shape[-1]
    identity = emit.constant(np.eye(rank, rank + 1)[None], dz.dtype)
    base = emit.op("AffineGrid", identity, emit.ints([1, 1, *spatial]), align_corners=node.attribute("align_corners"))
    points = math.prod(spatial)
    flat = emit.reshape(dz, (theta.shape[0], points, rank))
    linear = emit.op("remat::MatMul", flat, emit.reshape(base, (points, rank)), trans_a=1)
    shift = emit.reshape(emit.reduce_sum(flat, [1]), (theta.shape[0], rank, 1))
    return emit.op("Concat", linear, shift, axis=2), None


@gradient("RoiAlign")
def roi_align(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """The average is linear in the image, which is not read; the maximum is."""
    x, rois, batch = node.inputs
    image = [x] if node.attribute("mode", "avg") in ("max", b"max") else []
    shape = list(x.shape)
    return emit.op("remat::RoiAlignGrad", dz, rois, batch, *image, **node.attributes, input_shape=shape), None, None


@gradient("MaxRoiPool")
def max_roi_pool(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return emit.op("remat::MaxRoiPoolGrad", dz, *node.inputs, **node.attributes), None


@gradient("DeformConv")
def deform_conv(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """As a product of weights and sampled columns; the columns are sampled again, not saved."""
    x, w, offset = node.inputs[:3]
    mask, group = node.input(4), int(node.attribute("group", 1))
    names = ("strides", "pads", "dilations", "offset_group")
    window = {"kernel_shape": list(w.shape[2:]), **{name: node.attribute(name) for name in names}}
    sampled = [x, offset, *([mask] if mask else [])]
    rows, cells = math.prod(w.shape[1:]), math.prod(dz.shape[2:])
    flat = emit.reshape(dz, (x.shape[0], group, w.shape[0] // group, cells))
    gradients: list[Val | None] = [None] * len(node.inputs)
    if node.needs[1]:
        columns = emit.reshape(emit.op("remat::DeformColumns", *sampled, **window), (x.shape[0], group, rows, cells))
        product = emit.op("Einsum", flat, columns, equation="ngoc,ngrc->gor")
        gradients[1] = emit.reshape(product, w.shape)
    if node.needed(3):
        gradients[3] = emit.reduce_sum(dz, [0, *range(2, dz.rank)], keepdims=False)
    wanted = (node.needs[0], node.needs[2], node.needed(4))
    if any(wanted):
        weights = emit.reshape(w, (group, w.shape[0] // group, rows))
        columns = emit.op("remat::MatMul", weights, flat, trans_a=1)
        columns = emit.reshape(columns, (x.shape[0], group * rows, cells))
        found = emit.op("remat::DeformColumnsGrad", columns, *sampled, outputs=wanted, **window)
        for position, gradient_value in zip((0, 2, 4), found, strict=True):
            if gradient_value is not None:
                gradients[position] = gradient_value
    return tuple(gradients)
