"""Gradients of losses."""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.ir import Val

_NO_LABEL = -(2**31)  # the smallest int32: no label is ignored


@gradient("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(emit: Emit, node: ForwardNode, dz: Val | None, dlog: Val | None = None) -> InputGradients:
    """Computed from the log-probabilities that the op outputs; their gradient goes through the log-softmax."""
    labels, weights = node.inputs[1], node.input(2)
    log_prob = node.output(1)
    scores = None
    into_weights = _weights_gradient(emit, node, dz, log_prob) if dz is not None and node.needed(2) else None
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
    return (scores, None, into_weights)[: len(node.inputs)]


@gradient("NegativeLogLikelihoodLoss")
def negative_log_likelihood(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x, labels, weights = node.inputs[0], node.inputs[1], node.input(2)
    dx = emit.op(
        "remat::NllLossGrad", dz, labels, *([weights] if weights else []), **node.attributes, input_shape=list(x.shape)
    )
    return (dx, None, _weights_gradient(emit, node, dz, x) if node.needed(2) else None)[: len(node.inputs)]


def _weights_gradient(emit: Emit, node: ForwardNode, dz: Val, log_prob: Val) -> Val:
    """dw[c] = Σ dloss_i (-log_prob[i, c]) over the labels i of class c.

    A mean loss is divided by Σ w: its summands are (-log_prob[i, c] - loss) / Σ w.
    """
    labels, weights = node.inputs[1], node.inputs[2]
    ignored = emit.op("Equal", labels, emit.scalar_like(node.attribute("ignore_index", _NO_LABEL), labels))
    safe = emit.where(ignored, emit.scalar_like(0, labels), labels)
    classes = emit.ints([1])  # the axis
    chosen = emit.op("GatherElements", log_prob, emit.op("Unsqueeze", safe, classes), axis=1)
    share, zero = emit.neg(emit.op("Squeeze", chosen, classes)), emit.scalar_like(0, dz)
    if node.attribute("reduction", "mean") in ("mean", b"mean"):
        each = emit.where(ignored, zero, emit.op("Gather", weights, safe))
        total = emit.op("ReduceSum", each, keepdims=0)
        share = emit.div(emit.sub(share, node.outputs[0]), total)
    share = emit.where(ignored, zero, emit.mul(dz, share))
    return emit.op("remat::GatherGrad", share, safe, axis=0, input_shape=list(weights.shape))  # type: ignore[no-any-return]
