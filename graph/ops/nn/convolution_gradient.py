"""Gradients of convolutions with respect to input and weights, with decompositions into standard ops.

    dx    ConvTranspose(dy, w)                    with the padding that restores the lengths of x
    dw    Conv(xᵀ, dyᵀ)                           channels and images swapped, strides and dilations swapped

With groups, xᵀ has one channel per (group, image): image c of the product sees channel c of every group.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.nn.convolution import grad_input, grad_weight, group_of, multiply_adds
from graph.ops.nn.windows import Windows, windows
from graph.ops.numeric.precision import attribute_shape, downcast_like, require_input_type, upcast
from graph.ops.registry.registry import HEAVY, Call, Work, op


def grad_windows(call: Call, spatial: tuple[int, ...], kernel: tuple[int, ...], dy: tuple[int, ...]) -> Windows:
    """Windows between `spatial` and the actual cells of dy. Raises ValueError if dy has more cells than fit."""
    view = windows(call.attributes, spatial, kernel)
    if any(has > fits for has, fits in zip(dy, view.output, strict=True)):
        raise ValueError(f"dy has {list(dy)} cells, but only {list(view.output)} windows fit over {list(spatial)}")
    return replace(view, output=tuple(dy))


def _grad_input_work(call: Call) -> Work:
    dy, w = call.inputs[0], call.inputs[1]
    return Work(2 * dy.elements * multiply_adds(w)) if dy is not None and w is not None else Work()


def _grad_weight_work(call: Call) -> Work:
    dy, w = call.inputs[0], call.outputs[0]
    return Work(2 * dy.elements * multiply_adds(w)) if dy is not None and w is not None else Work()


def _grad_input_body(emit: Emit, call: Call, dy: Val, w: Val) -> tuple[Val, ...]:
    shape = attribute_shape(call.attributes, "input_shape", call.op)
    view = grad_windows(call, shape[2:], w.shape[2:], dy.shape[2:])
    pads, extra = view.transpose_pads()
    room = [max(s, d) - 1 for s, d in zip(view.stride, view.dilation, strict=True)]
    made = [min(a, b) for a, b in zip(extra, room, strict=True)]
    dx = emit.op(
        "ConvTranspose",
        dy,
        w,
        group=group_of(call),
        strides=list(view.stride),
        dilations=list(view.dilation),
        pads=pads,
        output_padding=made,
    )
    short = [a - b for a, b in zip(extra, made, strict=True)]  # cells outside all windows
    return (emit.op("Pad", dx, emit.ints([0] * (len(shape) + 2) + short)) if any(short) else dx,)


def _grad_weight_body(emit: Emit, call: Call, dy: Val, x: Val) -> tuple[Val, ...]:
    shape = attribute_shape(call.attributes, "weight_shape", call.op)
    view = grad_windows(call, x.shape[2:], shape[2:], dy.shape[2:])
    group, images, places = group_of(call), x.shape[0], list(range(3, x.rank + 1))
    channels, filters = shape[1], shape[0] // group
    image = emit.reshape(x, [images, group, channels, *x.shape[2:]])
    image = emit.reshape(emit.transpose(image, [2, 1, 0, *places]), [channels, group * images, *x.shape[2:]])
    kernel = emit.reshape(dy, [images, group, filters, *dy.shape[2:]])
    kernel = emit.reshape(emit.transpose(kernel, [1, 2, 0, *places]), [shape[0], images, *dy.shape[2:]])
    end_pads = [
        max(0, (k - 1) * d + (o - 1) * s + 1 - n - b)
        for k, d, o, s, n, b in zip(
            view.kernel, view.dilation, view.output, view.stride, view.input, view.begin, strict=True
        )
    ]
    dw = emit.op(
        "Conv",
        image,
        kernel,
        group=group,
        strides=list(view.dilation),
        dilations=list(view.stride),
        pads=[*view.begin, *end_pads],
    )
    if dw.shape[2:] != shape[2:]:  # x extends past the last window
        axes = list(range(2, x.rank))
        dw = emit.op("Slice", dw, emit.ints([0] * len(axes)), emit.ints(shape[2:]), emit.ints(axes))
    return (emit.transpose(dw, [1, 0, *range(2, x.rank)]),)


def _infer_grad_input(call: Call) -> tuple[TensorType | None, ...]:
    dy, w = require_input_type(call.inputs[0], "dy"), require_input_type(call.inputs[1], "w")
    shape = attribute_shape(call.attributes, "input_shape", call.op)
    group = group_of(call)
    if len({len(dy.shape), len(w.shape), len(shape)}) != 1 or len(shape) < 3:
        raise ValueError(f"dy {dy}, w {w} and input_shape {list(shape)} must have one rank, 3 at least")
    if dy.shape[0] != shape[0] or dy.shape[1] != w.shape[0] or shape[1] != w.shape[1] * group:
        raise ValueError(f"dy {dy}, w {w} and input_shape {list(shape)} do not agree with group {group}")
    grad_windows(call, shape[2:], w.shape[2:], dy.shape[2:])
    return (TensorType(dy.dtype, shape),)


@op("remat::ConvGradInput", infer=_infer_grad_input, work=_grad_input_work, recompute=HEAVY, body=_grad_input_body)
def conv_grad_input(call: Call, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
    shape = attribute_shape(call.attributes, "input_shape", call.op)
    view = grad_windows(call, shape[2:], w.shape[2:], dy.shape[2:])
    return downcast_like(grad_input(upcast(dy), upcast(w), group_of(call), view), dy)


def _infer_grad_weight(call: Call) -> tuple[TensorType | None, ...]:
    dy, x = require_input_type(call.inputs[0], "dy"), require_input_type(call.inputs[1], "x")
    shape = attribute_shape(call.attributes, "weight_shape", call.op)
    group = group_of(call)
    if len({len(dy.shape), len(x.shape), len(shape)}) != 1 or len(shape) < 3:
        raise ValueError(f"dy {dy}, x {x} and weight_shape {list(shape)} must have one rank, 3 at least")
    if dy.shape[0] != x.shape[0] or dy.shape[1] != shape[0] or x.shape[1] != shape[1] * group:
        raise ValueError(f"dy {dy}, x {x} and weight_shape {list(shape)} do not agree with group {group}")
    grad_windows(call, x.shape[2:], shape[2:], dy.shape[2:])
    return (TensorType(dy.dtype, shape),)


@op("remat::ConvGradWeight", infer=_infer_grad_weight, work=_grad_weight_work, recompute=HEAVY, body=_grad_weight_body)
def conv_grad_weight(call: Call, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    shape = attribute_shape(call.attributes, "weight_shape", call.op)
    view = grad_windows(call, x.shape[2:], shape[2:], dy.shape[2:])
    return downcast_like(grad_weight(upcast(dy), upcast(x), group_of(call), view), dy)
