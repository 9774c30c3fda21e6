"""Op table of Caffe2: translations to standard and `remat` ops.

Semantics: Caffe2 operator catalogue and the schemas in caffe2/operators.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from graph.builder.emit import Emit
from graph.formats.shared import elementwise, layers, reshaping
from graph.formats.shared.attributes import number
from graph.formats.shared.elementwise import squared, unary, variadic, with_attributes
from graph.formats.shared.op_helpers import (
    arg_extreme,
    axis_of,
    checked_shape,
    filled,
    integral,
    known_integers,
    literal,
    opaque,
    random,
    reduced,
    same_each,
    scaled,
)
from graph.formats.shared.op_table import OpTable, OpUse, TranslationRule, Unmapped
from graph.ir import TensorType, Val

CAFFE2 = OpTable(
    "caffe2",
    "is_test order=NCHW use_cudnn cudnn_exhaustive_search exhaustive_search ws_nbytes_limit shared_buffer "
    "enable_tensor_core float16_compute deterministic force_algo_fwd force_algo_dgrad force_algo_wgrad",
)

#: TensorProto.DataType of Caffe2.
DTYPES = {
    1: "float32",
    2: "int32",
    3: "uint8",
    5: "bool",
    6: "uint8",
    7: "int8",
    8: "uint16",
    9: "int16",
    10: "int64",
    12: "float16",
    13: "float64",
}
MAX_FLOAT = 3.4028234e38


def dtype_of(number: int) -> str:
    """Element type by Caffe2's number. Raises Unmapped for strings and other non-numeric types."""
    if number not in DTYPES:
        raise Unmapped
    return DTYPES[number]


def _check_order(use: OpUse) -> None:
    if use.text("order", default="NCHW") != "NCHW":
        raise Unmapped


# Elementwise ops.

_SAME_NAME = "Relu Tanh Sigmoid Exp Log Sqrt Abs Sign Softsign Softplus Sin Cos Floor Ceil Not Reciprocal Erf"


def _broadcast_axis(use: OpUse) -> int:
    """Ranks are aligned at the end, or with `broadcast` from `axis` on."""
    axis = use.integer("axis", default=-1)
    return axis if use.flag("broadcast") else -1


_UNARY = {
    **{name: name for name in _SAME_NAME.split()},
    "Neg": "Negative",
    "Identity": "Alias EnsureCPUOutput EnsureDense",
    # Copies between devices are identities that write: a copy has bytes of its own.
    "remat::Copy": "Copy CopyGPUToCPU CopyCPUToGPU CopyGPUToGPU CopyToCPU CopyFromCPUInput",
}
_BINARY = {
    **{name: name for name in ("Add", "Sub", "Mul", "Div", "And", "Or", "Xor")},
    "Equal": "EQ",
    "NotEqual": "NE",
    "Less": "LT",
    "LessOrEqual": "LE",
    "Greater": "GT",
    "GreaterOrEqual": "GE",
}
CAFFE2.rows(unary, _UNARY)
CAFFE2.rows(partial(elementwise.binary, axis=_broadcast_axis), _BINARY)
CAFFE2.rows(variadic, {name: name for name in ("Sum", "Max", "Min", "Mean")})
CAFFE2.rules_of(
    {
        **{name: unary(name) for name in ("Gelu", "Shape", "Size")},
        "StopGradient": unary("remat::StopGradient"),
        "Sqr": elementwise.square,
        "Rsqrt": elementwise.rsqrt,
        "Clip": elementwise.clip(number("min", default=-MAX_FLOAT), number("max", default=MAX_FLOAT)),
        "LeakyRelu": with_attributes("LeakyRelu", alpha=number("alpha", default=0.01)),
        "Elu": with_attributes("Elu", alpha=number("alpha", default=1.0)),
        "Selu": with_attributes(
            "Selu", alpha=number("alpha", default=1.6732632423543772), gamma=number("scale", default=1.0507009873554805)
        ),
        "PRelu": elementwise.prelu,
        "Swish": elementwise.swish,
        "Where": elementwise.where,
        "Cube": lambda e, use, x: e.mul(squared(e, x), x),
        "NegateGradient": lambda e, use, x: e.op("remat::GradientScale", x, scale=-1.0),
        "Cast": lambda e, use, x: e.cast(x, dtype_of(use.integer("to"))),
        "Scale": lambda e, use, x: scaled(e, x, use.number("scale", default=1.0)),
        "FloatToHalf HalfToFloat": lambda e, use, x: e.cast(x, "float16" if use.op == "FloatToHalf" else "float32"),
    }
)


