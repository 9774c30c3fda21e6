"""Gradients of Softmax and LogSoftmax, from the output."""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.ir import Val


@gradient("Softmax", "LogSoftmax")
def softmax(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    axis = int(node.attribute("axis", -1))
    return (emit.op(f"remat::{node.op}Grad", dz, node.outputs[0], axis=axis),)
