"""Op table of MXNet and NNVM, which share the file format: translations to standard and `remat` ops.

Semantics: MXNet 1.x operator documentation (mxnet.symbol, src/operator parameter structs); NNVM top-level ops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graph.builder.emit import Emit
from graph.formats.shared import elementwise, layers, reshaping
from graph.formats.shared.attributes import integer, number
from graph.formats.shared.elementwise import aligned, squared, unary, with_attributes, with_scalar
from graph.formats.shared.op_helpers import (
    arg_extreme,
    axis_of,
    check_lengths,
    checked_shape,
    filled,
    frozen,
    integral,
    literal,
    opaque,
    random,
    reduced,
    same_each,
    scaled,
    shifted,
)
from graph.formats.shared.op_table import OpTable, OpUse, TranslationRule, Unmapped
from graph.formats.shared.reshaping import sliced
from graph.ir import DTYPE_BITS, FLOAT_DTYPES, TensorType, Val

MXNET = OpTable(
    "mxnet",
    "ctx ctx_group lr_mult wd_mult weight_lr_mult weight_wd_mult bias_lr_mult bias_wd_mult cudnn_off cudnn_tune",
)

#: Element types by MXNet's type flag, which files may use instead of names.
DTYPES = {
    0: "float32",
    1: "float64",
    2: "float16",
    3: "uint8",
    4: "int32",
    5: "int8",
    6: "int64",
    7: "bool",
    12: "bfloat16",
}
DTYPE_NUMBERS = {name: number for number, name in DTYPES.items()}


def dtype_of(word: str) -> str:
    """An element type by name or number. Raises ValueError."""
    name = DTYPES.get(int(word), word) if word.lstrip("-").isdigit() else word
    if name not in DTYPE_BITS:
        raise ValueError(f"element type {word!r}")
    return name


def _dtype(use: OpUse) -> str:
    return dtype_of(use.text("dtype", default="float32"))


# Elementwise ops.

_UNARY = {
    **elementwise.capitalized(
        "relu sigmoid tanh softsign exp log sqrt abs sign floor ceil reciprocal sin cos tan sinh cosh erf"
    ),
    **{f"A{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "Identity": "identity _copy",
    "Neg": "negative _np_negative",
    "Round": "rint",
}
_BINARY = {
    "Add": "elemwise_add _plus _Plus _add _grad_add broadcast_add broadcast_plus Add passthrough_add",
    "Sub": "elemwise_sub _minus _Minus _sub broadcast_sub broadcast_minus Sub",
    "Mul": "elemwise_mul _mul _Mul broadcast_mul Mul",
    "Div": "elemwise_div _div _Div broadcast_div Div",
    "Mod": "broadcast_mod _mod _Mod",
    "Pow": "_power _Power broadcast_power elemwise_pow broadcast_pow",
    "Max": "_maximum _Maximum broadcast_maximum broadcast_max",
    "Min": "_minimum _Minimum broadcast_minimum broadcast_min",
}
_SCALARS = {
    "Add": "_plus_scalar _PlusScalar AddScalar __add_scalar__",
    "Sub": "_minus_scalar _MinusScalar SubScalar __sub_scalar__",
    "Mul": "_mul_scalar _MulScalar MulScalar __mul_scalar__",
    "Div": "_div_scalar _DivScalar __div_scalar__",
    "Pow": "_power_scalar _PowerScalar pow_scalar __pow_scalar__",
    "Max": "_maximum_scalar _MaximumScalar",
    "Min": "_minimum_scalar _MinimumScalar",
    "Mod": "_mod_scalar _ModScalar __mod_scalar__",
}
_REVERSED = {
    "Sub": "_rminus_scalar _RMinusScalar RSubScalar __rsub_scalar__",
    "Div": "_rdiv_scalar _RDivScalar __rdiv_scalar__",
    "Pow": "_rpower_scalar _RPowerScalar __rpow_scalar__",
    "Mod": "_rmod_scalar _RModScalar __rmod_scalar__",
}
MXNET.rows(unary, _UNARY)
MXNET.rows(elementwise.binary, _BINARY)
MXNET.rows(lambda op: with_scalar(op, number("scalar", "exponent")), _SCALARS)
MXNET.rows(lambda op: with_scalar(op, number("scalar"), reverse=True), _REVERSED)


def _comparison(compare: TranslationRule) -> TranslationRule:
    """Comparison whose result has the element type of the first operand."""

    def comparison_rule(e: Emit, use: OpUse, x: Val, *more: Val) -> Val:
        return e.cast(compare(e, use, x, *more), x.dtype)

    return comparison_rule


_COMPARISONS = {
    "Equal": "equal",
    "NotEqual": "not_equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "lesser",
    "LessOrEqual": "lesser_equal",
}
MXNET.rows(
    lambda op: _comparison(elementwise.binary(op)),
    {op: f"broadcast_{name} _{name}" for op, name in _COMPARISONS.items()},
)
MXNET.rows(
    lambda op: _comparison(with_scalar(op, number("scalar"))),
    {op: f"_{name}_scalar" for op, name in _COMPARISONS.items()},
)

MXNET.rules_of(
    {
        "add_n ElementWiseSum elemwise_sum _sum_n": elementwise.variadic("Sum"),
        "BlockGrad stop_gradient block_grad": unary("remat::StopGradient"),
        "square": elementwise.square,
        "rsqrt": elementwise.rsqrt,
        "log2": lambda e, use, x: scaled(e, e.op("Log", x), 1 / math.log(2)),
        "log10": lambda e, use, x: scaled(e, e.op("Log", x), 1 / math.log(10)),
        "clip": elementwise.clip(number("a_min"), number("a_max")),
        "hard_sigmoid": with_attributes(
            "HardSigmoid", alpha=number("alpha", default=0.2), beta=number("beta", default=0.5)
        ),
        "log1p": lambda e, use, x: e.op("Log", shifted(e, x, 1)),
        "expm1": lambda e, use, x: shifted(e, e.op("Exp", x), -1),
        "Cast cast amp_cast": lambda e, use, x: e.cast(x, dtype_of(use.text("dtype"))),
        "where": lambda e, use, condition, x, y: elementwise.where(e, use, e.cast(condition, "bool"), x, y),
        "_identity_with_attr_like_rhs": lambda e, use, x, like: x,
        "_contrib_div_sqrt_dim": lambda e, use, x: scaled(e, x, 1 / math.sqrt(x.shape[-1])),
    }
)


@MXNET.op("rcbrt", "cbrt")
def cube_root(e: Emit, use: OpUse, x: Val) -> Val:
    power = e.scalar_like(1 / 3, x)
    root = e.mul(e.op("Sign", x), e.op("Pow", e.op("Abs", x), power))
    return root if use.op == "cbrt" else e.op("Reciprocal", root)


@MXNET.op("smooth_l1")
def smooth_l1(e: Emit, use: OpUse, x: Val) -> Val:
    """(σx)²/2 within 1/σ² of zero, |x| - 1/(2σ²) outside."""
    sigma2 = use.number("scalar", default=1.0) ** 2
    size = e.op("Abs", x)
    near = e.op("Less", size, e.scalar_like(1 / sigma2, x))
    return e.where(near, scaled(e, squared(e, x), sigma2 / 2), shifted(e, size, -0.5 / sigma2))


@MXNET.op("Activation")
def activation(e: Emit, use: OpUse, x: Val) -> Val:
    kind = use.text("act_type")
    if kind == "log_sigmoid":
        return e.neg(e.op("Softplus", e.neg(x)))
    if kind == "softrelu":
        return e.op("Softplus", x)
    if kind not in ("relu", "sigmoid", "tanh", "softsign", "mish"):
        raise Unmapped
    return e.op(kind.capitalize(), x)


@MXNET.op("LeakyReLU")
def leaky_relu(e: Emit, use: OpUse, x: Val, gamma: Val | None = None) -> Val:
    kind, slope = use.text("act_type", default="leaky"), use.number("slope", default=0.25)
    if kind == "prelu" and gamma is not None:
        return elementwise.prelu(e, use, x, gamma)
    if kind in ("leaky", "elu"):
        return e.op("LeakyRelu" if kind == "leaky" else "Elu", x, alpha=slope)
    if kind in ("gelu", "gelu_erf", "gelu_tanh"):
        return e.op("Gelu", x, approximate="tanh" if kind == "gelu_tanh" else "none")
    if kind != "selu":
        raise Unmapped
    return e.op("Selu", x)


# Layers.


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


# Shapes.

MXNET.rules_of(
    {
        "transpose": reshaping.transpose,
        "stack": reshaping.stack,
        "Flatten flatten": lambda e, use, x: e.op("Flatten", x, axis=1),
        "tile": lambda e, use, x: reshaping.tiled(e, x, use.integers("reps")),
        "take": lambda e, use, x, indices: layers.gather(e, x, indices, axis_of(x, use.integer("axis", default=0))),
    }
)


@MXNET.op("Reshape", "reshape")
def reshape(e: Emit, use: OpUse, x: Val) -> Val:
    """Codes: 0 copies, -1 infers, -2 copies the rest, -3 joins two, -4 splits one in two."""
    codes = use.integers("shape", default=())
    if not codes:
        codes = use.integers("target_shape")  # the older spelling, in which 0 infers
        codes = tuple(-1 if c == 0 else c for c in codes)
    return e.reshape(x, coded_shape(x.shape, codes, use.flag("reverse")))


def coded_shape(shape: tuple[int, ...], codes: tuple[int, ...], reverse: bool = False) -> tuple[int, ...]:
    """Target shape of MXNet's reshape codes. Raises ValueError."""
    if reverse:
        return coded_shape(shape[::-1], codes[::-1])[::-1]
    lengths: list[int] = []
    at, k = 0, 0
    while k < len(codes):
        code = codes[k]
        if code == 0:
            lengths.append(shape[at])
        elif code == -2:
            lengths.extend(shape[at:])
            at = len(shape)
        elif code == -3:
            lengths.append(shape[at] * shape[at + 1])
            at += 1
        elif code == -4:
            first, second = codes[k + 1], codes[k + 2]
            first = shape[at] // second if first == -1 else first
            lengths.extend((first, shape[at] // first if second == -1 else second))
            k += 2
        else:
            lengths.append(code)
        at, k = at + 1, k + 1
    return reshaping.inferred_shape(lengths, math.prod(shape))


@MXNET.op("reshape_like")
def reshape_like(e: Emit, use: OpUse, x: Val, like: Val) -> Val:
    if any(key in use for key in ("lhs_begin", "lhs_end", "rhs_begin", "rhs_end")):
        raise Unmapped
    return reshaping.reshape_like(e, use, x, like)


@MXNET.op("SwapAxis", "swapaxes")
def swap_axes(e: Emit, use: OpUse, x: Val) -> Val:
    axes = list(range(x.rank))
    one, two = (axis_of(x, use.integer(key, default=0)) for key in ("dim1", "dim2"))
    axes[one], axes[two] = axes[two], axes[one]
    return e.transpose(x, axes)


@MXNET.op("expand_dims")
def expand_dims(e: Emit, use: OpUse, x: Val) -> Val:
    axis, count = use.integer("axis"), use.integer("num_newaxis", default=1)
    if not 0 < count < 32:
        raise ValueError(f"{count} new axes")
    return reshaping.with_axes(e, x, [axis + x.rank + 1 if axis < 0 else axis] * count)


@MXNET.op("squeeze")
def squeeze(e: Emit, use: OpUse, x: Val) -> Val:
    axes = [axis_of(x, a) for a in use.integers("axis", default=())]
    return reshaping.without_axes(e, x, axes or [i for i, n in enumerate(x.shape) if n == 1])


@MXNET.op("Concat", "concat", "concatenate", "_rnn_param_concat")
def concat(e: Emit, use: OpUse, *parts: Val) -> Val:
    return e.op("Concat", *parts, axis=axis_of(parts[0], use.integer("dim", "axis", default=1)))


@MXNET.op("SliceChannel", "split")
def slice_channel(e: Emit, use: OpUse, x: Val) -> tuple[Val, ...]:
    parts = use.integer("num_outputs", "indices_or_sections", default=use.outputs)
    return _split(e, use, x, parts, use.integer("axis", default=1))


@MXNET.op("_split_v2", "split_v2")
def split_v2(e: Emit, use: OpUse, x: Val) -> tuple[Val, ...]:
    axis, sections = axis_of(x, use.integer("axis", default=0)), use.integer("sections", default=0)
    cuts = [0, *(i for i in use.integers("indices", default=()) if i), x.shape[axis]]
    sizes = None if sections else [end - begin for begin, end in itertools.pairwise(cuts)]
    return _split(e, use, x, sections or len(cuts) - 1, axis, sizes)


def _split(e: Emit, use: OpUse, x: Val, parts: int, axis: int, sizes: Sequence[int] | None = None) -> tuple[Val, ...]:
    """Parts along the axis, which `squeeze_axis` removes."""
    found, axis = reshaping.split(e, x, parts, axis, sizes), axis_of(x, axis)
    if not use.flag("squeeze_axis"):
        return found
    return tuple(reshaping.without_axes(e, part, [axis]) for part in found)


@MXNET.op("slice", "crop")
def slice_(e: Emit, use: OpUse, x: Val) -> Val:
    begin, end = use.maybe_integers("begin") or (), use.maybe_integers("end") or ()
    step = use.maybe_integers("step") or ()
    steps = [s or 1 for s in (*step, *[None] * (len(begin) - len(step)))]
    far = (1 << 62) - 1
    begins = [(far if s < 0 else 0) if b is None else b for b, s in zip(begin, steps, strict=True)]
    ends = [(-far if s < 0 else far) if n is None else n for n, s in zip(end, steps, strict=True)]
    return sliced(e, x, range(len(begins)), begins, ends, steps)


@MXNET.op("slice_axis")
def slice_axis(e: Emit, use: OpUse, x: Val) -> Val:
    axis, end = axis_of(x, use.integer("axis")), use.maybe_integer("end")
    return sliced(e, x, [axis], [use.integer("begin", default=0)], [x.shape[axis] if end is None else end], [1])


@MXNET.op("slice_like")
def slice_like(e: Emit, use: OpUse, x: Val, like: Val) -> Val:
    axes = [axis_of(x, a) for a in use.integers("axes", default=())] or list(range(x.rank))
    return sliced(e, x, axes, [0] * len(axes), [like.shape[a] for a in axes], [1] * len(axes))


@MXNET.op("reverse", "flip")
def reverse(e: Emit, use: OpUse, x: Val) -> Val:
    axes = [axis_of(x, a) for a in use.integers("axis")]
    return sliced(e, x, axes, [-1] * len(axes), [-(1 << 62)] * len(axes), [-1] * len(axes))


@MXNET.op("broadcast_to", "_np_broadcast_to")
def broadcast_to(e: Emit, use: OpUse, x: Val) -> Val:
    shape = use.integers("shape")
    lengths = [n or x.shape[i + x.rank - len(shape)] for i, n in enumerate(shape)]
    return e.expand(x, checked_shape(lengths))


@MXNET.op("broadcast_axis", "broadcast_axes")
def broadcast_axis(e: Emit, use: OpUse, x: Val) -> Val:
    lengths = list(x.shape)
    for axis, n in zip(use.integers("axis", default=()), use.integers("size", default=()), strict=True):
        lengths[axis_of(x, axis)] = n
    return e.expand(x, checked_shape(lengths))


@MXNET.op("broadcast_like")
def broadcast_like(e: Emit, use: OpUse, x: Val, like: Val) -> Val:
    if "lhs_axes" in use:
        raise Unmapped
    return e.expand(x, like.shape)


@MXNET.op("repeat")
def repeat(e: Emit, use: OpUse, x: Val) -> Val:
    times, axis = use.integer("repeats"), use.maybe_integer("axis")
    if axis is None:
        x, axis = e.reshape(x, (math.prod(x.shape),)), 0
    axis = axis_of(x, axis)
    before, length, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    shape = checked_shape((*before, length, times, *after))
    wide = e.expand(e.reshape(x, (*before, length, 1, *after)), shape)
    return e.reshape(wide, (*before, length * times, *after))


@MXNET.op("Pad", "pad")
def pad(e: Emit, use: OpUse, x: Val) -> Val:
    width = use.integers("pad_width")
    pads = [*width[::2], *width[1::2]]
    return reshaping.pad(e, x, pads, use.text("mode"), use.number("constant_value", default=0.0))


@MXNET.op("UpSampling")
def up_sampling(e: Emit, use: OpUse, x: Val, *more: Val) -> Val:
    scale = use.integer("scale")
    if use.text("sample_type") != "nearest" or more or x.rank != 4:
        raise Unmapped
    return reshaping.resize_nearest(e, x, scale, scale)


@MXNET.op("batch_take", "pick", "choose_element_0index")
def pick(e: Emit, use: OpUse, x: Val, indices: Val) -> Val:
    """One element per row; `batch_take` picks along axis 1 and drops it."""
    batch = use.op == "batch_take"
    axis = 1 if batch else axis_of(x, use.integer("axis", default=-1))
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    found = e.op("GatherElements", x, e.reshape(integral(e, indices), shape), axis=axis)
    keeps_axis = not batch and use.flag("keepdims")
    return found if keeps_axis else reshaping.without_axes(e, found, [axis])


@MXNET.op("gather_nd")
def gather_nd(e: Emit, use: OpUse, x: Val, indices: Val) -> Val:
    """MXNet lists coordinates along the first dimension, the standard along the last."""
    turned = e.transpose(e.cast(indices, "int64"), [*range(1, indices.rank), 0])
    return e.op("GatherND", x, turned)


@MXNET.op("one_hot")
def one_hot(e: Emit, use: OpUse, indices: Val) -> Val:
    values = e.constant([use.number("off_value", default=0.0), use.number("on_value", default=1.0)], _dtype(use))
    depth = use.integer("depth")
    checked_shape((*indices.shape, depth))
    return e.op("OneHot", integral(e, indices), e.ints([depth]), values)


@MXNET.op("SequenceMask")
def sequence_mask(e: Emit, use: OpUse, x: Val, lengths: Val | None = None) -> Val:
    """Steps from a sequence's length on are replaced by a number."""
    axis, fill = use.integer("axis", default=0), use.number("value", default=0.0)
    if not use.flag("use_sequence_length") or lengths is None:
        return x
    if axis not in (0, 1) or x.rank < 2 or x.shape[axis] > 1 << 20:
        raise Unmapped
    steps = np.arange(x.shape[axis]).astype(np.float32)
    steps = steps.reshape((-1, 1) if axis == 0 else (1, -1))
    each = (1, lengths.shape[0]) if axis == 0 else (lengths.shape[0], 1)
    inside = e.op("Less", e.constant(steps), e.reshape(e.cast(lengths, "float32"), each))
    return e.where(aligned(e, x, inside, 0), x, e.scalar_like(fill, x))


# Reductions.


def _reduction(op: str) -> TranslationRule:
    def reduction_rule(e: Emit, use: OpUse, x: Val) -> Val:
        """A reduction over everything leaves one element in one dimension."""
        axes = [axis_of(x, a) for a in use.integers("axis", default=())] or list(range(x.rank))
        if use.flag("exclude"):
            axes = [a for a in range(x.rank) if a not in axes]
        found = reduced(e, op, x, axes, use.flag("keepdims"))
        return found if found.rank else e.reshape(found, (1,))

    return reduction_rule


MXNET.rows(
    _reduction,
    {
        "ReduceSum": "sum sum_axis nansum",
        "ReduceMean": "mean",
        "ReduceMax": "max max_axis",
        "ReduceMin": "min min_axis",
        "ReduceProd": "prod",
    },
)


@MXNET.op("norm")
def norm(e: Emit, use: OpUse, x: Val) -> Val:
    op = {1: "ReduceL1", 2: "ReduceL2"}[use.integer("ord", default=2)]
    found: Val = _reduction(op)(e, use, x)
    return e.cast(found, dtype_of(use.text("out_dtype", default=x.dtype)))


@MXNET.op("argmax", "argmin")
def arg_max(e: Emit, use: OpUse, x: Val) -> Val:
    op = "ArgMax" if use.op == "argmax" else "ArgMin"
    return e.cast(arg_extreme(e, op, x, use.maybe_integer("axis"), use.flag("keepdims")), x.dtype)


# Sources of numbers.


@MXNET.op("_zeros", "_ones", "_full", "zeros", "ones", "full")
def constant_fill(e: Emit, use: OpUse) -> Val:
    return filled(e, use.integers("shape"), _fill_number(use, "value", "fill_value"), _dtype(use))


@MXNET.op("zeros_like", "ones_like", "full_like")
def fill_like(e: Emit, use: OpUse, x: Val) -> Val:
    return filled(e, x.shape, _fill_number(use, "fill_value", "value"), x.dtype)


def _fill_number(use: OpUse, *names: str) -> float:
    if "full" in use.op:
        return use.number(*names)
    return 1.0 if "ones" in use.op else 0.0


@MXNET.op("_arange")
def arange(e: Emit, use: OpUse) -> Val:
    start, stop, step = use.number("start", default=0.0), use.raw(("stop",)), use.number("step", default=1.0)
    times = use.integer("repeat", default=1)
    start, stop = (0.0, start) if stop is None else (start, float(stop))
    count = max(0, math.ceil((stop - start) / step))
    if times != 1 or count > 1 << 20:
        raise Unmapped
    return literal(e, start + step * np.arange(count), (count,), _dtype(use))


@MXNET.op("_random_uniform", "random_uniform", "uniform")
def random_uniform(e: Emit, use: OpUse) -> Val:
    low, high = use.number("low", default=0.0), use.number("high", default=1.0)
    return random(e, "RandomUniform", use, _dtype(use), low=low, high=high)


@MXNET.op("_random_normal", "random_normal", "normal")
def random_normal(e: Emit, use: OpUse) -> Val:
    mean, deviation = use.number("loc", default=0.0), use.number("scale", default=1.0)
    return random(e, "RandomNormal", use, _dtype(use), mean=mean, scale=deviation)


# Attributes that concern speed and memory, repeat what the inputs say, or are defaults without a counterpart. Indices
# out of range have no defined result, so both ways to treat them are left out.
MXNET.harmless(
    {
        "FullyConnected": "no_bias",
        "dense": "use_bias",
        "Convolution Convolution_v1 Deconvolution": "no_bias workspace",
        "conv2d": "use_bias kernel_layout=OIHW out_layout=__undef__ out_dtype=same",
        "Pooling Pooling_v1": "p_value",
        "max_pool2d avg_pool2d": "out_layout=__undef__",
        "BatchNorm BatchNorm_v1 CuDNNBatchNorm": "min_calib_range max_calib_range",
        "LayerNorm GroupNorm": "output_mean_var=0",
        "LeakyReLU": "lower_bound upper_bound",
        "Embedding": "dtype sparse_grad",
        "softmax log_softmax softmin": "use_length=0",
        "MakeLoss make_loss": "valid_thresh",
        "RNN": "num_layers mode lstm_state_clip_min lstm_state_clip_max lstm_state_clip_nan",
        "dot": "forward_stype",
        "batch_dot": "forward_stype",
        "_linalg_gemm2 linalg_gemm2": "axis=-2",
        "take pick batch_take choose_element_0index": "mode=clip mode=raise",
        "Reshape reshape": "target_shape keep_highest=0",
        "stack Concat concat concatenate _rnn_param_concat add_n ElementWiseSum elemwise_sum _sum_n": "num_args",
        "UpSampling": "num_args num_filter workspace multi_input_mode",
        "_arange": "infer_range=0",
        f"smooth_l1 {' '.join(_SCALARS.values())}": "is_int",
        " ".join(_REVERSED.values()): "is_int",
    }
)