@CAFFE2.op("WeightedSum")
def weighted_sum(e: Emit, use: OpUse, *pairs: Val) -> Val:
    return e.op("Sum", *(e.mul(x, w) for x, w in zip(pairs[::2], pairs[1::2], strict=True)))


@CAFFE2.op("Pow")
def power(e: Emit, use: OpUse, x: Val, exponent: Val | None = None) -> Val:
    axis = _broadcast_axis(use)
    if exponent is None:
        return e.op("Pow", x, e.scalar_like(use.number("exponent"), x))
    return e.op("Pow", x, elementwise.aligned(e, x, exponent, axis))


# Layers.

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


def _window(use: OpUse, x: Val) -> dict[str, Any]:
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
    window = _window(use, x)
    del window["kernel_shape"]
    op = "ConvTranspose" if use.op == "ConvTranspose" else "Conv"
    if op == "ConvTranspose":
        window["output_padding"] = _each(use, "adj", x.rank - 2, 0)
    return layers.convolution(e, op, x, w, bias, use.integer("group", default=1), **window)


@CAFFE2.op(*(f"{kind}Pool{rank}" for kind in ("Max", "Average") for rank in ("", "1D", "2D", "3D")))
def pool(e: Emit, use: OpUse, x: Val) -> Val:
    op = "MaxPool" if use.op.startswith("Max") else "AveragePool"
    window, counted = _window(use, x), use.flag("count_include_pad")
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


# Shapes.

CAFFE2.rules_of(
    {
        "ResizeLike": reshaping.reshape_like,
        "Transpose": reshaping.transpose,
        "Squeeze": lambda e, use, x: reshaping.without_axes(e, x, use.integers("dims")),
    }
)


@CAFFE2.op("Flatten", "FlattenToVec")
def flatten(e: Emit, use: OpUse, x: Val) -> Val:
    if use.op == "FlattenToVec":
        return reshaping.reshaped(e, x, [math.prod(x.shape)])
    return e.op("Flatten", x, axis=use.integer("axis", default=1))


@CAFFE2.op("Reshape")
def reshape(e: Emit, use: OpUse, x: Val, shape: Val | None = None) -> tuple[Val, ...]:
    """The value, and the shape it had."""
    codes = use.integers("shape", default=())
    if shape is not None and not codes:
        codes = known_integers(e, shape)
    y = reshaping.reshaped(e, x, reshaping.decoded_shape(x.shape, codes))
    return y, e.op("Identity", e.ints(x.shape))


@CAFFE2.op("ExpandDims")
def expand_dims(e: Emit, use: OpUse, x: Val) -> Val:
    dims = sorted(use.integers("dims"))
    if dims and dims[0] < 0:
        raise ValueError(f"dimension {dims[0]} of {x.type}")
    return reshaping.with_axes(e, x, dims)


@CAFFE2.op("NCHW2NHWC", "NHWC2NCHW")
def layout(e: Emit, use: OpUse, x: Val) -> Val:
    if use.op == "NCHW2NHWC":
        return e.op("Transpose", x, perm=[0, *range(2, x.rank), 1])
    return e.op("Transpose", x, perm=[0, x.rank - 1, *range(1, x.rank - 1)])


@CAFFE2.op("Concat", "DepthConcat")
def concat(e: Emit, use: OpUse, *parts: Val) -> tuple[Val, ...]:
    """The value, and the length of each part along the axis."""
    axis = 1 if use.op == "DepthConcat" else _channel_axis(use, parts[0])
    if use.op == "Concat" and use.flag("add_axis"):
        axis %= parts[0].rank + 1
        parts = tuple(reshaping.with_axes(e, x, [axis]) for x in parts)
    axis = axis_of(parts[0], axis)
    joined = e.op("Concat", *parts, axis=axis)
    if use.outputs == 1:
        return (joined,)
    return joined, e.op("Identity", e.constant([x.shape[axis] for x in parts], "int32"))


