"""Layers, losses and normalizations of MXNet."""

from __future__ import annotations

import math
from typing import Any

from graph.builder.emit import Emit
from graph.formats.mxnet.ops.table import MXNET, dtype_of
from graph.formats.shared import layers, reshaping
from graph.formats.shared.attributes import integer, number
from graph.formats.shared.elementwise import squared, unary, with_attributes
from graph.formats.shared.op_helpers import (
    axis_of,
    check_lengths,
    checked_shape,
    filled,
    frozen,
    integral,
    opaque,
    reduced,
    same_each,
    scaled,
    shifted,
)
from graph.formats.shared.op_table import OpUse, Unmapped
from graph.ir import FLOAT_DTYPES, TensorType, Val


@MXNET.op("FullyConnected", "dense")
def fully_connected(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    flattens = use.op == "dense" or use.flag("flatten", default=True)
    check_lengths("num_hidden", use.maybe_integer("num_hidden", "units"), w.shape[0])
    return layers.dense(e, x, w, bias, rows=1 if flattens else max(x.rank - 1, 1))


@MXNET.op("dot")
def dot(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    """Last dimension of x by first of y; a transposed operand is cyclically permuted first."""
    if x.rank == y.rank == 1:
        return e.reshape(e.matmul(x, y), (1,))
    left = e.transpose(x, [*range(1, x.rank), 0]) if use.flag("transpose_a") else x
    right = e.transpose(y, [y.rank - 1, *range(y.rank - 1)]) if use.flag("transpose_b") else y
    if x.rank <= 2 and y.rank <= 2:
        return e.matmul(left, right)
    columns = reshaping.matrix(e, right, 1)
    product = e.matmul(reshaping.matrix(e, left, left.rank - 1), columns)
    return e.reshape(product, (*left.shape[:-1], *right.shape[1:]))


@MXNET.op("batch_dot", "_linalg_gemm2", "linalg_gemm2")
def batch_dot(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    product = layers.matmul(e, x, y, use.flag("transpose_a"), use.flag("transpose_b"))
    return scaled(e, product, use.number("alpha", default=1.0))


def _check_layout(use: OpUse) -> None:
    if use.text("layout", default="NC")[:2] != "NC":
        raise Unmapped


def _check_kernel(use: OpUse, w: Val) -> None:
    """Raise ValueError where the attributes state other filters or kernel lengths than the weight has."""
    axis = 1 if use.op == "Deconvolution" else 0
    groups = use.integer("num_group", "groups", default=1) if axis else 1
    check_lengths("num_filter", use.maybe_integer("num_filter", "channels"), w.shape[axis] * groups)
    kernel = use.integers("kernel", "kernel_size", default=())
    check_lengths("kernel", same_each(kernel, w.rank - 2, 1) if kernel else None, list(w.shape[2:]))


@MXNET.op("Convolution", "Convolution_v1")
def convolution(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    _check_layout(use)
    _check_kernel(use, w)
    window = layers.window(use, x.rank - 2, strides="stride", pads="pad", dilations="dilate")
    return layers.convolution(e, "Conv", x, w, bias, use.integer("num_group", default=1), **window)


@MXNET.op("conv2d")
def conv2d(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    _check_layout(use)
    _check_kernel(use, w)
    window = layers.window(use, x.rank - 2, strides="strides", pads="padding", dilations="dilation")
    return layers.convolution(e, "Conv", x, w, bias, use.integer("groups", default=1), **window)


@MXNET.op("Deconvolution")
def deconvolution(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    _check_layout(use)
    _check_kernel(use, w)
    if any(use.integers("target_shape", default=())):
        raise Unmapped
    window = layers.window(use, x.rank - 2, strides="stride", pads="pad", dilations="dilate", output_padding="adj")
    return layers.convolution(e, "ConvTranspose", x, w, bias, use.integer("num_group", default=1), **window)


@MXNET.op("Pooling", "Pooling_v1")
def pooling(e: Emit, use: OpUse, x: Val) -> Val:
    _check_layout(use)
    kind = use.text("pool_type", default="max")
    convention = use.text("pooling_convention", default="valid")
    if kind not in ("max", "avg", "sum") or convention not in ("valid", "full"):
        raise Unmapped
    counted = use.flag("count_include_pad", default=True) or kind == "sum"
    whole = ["kernel"] if use.integers("kernel", default=()) else []  # a global pool may leave it out
    window: dict[str, Any] = layers.window(use, x.rank - 2, strides="stride", pads="pad", kernel=whole)
    if use.flag("global_pool"):
        if kind == "sum":
            return reduced(e, "ReduceSum", x, range(2, x.rank), keepdims=True)
        return e.op("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", x)
    if not whole:
        raise ValueError("attribute kernel is missing; it must be integers")
    if convention == "full":
        window["ceil_mode"] = 1
    if kind == "max":
        return e.op("MaxPool", x, **window)
    mean = e.op("AveragePool", x, count_include_pad=int(counted), **window)
    return scaled(e, mean, math.prod(window["kernel_shape"])) if kind == "sum" else mean


@MXNET.op("max_pool2d", "avg_pool2d")
def nnvm_pool(e: Emit, use: OpUse, x: Val) -> Val:
    window: dict[str, Any] = layers.window(use, 2, strides="strides", pads="padding", kernel=("pool_size", "pool"))
    _check_layout(use)
    window["ceil_mode"] = int(use.flag("ceil_mode"))
    if use.op == "max_pool2d":
        return e.op("MaxPool", x, **window)
    return e.op("AveragePool", x, **window, count_include_pad=int(use.flag("count_include_pad")))


MXNET.rows(unary, {"GlobalMaxPool": "global_max_pool2d", "GlobalAveragePool": "global_avg_pool2d"})


@MXNET.op("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "batch_norm")
def batch_norm(e: Emit, use: OpUse, x: Val, gamma: Val, beta: Val, mean: Val, variance: Val) -> Val:
    """`fix_gamma`, MXNet's default, reads the scale as ones and does not train it."""
    nnvm = use.op == "batch_norm"
    if axis_of(x, use.integer("axis", default=1)) != 1 or use.flag("output_mean_var"):
        raise Unmapped
    if nnvm and not (use.flag("scale", default=True) and use.flag("center", default=True)):
        raise Unmapped
    if use.flag("fix_gamma", default=not nnvm):
        gamma = filled(e, gamma.shape, 1, gamma.dtype)
    epsilon = use.number("eps", "epsilon", default=1e-5 if nnvm else 1e-3)
    momentum = use.number("momentum", default=0.9)
    inputs = (x, gamma, beta, mean, variance)
    emit = frozen(e) if use.flag("use_global_stats") else e
    return emit.op("BatchNormalization", *inputs, epsilon=epsilon, momentum=momentum)


@MXNET.op("LayerNorm")
def layer_norm(e: Emit, use: OpUse, x: Val, gamma: Val, beta: Val) -> Val:
    if axis_of(x, use.integer("axis", default=-1)) != x.rank - 1 or use.outputs > 1:
        raise Unmapped
    return e.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=use.number("eps", default=1e-5))


@MXNET.op("GroupNorm")
def group_norm(e: Emit, use: OpUse, x: Val, gamma: Val, beta: Val) -> Val:
    if gamma.shape != x.shape[1:2]:
        raise Unmapped  # older files scale by group
    groups, epsilon = use.integer("num_groups", default=1), use.number("eps", default=1e-5)
    return e.op("GroupNormalization", x, gamma, beta, num_groups=groups, epsilon=epsilon)


MXNET.rules_of(
    {
        "InstanceNorm": with_attributes("InstanceNormalization", 3, epsilon=number("eps", default=1e-3)),
        "LRN": with_attributes(
            "LRN",
            size=integer("nsize"),
            alpha=number("alpha", default=1e-4),
            beta=number("beta", default=0.75),
            bias=number("knorm", default=2.0),
        ),
    }
)


@MXNET.op("Embedding")
def embedding(e: Emit, use: OpUse, indices: Val, weight: Val) -> Val:
    check_lengths("input_dim", use.maybe_integer("input_dim"), weight.shape[0])
    check_lengths("output_dim", use.maybe_integer("output_dim"), weight.shape[1])
    return layers.gather(e, weight, indices)


@MXNET.op("L2Normalization")
def l2_normalization(e: Emit, use: OpUse, x: Val) -> Val:
    mode = use.text("mode", default="instance")
    axes = {"instance": range(1, x.rank), "channel": [1], "spatial": range(2, x.rank)}.get(mode)
    if axes is None:
        raise ValueError(f"mode {mode!r}")
    total = shifted(e, reduced(e, "ReduceSumSquare", x, axes, keepdims=True), use.number("eps", default=1e-10))
    return e.div(x, e.op("Sqrt", total))


@MXNET.op("Dropout", "dropout")
def dropout(e: Emit, use: OpUse, x: Val) -> tuple[Val | None, ...]:
    ratio, mode = use.number("p", "rate", default=0.5), use.text("mode", default="training")
    if use.integers("axes", default=()) or mode not in ("training", "always"):
        raise Unmapped
    return layers.dropout(e, use, x, ratio, draws=True if mode == "always" else None)


@MXNET.op("softmax", "log_softmax", "softmin")
def softmax(e: Emit, use: OpUse, x: Val, *lengths: Val) -> Val:
    if lengths:
        raise Unmapped
    x = scaled(e, x, 1 / use.number("temperature", default=1.0))
    x = e.neg(x) if use.op == "softmin" else x
    axis = axis_of(x, use.integer("axis", default=-1))
    y = e.op("LogSoftmax" if use.op == "log_softmax" else "Softmax", x, axis=axis)
    return e.cast(y, dtype_of(use.text("dtype", default=x.dtype)))


@MXNET.op("SoftmaxActivation")
def softmax_activation(e: Emit, use: OpUse, x: Val) -> Val:
    if use.text("mode", default="instance") == "channel":
        return e.op("Softmax", x, axis=1)
    return layers.flat_softmax(e, "Softmax", x, 1)


@MXNET.op("SoftmaxOutput", "Softmax")
def softmax_output(e: Emit, use: OpUse, x: Val, labels: Val) -> Val:
    """Softmax probabilities; the loss is the cross-entropy, summed and divided as `normalization` says.

    The gradient is (probability - one hot) · grad_scale, independent of the incoming gradient. With `multi_output` it
    is divided by the number of positions too, unless `normalization` is "valid".
    """
    if use.number("smooth_alpha", default=0.0) or use.flag("out_grad"):
        raise Unmapped
    if x.dtype not in FLOAT_DTYPES:
        raise ValueError(f"{x.type} is not floating point")
    multi, keeps_shape = use.flag("multi_output"), use.flag("preserve_shape")
    if multi:
        scores, rows = x, (x.shape[0], *x.shape[2:])
    else:
        scores = reshaping.matrix(e, x, x.rank - 1 if keeps_shape else 1)
        rows = scores.shape[:1]
    how, ignored = use.text("normalization", default="null"), use.integer("ignore_label", default=-1)
    if how not in ("null", "batch", "valid"):
        raise Unmapped
    at = e.reshape(integral(e, labels), rows)
    skipped = ignored if use.flag("use_ignore") else None
    loss, log = layers.softmax_loss(e, scores, at, ignore_index=skipped, reduction="sum")
    if how == "valid":
        valid = e.cast(e.op("Not", e.op("Equal", at, e.scalar_like(ignored, at))), x.dtype)
        count = e.reduce_sum(valid, list(range(valid.rank)), False)
        loss = e.div(loss, e.op("Max", count, e.scalar_like(1, count)))
    elif how == "batch":
        loss = e.div_by(loss, rows[0])
    if multi and how != "valid":
        loss = e.div_by(loss, math.prod(rows[1:]))
    use.losses.append(scaled(e, loss, use.number("grad_scale", default=1.0)))
    return e.reshape(e.op("Exp", log), x.shape)


@MXNET.op("softmax_cross_entropy")
def softmax_cross_entropy(e: Emit, use: OpUse, x: Val, labels: Val) -> Val:
    loss = e.op("SoftmaxCrossEntropyLoss", x, integral(e, labels), reduction="sum")
    return e.reshape(loss, (1,))


@MXNET.op("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")
def regression_output(e: Emit, use: OpUse, x: Val, labels: Val) -> Val:
    """The prediction; its gradient is (prediction - label) · grad_scale over the outputs of a row, or its sign."""
    prediction = e.op("Sigmoid" if use.op.startswith("Logistic") else "Identity", x)
    target = e.reshape(e.cast(labels, x.dtype), x.shape)
    every, weight = list(range(x.rank)), 1.0
    if use.op.startswith("MAE"):
        loss = e.op("Abs", e.sub(x, target))
    elif use.op.startswith("Linear"):
        loss, weight = squared(e, e.sub(x, target)), 0.5
    else:  # its derivative is sigmoid(x) - label
        loss = layers.logistic_loss(e, x, target)
    total = scaled(e, e.reduce_sum(loss, every, False), weight)
    factor = use.number("grad_scale", default=1.0) / max(math.prod(x.shape[1:]), 1)
    use.losses.append(scaled(e, total, factor))
    return prediction


@MXNET.op("MakeLoss", "make_loss")
def make_loss(e: Emit, use: OpUse, x: Val) -> Val:
    how = use.text("normalization", default="null")
    factor = use.number("grad_scale", default=1.0) / (x.shape[0] if how == "batch" and x.rank else 1)
    if how == "valid":
        raise Unmapped
    use.losses.append(scaled(e, e.reduce_sum(x, list(range(x.rank)), False), factor))
    return x


@MXNET.op("RNN")
def fused_rnn(e: Emit, use: OpUse, x: Val, parameters: Val, state: Val, cell: Val | None = None) -> Any:
    """The fused recurrent layer, whose packed weights stay packed: planned, not executed."""
    if use.flag("use_sequence_length"):
        raise Unmapped
    directions = 2 if use.flag("bidirectional") else 1
    size = use.integer("projection_size", default=use.integer("state_size"))
    types = [TensorType(x.dtype, checked_shape((*x.shape[:2], directions * size)))]
    if use.flag("state_outputs"):
        types += [state.type] + ([cell.type] if cell is not None else [])
    inputs = [v for v in (x, parameters, state, cell) if v is not None]
    return opaque(
        e,
        "mxnet::RNN",
        inputs,
        types,
        attributes=dict(use.given),
        gradient_reads=[v.id for v in inputs],
        recompute="never" if use.number("p", default=0.0) else None,
    )
