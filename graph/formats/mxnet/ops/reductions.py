"""Reductions of MXNet."""

from __future__ import annotations

from graph.builder.emit import Emit
from graph.formats.mxnet.ops.table import MXNET, dtype_of
from graph.formats.shared.op_helpers import arg_extreme, axis_of, reduced
from graph.formats.shared.op_table import OpUse, TranslationRule
from graph.ir import Val


def _reduction(op: str) -> TranslationRule:
    def reduction_rule(e: Emit, use: OpUse, x: Val) -> Val:
        """A reduction over everything leaves one element in one dimension."""
        axes = [axis_of(x, a) for a in use.integers("axis", default=())] or list(range(x.rank))
        if use.flag("exclude"):
            axes = [a for a in range(x.rank) if a not in axes]
        found = reduced(e, op, x, axes, use.flag("keepdims"))
        return found if found.rank else e.reshape(found, (1,))

    return reduction_rule


MXNET.rows(
    _reduction,
    {
        "ReduceSum": "sum sum_axis nansum",
        "ReduceMean": "mean",
        "ReduceMax": "max max_axis",
        "ReduceMin": "min min_axis",
        "ReduceProd": "prod",
    },
)


@MXNET.op("norm")
def norm(e: Emit, use: OpUse, x: Val) -> Val:
    op = {1: "ReduceL1", 2: "ReduceL2"}[use.integer("ord", default=2)]
    found: Val = _reduction(op)(e, use, x)
    return e.cast(found, dtype_of(use.text("out_dtype", default=x.dtype)))


@MXNET.op("argmax", "argmin")
def arg_max(e: Emit, use: OpUse, x: Val) -> Val:
    op = "ArgMax" if use.op == "argmax" else "ArgMin"
    return e.cast(arg_extreme(e, op, x, use.maybe_integer("axis"), use.flag("keepdims")), x.dtype)
