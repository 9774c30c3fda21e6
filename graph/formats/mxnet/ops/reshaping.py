"""Ops of MXNet that move elements: reshape, split, slice, pad, gather."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from graph.builder.emit import Emit
from graph.formats.mxnet.ops.table import MXNET, dtype_attribute
from graph.formats.shared import layers, reshaping
from graph.formats.shared.elementwise import aligned
from graph.formats.shared.op_helpers import axis_of, checked_shape, integral
from graph.formats.shared.op_table import OpUse, Unmapped
from graph.formats.shared.reshaping import sliced
from graph.ir import Val

MXNET.rules_of(
    {
        "transpose": reshaping.transpose,
        "stack": reshaping.stack,
        "Flatten flatten": lambda e, use, x: e.op("Flatten", x, axis=1),
        "tile": lambda e, use, x: reshaping.tiled(e, x, use.integers("reps")),
        "take": lambda e, use, x, indices: layers.gather(e, x, indices, axis_of(x, use.integer("axis", default=0))),
    }
)


@MXNET.op("Reshape", "reshape")
def reshape(e: Emit, use: OpUse, x: Val) -> Val:
    """Codes: 0 copies, -1 infers, -2 copies the rest, -3 joins two, -4 splits one in two."""
    codes = use.integers("shape", default=())
    if not codes:
        codes = use.integers("target_shape")  # the older spelling, in which 0 infers
        codes = tuple(-1 if c == 0 else c for c in codes)
    return e.reshape(x, coded_shape(x.shape, codes, use.flag("reverse")))


def coded_shape(shape: tuple[int, ...], codes: tuple[int, ...], reverse: bool = False) -> tuple[int, ...]:
    """Target shape of MXNet's reshape codes. Raises ValueError."""
    if reverse:
        return coded_shape(shape[::-1], codes[::-1])[::-1]
    lengths: list[int] = []
    at, k = 0, 0
    while k < len(codes):
        code = codes[k]
        if code == 0:
            lengths.append(shape[at])
        elif code == -2:
            lengths.extend(shape[at:])
            at = len(shape)
        elif code == -3:
            lengths.append(shape[at] * shape[at + 1])
            at += 1
        elif code == -4:
            first, second = codes[k + 1], codes[k + 2]
            first = shape[at] // second if first == -1 else first
            lengths.extend((first, shape[at] // first if second == -1 else second))
            k += 2
        else:
            lengths.append(code)
        at, k = at + 1, k + 1
    return reshaping.inferred_shape(lengths, math.prod(shape))


@MXNET.op("reshape_like")
def reshape_like(e: Emit, use: OpUse, x: Val, like: Val) -> Val:
    if any(key in use for key in ("lhs_begin", "lhs_end", "rhs_begin", "rhs_end")):
        raise Unmapped
    return reshaping.reshape_like(e, use, x, like)


@MXNET.op("SwapAxis", "swapaxes")
def swap_axes(e: Emit, use: OpUse, x: Val) -> Val:
    axes = list(range(x.rank))
    one, two = (axis_of(x, use.integer(key, default=0)) for key in ("dim1", "dim2"))
    axes[one], axes[two] = axes[two], axes[one]
    return e.transpose(x, axes)


@MXNET.op("expand_dims")
def expand_dims(e: Emit, use: OpUse, x: Val) -> Val:
    axis, count = use.integer("axis"), use.integer("num_newaxis", default=1)
    if not 0 < count < 32:
        raise ValueError(f"{count} new axes")
    return reshaping.with_axes(e, x, [axis + x.rank + 1 if axis < 0 else axis] * count)


@MXNET.op("squeeze")
def squeeze(e: Emit, use: OpUse, x: Val) -> Val:
    axes = [axis_of(x, a) for a in use.integers("axis", default=())]
    return reshaping.without_axes(e, x, axes or [i for i, n in enumerate(x.shape) if n == 1])


@MXNET.op("Concat", "concat", "concatenate", "_rnn_param_concat")
def concat(e: Emit, use: OpUse, *parts: Val) -> Val:
    return e.op("Concat", *parts, axis=axis_of(parts[0], use.integer("dim", "axis", default=1)))


@MXNET.op("SliceChannel", "split")
def slice_channel(e: Emit, use: OpUse, x: Val) -> tuple[Val, ...]:
    parts = use.integer("num_outputs", "indices_or_sections", default=use.outputs)
    return _split(e, use, x, parts, use.integer("axis", default=1))


@MXNET.op("_split_v2", "split_v2")
def split_v2(e: Emit, use: OpUse, x: Val) -> tuple[Val, ...]:
    axis, sections = axis_of(x, use.integer("axis", default=0)), use.integer("sections", default=0)
    cuts = [0, *(i for i in use.integers("indices", default=()) if i), x.shape[axis]]
    sizes = None if sections else [end - begin for begin, end in itertools.pairwise(cuts)]
    return _split(e, use, x, sections or len(cuts) - 1, axis, sizes)


def _split(e: Emit, use: OpUse, x: Val, parts: int, axis: int, sizes: Sequence[int] | None = None) -> tuple[Val, ...]:
    """Parts along the axis, which `squeeze_axis` removes."""
    found, axis = reshaping.split(e, x, parts, axis, sizes), axis_of(x, axis)
    if not use.flag("squeeze_axis"):
        return found
    return tuple(reshaping.without_axes(e, part, [axis]) for part in found)


@MXNET.op("slice", "crop")
def slice_(e: Emit, use: OpUse, x: Val) -> Val:
    begin, end = use.maybe_integers("begin") or (), use.maybe_integers("end") or ()
    step = use.maybe_integers("step") or ()
    steps = [s or 1 for s in (*step, *[None] * (len(begin) - len(step)))]
    far = (1 << 62) - 1
    begins = [(far if s < 0 else 0) if b is None else b for b, s in zip(begin, steps, strict=True)]
    ends = [(-far if s < 0 else far) if n is None else n for n, s in zip(end, steps, strict=True)]
    return sliced(e, x, range(len(begins)), begins, ends, steps)


@MXNET.op("slice_axis")
def slice_axis(e: Emit, use: OpUse, x: Val) -> Val:
    axis, end = axis_of(x, use.integer("axis")), use.maybe_integer("end")
    return sliced(e, x, [axis], [use.integer("begin", default=0)], [x.shape[axis] if end is None else end], [1])


@MXNET.op("slice_like")
def slice_like(e: Emit, use: OpUse, x: Val, like: Val) -> Val:
    axes = [axis_of(x, a) for a in use.integers("axes", default=())] or list(range(x.rank))
    return sliced(e, x, axes, [0] * len(axes), [like.shape[a] for a in axes], [1] * len(axes))


@MXNET.op("reverse", "flip")
def reverse(e: Emit, use: OpUse, x: Val) -> Val:
    axes = [axis_of(x, a) for a in use.integers("axis")]
    return sliced(e, x, axes, [-1] * len(axes), [-(1 << 62)] * len(axes), [-1] * len(axes))


@MXNET.op("broadcast_to", "_np_broadcast_to")
def broadcast_to(e: Emit, use: OpUse, x: Val) -> Val:
    shape = use.integers("shape")
    lengths = [n or x.shape[i + x.rank - len(shape)] for i, n in enumerate(shape)]
    return e.expand(x, checked_shape(lengths))


@MXNET.op("broadcast_axis", "broadcast_axes")
def broadcast_axis(e: Emit, use: OpUse, x: Val) -> Val:
    lengths = list(x.shape)
    for axis, n in zip(use.integers("axis", default=()), use.integers("size", default=()), strict=True):
        lengths[axis_of(x, axis)] = n
    return e.expand(x, checked_shape(lengths))


@MXNET.op("broadcast_like")
def broadcast_like(e: Emit, use: OpUse, x: Val, like: Val) -> Val:
    if "lhs_axes" in use:
        raise Unmapped
    return e.expand(x, like.shape)


@MXNET.op("repeat")
def repeat(e: Emit, use: OpUse, x: Val) -> Val:
    times, axis = use.integer("repeats"), use.maybe_integer("axis")
    if axis is None:
        x, axis = e.reshape(x, (math.prod(x.shape),)), 0
    axis = axis_of(x, axis)
    before, length, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    shape = checked_shape((*before, length, times, *after))
    wide = e.expand(e.reshape(x, (*before, length, 1, *after)), shape)
    return e.reshape(wide, (*before, length * times, *after))


@MXNET.op("Pad", "pad")
def pad(e: Emit, use: OpUse, x: Val) -> Val:
    width = use.integers("pad_width")
    pads = [*width[::2], *width[1::2]]
    return reshaping.pad(e, x, pads, use.text("mode"), use.number("constant_value", default=0.0))


@MXNET.op("UpSampling")
def up_sampling(e: Emit, use: OpUse, x: Val, *more: Val) -> Val:
    scale = use.integer("scale")
    if use.text("sample_type") != "nearest" or more or x.rank != 4:
        raise Unmapped
    return reshaping.resize_nearest(e, x, scale, scale)


@MXNET.op("batch_take", "pick", "choose_element_0index")
def pick(e: Emit, use: OpUse, x: Val, indices: Val) -> Val:
    """One element per row; `batch_take` picks along axis 1 and drops it."""
    batch = use.op == "batch_take"
    axis = 1 if batch else axis_of(x, use.integer("axis", default=-1))
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    found = e.op("GatherElements", x, e.reshape(integral(e, indices), shape), axis=axis)
    keeps_axis = not batch and use.flag("keepdims")
    return found if keeps_axis else reshaping.without_axes(e, found, [axis])


@MXNET.op("gather_nd")
def gather_nd(e: Emit, use: OpUse, x: Val, indices: Val) -> Val:
    """MXNet lists coordinates along the first dimension, the standard along the last."""
    turned = e.transpose(e.cast(indices, "int64"), [*range(1, indices.rank), 0])
    return e.op("GatherND", x, turned)


@MXNET.op("one_hot")
def one_hot(e: Emit, use: OpUse, indices: Val) -> Val:
    values = e.constant(
        [use.number("off_value", default=0.0), use.number("on_value", default=1.0)], dtype_attribute(use)
    )
    depth = use.integer("depth")
    checked_shape((*indices.shape, depth))
    return e.op("OneHot", integral(e, indices), e.ints([depth]), values)


@MXNET.op("SequenceMask")
def sequence_mask(e: Emit, use: OpUse, x: Val, lengths: Val | None = None) -> Val:
    """Steps from a sequence's length on are replaced by a number."""
    axis, fill = use.integer("axis", default=0), use.number("value", default=0.0)
    if not use.flag("use_sequence_length") or lengths is None:
        return x
    if axis not in (0, 1) or x.rank < 2 or x.shape[axis] > 1 << 20:
        raise Unmapped
    steps = np.arange(x.shape[axis]).astype(np.float32)
    steps = steps.reshape((-1, 1) if axis == 0 else (1, -1))
    each = (1, lengths.shape[0]) if axis == 0 else (lengths.shape[0], 1)
    inside = e.op("Less", e.constant(steps), e.reshape(e.cast(lengths, "float32"), each))
    return e.where(aligned(e, x, inside, 0), x, e.scalar_like(fill, x))
