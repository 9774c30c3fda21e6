"""Ops of Caffe2 that move elements: reshape, split, slice, pad, gather."""

from __future__ import annotations

import math

from graph.builder.emit import Emit
from graph.formats.caffe2.ops.layers import window_of
from graph.formats.caffe2.ops.table import CAFFE2
from graph.formats.shared import layers, reshaping
from graph.formats.shared.op_helpers import axis_of, known_integers
from graph.formats.shared.op_table import OpUse
from graph.ir import Val

CAFFE2.rules_of(
    {
        "ResizeLike": reshaping.reshape_like,
        "Transpose": reshaping.transpose,
        "Squeeze": lambda e, use, x: reshaping.without_axes(e, x, use.integers("dims")),
    }
)


@CAFFE2.op("Flatten", "FlattenToVec")
def flatten(e: Emit, use: OpUse, x: Val) -> Val:
    if use.op == "FlattenToVec":
        return reshaping.reshaped(e, x, [math.prod(x.shape)])
    return e.op("Flatten", x, axis=use.integer("axis", default=1))


@CAFFE2.op("Reshape")
def reshape(e: Emit, use: OpUse, x: Val, shape: Val | None = None) -> tuple[Val, ...]:
    """The value, and the shape it had."""
    codes = use.integers("shape", default=())
    if shape is not None and not codes:
        codes = known_integers(e, shape)
    y = reshaping.reshaped(e, x, reshaping.decoded_shape(x.shape, codes))
    return y, e.op("Identity", e.ints(x.shape))


@CAFFE2.op("ExpandDims")
def expand_dims(e: Emit, use: OpUse, x: Val) -> Val:
    dims = sorted(use.integers("dims"))
    if dims and dims[0] < 0:
        raise ValueError(f"dimension {dims[0]} of {x.type}")
    return reshaping.with_axes(e, x, dims)


@CAFFE2.op("NCHW2NHWC", "NHWC2NCHW")
def layout(e: Emit, use: OpUse, x: Val) -> Val:
    if use.op == "NCHW2NHWC":
        return e.op("Transpose", x, perm=[0, *range(2, x.rank), 1])
    return e.op("Transpose", x, perm=[0, x.rank - 1, *range(1, x.rank - 1)])


@CAFFE2.op("Concat", "DepthConcat")
def concat(e: Emit, use: OpUse, *parts: Val) -> tuple[Val, ...]:
    """The value, and the length of each part along the axis."""
    axis = 1 if use.op == "DepthConcat" else _channel_axis(use, parts[0])
    if use.op == "Concat" and use.flag("add_axis"):
        axis %= parts[0].rank + 1
        parts = tuple(reshaping.with_axes(e, x, [axis]) for x in parts)
    axis = axis_of(parts[0], axis)
    joined = e.op("Concat", *parts, axis=axis)
    if use.outputs == 1:
        return (joined,)
    return joined, e.op("Identity", e.constant([x.shape[axis] for x in parts], "int32"))


def _channel_axis(use: OpUse, x: Val) -> int:
    """The attribute `axis`; without it the axis of channels in the order of the op."""
    return use.integer("axis", default=1 if use.text("order", default="NCHW") == "NCHW" else x.rank - 1)


@CAFFE2.op("Split", "DepthSplit")
def split(e: Emit, use: OpUse, x: Val, lengths: Val | None = None) -> tuple[Val, ...]:
    axis = axis_of(x, _channel_axis(use, x))
    sizes = use.integers("split", default=()) if lengths is None else known_integers(e, lengths)
    return reshaping.split(e, x, use.outputs, axis, sizes or None)


@CAFFE2.op("Slice")
def slice_(e: Emit, use: OpUse, x: Val, starts: Val | None = None, ends: Val | None = None) -> Val:
    """Ends of -1 reach to the end, -2 leave one out, and so on."""
    if starts is not None and ends is not None:
        begin, end = known_integers(e, starts), known_integers(e, ends)
    else:
        begin, end = use.integers("starts"), use.integers("ends")
    stops = [n + x.shape[i] + 1 if n < 0 else n for i, n in enumerate(end)]
    return reshaping.sliced(e, x, range(len(begin)), begin, stops, [1] * len(begin))


@CAFFE2.op("Tile")
def tile(e: Emit, use: OpUse, x: Val) -> Val:
    axis, times = axis_of(x, use.integer("axis", default=0)), use.integer("tiles", default=1)
    return reshaping.tiled(e, x, [times if i == axis else 1 for i in range(x.rank)])


@CAFFE2.op("Gather", "BatchGather")
def gather(e: Emit, use: OpUse, x: Val, indices: Val) -> Val:
    return layers.gather(e, x, indices, 1 if use.op == "BatchGather" else use.integer("axis", default=0))


@CAFFE2.op("OneHot")
def one_hot(e: Emit, use: OpUse, indices: Val, size: Val) -> Val:
    known_integers(e, size)
    return e.op("OneHot", indices, e.reshape(size, (1,)), e.constant([0, 1], "uint8"))


@CAFFE2.op("PadImage")
def pad_image(e: Emit, use: OpUse, x: Val) -> Val:
    rank, pads = x.rank - 2, window_of(use, x)["pads"]
    mode, value = use.text("mode", default="constant"), use.number("value", default=0.0)
    return reshaping.pad(e, x, [0, 0, *pads[:rank], 0, 0, *pads[rank:]], mode, value)


@CAFFE2.op("ResizeNearest", "UpsampleNearest")
def resize_nearest(e: Emit, use: OpUse, x: Val) -> Val:
    both = use.number("scale", default=1.0)
    height, width = use.number("height_scale", default=both), use.number("width_scale", default=both)
    return reshaping.resize_nearest(e, x, height, width)