def _channel_axis(use: OpUse, x: Val) -> int:
    """The attribute `axis`; without it the axis of channels in the order of the op."""
    return use.integer("axis", default=1 if use.text("order", default="NCHW") == "NCHW" else x.rank - 1)


@CAFFE2.op("Split", "DepthSplit")
def split(e: Emit, use: OpUse, x: Val, lengths: Val | None = None) -> tuple[Val, ...]:
    axis = axis_of(x, _channel_axis(use, x))
    sizes = use.integers("split", default=()) if lengths is None else known_integers(e, lengths)
    return reshaping.split(e, x, use.outputs, axis, sizes or None)


@CAFFE2.op("Slice")
def slice_(e: Emit, use: OpUse, x: Val, starts: Val | None = None, ends: Val | None = None) -> Val:
    """Ends of -1 reach to the end, -2 leave one out, and so on."""
    if starts is not None and ends is not None:
        begin, end = known_integers(e, starts), known_integers(e, ends)
    else:
        begin, end = use.integers("starts"), use.integers("ends")
    stops = [n + x.shape[i] + 1 if n < 0 else n for i, n in enumerate(end)]
    return reshaping.sliced(e, x, range(len(begin)), begin, stops, [1] * len(begin))


@CAFFE2.op("Tile")
def tile(e: Emit, use: OpUse, x: Val) -> Val:
    axis, times = axis_of(x, use.integer("axis", default=0)), use.integer("tiles", default=1)
    return reshaping.tiled(e, x, [times if i == axis else 1 for i in range(x.rank)])


@CAFFE2.op("Gather", "BatchGather")
def gather(e: Emit, use: OpUse, x: Val, indices: Val) -> Val:
    return layers.gather(e, x, indices, 1 if use.op == "BatchGather" else use.integer("axis", default=0))


@CAFFE2.op("OneHot")
def one_hot(e: Emit, use: OpUse, indices: Val, size: Val) -> Val:
    known_integers(e, size)
    return e.op("OneHot", indices, e.reshape(size, (1,)), e.constant([0, 1], "uint8"))


@CAFFE2.op("PadImage")
def pad_image(e: Emit, use: OpUse, x: Val) -> Val:
    rank, pads = x.rank - 2, _window(use, x)["pads"]
    mode, value = use.text("mode", default="constant"), use.number("value", default=0.0)
    return reshaping.pad(e, x, [0, 0, *pads[:rank], 0, 0, *pads[rank:]], mode, value)


@CAFFE2.op("ResizeNearest", "UpsampleNearest")
def resize_nearest(e: Emit, use: OpUse, x: Val) -> Val:
    both = use.number("scale", default=1.0)
    height, width = use.number("height_scale", default=both), use.number("width_scale", default=both)
    return reshaping.resize_nearest(e, x, height, width)


# Reductions.


def _reduction(op: str) -> TranslationRule:
    def reduction_rule(e: Emit, use: OpUse, x: Val) -> Val:
        axes = use.integers("axes", default=()) or range(x.rank)
        return reduced(e, op, x, axes, use.flag("keepdims", default=True))

    return reduction_rule


def _end_reduction(op: str) -> TranslationRule:
    """Reduction of the first or last dimensions."""

    def end_reduction_rule(e: Emit, use: OpUse, x: Val) -> Val:
        many = use.integer("num_reduce_dim", default=1)
        return reduced(e, op, x, range(many) if "Front" in use.op else range(x.rank - many, x.rank))

    return end_reduction_rule


CAFFE2.rows(_reduction, {f"Reduce{name}": f"Reduce{name}" for name in ("Sum", "Mean", "Max", "Min", "L1", "L2")})
CAFFE2.rows(_end_reduction, {f"Reduce{name}": f"ReduceFront{name} ReduceBack{name}" for name in ("Sum", "Mean", "Max")})


@CAFFE2.op("SumElements", "AveragedLoss", "SumSqrElements")
def reduce_all(e: Emit, use: OpUse, x: Val) -> Val:
    """One element without dimensions."""
    mean = use.op == "AveragedLoss" or use.flag("average")
    if use.op == "SumSqrElements":
        x = squared(e, x)
    return reduced(e, "ReduceMean" if mean else "ReduceSum", x, range(x.rank))


