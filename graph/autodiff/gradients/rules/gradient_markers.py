"""Ops that exist to change gradients, and ops whose gradient is an error."""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient, refused_gradient
from graph.builder.emit import Emit
from graph.ir import Val


@gradient("remat::GradientScale", is_estimate=True)
def gradient_scale(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    scale = float(node.attribute("scale", -1.0))
    if scale == 1:
        return (dz,)
    return (emit.neg(dz) if scale == -1 else emit.mul(dz, emit.scalar_like(scale, dz)),)


refused_gradient(
    "remat::SGD",
    "remat::SGD8bit",
    "remat::Adam",
    "remat::Adam8bit",
    "remat::Adafactor",
    "remat::Assign",
    "remat::Clear",
    "remat::MovingAverage",
    "remat::RunningStatistics",
    why="it updates state kept between steps",
)
