"""Cross-entropy losses and their gradients. Classes are axis 1; labels lack that axis.

loss_i = -w[label_i] · log_prob[i, label_i]      ignored labels have weight 0
mean   = Σ loss_i / Σ w[label_i]
dscores = (softmax - onehot) · scale_i           scale_i = w[label_i] · dloss / Σ w
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.nn.softmax import log_softmax
from graph.ops.numeric.elementwise_helpers import TRANSCENDENTAL, as_computable, as_new_array, elementwise_work
from graph.ops.numeric.precision import attribute_shape, statistics_dtype
from graph.ops.registry.registry import Call, Work, op


def _read_once(call: Call) -> Work:
    """Work: a logarithm and an exponential per score."""
    return Work((TRANSCENDENTAL + 3) * (0 if call.inputs[0] is None else call.inputs[0].elements))


def _label_weights(
    call: Call, labels: np.ndarray, weights: np.ndarray | None, dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """(labels with ignored ones as 0, weight of each label)"""
    ignored = labels == call.attribute("ignore_index", np.iinfo(np.int64).min)
    safe = np.where(ignored, 0, labels).astype(np.int64)
    each = np.ones(labels.shape, dtype) if weights is None else as_computable(weights).astype(dtype)[safe]
    return safe, np.where(ignored, np.zeros((), dtype), each)


def _reduced(call: Call, losses: np.ndarray, weight: np.ndarray) -> np.ndarray:
    reduction = call.attribute("reduction", "mean")
    if reduction == "none":
        return losses
    total = np.sum(losses, dtype=losses.dtype)
    return np.asarray(total if reduction == "sum" else total / np.sum(weight, dtype=weight.dtype))


def _loss(call: Call, log_prob: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    safe, weight = _label_weights(call, labels, weights, log_prob.dtype)
    chosen = np.take_along_axis(log_prob, np.expand_dims(safe, 1), 1)
    with np.errstate(all="ignore"):
        return _reduced(call, -weight * np.squeeze(chosen, 1), weight)


@op("SoftmaxCrossEntropyLoss", work=_read_once, gradient_reads=("o0", "o1", "i1", "i2"))
def softmax_cross_entropy_loss(
    call: Call, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray | None, ...]:
    log_prob = log_softmax(as_computable(scores), 1)
    outputs = (_loss(call, log_prob, labels, weights), log_prob)
    return tuple(
        as_new_array(array, scores.dtype, scores) if is_used else None
        for array, is_used in zip(outputs, call.used, strict=False)
    )


@op("NegativeLogLikelihoodLoss", work=_read_once, gradient_reads=("i0", "i1", "i2", "o0"))
def nll_loss(call: Call, x: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    return as_new_array(_loss(call, as_computable(x), labels, weights), x.dtype, x)


def _scale(call: Call, dloss: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> tuple[Any, Any]:
    """(safe labels, factor of each label's row of the gradient, with axis 1 inserted)."""
    wide = as_computable(dloss)
    safe, weight = _label_weights(call, labels, weights, wide.dtype)
    scale = weight * wide
    if call.attribute("reduction", "mean") == "mean":
        scale = scale / np.sum(weight, dtype=weight.dtype)
    return np.expand_dims(safe, 1), np.expand_dims(scale, 1)


def _scale_body(e: Emit, call: Call, dloss: Val, labels: Val, weights: Val | None) -> tuple[Val, Val]:
    """`_scale` in standard ops, computed in float32 where `dloss` is narrower."""
    wide = e.cast(dloss, statistics_dtype(dloss.dtype))
    ignored = e.op("Equal", labels, e.scalar_like(call.attribute("ignore_index", np.iinfo(np.int32).min), labels))
    safe = e.where(ignored, e.scalar_like(0, labels), labels)
    each = e.scalar_like(1, wide) if weights is None else e.cast(e.op("Gather", weights, safe), wide.dtype)
    weight = e.where(ignored, e.scalar_like(0, wide), each)
    scale = e.mul(weight, wide)
    if call.attribute("reduction", "mean") == "mean":
        scale = e.div(scale, e.op("ReduceSum", weight, keepdims=0))
    return safe, e.cast(e.op("Unsqueeze", scale, e.ints([1])), dloss.dtype)


def _one_hot(e: Emit, safe: Val, classes: int, dtype: str) -> Val:
    hot: Val = e.op("OneHot", safe, e.constant(classes, "int64"), e.constant([0, 1], dtype), axis=1)
    return hot


def _scores_type(call: Call) -> tuple[TensorType | None, ...]:
    if not 3 <= len(call.inputs) <= 4:
        raise ValueError(f"{call.op} takes dloss, log_prob, labels and optional weights")
    log_prob, labels = call.inputs[1:3]
    if log_prob is not None and labels is not None and log_prob.shape[:1] + log_prob.shape[2:] != labels.shape:
        raise ValueError(f"labels are {labels}, which is not the shape of {log_prob} without its axis 1")
    return (log_prob,)


def _scores_body(
    e: Emit, call: Call, dloss: Val, log_prob: Val, labels: Val, weights: Val | None = None
) -> tuple[Val, ...]:
    safe, scale = _scale_body(e, call, dloss, labels, weights)
    hot = _one_hot(e, safe, log_prob.shape[1], log_prob.dtype)
    return (e.mul(e.sub(e.op("Exp", log_prob), hot), scale),)


@op(
    "remat::SoftmaxCrossEntropyLossGrad",
    infer=_scores_type,
    work=elementwise_work(TRANSCENDENTAL + 2),
    takeover=((0, 1),),
    body=_scores_body,
)
def softmax_cross_entropy_loss_grad(
    call: Call, dloss: np.ndarray, log_prob: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    with np.errstate(all="ignore"):
        safe, scale = _scale(call, dloss, labels, weights)
        dscores = np.exp(as_computable(log_prob))
        hot = np.take_along_axis(dscores, safe, 1) - 1
        np.put_along_axis(dscores, safe, hot, 1)
        return as_new_array(dscores * scale, log_prob.dtype)


def _input_type(call: Call) -> tuple[TensorType | None, ...]:
    if not 2 <= len(call.inputs) <= 3:
        raise ValueError(f"{call.op} takes dloss, labels and optional weights")
    dloss = call.inputs[0]
    shape = attribute_shape(call.attributes, "input_shape", call.op)
    return (None if dloss is None else TensorType(dloss.dtype, shape),)


def _input_body(e: Emit, call: Call, dloss: Val, labels: Val, weights: Val | None = None) -> tuple[Val, ...]:
    safe, scale = _scale_body(e, call, dloss, labels, weights)
    shape = attribute_shape(call.attributes, "input_shape", call.op)
    return (e.mul(_one_hot(e, safe, shape[1], dloss.dtype), e.neg(scale)),)


@op("remat::NllLossGrad", infer=_input_type, work=elementwise_work(1), body=_input_body)
def nll_loss_grad(call: Call, dloss: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    with np.errstate(all="ignore"):
        safe, scale = _scale(call, dloss, labels, weights)
        dx = np.zeros(attribute_shape(call.attributes, "input_shape", call.op), scale.dtype)
        np.put_along_axis(dx, safe, -scale, 1)
        return as_new_array(dx, dloss.dtype)
