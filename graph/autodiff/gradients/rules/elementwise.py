"""Gradients of elementwise functions: one node each, without temporaries.

Where the output determines the derivative, the rule reads the output, so that the input may die early.
"""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.ir import Val

# remat::OpGrad(dz, y), with the op's attributes
_OF_OUTPUT = ("Relu", "Sigmoid", "Tanh", "Sqrt", "Reciprocal", "Tan")
# remat::OpGrad(dz, x), with the op's attributes
_OF_INPUT = (
    "Abs",
    "Erf",
    "Sin",
    "Cos",
    "Asin",
    "Acos",
    "Atan",
    "Asinh",
    "Acosh",
    "Atanh",
    "LeakyRelu",
    "ThresholdedRelu",
    "Elu",
    "Selu",
    "Celu",
    "HardSigmoid",
    "HardSwish",
    "Softplus",
    "Softsign",
    "Gelu",
    "Mish",
    "Swish",
    "Shrink",
)


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


@gradient("PRelu")
def prelu(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x, slope = node.inputs
    return emit.op("remat::PReluGrad", dz, x, slope, outputs=node.needs)  # type: ignore[no-any-return]


@gradient("Softmax", "LogSoftmax")
def softmax(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    axis = int(node.attribute("axis", -1))
    return (emit.op(f"remat::{node.op}Grad", dz, node.outputs[0], axis=axis),)


@gradient("Dropout")
def dropout(emit: Emit, node: ForwardNode, dz: Val, _: Val | None = None) -> InputGradients:
    """In training mode kept elements are scaled; otherwise the op is the identity."""
    training = emit.known(node.input(2))
    if node.input(2) is None or (training is not None and not training.any()):
        return (dz, *[None] * (len(node.inputs) - 1))
    ratio = emit.known(node.input(1)) if node.input(1) is not None else 0.5
    if training is None or ratio is None:
        mask = emit.cast(node.output(1), dz.dtype)
        return (_scaled(emit, node, dz, mask), *[None] * (len(node.inputs) - 1))
    dx = emit.op("remat::DropoutGrad", dz, node.output(1), ratio=float(ratio))
    return (dx, *[None] * (len(node.inputs) - 1))


@gradient("remat::SeededDropout")
def seeded_dropout(emit: Emit, node: ForwardNode, dz: Val, _: Val | None = None) -> InputGradients:
    ratio = float(node.attributes.get("ratio", 0.5))
    return emit.op("remat::DropoutGrad", dz, node.output(1), ratio=ratio), None


def _scaled(emit: Emit, node: ForwardNode, dz: Val, mask: Val) -> Val:
    """dz mask / (1 - ratio), or dz, for a ratio or mode known at run time only."""
    one = emit.scalar_like(1, dz)
    ratio = node.input(1)
    rest = emit.scalar_like(0.5, dz) if ratio is None else emit.sub(one, emit.cast(ratio, dz.dtype))
    return emit.where(node.inputs[2], emit.div(emit.mul(dz, mask), rest), dz)
