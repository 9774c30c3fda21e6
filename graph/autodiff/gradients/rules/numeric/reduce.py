"""Gradients of reductions: the incoming gradient, broadcast over the reduced axes."""

from __future__ import annotations

import math
from collections.abc import Callable

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.autodiff.gradients.rules.tensor.shape import constant_of, slice_axis
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate
from graph.ir import TensorType, Val


def reduced_axes(emit: Emit, node: ForwardNode) -> list[int]:
    """The axes of a reduction, from its input or attribute; default: all. Raises CannotDifferentiate."""
    rank = node.inputs[0].rank
    axes = node.attribute("axes")
    if node.input(1) is not None:
        known = emit.known(node.input(1))
        if known is None:
            raise CannotDifferentiate("computed axes", "make the axes a constant")
        axes = known.tolist()
    if axes is None or len(axes) == 0:
        return [] if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in axes)


def keep_dims(emit: Emit, node: ForwardNode, reduced: Val) -> Val:
    """A result of the reduction with the rank of the input: reduced axes have length one (a view)."""
    axes = reduced_axes(emit, node)
    if node.is_bounded(0):
        return reduced if node.attribute("keepdims", 1) else emit.op("Unsqueeze", reduced, emit.ints(axes))
    return emit.reshape(reduced, [1 if i in axes else n for i, n in enumerate(node.inputs[0].shape)])


