"""Reductions of Caffe2."""

from __future__ import annotations

from graph.builder.emit import Emit
from graph.formats.caffe2.ops.table import CAFFE2
from graph.formats.shared.elementwise import squared
from graph.formats.shared.op_helpers import arg_extreme, reduced
from graph.formats.shared.op_table import OpUse, TranslationRule
from graph.ir import Val


def _reduction(op: str) -> TranslationRule:
    def reduction_rule(e: Emit, use: OpUse, x: Val) -> Val:
        axes = use.integers("axes", default=()) or range(x.rank)
        return reduced(e, op, x, axes, use.flag("keepdims", default=True))

    return reduction_rule


def _end_reduction(op: str) -> TranslationRule:
    """Reduction of the first or last dimensions."""

    def end_reduction_rule(e: Emit, use: OpUse, x: Val) -> Val:
        many = use.integer("num_reduce_dim", default=1)
        return reduced(e, op, x, range(many) if "Front" in use.op else range(x.rank - many, x.rank))

    return end_reduction_rule


CAFFE2.rows(_reduction, {f"Reduce{name}": f"Reduce{name}" for name in ("Sum", "Mean", "Max", "Min", "L1", "L2")})
CAFFE2.rows(_end_reduction, {f"Reduce{name}": f"ReduceFront{name} ReduceBack{name}" for name in ("Sum", "Mean", "Max")})


@CAFFE2.op("SumElements", "AveragedLoss", "SumSqrElements")
def reduce_all(e: Emit, use: OpUse, x: Val) -> Val:
    """One element without dimensions."""
    mean = use.op == "AveragedLoss" or use.flag("average")
    if use.op == "SumSqrElements":
        x = squared(e, x)
    return reduced(e, "ReduceMean" if mean else "ReduceSum", x, range(x.rank))


@CAFFE2.op("ArgMax", "ArgMin")
def arg_max(e: Emit, use: OpUse, x: Val) -> Val:
    return arg_extreme(e, use.op, x, use.integer("axis", default=-1), use.flag("keepdims", default=True))
