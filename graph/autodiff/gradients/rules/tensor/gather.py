"""Gradients of gathers and scatters: they read indices, never data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graph.autodiff.gradients.registry import ForwardNode, IndexedSlices, InputGradients, gradient
from graph.autodiff.gradients.rules.tensor.shape import zeros_like
from graph.builder.emit import Emit
from graph.ir import TensorType, Val


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
    updates = node.inputs[2]
    reduction = node.attribute("reduction", "none")
    reduction = reduction.decode() if isinstance(reduction, bytes) else reduction
    if reduction in ("max", "min"):
        return _scattered_extreme(emit, node, dz)
    if reduction == "mul":
        return _scattered_product(emit, node, dz)
    data = None
    if node.needs[0]:
        data = dz if reduction == "add" else _scatter(emit, node, dz, zeros_like(emit, updates), "none")
    return data, None, _gather(emit, node, dz) if node.needs[2] else None


def _scatter(emit: Emit, node: ForwardNode, data: Val, updates: Val, reduction: str) -> Val:
    """The scatter of `updates` into `data` at the node's places."""
    how = _along(node) if reduction == "none" else {**_along(node), "reduction": reduction}
    return emit.op(node.op, data, node.inputs[1], updates, **how)  # type: ignore[no-any-return]


def _gather(emit: Emit, node: ForwardNode, x: Val) -> Val:
    """Elements of `x` at the node's places."""
    along = _along(node)
    return emit.op("GatherElements" if along else "GatherND", x, node.inputs[1], **along)  # type: ignore[no-any-return]


def _along(node: ForwardNode) -> dict[str, Any]:
    return {"axis": int(node.attribute("axis", 0))} if node.op == "ScatterElements" else {}


def _scattered_extreme(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """The gradient goes to the operands that equal the result, shared equally in a tie."""
    (data, _, updates), (z,) = node.inputs, node.outputs
    from_data = emit.cast(emit.op("Equal", data, z), dz.dtype)
    from_updates = emit.cast(emit.op("Equal", updates, _gather(emit, node, z)), dz.dtype)
    share = emit.div(dz, _scatter(emit, node, from_data, from_updates, "add"))
    return (
        emit.mul(from_data, share) if node.needs[0] else None,
        None,
        emit.mul(from_updates, _gather(emit, node, share)) if node.needs[2] else None,
    )


def _scattered_product(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """z = data Π updates: each gradient is dz times the product of the other factors; zeros are counted apart.

    An update is divided out of the product of the factors that are not zero. Its own gradient is that product
    where it is the only zero of its place, or where there is none.
    """
    data, _, updates = node.inputs
    ddata = _scatter(emit, node, dz, updates, "mul") if node.needs[0] else None
    if not node.needs[2]:
        return ddata, None, None
    zero, one = emit.scalar_like(0, updates), emit.scalar_like(1, updates)
    vanishes = emit.op("Equal", updates, zero)
    factors = emit.where(vanishes, one, updates)
    product = emit.div(_gather(emit, node, _scatter(emit, node, data, factors, "mul")), factors)
    zeros = emit.cast(vanishes, dz.dtype)
    total = _gather(emit, node, _scatter(emit, node, zeros_like(emit, data), zeros, "add"))
    others = emit.op("Equal", total, zeros)  # no other update of the place is zero
    return ddata, None, emit.where(others, emit.mul(_gather(emit, node, dz), product), zero)


@gradient("TensorScatter")
def tensor_scatter(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """Written positions pass their gradient to the update, the others to the cache."""
    _, update, starts = node.inputs[0], node.inputs[1], node.input(2)
    axis, mode = int(node.attribute("axis", -2)), node.attribute("mode")
    cache = update_gradient = None
    if node.needs[0]:
        written = [dz, zeros_like(emit, update), *([starts] if starts else [])]
        cache = emit.op("TensorScatter", *written, axis=axis, mode=mode)
    if node.needs[1]:
        along = axis % dz.rank
        places = emit.constant(np.arange(update.shape[along]).reshape([-1, *[1] * (dz.rank - 1 - along)]))
        if starts is not None:
            places = emit.add(places, emit.reshape(starts, (dz.shape[0], *[1] * (dz.rank - 1))))
            if mode in ("circular", b"circular"):
                places = emit.op("Mod", places, emit.constant(np.int64(dz.shape[along])))
        places = emit.expand(places, update.shape)
        update_gradient = emit.op("GatherElements", dz, places, axis=along)
    return (cache, update_gradient, None)[: len(node.inputs)]


@gradient("Compress")
def compress(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """Element i takes row count(condition[:i]) of dz where it was selected, else a row of zeros after the last."""
    x, condition = node.inputs
    axis = node.attribute("axis")
    length = x.type.elements if axis is None else x.shape[axis]
    along = 0 if axis is None else int(axis) % x.rank
    fill = TensorType(dz.dtype, tuple(1 if i == along else n for i, n in enumerate(dz.shape)))
    rows = emit.op("Concat", dz, emit.zeros(fill), axis=along)
    counts = emit.op("CumSum", emit.cast(condition, "int64"), emit.constant(np.int64(0)), exclusive=1)
    places = emit.where(condition, counts, emit.constant(np.int64(dz.shape[along])))
    if condition.shape[0] < length:  # the rest is not selected
        rest = np.full(length - condition.shape[0], dz.shape[along], np.int64)
        places = emit.op("Concat", places, emit.constant(rest), axis=0)
    return emit.reshape(emit.op("Gather", rows, places, axis=along), x.shape), None


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
