"""Layers, losses and normalizations of Paddle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from graph.builder.emit import Emit
from graph.formats.paddle.ops.table import PADDLE
from graph.formats.shared import layers, reshaping
from graph.formats.shared.elementwise import aligned, squared
from graph.formats.shared.op_helpers import axis_of, integral, reduced, same_each, scaled, shifted
from graph.formats.shared.op_table import OpUse, Unmapped
from graph.ir import FLOAT_DTYPES, Val
from graph.ops.training.seeded_random import SEED_TYPE


def _check_layout(use: OpUse, *names: str, layouts: Sequence[str] = ("NCHW", "AnyLayout")) -> None:
    if use.text(*names, default="NCHW") not in layouts:
        raise Unmapped


PADDLE.rules_of(
    {
        "dot": lambda e, use, x, y: reduced(e, "ReduceSum", e.mul(x, y), [x.rank - 1]),
        "square_error_cost": lambda e, use, x, y: squared(e, e.sub(x, y)),
    }
)


@PADDLE.op("mul")
def mul(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    """x · y as matrices: x's first `x_num_col_dims` dimensions are rows, y's first `y_num_col_dims`."""
    rows, inner = use.integer("x_num_col_dims", default=1), use.integer("y_num_col_dims", default=1)
    product = e.matmul(reshaping.matrix(e, x, rows), reshaping.matrix(e, y, inner))
    return e.reshape(product, (*x.shape[:rows], *y.shape[inner:]))


@PADDLE.op("fc")
def fc(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    rows = use.integer("in_num_col_dims", "num_flatten_dims", default=1)
    y = layers.dense(e, x, w, bias, rows=rows, outputs_first=False)
    act = use.text("activation_type", "act", default="")
    if not act:
        return y
    if act == "softmax":
        return e.op("Softmax", y, axis=-1)
    return PADDLE.rules[act](e, use, y)


@PADDLE.op("matmul", "matmul_v2", "bmm")
def matmul(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    left = use.flag("trans_x", "transpose_X", "transpose_x") and x.rank > 1
    right = use.flag("trans_y", "transpose_Y", "transpose_y") and y.rank > 1
    return scaled(e, layers.matmul(e, x, y, left, right), use.number("alpha", default=1.0))


@PADDLE.op("lookup_table", "lookup_table_v2")
def lookup_table(e: Emit, use: OpUse, w: Val, ids: Val) -> Val:
    """The first version drops the last dimension, of one element, from the ids."""
    if use.op == "lookup_table" and ids.rank and ids.shape[-1] == 1:
        ids = e.reshape(ids, ids.shape[:-1])
    return _embedded(e, use, w, ids)


@PADDLE.op("embedding")
def embedding(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    """The older dialect names (W, Ids), the newer gives (ids, weight)."""
    w, ids = (x, y) if x.dtype in FLOAT_DTYPES else (y, x)
    return _embedded(e, use, w, ids)


def _embedded(e: Emit, use: OpUse, w: Val, ids: Val) -> Val:
    """Rows of the table; zeros, without a gradient, where the id is `padding_idx`."""
    padding, rows = use.integer("padding_idx", default=-1), layers.gather(e, w, ids)
    if padding == -1:
        return rows
    padded = e.op("Equal", ids, e.scalar_like(padding, ids))
    return e.where(e.reshape(padded, (*ids.shape, 1)), e.scalar_like(0, w), rows)


def _window(use: OpUse, x: Val, kernel: Sequence[int]) -> dict[str, Any]:
    """Strides and pads; `padding_algorithm` SAME gives outputs of length / stride."""
    rank, how = x.rank - 2, use.text("padding_algorithm", default="EXPLICIT")
    strides, pads = same_each(use.integers("strides", default=()), rank, 1), use.integers("paddings", default=())
    if how == "EXPLICIT":
        # One pad per dimension, or begin and end of each in turn.
        each = [*pads[::2], *pads[1::2]] if len(pads) == 2 * rank else 2 * same_each(pads, rank, 0)
    elif how == "VALID":
        each = [0] * (2 * rank)
    elif how == "SAME":
        short = zip(x.shape[2:], strides, kernel, strict=True)
        total = [max((math.ceil(n / step) - 1) * step + length - n, 0) for n, step, length in short]
        each = [*(n // 2 for n in total), *(n - n // 2 for n in total)]
    else:
        raise Unmapped
    return {"strides": strides, "pads": each}


@PADDLE.op("conv2d", "depthwise_conv2d", "conv3d", "conv2d_transpose")
def conv(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    rank = x.rank - 2
    _check_layout(use, "data_format", layouts=("NCHW", "AnyLayout", "NCDHW"))
    if rank < 1:
        raise ValueError(f"{x.type} has no spatial dimensions")
    is_same = use.text("padding_algorithm", default="EXPLICIT") == "SAME"
    dilations = same_each(use.integers("dilations", default=()), rank, 1)
    window = _window(use, x, w.shape[2:]) | {"dilations": [1] * rank if is_same else dilations}
    op = "Conv"
    if use.op == "conv2d_transpose":
        if use.integers("output_size", default=()) or is_same:
            raise Unmapped
        op = "ConvTranspose"
        window["output_padding"] = same_each(use.integers("output_padding", default=()), rank, 0)
    y = layers.convolution(e, op, x, w, None, use.integer("groups", default=1), **window)
    return y if bias is None else e.add(y, aligned(e, y, bias, 1))


@PADDLE.op("pool2d")
def pool2d(e: Emit, use: OpUse, x: Val) -> Val:
    op = {"max": "MaxPool", "avg": "AveragePool"}[use.text("pooling_type")]
    _check_layout(use, "data_format")
    adaptive, exclusive = use.flag("adaptive"), use.flag("exclusive", default=True)
    kernel = same_each(use.integers("ksize"), 2, 1)
    window = _window(use, x, kernel) | {"kernel_shape": kernel, "ceil_mode": int(use.flag("ceil_mode"))}
    if use.flag("global_pooling") or (adaptive and kernel == [1, 1]):
        return e.op(f"Global{op}", x)
    if adaptive:
        raise Unmapped
    if op == "AveragePool":
        window["count_include_pad"] = int(not exclusive)
    return e.op(op, x, **window)


@PADDLE.op("batch_norm", "sync_batch_norm")
def batch_norm(e: Emit, use: OpUse, x: Val, scale: Val, bias: Val, mean: Val, variance: Val) -> Any:
    """(y, running mean, running variance, the batch's mean, its inverse deviation)."""
    _check_layout(use, "data_layout", "data_format")
    trains = use.flag("trainable_statistics") or not use.flag("is_test")
    training = trains and not use.flag("use_global_stats")
    found = layers.batch_norm(e, use, x, scale, bias, mean, variance, training=training)
    return found if len(found) > 1 or use.outputs == 1 else (*found, mean, variance)


@PADDLE.op("layer_norm")
def layer_norm(e: Emit, use: OpUse, x: Val, scale: Val | None = None, bias: Val | None = None) -> Any:
    """(y, mean, variance); statistics of the dimensions from `begin_norm_axis` on."""
    axis = axis_of(x, use.integer("begin_norm_axis", default=1))
    y, mean, inverse = layers.layer_norm(e, use, x, scale, bias, axis)
    rows, variance = (math.prod(x.shape[:axis]),), None
    if inverse is not None:
        total = e.op("Reciprocal", squared(e, inverse))
        variance = e.reshape(shifted(e, total, -use.number("epsilon", default=1e-5)), rows)
    return y, None if mean is None else e.reshape(mean, rows), variance


@PADDLE.op("rms_norm")
def rms_norm(e: Emit, use: OpUse, x: Val, scale: Val) -> Any:
    axis, epsilon = axis_of(x, use.integer("begin_norm_axis", default=x.rank - 1)), use.number("epsilon", default=1e-5)
    if use.outputs > 1:
        raise Unmapped
    power = reduced(e, "ReduceMean", squared(e, x), range(axis, x.rank), keepdims=True)
    deviation = e.op("Sqrt", shifted(e, power, epsilon))
    return e.mul(e.div(x, deviation), scale)


@PADDLE.op("group_norm", "instance_norm")
def group_norm(e: Emit, use: OpUse, x: Val, scale: Val, bias: Val) -> Val:
    epsilon = use.number("epsilon", default=1e-5)
    _check_layout(use, "data_layout", "data_format")
    if use.outputs > 1:
        raise Unmapped
    if use.op == "instance_norm":
        return e.op("InstanceNormalization", x, scale, bias, epsilon=epsilon)
    return e.op("GroupNormalization", x, scale, bias, num_groups=use.integer("groups"), epsilon=epsilon)


@PADDLE.op("dropout")
def dropout(e: Emit, use: OpUse, x: Val, seed: Val | None = None) -> Any:
    """(y, mask); the mask is uint8. With a seed among the inputs the op draws nothing itself."""
    ratio, is_test = use.number("dropout_prob", "p", default=0.5), use.flag("is_test")
    mode = use.text("dropout_implementation", "mode", default="downgrade_in_infer")
    if seed is not None and seed.type == SEED_TYPE and not is_test:
        y, mask = e.op("remat::SeededDropout", x, seed, outputs=(True, use.outputs > 1), ratio=ratio)
    else:
        y, mask = layers.dropout(e, use, x, ratio, draws=False if is_test else None)
    if mode != "upscale_in_train" and ratio < 1:
        y = scaled(e, y, 1 - ratio)
    return y, None if mask is None else e.cast(mask, "uint8")


@PADDLE.op("softmax", "log_softmax")
def softmax(e: Emit, use: OpUse, x: Val) -> Val:
    axis = axis_of(x, use.integer("axis", default=-1))
    return e.op("Softmax" if use.op == "softmax" else "LogSoftmax", x, axis=axis)


@PADDLE.op("cross_entropy", "cross_entropy2")
def cross_entropy(e: Emit, use: OpUse, prob: Val, labels: Val) -> Val:
    """-log of the probability at each row's label, as a column; 0 for the label `ignore_index`."""
    ignored = use.integer("ignore_index", default=-100)
    if use.flag("soft_label"):
        return layers.soft_label_loss(e, prob, labels, prob.rank - 1, keepdims=True)
    if ignored == -100:
        return layers.label_log_loss(e, prob, labels)
    labels = e.reshape(integral(e, labels), (*prob.shape[:-1], 1))
    skipped, zero = e.op("Equal", labels, e.scalar_like(ignored, labels)), e.scalar_like(0, labels)
    return e.where(skipped, e.scalar_like(0, prob), layers.label_log_loss(e, prob, e.where(skipped, zero, labels)))


@PADDLE.op("sigmoid_cross_entropy_with_logits")
def sigmoid_cross_entropy(e: Emit, use: OpUse, x: Val, target: Val) -> Val:
    """Cross-entropy of sigmoid(x); 0 for the target `ignore_index`. `normalize` divides by the number of the others."""
    loss, ignored = layers.logistic_loss(e, x, target), use.number("ignore_index", default=-100.0)
    counted = e.op("Not", e.op("Equal", target, e.scalar_like(ignored, target)))
    loss = e.where(counted, loss, e.scalar_like(0, loss))
    if not use.flag("normalize"):
        return loss
    count = e.reduce_sum(e.cast(counted, x.dtype), list(range(x.rank)), False)
    return e.div(loss, e.op("Max", count, e.scalar_like(1e-5, count)))


@PADDLE.op("softmax_with_cross_entropy", "cross_entropy_with_softmax")
def softmax_with_cross_entropy(e: Emit, use: OpUse, x: Val, labels: Val) -> tuple[Val, ...]:
    """(loss per row as a column, probabilities); the newer dialect gives them the other way round."""
    axis, ignored = axis_of(x, use.integer("axis", default=-1)), use.integer("ignore_index", default=-100)
    if axis != x.rank - 1 or not use.flag("use_softmax", default=True):
        raise Unmapped
    scores = reshaping.matrix(e, x, axis)
    if use.flag("soft_label"):
        log = e.op("LogSoftmax", scores, axis=1)
        weighted = e.mul(e.reshape(labels, scores.shape), log)
        loss = e.neg(reduced(e, "ReduceSum", weighted, [1]))
    else:
        at = e.reshape(integral(e, labels), scores.shape[:1])
        loss, log = layers.softmax_loss(e, scores, at, reduction="none", ignore_index=ignored)
    prob = e.reshape(e.op("Exp", log), x.shape)
    loss = e.reshape(loss, (*x.shape[:-1], 1))
    return (prob, loss) if use.op == "cross_entropy_with_softmax" else (loss, prob)
