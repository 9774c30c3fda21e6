"""Layers, losses and normalizations of Caffe2."""

from __future__ import annotations

from typing import Any

from graph.builder.emit import Emit
from graph.formats.caffe2.ops.table import CAFFE2
from graph.formats.shared import layers, reshaping
from graph.formats.shared.elementwise import squared
from graph.formats.shared.op_helpers import axis_of, integral, opaque, reduced, same_each, scaled
from graph.formats.shared.op_table import OpUse, Unmapped
from graph.ir import TensorType, Val


def _check_order(use: OpUse) -> None:
    if use.text("order", default="NCHW") != "NCHW":
        raise Unmapped


CAFFE2.rules_of(
    {
        "CrossEntropy": lambda e, use, prob, labels: layers.soft_label_loss(e, prob, labels, 1, keepdims=False),
        "L1Distance": lambda e, use, x, y: reduced(e, "ReduceSum", e.op("Abs", e.sub(x, y)), range(1, x.rank)),
    }
)


@CAFFE2.op("FC", "FCTransposed")
def fc(e: Emit, use: OpUse, x: Val, w: Val, bias: Val) -> Val:
    """x · wᵀ + b, the dimensions from `axis` on as one, as are those of w from `axis_w` on."""
    axis, w_axis = use.integer("axis", default=1), use.integer("axis_w", default=1)
    if w.rank != 2:
        w = reshaping.matrix(e, w, w_axis)
    return layers.dense(e, x, w, bias, rows=axis_of(x, axis), outputs_first=use.op == "FC")


