"""Ops of Paddle that move elements: reshape, split, slice, pad, gather.

Ops whose name ends in 2 also return the shape they had, which is not needed.
"""

from __future__ import annotations

import math

from graph.builder.emit import Emit
from graph.formats.paddle.ops.reductions import single
from graph.formats.paddle.ops.table import PADDLE, dtype_attribute
from graph.formats.shared import reshaping
from graph.formats.shared.op_helpers import axis_of, checked_shape, integral, known_integers
from graph.formats.shared.op_table import OpUse, Unmapped
from graph.ir import Val

PADDLE.rules_of(
    {
        "stack": reshaping.stack,
        "gather_nd": lambda e, use, x, index: e.op("GatherND", x, e.cast(index, "int64")),
        "tile": lambda e, use, x: reshaping.tiled(e, x, use.integers("repeat_times")),
        "unsqueeze unsqueeze2": lambda e, use, x: reshaping.with_axes(e, x, use.integers("axes", "axis", default=())),
        "shape": lambda e, use, x: e.cast(e.op("Shape", x), "int32"),
    }
)


@PADDLE.op("reshape", "reshape2")
def reshape(e: Emit, use: OpUse, x: Val, shape: Val | None = None) -> Val:
    if shape is None or e.known(shape) is None:
        codes = use.integers("shape", default=())
    else:
        codes = known_integers(e, shape)
    if not codes and shape is not None:
        return reshaping.reshaped(e, x, use.output_type().shape)
    return reshaping.reshaped(e, x, reshaping.decoded_shape(x.shape, codes))


@PADDLE.op("flatten", "flatten2", "flatten_contiguous_range")
def flatten(e: Emit, use: OpUse, x: Val) -> Val:
    if use.op != "flatten_contiguous_range" and "start_axis" not in use:
        return e.op("Flatten", x, axis=use.integer("axis", default=1))
    start, stop = (axis_of(x, use.integer(f"{end}_axis", default=d)) for end, d in (("start", 1), ("stop", -1)))
    return reshaping.reshaped(e, x, (*x.shape[:start], math.prod(x.shape[start : stop + 1]), *x.shape[stop + 1 :]))


@PADDLE.op("transpose", "transpose2")
def transpose(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("Transpose", x, perm=[axis_of(x, a) for a in use.integers("axis", "perm")])


@PADDLE.op("squeeze", "squeeze2")
def squeeze(e: Emit, use: OpUse, x: Val) -> Val:
    axes = [axis_of(x, a) for a in use.integers("axes", "axis", default=())] or range(x.rank)
    return single(e, use, reshaping.without_axes(e, x, [a for a in axes if x.shape[a] == 1]))


@PADDLE.op("concat")
def concat(e: Emit, use: OpUse, *parts: Val) -> Val:
    return e.op("Concat", *parts, axis=axis_of(parts[0], use.integer("axis", default=0)))


@PADDLE.op("split", "unstack")
def split(e: Emit, use: OpUse, x: Val) -> tuple[Val, ...]:
    axis = axis_of(x, use.integer("axis", default=0))
    sections = list(use.integers("sections", default=()))
    if sections.count(-1) == 1:
        sections[sections.index(-1)] = x.shape[axis] - sum(sections) - 1
    count = use.integer("num", default=0) or len(sections) or use.outputs
    parts = reshaping.split(e, x, count, axis, sections or None)
    if use.op == "unstack":
        return tuple(reshaping.without_axes(e, part, [axis]) for part in parts)
    return parts


@PADDLE.op("slice", "strided_slice")
def slice_(e: Emit, use: OpUse, x: Val) -> Val:
    axes, begin, end = use.integers("axes"), use.integers("starts"), use.integers("ends")
    steps = use.integers("strides", default=()) or (1,) * len(axes)
    found = reshaping.sliced(e, x, axes, begin, end, steps)
    dropped = [axis_of(x, d) for d in use.integers("decrease_axis", default=())]
    return single(e, use, reshaping.without_axes(e, found, dropped)) if dropped else found


@PADDLE.op("expand_v2", "expand_as_v2")
def expand(e: Emit, use: OpUse, x: Val, like: Val | None = None) -> Val:
    if use.op == "expand_as_v2" and like is not None:
        return e.expand(x, like.shape)
    codes = use.integers("shape")
    lengths = [x.shape[i + x.rank - len(codes)] if n == -1 else n for i, n in enumerate(codes)]
    return e.expand(x, checked_shape(lengths))


@PADDLE.op("gather")
def gather(e: Emit, use: OpUse, x: Val, index: Val) -> Val:
    flat = e.reshape(index, (index.shape[0],)) if index.rank == 2 and index.shape[1] == 1 else index
    return e.op("Gather", x, flat, axis=axis_of(x, use.integer("axis", default=0)))


@PADDLE.op("one_hot", "one_hot_v2")
def one_hot(e: Emit, use: OpUse, x: Val) -> Val:
    depth = use.integer("depth", "num_classes")
    if use.op == "one_hot" and x.rank > 1 and x.shape[-1] == 1:
        x = e.reshape(x, x.shape[:-1])
    checked_shape((*x.shape, depth))
    return e.op("OneHot", integral(e, x), e.ints([depth]), e.constant([0, 1], dtype_attribute(use, "float32")))


@PADDLE.op("top_k_v2", "topk")
def top_k(e: Emit, use: OpUse, x: Val) -> tuple[Val, ...]:
    count, axis = e.ints([use.integer("k", default=1)]), use.integer("axis", default=-1)
    largest = int(use.flag("largest", default=True))
    return e.op("TopK", x, count, outputs=2, axis=axis, largest=largest)


@PADDLE.op("cumsum")
def cumsum(e: Emit, use: OpUse, x: Val) -> Val:
    if use.flag("flatten"):
        raise Unmapped
    axis = e.constant(use.integer("axis", default=-1), "int64")
    return e.op("CumSum", x, axis, exclusive=int(use.flag("exclusive")), reverse=int(use.flag("reverse")))
