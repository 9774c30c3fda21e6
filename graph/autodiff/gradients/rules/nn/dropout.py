"""Gradients of dropout: the mask of the forward op scales the incoming gradient."""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.ir import Val


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
