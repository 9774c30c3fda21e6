"""Gradient rules, one short function each, registered by decorator.

    @gradient("Mul")
    def mul(emit, node, dz):
        x, y = node.inputs
        return emit.sum_to(emit.mul(dz, y), x), emit.sum_to(emit.mul(dz, x), y)

A rule gets the incoming gradient of each output (None where there is none, unless `zeros=True`)
and returns one gradient, `Rows` of one, or None, per input; `node.needs` says which are wanted. An optional output
of the forward node is made wanted by asking for it with `node.output(position)`. Importing this
package imports every family.
"""

from __future__ import annotations

from graph.gradients.table import RULES, UNDIFFERENTIABLE, Forward, gradient, no_gradient

__all__ = ["RULES", "UNDIFFERENTIABLE", "Forward", "gradient", "no_gradient"]

from graph.gradients import families as _families  # noqa: F401  registers every rule
