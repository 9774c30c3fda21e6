"""Gradients of losses."""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.ir import Val


@gradient("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(emit: Emit, node: ForwardNode, dz: Val | None, dlog: Val | None = None) -> InputGradients:
    """Computed from the log-probabilities that the op outputs; their gradient goes through the log-softmax."""
    labels, weights = node.inputs[1], node.input(2)
    log_prob = node.output(1)
    scores = None
    if dz is not None:
        scores = emit.op(
            "remat::SoftmaxCrossEntropyLossGrad",
            dz,
            log_prob,
            labels,
            *([weights] if weights else []),
            **node.attributes,
        )
    if dlog is not None:
        through = emit.op("remat::LogSoftmaxGrad", dlog, log_prob, axis=1)
        scores = through if scores is None else emit.add(scores, through)
    return (scores, *[None] * (len(node.inputs) - 1))


@gradient("NegativeLogLikelihoodLoss")
def negative_log_likelihood(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x, labels, weights = node.inputs[0], node.inputs[1], node.input(2)
    dx = emit.op(
        "remat::NllLossGrad", dz, labels, *([weights] if weights else []), **node.attributes, input_shape=list(x.shape)
    )
    return (dx, *[None] * (len(node.inputs) - 1))
