"""Deformable convolution: the columns of a convolution, sampled at learned offsets, times the weights.

    columns[n, c · kernel cell, output cell] = x[n, c] at (window cell + offset), times the mask

Source: Dai et al., "Deformable Convolutional Networks", 2017; masks: Zhu et al., 2018.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.nn.interpolation import (
    TAPS,
    Axis,
    Corner,
    cells_of,
    column,
    coordinate_gradients,
    corners_of,
    image_numbers,
    image_of,
    interpolate,
    scatter,
    taps_of,
)
from graph.ops.nn.windows import axis_attribute
from graph.ops.numeric.by_body import kernel_of
from graph.ops.numeric.precision import attribute_shape, require_input_type, statistics_dtype
from graph.ops.registry import onnx_fallback
from graph.ops.registry.registry import HEAVY, Call, Work, op


def _sampling_flops(x: TensorType, offset: TensorType, flops: int) -> int:
    """Flops to sample all columns, `flops` per channel and corner."""
    rank = len(x.shape) - 2
    points = offset.elements // max(1, rank)  # over all offset groups
    return int(points * TAPS["linear"] ** rank * (flops * x.shape[1] + 10))


def _corners(e: Emit, call: Call, x: Val, offset: Val) -> list[Corner]:
    """The corners of all points [images · offset groups, kernel cells, output cells]."""
    kernel, spatial = attribute_shape(call.attributes, "kernel_shape", call.op), x.shape[2:]
    rank, groups = len(spatial), int(call.attribute("offset_group", 1))
    strides, dilations = (axis_attribute(call.attributes, name, rank, 1) for name in ("strides", "dilations"))
    pads = axis_attribute(call.attributes, "pads", 2 * rank, 0)
    images, output = x.shape[0] * groups, offset.shape[2:]
    moved = e.cast(e.reshape(offset, (images, math.prod(kernel), rank, math.prod(output))), statistics_dtype(x.dtype))
    taps = []
    for axis, length in enumerate(spatial):
        cells = np.array(list(itertools.product(*map(range, kernel))))[:, axis] * dilations[axis] - pads[axis]
        starts = np.indices(output)[axis].reshape(-1) * strides[axis]
        u = e.add(
            e.op("Gather", moved, e.constant(np.int64(axis)), axis=2),
            e.constant(np.add.outer(cells, starts), moved.dtype),
        )
        taps.append(taps_of(e, u, Axis(length, "zeros", 0.0, length - 1.0), "linear"))
    return list(corners_of(e, taps, spatial, image_numbers(e, images, 3)))


def _grouped(e: Emit, call: Call, x: Val) -> Val:
    """`x` with its offset groups as images, in computing precision."""
    groups = int(call.attribute("offset_group", 1))
    shape = (x.shape[0] * groups, x.shape[1] // groups, *x.shape[2:])
    return e.cast(e.reshape(x, shape), statistics_dtype(x.dtype))


def _columns(e: Emit, call: Call, x: Val, offset: Val, mask: Val | None = None) -> tuple[Val, ...]:
    kernel = math.prod(attribute_shape(call.attributes, "kernel_shape", call.op))
    output, images = math.prod(offset.shape[2:]), _grouped(e, call, x)
    y = interpolate(e, cells_of(e, images), _corners(e, call, x, offset))
    if mask is not None:
        weight = e.reshape(e.cast(mask, y.dtype), (images.shape[0], kernel, output))
        y = e.mul(y, column(e, weight))
    y = e.transpose(y, [0, 3, 1, 2])  # channels first
    return (e.cast(e.reshape(y, (x.shape[0], x.shape[1] * kernel, output)), x.dtype),)


def _columns_type(call: Call) -> tuple[TensorType | None, ...]:
    x, offset = (require_input_type(t, name) for t, name in zip(call.inputs[:2], ("x", "offset"), strict=True))
    kernel = math.prod(attribute_shape(call.attributes, "kernel_shape", call.op))
    return (TensorType(x.dtype, (x.shape[0], x.shape[1] * kernel, math.prod(offset.shape[2:]))),)


def _columns_work(call: Call) -> Work:
    x, offset = call.inputs[:2]
    return Work() if x is None or offset is None else Work(_sampling_flops(x, offset, 2))


op("remat::DeformColumns", infer=_columns_type, work=_columns_work, recompute=HEAVY, body=_columns)(kernel_of(_columns))


def _columns_gradient(
    e: Emit, call: Call, dy: Val, x: Val, offset: Val, mask: Val | None = None
) -> tuple[Val | None, ...]:
    """Gradients of x, offset and mask from that of the columns."""
    kernel = math.prod(attribute_shape(call.attributes, "kernel_shape", call.op))
    output, images, corners = math.prod(offset.shape[2:]), _grouped(e, call, x), _corners(e, call, x, offset)
    split = (images.shape[0], images.shape[1], kernel, output)
    incoming = e.transpose(e.reshape(e.cast(dy, images.dtype), split), [0, 2, 3, 1])
    cells = cells_of(e, images)
    dx = doffset = dmask = None
    if mask is not None and call.used[2]:
        product = e.mul(incoming, interpolate(e, cells, corners))
        dmask = e.cast(e.reshape(e.reduce_sum(product, [3], keepdims=False), mask.shape), mask.dtype)
    if mask is not None:
        incoming = e.mul(incoming, column(e, e.reshape(e.cast(mask, images.dtype), (images.shape[0], kernel, output))))
    if call.used[0]:
        dx = image_of(e, scatter(e, incoming, cells.type, corners), images.shape)
        dx = e.cast(e.reshape(dx, x.shape), x.dtype)
    if call.used[1]:
        parts = [
            e.reshape(du, (images.shape[0], kernel, 1, output))
            for du in coordinate_gradients(e, incoming, cells, corners)
        ]
        doffset = e.cast(e.reshape(e.op("Concat", *parts, axis=2), offset.shape), offset.dtype)
    return dx, doffset, dmask


def _columns_gradient_types(call: Call) -> tuple[TensorType | None, ...]:
    x, offset = (require_input_type(t, name) for t, name in zip(call.inputs[1:3], ("x", "offset"), strict=True))
    return x, offset, call.inputs[3] if len(call.inputs) > 3 else None


def _columns_gradient_work(call: Call) -> Work:
    x, offset = call.inputs[1:3]
    return Work() if x is None or offset is None else Work(_sampling_flops(x, offset, 4))


op(
    "remat::DeformColumnsGrad",
    infer=_columns_gradient_types,
    work=_columns_gradient_work,
    recompute=HEAVY,
    body=_columns_gradient,
)(kernel_of(_columns_gradient))


def _convolved(
    e: Emit, call: Call, x: Val, w: Val, offset: Val, bias: Val | None = None, mask: Val | None = None
) -> tuple[Val, ...]:
    group = int(call.attribute("group", 1))
    sampled = Call(
        call.op, {**call.attributes, "kernel_shape": list(w.shape[2:])}, call.inputs, call.outputs, call.used
    )
    (columns,) = _columns(e, sampled, x, offset, mask)
    columns = e.reshape(columns, (x.shape[0], group, columns.shape[1] // group, columns.shape[2]))
    weights = e.reshape(w, (group, w.shape[0] // group, math.prod(w.shape[1:])))
    y = e.reshape(e.matmul(weights, columns), (x.shape[0], w.shape[0], *offset.shape[2:]))
    return (y if bias is None else e.add(y, e.reshape(bias, (w.shape[0], *[1] * (x.rank - 2)))),)


def _convolution_work(call: Call) -> Work:
    """Work: the columns are sampled into a workspace and multiplied by the weights."""
    x, w, offset, y = call.inputs[0], call.inputs[1], call.inputs[2], call.outputs[0]
    if x is None or w is None or offset is None or y is None:
        return Work()
    columns = x.nbytes // max(1, math.prod(x.shape[1:])) * x.shape[1] * math.prod(w.shape[2:]) * math.prod(y.shape[2:])
    traffic = sum(t.nbytes for t in (*call.inputs, *call.outputs) if t is not None) + 2 * columns
    return Work(_sampling_flops(x, offset, 2) + 2 * y.elements * math.prod(w.shape[1:]), traffic, columns)


def _convolved_type(call: Call) -> tuple[TensorType | None, ...]:
    """Type by the standard. Raises ValueError unless the offsets have the cells of the output."""
    types, offset = onnx_fallback.infer(call), call.inputs[2]
    y = types[0]
    if y is not None and offset is not None and y.shape[2:] != offset.shape[2:]:
        raise ValueError(f"input 2 is {offset}; the output is {y}, of other lengths")
    return types


op(
    "DeformConv",
    infer=_convolved_type,
    work=_convolution_work,
    recompute=HEAVY,
    gradient_reads=("i0", "i1", "i2", "i4"),
)(kernel_of(_convolved))
