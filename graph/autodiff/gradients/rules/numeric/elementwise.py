"""Gradients of elementwise functions: one node each, without temporaries.

Where the output determines the derivative, the rule reads the output, so that the input may die early.
"""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.ir import Val

# remat::OpGrad(dz, y), with the op's attributes
_OF_OUTPUT = ("Sqrt", "Reciprocal", "Tan")
# remat::OpGrad(dz, x), with the op's attributes
_OF_INPUT = ("Abs", "Erf", "Sin", "Cos", "Asin", "Acos", "Atan", "Asinh", "Acosh", "Atanh")


@gradient(*_OF_OUTPUT)
def gradient_from_output(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return (emit.op(f"remat::{node.op}Grad", dz, node.outputs[0], **node.attributes),)


@gradient(*_OF_INPUT)
def gradient_from_input(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return (emit.op(f"remat::{node.op}Grad", dz, node.inputs[0], **node.attributes),)


@gradient("Neg")
def neg(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return (emit.neg(dz),)


@gradient("Exp")
def exp(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return (emit.mul(dz, node.outputs[0]),)


@gradient("Log")
def log(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return (emit.div(dz, node.inputs[0]),)


@gradient("Sinh", "Cosh")
def hyperbolic(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    other = "Cosh" if node.op == "Sinh" else "Sinh"
    return (emit.mul(dz, emit.op(other, node.inputs[0])),)


@gradient("Clip")
def clip(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """dx = dz inside the bounds; the gradient of a bound sums dz where it is the result.

    Where the bounds cross, the result is the upper one.
    """
    x, low, high = node.inputs[0], node.input(1), node.input(2)
    zero = emit.scalar_like(0, dz)
    below = emit.op("Less", x, low) if node.needed(1) else None
    if below is not None and high is not None:
        below = emit.op("And", below, emit.op("LessOrEqual", low, high))
    above = None
    if node.needed(2):
        above = emit.op("Greater", x if low is None else emit.op("Max", x, low), high)
    return (
        emit.op("remat::ClipGrad", dz, x, low, high) if node.needs[0] else None,
        emit.sum_to(emit.where(below, dz, zero), ()) if below is not None else None,
        emit.sum_to(emit.where(above, dz, zero), ()) if above is not None else None,
    )[: len(node.inputs)]