@CAFFE2.op("MatMul", "BatchMatMul")
def matmul(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    if use.op == "MatMul":
        x, y = (
            a if a.rank == 2 else e.op("Flatten", a, axis=axis_of(a, axis))
            for a, axis in ((x, use.integer("axis_a", default=1)), (y, use.integer("axis_b", default=1)))
        )
    return layers.matmul(e, x, y, use.flag("trans_a"), use.flag("trans_b"))


@CAFFE2.op("DotProduct")
def dot_product(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    """Per row the inner product of all other dimensions."""
    return reduced(e, "ReduceSum", e.mul(x, y), range(1, x.rank))


def window_of(use: OpUse, x: Val) -> dict[str, Any]:
    """Kernel, strides, dilations and pads of a Caffe2 op, however they are written."""
    rank = x.rank - 2
    if rank < 1:
        raise ValueError(f"{x.type} has no spatial dimensions")
    _check_order(use)
    if use.integer("legacy_pad", default=0) not in (0, 3):
        raise Unmapped
    return {
        "kernel_shape": _each(use, "kernel", rank, 1),
        "strides": _each(use, "stride", rank, 1),
        "dilations": _each(use, "dilation", rank, 1),
        "pads": _pads(use, rank),
    }


def _each(use: OpUse, name: str, rank: int, default: int) -> list[int]:
    """One length per dimension, written as `name_h` and `name_w`, as a list `names`, or as one `name`."""
    single, several = use.integer(name, default=default), use.integers(f"{name}s", default=())
    if rank == 2 and f"{name}_h" in use:
        return [use.integer(f"{name}_h"), use.integer(f"{name}_w")]
    return same_each(several or (single,), rank, default)


def _pads(use: OpUse, rank: int) -> list[int]:
    if "pad_t" in use:
        return [use.integer(f"pad_{side}", default=0) for side in ("t", "l", "b", "r")]
    pads = list(use.integers("pads", default=()))
    if len(pads) == 2 * rank:
        return pads
    return 2 * same_each(pads or [use.integer("pad", default=0)], rank, 0)


@CAFFE2.op("Conv", "Conv1D", "Conv2D", "Conv3D", "ConvTranspose")
def conv(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    window = window_of(use, x)
    del window["kernel_shape"]
    op = "ConvTranspose" if use.op == "ConvTranspose" else "Conv"
    if op == "ConvTranspose":
        window["output_padding"] = _each(use, "adj", x.rank - 2, 0)
    return layers.convolution(e, op, x, w, bias, use.integer("group", default=1), **window)


@CAFFE2.op(*(f"{kind}Pool{rank}" for kind in ("Max", "Average") for rank in ("", "1D", "2D", "3D")))
def pool(e: Emit, use: OpUse, x: Val) -> Val:
    op = "MaxPool" if use.op.startswith("Max") else "AveragePool"
    window, counted = window_of(use, x), use.flag("count_include_pad")
    if use.flag("global_pooling"):
        return e.op(f"Global{op}", x)
    if use.integer("legacy_pad", default=0) == 3:
        window["ceil_mode"] = 1
    if op == "AveragePool":
        window["count_include_pad"] = int(counted)
    return e.op(op, x, **window)


@CAFFE2.op("SpatialBN")
def spatial_bn(e: Emit, use: OpUse, x: Val, scale: Val, bias: Val, mean: Val, variance: Val, *sums: Val) -> Any:
    """Outputs: y, and in training the new running statistics and the batch's."""
    _check_order(use)
    if sums:
        raise Unmapped
    return layers.batch_norm(e, use, x, scale, bias, mean, variance, training=not use.flag("is_test"))


@CAFFE2.op("LayerNorm")
def layer_norm(e: Emit, use: OpUse, x: Val, scale: Val | None = None, bias: Val | None = None) -> Any:
    """(y, mean, deviation)."""
    axis = axis_of(x, use.integer("axis", default=1))
    y, mean, inverse = layers.layer_norm(e, use, x, scale, bias, axis)
    rows = (*x.shape[:axis], 1)
    mean = None if mean is None else e.reshape(mean, rows)
    return y, mean, None if inverse is None else e.reshape(e.op("Reciprocal", inverse), rows)


@CAFFE2.op("LRN")
def lrn(e: Emit, use: OpUse, x: Val) -> Val:
    _check_order(use)
    if use.outputs > 1:
        raise Unmapped
    alpha, beta, bias = use.number("alpha"), use.number("beta"), use.number("bias", default=1.0)
    return e.op("LRN", x, size=use.integer("size"), alpha=alpha, beta=beta, bias=bias)


@CAFFE2.op("InstanceNorm")
def instance_norm(e: Emit, use: OpUse, x: Val, scale: Val, bias: Val) -> Val:
    _check_order(use)
    if use.outputs > 1:
        raise Unmapped
    return e.op("InstanceNormalization", x, scale, bias, epsilon=use.number("epsilon", default=1e-5))


@CAFFE2.op("Dropout")
def dropout(e: Emit, use: OpUse, x: Val) -> Any:
    return layers.dropout(e, use, x, use.number("ratio", default=0.5), draws=False if use.flag("is_test") else None)


@CAFFE2.op("Softmax", "LogSoftmax")
def softmax(e: Emit, use: OpUse, x: Val) -> Val:
    """Over all dimensions from `axis` on as one."""
    axis = axis_of(x, use.integer("axis", default=1)) if x.rank > 1 else 0
    if axis == x.rank - 1:
        return e.op(use.op, x, axis=axis)
    return layers.flat_softmax(e, use.op, x, axis)


@CAFFE2.op("SoftmaxWithLoss")
def softmax_with_loss(e: Emit, use: OpUse, x: Val, labels: Val, weights: Val | None = None) -> tuple[Val, ...]:
    """Probabilities and their mean cross-entropy."""
    _check_order(use)
    if weights is not None or use.flag("label_prob"):
        raise Unmapped
    scores = reshaping.matrix(e, x, axis_of(x, use.integer("axis", default=1)))
    loss, log = layers.softmax_loss(e, scores, e.reshape(integral(e, labels), scores.shape[:1]), reduction="mean")
    return e.reshape(e.op("Exp", log), x.shape), scaled(e, loss, use.number("scale", default=1.0))


@CAFFE2.op("LabelCrossEntropy")
def label_cross_entropy(e: Emit, use: OpUse, prob: Val, labels: Val) -> Val:
    """Per row -log of the probability of its label."""
    return e.reshape(layers.label_log_loss(e, prob, labels), (prob.shape[0],))


@CAFFE2.op("SigmoidCrossEntropyWithLogits")
def sigmoid_cross_entropy(e: Emit, use: OpUse, x: Val, target: Val) -> Val:
    """Per row the mean of softplus(x) - x · target."""
    if use.flag("log_D_trick") or use.flag("unjoined_lr_loss"):
        raise Unmapped
    return reduced(e, "ReduceMean", layers.logistic_loss(e, x, target), [x.rank - 1])


@CAFFE2.op("SquaredL2Distance")
def squared_l2_distance(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    """Per row half the squared distance."""
    return scaled(e, reduced(e, "ReduceSum", squared(e, e.sub(x, y)), range(1, x.rank)), 0.5)


@CAFFE2.op("LSTMUnit")
def lstm_unit(e: Emit, use: OpUse, hidden: Val, cell: Val, gates: Val, *rest: Val) -> tuple[Val, ...]:
    """One step from gates [1, batch, 4 · size], before their activations: input, forget, output and candidate."""
    time, drop = _time(e, use, rest), int(use.flag("drop_states"))
    bias = use.number("forget_bias", default=0.0)
    inputs = (hidden, cell, gates, *time)
    return e.op("remat::LSTMUnit", *inputs, outputs=2, forget_bias=bias, drop_states=drop)


@CAFFE2.op("GRUUnit")
def gru_unit(e: Emit, use: OpUse, hidden: Val, gates: Val, *rest: Val) -> Val:
    return e.op("remat::GRUUnit", hidden, gates, *_time(e, use, rest), drop_states=int(use.flag("drop_states")))


def _time(e: Emit, use: OpUse, rest: tuple[Val, ...]) -> list[Val]:
    """Lengths of the sequences and the time, where a sequence may end early."""
    if len(rest) not in (1, 2):
        raise ValueError(f"{len(rest)} inputs after the gates; lengths and the time, or the time alone")
    if not use.flag("sequence_lengths", default=True) or len(rest) == 1:
        return []
    return [rest[0], e.cast(rest[1], rest[0].dtype)]


@CAFFE2.op("CreateScope", "HasScope")
def scope(e: Emit, use: OpUse, *inputs: Val) -> Any:
    """A handle to scopes, which has no bytes; whether the stack of a handle has any."""
    type = TensorType("int32", (0,)) if use.op == "CreateScope" else TensorType("bool", (1,))
    return opaque(e, f"caffe2::{use.op}", inputs, [type], recompute="never")