@CAFFE2.op("ArgMax", "ArgMin")
def arg_max(e: Emit, use: OpUse, x: Val) -> Val:
    return arg_extreme(e, use.op, x, use.integer("axis", default=-1), use.flag("keepdims", default=True))


# Fills.

GIVEN_DTYPES = {
    "GivenTensorFill": "float32",
    "GivenTensorByteStringToUInt8Fill": "uint8",
    "GivenTensorInt16Fill": "int16",
    "GivenTensorIntFill": "int32",
    "GivenTensorInt64Fill": "int64",
    "GivenTensorBoolFill": "bool",
    "GivenTensorDoubleFill": "float64",
}


@CAFFE2.op("ConstantFill", "Const")
def constant_fill(e: Emit, use: OpUse, like: Val | None = None) -> Val:
    """A shape of its own, of an input, or the content of an input."""
    dtype = dtype_of(use.integer("dtype", default=1))
    shape, extra = use.integers("shape", default=()), use.integers("extra_shape", default=())
    if use.flag("input_as_shape") and like is not None:
        shape = known_integers(e, like)
    elif like is not None:
        shape = (*like.shape, *extra)
    return filled(e, shape, use.number("value", default=0.0), dtype)


@CAFFE2.op(*GIVEN_DTYPES)
def given_tensor_fill(e: Emit, use: OpUse) -> Val:
    dtype, shape = GIVEN_DTYPES[use.op], checked_shape(use.integers("shape"))
    numbers, count = use.raw(("values",)), math.prod(shape)
    if not isinstance(numbers, list | tuple) or len(numbers) != count or count > 1 << 16:
        return filled(e, shape, 0, dtype)
    return literal(e, numbers, shape, dtype)


@CAFFE2.op("UniformFill")
def uniform_fill(e: Emit, use: OpUse) -> Val:
    return random(e, "RandomUniform", use, low=use.number("min", default=0.0), high=use.number("max", default=1.0))


@CAFFE2.op("XavierFill")
def xavier_fill(e: Emit, use: OpUse) -> Val:
    limit = math.sqrt(3 / _fan_in(use))
    return random(e, "RandomUniform", use, low=-limit, high=limit)


@CAFFE2.op("GaussianFill", "MSRAFill")
def gaussian_fill(e: Emit, use: OpUse) -> Val:
    deviation = use.number("std", default=1.0) if use.op == "GaussianFill" else math.sqrt(2 / _fan_in(use))
    return random(e, "RandomNormal", use, mean=use.number("mean", default=0.0), scale=deviation)


def _fan_in(use: OpUse) -> int:
    return math.prod(use.integers("shape")[1:]) or 1


def fill_type(op: str, use: OpUse) -> TensorType | None:
    """Output type of a fill op of an init net, from its arguments alone; None for other ops."""
    if op in GIVEN_DTYPES:
        return TensorType(GIVEN_DTYPES[op], checked_shape(use.integers("shape")))
    if op in ("UniformFill", "XavierFill", "MSRAFill", "GaussianFill"):
        return TensorType("float32", checked_shape(use.integers("shape")))
    if op in ("ConstantFill", "UniformIntFill", "UniqueUniformFill"):
        known = dtype_of(use.integer("dtype", default=1 if op == "ConstantFill" else 2))
        return TensorType(known, checked_shape(use.integers("shape", default=())))
    return None


# Attributes that concern speed and memory, or repeat what the inputs say.
_ELEMENTWISE = "Relu Sigmoid Tanh LeakyRelu Elu Selu PRelu Swish Gelu Sum Max Min Mean Add Sub Mul Div Copy Alias"
CAFFE2.harmless(
    {
        _ELEMENTWISE: "order",
        "Conv Conv1D Conv2D Conv3D ConvTranspose": "no_bias",
        "BatchMatMul": "broadcast use_scratch",
        "SpatialBN": "num_batches=1",
        "LayerNorm": "elementwise_affine",
        "LSTMUnit GRUUnit": "hidden_size",
        "SoftmaxWithLoss": "only_loss average_by_batch_size=0",
        "Cast": "from_type",
        "ConstantFill": "run_once",
    }
)
