"""Gradients of reductions: the incoming gradient, spread back over the axes that were reduced."""

from __future__ import annotations

import math
from collections.abc import Callable

from graph.emit import Emit, Val
from graph.errors import CannotDifferentiate
from graph.gradients.table import Forward, Gradients, gradient


def reduced_axes(emit: Emit, node: Forward) -> list[int]:
    """The axes a reduction runs over, from its input or its attribute; all of them when none are said."""
    rank = node.inputs[0].rank
    axes = node.attribute("axes")
    if node.input(1) is not None:
        known = emit.known(node.input(1))
        if known is None:
            raise CannotDifferentiate("axes that are computed", "make the axes a constant")
        axes = known.tolist()
    if axes is None or len(axes) == 0:
        return [] if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in axes)


def kept(emit: Emit, node: Forward, reduced: Val) -> Val:
    """A result of the reduction under the input's rank: reduced axes of length one (a view)."""
    axes = reduced_axes(emit, node)
    return emit.reshape(reduced, [1 if i in axes else n for i, n in enumerate(node.inputs[0].shape)])


def _spread(rule: Callable[[Emit, Forward, Val], Val]) -> Callable[..., Gradients]:
    """A rule for a reduction from one that sees the incoming gradient with reduced axes of length one."""

    def reduction(emit: Emit, node: Forward, dz: Val) -> Gradients:
        dx = rule(emit, node, kept(emit, node, dz))
        return (emit.expand(dx, node.inputs[0].shape), *[None] * (len(node.inputs) - 1))

    reduction.__doc__ = rule.__doc__
    return reduction


@gradient("ReduceSum")
@_spread
def reduce_sum(emit: Emit, node: Forward, dz: Val) -> Val:
    return dz


@gradient("ReduceMean")
@_spread
def reduce_mean(emit: Emit, node: Forward, dz: Val) -> Val:
    count = math.prod(node.inputs[0].shape[axis] for axis in reduced_axes(emit, node))
    return emit.mul(dz, emit.scalar_like(1 / max(1, count), dz))


@gradient("ReduceSumSquare")
@_spread
def reduce_sum_square(emit: Emit, node: Forward, dz: Val) -> Val:
    return emit.mul(emit.mul(dz, emit.scalar_like(2, dz)), node.inputs[0])


@gradient("ReduceL1")
@_spread
def reduce_l1(emit: Emit, node: Forward, dz: Val) -> Val:
    return emit.mul(dz, emit.op("Sign", node.inputs[0]))


@gradient("ReduceL2")
@_spread
def reduce_l2(emit: Emit, node: Forward, dz: Val) -> Val:
    """dx = x dz / z, zero where the norm is."""
    z = kept(emit, node, node.outputs[0])
    zero = emit.scalar_like(0, z)
    empty = emit.op("Equal", z, zero)
    share = emit.where(empty, zero, emit.div(dz, emit.where(empty, emit.scalar_like(1, z), z)))
    return emit.mul(share, node.inputs[0])


@gradient("ReduceLogSum")
@_spread
def reduce_log_sum(emit: Emit, node: Forward, dz: Val) -> Val:
    return emit.mul(dz, emit.op("Exp", emit.neg(kept(emit, node, node.outputs[0]))))


@gradient("ReduceLogSumExp")
@_spread
def reduce_log_sum_exp(emit: Emit, node: Forward, dz: Val) -> Val:
    return emit.mul(dz, emit.op("Exp", emit.sub(node.inputs[0], kept(emit, node, node.outputs[0]))))


@gradient("ReduceMax", "ReduceMin")
@_spread
def reduce_extreme(emit: Emit, node: Forward, dz: Val) -> Val:
    """Elements that tie share the gradient."""
    hit = emit.cast(emit.op("Equal", node.inputs[0], kept(emit, node, node.outputs[0])), dz.dtype)
    share = emit.div(dz, emit.reduce_sum(hit, reduced_axes(emit, node)))
    return emit.mul(hit, share)


@gradient("ReduceProd")
@_spread
def reduce_prod(emit: Emit, node: Forward, dz: Val) -> Val:
    """dx = dz times the product of the others: of all others where one factor is zero, nothing where two are."""
    (x, *_), axes = node.inputs, reduced_axes(emit, node)
    zero, one = emit.scalar_like(0, x), emit.scalar_like(1, x)
    is_zero = emit.op("Equal", x, zero)
    zeros = emit.reduce_sum(emit.cast(is_zero, x.dtype), axes)
    factors = emit.where(is_zero, one, x)
    product = emit.mul(dz, _product(emit, factors, axes))
    if_one = emit.where(emit.op("Equal", zeros, one), product, zero)
    if_none = emit.where(emit.op("Equal", zeros, zero), product, zero)
    return emit.where(is_zero, if_one, emit.div(if_none, factors))


def _product(emit: Emit, x: Val, axes: list[int]) -> Val:
    return emit.op("ReduceProd", x, emit.ints(axes), keepdims=1) if axes else x


@gradient("CumSum")
def cum_sum(emit: Emit, node: Forward, dz: Val) -> Gradients:
    """The running sum from the other end."""
    turned = 1 - int(node.attribute("reverse", 0))
    return emit.op("CumSum", dz, node.inputs[1], reverse=turned, exclusive=node.attribute("exclusive")), None


@gradient("LpNormalization")
def lp_normalization(emit: Emit, node: Forward, dz: Val) -> Gradients:
    """y = x / n: dx = (dz - s sum(dz y)) / n, with s = y for p = 2 and s = sign x for p = 1."""
    (x,), (y,) = node.inputs, node.outputs
    axis, p = int(node.attribute("axis", -1)) % x.rank, int(node.attribute("p", 2))
    norm = emit.op("ReduceL2" if p == 2 else "ReduceL1", x, emit.ints([axis]), keepdims=1)
    zero, one = emit.scalar_like(0, x), emit.scalar_like(1, x)
    empty = emit.op("Equal", norm, zero)
    slope = y if p == 2 else emit.op("Sign", x)
    inner = emit.sub(dz, emit.mul(slope, emit.reduce_sum(emit.mul(dz, y), [axis])))
    return (emit.where(empty, zero, emit.div(inner, emit.where(empty, one, norm))),)


@gradient("MeanVarianceNormalization")
def mean_variance_normalization(emit: Emit, node: Forward, dz: Val) -> Gradients:
    """y = (x - mean) / deviation: dx = (dz - mean(dz) - y mean(dz y)) / deviation; the deviation is found again."""
    (x,), (y,) = node.inputs, node.outputs
    axes = sorted(axis % x.rank for axis in node.attribute("axes", [0, 2, 3]))
    centred = emit.sub(x, emit.reduce_mean(x, axes))
    deviation = emit.op("Sqrt", emit.reduce_mean(emit.mul(centred, centred), axes))
    inner = emit.sub(emit.sub(dz, emit.reduce_mean(dz, axes)), emit.mul(y, emit.reduce_mean(emit.mul(dz, y), axes)))
    return (emit.div(inner, emit.add(deviation, emit.scalar_like(1e-9, x))),)
