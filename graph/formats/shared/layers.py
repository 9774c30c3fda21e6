"""Rules and fragments of layers: products, convolution, pooling, normalization, dropout, softmax and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graph.builder.emit import Emit
from graph.formats.shared.attributes import Attributes
from graph.formats.shared.op_helpers import filled, frozen, integral, present, reduced, same_each
from graph.formats.shared.op_table import OpUse
from graph.formats.shared.reshaping import matrix
from graph.ir import Val


def dense(e: Emit, x: Val, w: Val, bias: Val | None, *, rows: int = 1, outputs_first: bool = True) -> Val:
    """x · wᵀ + bias (x · w + bias with `outputs_first=False`) over the dimensions of x from `rows` on."""
    before = x.shape[:rows]
    flat = x if x.rank == 2 and rows == 1 else e.op("Flatten", x, axis=rows)
    y = e.op("Gemm", flat, w, *present(bias), transB=1 if outputs_first else None)
    return y if rows == 1 else e.reshape(y, (*before, y.shape[1]))


def matmul(e: Emit, x: Val, y: Val, trans_x: bool, trans_y: bool) -> Val:
    """Product of the last two dimensions, each operand transposed as given."""
    if trans_x or trans_y:
        return e.op("remat::MatMul", x, y, trans_a=int(trans_x), trans_b=int(trans_y))
    return e.matmul(x, y)


def gather(e: Emit, x: Val, indices: Val, axis: int = 0) -> Val:
    return e.op("Gather", x, integral(e, indices), axis=axis)


def convolution(e: Emit, op: str, x: Val, w: Val, bias: Val | None, group: int, **window: Any) -> Val:
    """Conv or ConvTranspose with the kernel lengths of the weight. Raises ValueError for other ranks."""
    if x.rank < 3 or w.rank != x.rank:
        raise ValueError(f"data {x.type} and weight {w.type}")
    return e.op(op, x, w, *present(bias), kernel_shape=list(w.shape[2:]), **window, group=group)


def window(
    a: Attributes,
    rank: int,
    *,
    strides: str,
    pads: str,
    kernel: Sequence[str] = (),
    dilations: str = "",
    output_padding: str = "",
) -> dict[str, list[int]]:
    """Window with symmetric pads, read from the attributes named; `kernel` has alternative names.

    A single length applies to every dimension.
    """
    found = {"kernel_shape": same_each(a.integers(*kernel), rank, 1)} if kernel else {}
    found["strides"] = same_each(a.integers(strides, default=()), rank, 1)
    if dilations:
        found["dilations"] = same_each(a.integers(dilations, default=()), rank, 1)
    found["pads"] = 2 * same_each(a.integers(pads, default=()), rank, 0)
    if output_padding:
        found["output_padding"] = same_each(a.integers(output_padding, default=()), rank, 0)
    return found


def batch_norm(
    e: Emit, use: OpUse, x: Val, scale: Val, bias: Val, mean: Val, variance: Val, *, training: bool
) -> tuple[Val, ...]:
    """(y,), or in training (y, running mean, running variance, batch mean, inverse deviation of the batch).

    A file that names one output only uses the running statistics; without `training` so does the training step.
    """
    epsilon, momentum = use.number("epsilon", default=1e-5), use.number("momentum", default=0.9)
    rates: dict[str, Any] = {"epsilon": epsilon, "momentum": momentum}
    if not training or use.outputs == 1:
        emit = e if training else frozen(e)
        return (emit.op("BatchNormalization", x, scale, bias, mean, variance, **rates),)
    y, now, inv_std = e.op("remat::BatchNorm", x, scale, bias, outputs=3, epsilon=epsilon)
    running = e.op("remat::RunningStatistics", mean, variance, now, inv_std, outputs=2, **rates)
    return (y, *running, now, inv_std)


def layer_norm(
    e: Emit, use: OpUse, x: Val, scale: Val | None, bias: Val | None, axis: int
) -> tuple[Val, Val | None, Val | None]:
    """(y, mean, inverse deviation) over the dimensions from `axis` on; None for an output the file does not name."""
    shape, epsilon = x.shape[axis:], use.number("epsilon", default=1e-5)
    scale = filled(e, shape, 1, x.dtype) if scale is None else e.reshape(scale, shape)
    inputs = present(x, scale, None if bias is None else e.reshape(bias, shape))
    used = (True, use.outputs > 1, use.outputs > 2)
    return e.op("LayerNormalization", *inputs, outputs=used, axis=axis, epsilon=epsilon)


def dropout(e: Emit, use: OpUse, x: Val, ratio: float, *, draws: bool | None = None) -> tuple[Val, Val | None]:
    """(y, mask); the mask is None when the file does not name it.

    `draws`: True for an op that draws at inference too, False for one that does not in training either.
    """
    inputs = [x, e.constant(ratio, "float32")]
    if draws is not None:
        inputs.append(e.constant(draws, "bool"))
    emit = frozen(e) if draws is False else e
    return emit.op("Dropout", *inputs, outputs=(True, use.outputs > 1))


def flat_softmax(e: Emit, op: str, x: Val, axis: int) -> Val:
    """Softmax or LogSoftmax over all dimensions from `axis` on as one."""
    return e.reshape(e.op(op, matrix(e, x, axis), axis=1), x.shape)


def softmax_loss(e: Emit, scores: Val, labels: Val, **attributes: Any) -> tuple[Val, Val]:
    """(cross-entropy, log-probabilities) of integer labels."""
    return e.op("SoftmaxCrossEntropyLoss", scores, labels, outputs=2, **attributes)


def label_log_loss(e: Emit, prob: Val, labels: Val) -> Val:
    """-log of the probability of each row's label, as a column."""
    at = e.reshape(integral(e, labels), (*prob.shape[:-1], 1))
    return e.neg(e.op("Log", e.op("GatherElements", prob, at, axis=prob.rank - 1)))


def soft_label_loss(e: Emit, prob: Val, labels: Val, axis: int, keepdims: bool) -> Val:
    """-sum of label · log(probability) along the axis."""
    return e.neg(reduced(e, "ReduceSum", e.mul(labels, e.op("Log", prob)), [axis], keepdims))


def logistic_loss(e: Emit, x: Val, target: Val) -> Val:
    """softplus(x) - x · target: cross-entropy of sigmoid(x)."""
    return e.sub(e.op("Softplus", x), e.mul(x, target))
