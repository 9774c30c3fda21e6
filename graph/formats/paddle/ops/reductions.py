"""Reductions of Paddle."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graph.builder.emit import Emit
from graph.formats.paddle.ops.table import PADDLE, dtype_attribute
from graph.formats.shared.op_helpers import arg_extreme, reduced
from graph.formats.shared.op_table import OpUse, TranslationRule, Unmapped
from graph.ir import Val


def _reduction(op: str) -> TranslationRule:
    def reduction_rule(e: Emit, use: OpUse, x: Val) -> Val:
        return _reduced(e, use, op, x, use.integers("dim", "axis", default=()), use.flag("reduce_all"))

    return reduction_rule


def _reduced(e: Emit, use: OpUse, op: str, x: Val, axes: Sequence[int], reduce_all: bool = False) -> Val:
    """Reduction over the axes, or over all."""
    axes = range(x.rank) if reduce_all or not axes else axes
    x = e.cast(x, dtype_attribute(use, x.dtype))
    return single(e, use, reduced(e, op, x, axes, use.flag("keep_dim", "keepdim")))


def single(e: Emit, use: OpUse, x: Val) -> Val:
    """`x`; in one dimension where an older program, which has no others, declares a single element so."""
    declared = use.declared[0] if use.declared else None
    return e.reshape(x, (1,)) if declared is not None and declared.shape == (1,) and x.shape == () else x


PADDLE.rows(
    _reduction,
    {
        "ReduceSum": "reduce_sum",
        "ReduceMean": "reduce_mean",
        "ReduceMax": "reduce_max max",
        "ReduceMin": "reduce_min min",
        "ReduceProd": "reduce_prod prod",
        "ReduceLogSumExp": "logsumexp",
        "ReduceL2": "frobenius_norm",
    },
)
PADDLE.rules_of({"squared_l2_norm": lambda e, use, x: _reduced(e, use, "ReduceSumSquare", x, ())})


@PADDLE.op("arg_max", "arg_min", "argmax", "argmin")
def arg_max(e: Emit, use: OpUse, x: Val) -> Val:
    op, axis = "ArgMax" if "max" in use.op else "ArgMin", use.integer("axis", default=-1)
    if use.flag("flatten"):
        x = e.reshape(x, (math.prod(x.shape),))
    return e.cast(arg_extreme(e, op, x, axis, use.flag("keepdims")), dtype_attribute(use, "int64"))


@PADDLE.op("mean")
def mean(e: Emit, use: OpUse, x: Val) -> Val:
    """Of everything; with `axis` of some dimensions, as the newer dialect has it."""
    return _reduced(e, use, "ReduceMean", x, use.integers("axis", default=()))


@PADDLE.op("p_norm")
def norm(e: Emit, use: OpUse, x: Val) -> Val:
    """Of everything `asvector`, else along `axis`."""
    order, axis = use.number("porder", default=2.0), use.integer("axis", default=-1)
    op = {1.0: "ReduceL1", 2.0: "ReduceL2"}.get(order)
    if op is None:
        raise Unmapped
    return _reduced(e, use, op, x, [axis], use.flag("asvector"))
