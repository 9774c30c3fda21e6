"""Gradients of gathers and scatters: they read indices, never data."""

from __future__ import annotations

import math

from graph.autodiff.gradients.registry import ForwardNode, IndexedSlices, InputGradients, gradient
from graph.autodiff.gradients.rules.shape import zeros_like
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate
from graph.ir import Val


@gradient("Gather")
def gather(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x, indices = node.inputs
    axis = int(node.attribute("axis", 0))
    if axis % x.rank == 0 and node.accepts_slices(0):
        count = math.prod(indices.shape)
        return IndexedSlices(emit.reshape(indices, (count,)).id, emit.reshape(dz, (count, *x.shape[1:])).id), None
    if node.is_bounded(0):
        indices = _from_the_front(emit, x, indices, axis % x.rank)
    return emit.op("remat::GatherGrad", dz, indices, axis=axis, input_shape=list(x.shape)), None


def _from_the_front(emit: Emit, x: Val, indices: Val, axis: int) -> Val:
    """Nonnegative indices along an axis of `x` whose length is known at run time only."""
    known = emit.known(indices)
    if known is not None and (known >= 0).all():
        return indices
    length = emit.cast(emit.op("Gather", emit.op("Shape", x), emit.constant(axis, "int64")), indices.dtype)
    negative = emit.op("Less", indices, emit.scalar_like(0, indices))
    return emit.where(negative, emit.add(indices, length), indices)


@gradient("GatherElements")
def gather_elements(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x, indices = node.inputs
    axis = int(node.attribute("axis", 0))
    return emit.op("remat::GatherElementsGrad", dz, indices, axis=axis, input_shape=list(x.shape)), None


@gradient("GatherND")
def gather_nd(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x, indices = node.inputs
    batch = int(node.attribute("batch_dims", 0))
    return emit.op("remat::GatherNDGrad", dz, indices, batch_dims=batch, input_shape=list(x.shape)), None


@gradient("ScatterElements", "ScatterND")
def scatter(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """The gradient of overwritten data is zero; with reduction `add` it is dz."""
    _, indices, updates = node.inputs
    reduction = node.attribute("reduction", "none")
    reduction = reduction.decode() if isinstance(reduction, bytes) else reduction
    if reduction not in ("none", "add"):
        raise CannotDifferentiate(f"reduction {reduction!r}", 'use "none" or "add"')
    along = {"axis": int(node.attribute("axis", 0))} if node.op == "ScatterElements" else {}
    data = None
    if node.needs[0]:
        data = dz if reduction == "add" else emit.op(node.op, dz, indices, zeros_like(emit, updates), **along)
    gather_op = "GatherElements" if along else "GatherND"
    return data, None, emit.op(gather_op, dz, indices, **along) if node.needs[2] else None


@gradient("TopK")
def top_k(emit: Emit, node: ForwardNode, dz: Val, _: Val | None = None) -> InputGradients:
    x, axis = node.inputs[0], int(node.attribute("axis", -1))
    return emit.op("remat::GatherElementsGrad", dz, node.output(1), axis=axis % x.rank, input_shape=list(x.shape)), None


@gradient("OneHot")
def one_hot(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """values = [off, on]: the gradient of each is the sum of dz over its positions."""
    indices, depth, values = node.inputs
    ones = emit.op("OneHot", indices, depth, emit.constant([0, 1], dz.dtype), axis=node.attribute("axis", -1))
    every = list(range(dz.rank))
    on = emit.reduce_sum(emit.mul(dz, ones), every, keepdims=False)
    off = emit.sub(emit.reduce_sum(dz, every, keepdims=False), on)
    parts = [emit.reshape(part, (1,)) for part in (off, on)]
    return None, None, emit.reshape(emit.op("Concat", *parts, axis=0), values.shape)
