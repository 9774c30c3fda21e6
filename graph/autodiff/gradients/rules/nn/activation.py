"""Gradients of activation functions: one node each, without temporaries.

Where the output determines the derivative, the rule reads the output, so that the input may die early.
"""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.autodiff.gradients.rules.numeric.elementwise import gradient_from_input, gradient_from_output
from graph.builder.emit import Emit
from graph.ir import Val

# remat::OpGrad(dz, y), with the op's attributes
_OF_OUTPUT = ("Relu", "Sigmoid", "Tanh")
# remat::OpGrad(dz, x), with the op's attributes
_OF_INPUT = (
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

gradient(*_OF_OUTPUT)(gradient_from_output)
gradient(*_OF_INPUT)(gradient_from_input)


@gradient("PRelu")
def prelu(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x, slope = node.inputs
    return emit.op("remat::PReluGrad", dz, x, slope, outputs=node.needs)  # type: ignore[no-any-return]
