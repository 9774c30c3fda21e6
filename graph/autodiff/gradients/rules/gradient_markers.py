"""Gradients of ops that are there for their gradient, and ops of which nobody may ask one."""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient, refused_gradient
from graph.builder.emit import Emit
from graph.ir import Val


@gradient("remat::GradientScale")
def gradient_scale(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    scale = float(node.attribute("scale", -1.0))
    if scale == 1:
        return (dz,)
    return (emit.neg(dz) if scale == -1 else emit.mul(dz, emit.scalar_like(scale, dz)),)


refused_gradient(
    "remat::SGD",
    "remat::Adam",
    "remat::Assign",
    "remat::Clear",
    "remat::MovingAverage",
    "remat::RunningStatistics",
    why="it updates what is kept from step to step",
)
