"""Gradients of ops that move elements: the inverse move of dz. Shapes are static, so no forward value is read."""

from __future__ import annotations

import numpy as np

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate
from graph.ir import TensorType, Val


def constant_of(emit: Emit, x: Val | None, what: str) -> np.ndarray:
    """Content of an input that must be a constant. Raises CannotDifferentiate."""
    known = emit.known(x)
    if known is None:
        raise CannotDifferentiate(f"computed {what}", f"make the {what} constants")
    return known


@gradient("Identity", "remat::Copy")
def identity(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return (dz,)


@gradient("remat::RowsLike", "remat::FirstRows")
def rows_like(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return dz, None


@gradient("remat::PadRows")
def pad_rows(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return (dz,)


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return (emit.reshape(dz, node.inputs[0].shape), *[None] * (len(node.inputs) - 1))


@gradient("Transpose")
def transpose(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    perm = list(node.attribute("perm", range(dz.rank)[::-1]))
    return (emit.transpose(dz, [perm.index(i) for i in range(dz.rank)]),)


@gradient("Expand")
def expand(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return emit.sum_to(dz, node.inputs[0]), None


@gradient("Tile")
def tile(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """Reshape each axis to (repeats, length) and sum over the repeats."""
    x = node.inputs[0]
    pairs = [part for whole, n in zip(dz.shape, x.shape, strict=True) for part in (whole // max(1, n), n)]
    repeated = [2 * i for i, count in enumerate(pairs[::2]) if count != 1]
    return emit.reshape(emit.reduce_sum(emit.reshape(dz, pairs), repeated, keepdims=False), x.shape), None


@gradient("Concat")
def concat(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """One Slice per operand, so that a part is computed only when needed, not all parts at once."""
    axis = int(node.attribute("axis", 0)) % dz.rank
    if any(node.bounded):
        return _concat_of_bounded(emit, node, dz, axis)
    gradients: list[Val | None] = []
    start = 0
    for x, needed in zip(node.inputs, node.needs, strict=True):
        stop = start + x.shape[axis]
        gradients.append(slice_axis(emit, dz, axis, start, stop) if needed else None)
        start = stop
    return tuple(gradients)


def _concat_of_bounded(emit: Emit, node: ForwardNode, dz: Val, axis: int) -> InputGradients:
    """The rule of Concat for operands whose lengths are known at run time only."""
    gradients: list[Val | None] = []
    start = emit.ints([0])
    for x, needed in zip(node.inputs, node.needs, strict=True):
        stop = emit.add(start, emit.op("Gather", emit.op("Shape", x), emit.ints([axis])))
        inputs = [dz, start, stop, emit.ints([axis])]
        gradients.append(emit.op_of_type("Slice", inputs, x.type) if needed else None)
        start = stop
    return tuple(gradients)


def slice_axis(emit: Emit, x: Val, axis: int, start: int, stop: int) -> Val:
    """`x[start:stop]` along an axis; `x` itself when the range covers it."""
    if start == 0 and stop == x.shape[axis]:
        return x
    return emit.op("Slice", x, emit.ints([start]), emit.ints([stop]), emit.ints([axis]))  # type: ignore[no-any-return]


@gradient("Split", zeros=True)
def split(emit: Emit, node: ForwardNode, *dz: Val) -> InputGradients:
    axis = int(node.attribute("axis", 0))
    return (emit.op("Concat", *dz, axis=axis) if len(dz) > 1 else dz[0], *[None] * (len(node.inputs) - 1))


@gradient("Slice")
def slice_(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """dz padded with zeros; along a strided axis its elements are scattered."""
    x = node.inputs[0]
    starts, ends = (constant_of(emit, node.input(i), "bounds of the slice") for i in (1, 2))
    axes = constant_of(emit, node.input(3), "axes") if node.input(3) else np.arange(len(starts))
    steps = constant_of(emit, node.input(4), "steps") if node.input(4) else np.ones(len(starts), np.int64)
    before, after = [0] * x.rank, [0] * x.rank
    for axis, start, end, step in zip(axes.tolist(), starts.tolist(), ends.tolist(), steps.tolist(), strict=True):
        axis %= x.rank
        taken = range(x.shape[axis])[slice(start, None if step < 0 and end < -x.shape[axis] else end, step)]
        if len(taken) == x.shape[axis] and step == 1:
            continue
        if step == 1:
            before[axis], after[axis] = taken.start, x.shape[axis] - taken.start - len(taken)
        else:
            dz = scatter_along(emit, dz, axis, list(taken), x.shape[axis])
    if any(before) or any(after):
        dz = emit.op("Pad", dz, emit.ints([*before, *after]))
    return (dz, *[None] * (len(node.inputs) - 1))


def scatter_along(emit: Emit, dz: Val, axis: int, places: list[int], length: int) -> Val:
    """Slices of `dz` along an axis, scatter-added at `places` into zeros of the given length."""
    shape = [length if i == axis else n for i, n in enumerate(dz.shape)]
    return emit.op("remat::GatherGrad", dz, emit.ints(places), axis=axis, input_shape=shape)  # type: ignore[no-any-return]


@gradient("Pad")
def pad(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """The part of dz inside the padding; for modes that copy elements, copies are added to their sources."""
    x = node.inputs[0]
    pads = constant_of(emit, node.input(1), "pads").tolist()
    axes = (
        [axis % x.rank for axis in constant_of(emit, node.input(3), "axes").tolist()]
        if node.input(3)
        else list(range(x.rank))
    )
    mode = node.attribute("mode", "constant")
    mode = mode.decode() if isinstance(mode, bytes) else mode
    inner = dz
    for i, axis in enumerate(axes):
        before, after, length = pads[i], pads[len(axes) + i], x.shape[axis]
        if before == after == 0:
            continue
        if mode == "constant" and before >= 0 and after >= 0:
            inner = slice_axis(emit, inner, axis, before, before + length)
            continue
        places = _padded_places(mode, before, after, length)
        hits = [i for i, place in enumerate(places) if place >= 0]
        if len(hits) < len(places):
            inner = (
                slice_axis(emit, inner, axis, hits[0], hits[-1] + 1) if hits else slice_axis(emit, inner, axis, 0, 0)
            )
        inner = scatter_along(emit, inner, axis, [places[i] for i in hits], length)
    fill = None
    if node.needed(2):
        every = list(range(dz.rank))
        fill = emit.sub(emit.reduce_sum(dz, every, keepdims=False), emit.reduce_sum(inner, every, keepdims=False))
        fill = emit.reshape(fill, node.inputs[2].shape)
    return (inner if node.needs[0] else None, None, fill, None)[: len(node.inputs)]


def _padded_places(mode: str, before: int, after: int, length: int) -> list[int]:
    """Per element of a padded axis the index of its source element, -1 for the fill value."""
    whole = range(-before, length + after)
    if mode == "constant":
        return [i if 0 <= i < length else -1 for i in whole]
    if mode == "edge":
        return [min(max(i, 0), length - 1) for i in whole]
    if mode == "wrap":
        return [i % length for i in whole]
    if mode == "reflect":
        period = max(1, 2 * (length - 1))
        return [min(i % period, period - i % period) for i in whole]
    raise CannotDifferentiate(f"padding mode {mode!r}", "use constant, reflect, edge or wrap")


@gradient("Trilu")
def trilu(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    k = node.input(1)
    return (
        emit.op("Trilu", dz, *([k] if k else []), upper=node.attribute("upper", 1)),
        *[None] * (len(node.inputs) - 1),
    )


@gradient("DepthToSpace")
def depth_to_space(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """[N, C, H, W] is permuted as [N, b, b, C/b², H, W]; in mode CRD C/b² comes before the blocks."""
    n, c, h, w = node.inputs[0].shape
    b = int(node.attribute("blocksize"))
    mode = node.attribute("mode", "DCR")
    six = emit.reshape(dz, (n, c // (b * b), h, b, w, b))
    perm = [0, 1, 3, 5, 2, 4] if mode in ("CRD", b"CRD") else [0, 3, 5, 1, 2, 4]
    return (emit.reshape(emit.transpose(six, perm), (n, c, h, w)),)


@gradient("SpaceToDepth")
def space_to_depth(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return (emit.op("DepthToSpace", dz, blocksize=int(node.attribute("blocksize")), mode=node.attribute("mode")),)


@gradient("ReverseSequence")
def reverse_sequence(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """Reversal is its own inverse."""
    attributes = {name: node.attribute(name) for name in ("batch_axis", "time_axis")}
    return emit.op("ReverseSequence", dz, node.inputs[1], **attributes), None


@gradient("CenterCropPad")
def center_crop_pad(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """The same op back to the lengths of the input; the odd element is on the same side."""
    x = node.inputs[0]
    axes = [axis % x.rank for axis in node.attribute("axes", range(x.rank))]
    for axis in axes:
        here, there = dz.shape[axis], x.shape[axis]
        if here > there:  # padded: floor(half) in front
            front = (here - there) // 2
            dz = slice_axis(emit, dz, axis, front, front + there)
        elif here < there:
            front = (there - here) // 2
            pads = [0] * (2 * x.rank)
            pads[axis], pads[x.rank + axis] = front, there - here - front
            dz = emit.op("Pad", dz, emit.ints(pads))
    return dz, None


def zeros_like(emit: Emit, x: Val) -> Val:
    return emit.zeros(TensorType(x.dtype, x.shape))