def _spread(rule: Callable[[Emit, ForwardNode, Val], Val]) -> Callable[..., InputGradients]:
    """Decorator: the rule of a reduction; `rule` gets the incoming gradient with reduced axes of length one."""

    def reduction(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
        dx = rule(emit, node, keep_dims(emit, node, dz))
        return (emit.expand_like(dx, node.inputs[0], node.is_bounded(0)), *[None] * (len(node.inputs) - 1))

    reduction.__doc__ = rule.__doc__
    return reduction


@gradient("ReduceSum")
@_spread
def reduce_sum(emit: Emit, node: ForwardNode, dz: Val) -> Val:
    return dz


@gradient("ReduceMean")
@_spread
def reduce_mean(emit: Emit, node: ForwardNode, dz: Val) -> Val:
    x, axes = node.inputs[0], reduced_axes(emit, node)
    if not node.is_bounded(0):
        return emit.div_by(dz, max(1, math.prod(x.shape[axis] for axis in axes)))
    wide = "float64" if x.dtype == "float64" else "float32"  # half precision does not represent every count
    lengths = emit.op("Gather", emit.op("Shape", x), emit.ints(axes))
    count = emit.cast(emit.op("ReduceProd", lengths, keepdims=0), wide)
    return emit.cast(emit.div(emit.cast(dz, wide), count), dz.dtype)


@gradient("ReduceSumSquare")
@_spread
def reduce_sum_square(emit: Emit, node: ForwardNode, dz: Val) -> Val:
    return emit.mul(emit.mul(dz, emit.scalar_like(2, dz)), node.inputs[0])


@gradient("ReduceL1")
@_spread
def reduce_l1(emit: Emit, node: ForwardNode, dz: Val) -> Val:
    return emit.mul(dz, emit.op("Sign", node.inputs[0]))


@gradient("ReduceL2")
@_spread
def reduce_l2(emit: Emit, node: ForwardNode, dz: Val) -> Val:
    """dx = x dz / z, zero where the norm is."""
    z = keep_dims(emit, node, node.outputs[0])
    zero = emit.scalar_like(0, z)
    empty = emit.op("Equal", z, zero)
    share = emit.where(empty, zero, emit.div(dz, emit.where(empty, emit.scalar_like(1, z), z)))
    return emit.mul(share, node.inputs[0])


@gradient("ReduceLogSum")
@_spread
def reduce_log_sum(emit: Emit, node: ForwardNode, dz: Val) -> Val:
    return emit.mul(dz, emit.op("Exp", emit.neg(keep_dims(emit, node, node.outputs[0]))))


@gradient("ReduceLogSumExp")
@_spread
def reduce_log_sum_exp(emit: Emit, node: ForwardNode, dz: Val) -> Val:
    return emit.mul(dz, emit.op("Exp", emit.sub(node.inputs[0], keep_dims(emit, node, node.outputs[0]))))


@gradient("ReduceMax", "ReduceMin")
@_spread
def reduce_extreme(emit: Emit, node: ForwardNode, dz: Val) -> Val:
    """Tied elements share the gradient equally."""
    hit = emit.cast(emit.op("Equal", node.inputs[0], keep_dims(emit, node, node.outputs[0])), dz.dtype)
    share = emit.div(dz, emit.reduce_sum(hit, reduced_axes(emit, node)))
    return emit.mul(hit, share)


@gradient("ReduceProd")
@_spread
def reduce_prod(emit: Emit, node: ForwardNode, dz: Val) -> Val:
    """dx = dz times the products of all elements before and after: no division, so zeros need no special case."""
    x, axes = node.inputs[0], reduced_axes(emit, node)
    perm = [*(i for i in range(x.rank) if i not in axes), *axes]
    flat = [*(x.shape[i] for i in perm[: x.rank - len(axes)]), math.prod(x.shape[i] for i in axes)]
    row = emit.reshape(emit.transpose(x, perm), flat)
    others = emit.mul(_products(emit, row, 1), _products(emit, row, -1))
    back = [perm.index(i) for i in range(x.rank)]
    return emit.mul(dz, emit.transpose(emit.reshape(others, [x.shape[i] for i in perm]), back))


def _products(emit: Emit, x: Val, way: int) -> Val:
    """Exclusive product along the last axis, of the elements before (way 1) or after (-1) each, by doubling."""
    product, step, length = _shifted(emit, x, way), 1, x.shape[-1]
    while step < length:
        product = emit.mul(product, _shifted(emit, product, way * step))
        step *= 2
    return product


def _shifted(emit: Emit, x: Val, by: int) -> Val:
    """`x` shifted along its last axis, filled with ones."""
    return _shifted_along(emit, x, x.rank - 1, by, 1)


def _shifted_along(emit: Emit, x: Val, axis: int, by: int, fill: float) -> Val:
    """`x` shifted along an axis by `by` places towards its end; new places hold `fill`."""
    length = x.shape[axis]
    count = min(abs(by), length)
    blank = TensorType(x.dtype, tuple(count if i == axis else n for i, n in enumerate(x.shape)))
    filling = emit.expand(emit.constant(fill, x.dtype), blank.shape)
    begin, end = (0, length - count) if by > 0 else (count, length)
    rest = slice_axis(emit, x, axis, begin, end)
    return emit.op("Concat", *((filling, rest) if by > 0 else (rest, filling)), axis=axis)  # type: ignore[no-any-return]


@gradient("CumSum")
def cum_sum(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """The cumulative sum in the opposite direction."""
    turned = 1 - int(node.attribute("reverse", 0))
    return emit.op("CumSum", dz, node.inputs[1], reverse=turned, exclusive=node.attribute("exclusive")), None


@gradient("CumProd")
def cum_prod(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """dx[k] = P[k] s[k], with P[k] the product before k and s[k] = dz[k] + x[k+1] s[k+1].

    The recurrence is solved by doubling, without division, so zeros need no special case; `reverse` turns the
    direction, and an exclusive product reads dz one place further.
    """
    x = node.inputs[0]
    axis = int(constant_of(emit, node.inputs[1], "axis").reshape(-1)[0]) % x.rank
    way = 1 if node.attribute("reverse", 0) else -1
    before = emit.op("CumProd", x, node.inputs[1], exclusive=1, reverse=node.attribute("reverse"))
    total = _shifted_along(emit, dz, axis, way, 0) if node.attribute("exclusive", 0) else dz
    factor, step = _shifted_along(emit, x, axis, way, 0), 1
    while step < x.shape[axis]:
        total = emit.add(total, emit.mul(factor, _shifted_along(emit, total, axis, way * step, 0)))
        factor = emit.mul(factor, _shifted_along(emit, factor, axis, way * step, 0))
        step *= 2
    return emit.mul(before, total), None


@gradient("LpNormalization")
def lp_normalization(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
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
def mean_variance_normalization(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """y = (x - mean) / deviation: dx = (dz - mean(dz) - y mean(dz y)) / deviation; the deviation is recomputed."""
    (x,), (y,) = node.inputs, node.outputs
    axes = sorted(axis % x.rank for axis in node.attribute("axes", [0, 2, 3]))
    centred = emit.sub(x, emit.reduce_mean(x, axes))
    deviation = emit.op("Sqrt", emit.reduce_mean(emit.mul(centred, centred), axes))
    inner = emit.sub(emit.sub(dz, emit.reduce_mean(dz, axes)), emit.mul(y, emit.reduce_mean(emit.mul(dz, y), axes)))
    return (emit.div(inner, emit.add(deviation, emit.scalar_like(1e-9, x))),)
