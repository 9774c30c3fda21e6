"""Op table of Paddle: translations to standard and `remat` ops.

Programs name an op's inputs and outputs by slot; `SLOTS` defines their order in the rules. Semantics: the op
definitions of Paddle 1.x to 2.x (framework.proto programs), and the PIR dialect `pd_op` of 3.x, with positional
operands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from graph.builder.emit import Emit
from graph.formats.shared import elementwise, layers, reshaping
from graph.formats.shared.attributes import number
from graph.formats.shared.elementwise import aligned, squared, unary, variadic, with_attributes, with_scalar
from graph.formats.shared.op_helpers import (
    arg_extreme,
    axis_of,
    checked_shape,
    filled,
    integral,
    known_integers,
    literal,
    random,
    reduced,
    same_each,
    scaled,
    shifted,
)
from graph.formats.shared.op_table import OpTable, OpUse, TranslationRule, Unmapped
from graph.ir import DTYPE_BITS, FLOAT_DTYPES, Val
from graph.ops.training.seeded_random import SEED_TYPE

PADDLE = OpTable(
    "paddle",
    "op_role op_role_var op_namescope op_callstack op_creation_stack op_device op_struct_name struct_name name place "
    "stop_gradient persistable is_persistable is_persisable chunk_id comp_op_name force_cpu place_type "
    "with_quant_attr=0 use_mkldnn use_onednn mkldnn_data_type use_quantizer=0 use_cudnn is_test recompute_checkpoint",
)

#: VarType.Type numbers of element types.
DTYPES = {
    0: "bool",
    1: "int16",
    2: "int32",
    3: "int64",
    4: "float16",
    5: "float32",
    6: "float64",
    20: "uint8",
    21: "int8",
    22: "bfloat16",
    23: "complex64",
    24: "complex128",
    32: "float8e4m3fn",
    33: "float8e5m2",
}

DTYPE_NUMBERS = {name: number for number, name in DTYPES.items()}
#: Input and output slots in the order of the rules, and the ops that have them; `*` marks a slot with several names.
#: Other ops have the slots X and Out.
_SLOTS: dict[tuple[str, str], str] = {
    ("X Y", "Out"): (
        "mul matmul matmul_v2 bmm mv dot minus equal not_equal less_than less_equal greater_than greater_equal "
        "logical_and logical_or logical_xor Add Sub Mul Div Pow share_data expand_as_v2 square_error_cost swiglu"
    ),
    ("X*", "Out"): "sum concat add_n",
    ("X*", "Y"): "stack",
    ("X", "Out*"): "split",
    ("X", "Y*"): "unstack",
    ("X", "Out XShape"): "flatten2 flatten_contiguous_range squeeze2 transpose2 unsqueeze2",
    ("X", "Out Indices"): "top_k_v2",
    ("X Shape", "Out XShape"): "reshape2",
    ("X Shape", "Out"): "reshape expand_v2",
    ("X Index", "Out"): "gather gather_nd",
    ("X Alpha", "Out"): "prelu",
    ("X Label", "Out"): "sigmoid_cross_entropy_with_logits",
    ("X Label", "Y"): "cross_entropy",
    ("X Label", "Y XShape MatchX"): "cross_entropy2",
    ("Logits Label", "Loss Softmax"): "softmax_with_cross_entropy",
    ("X Seed", "Out Mask"): "dropout",
    ("X Scale", "Y InvVar"): "rms_norm",
    ("X Scale Bias", "Y Mean Variance"): "group_norm layer_norm",
    ("X Scale Bias", "Y SavedMean SavedVariance"): "instance_norm",
    ("X Scale Bias Mean Variance", "Y MeanOut VarianceOut SavedMean SavedVariance"): "batch_norm sync_batch_norm",
    ("Input Filter Bias", "Output"): "conv2d depthwise_conv2d conv3d conv2d_transpose",
    ("Input W Bias", "Out"): "fc",
    ("Input", "Out"): "fill_constant_batch_size_like slice strided_slice",
    ("W Ids", "Out"): "lookup_table lookup_table_v2 embedding",
    ("Condition X Y", "Out"): "where",
    ("Start End Step", "Out"): "range",
    ("ShapeTensor", "Out"): "fill_constant",
    ("", "Out"): "seed",
}
SLOTS = {op: slots for slots, ops in _SLOTS.items() for op in ops.split()}


def slots_of(type: str) -> tuple[list[str], list[str]]:
    """(input slots, output slots) of an op type in the order its rule takes them."""
    inputs, outputs = SLOTS.get(type, ("X Y" if type.startswith("elementwise_") else "X", "Out"))
    return inputs.split(), outputs.split()


def dtype_of(word: Any) -> str:
    """An element type by Paddle's number or name. Raises ValueError."""
    if isinstance(word, str) and not word.lstrip("-").isdigit():
        name = word.removeprefix("paddle.").lower()
        if name not in DTYPE_BITS:
            raise ValueError(f"element type {word!r}")
        return name
    if int(word) not in DTYPES:
        raise ValueError(f"element type {word!r}")
    return DTYPES[int(word)]


def _dtype(use: OpUse, default: str) -> str:
    """The attribute `dtype`; -1 and "undefined" stand for the default."""
    raw = use.raw(("dtype",))
    return default if raw in (None, -1, "-1", "undefined") else dtype_of(raw)


def _check_layout(use: OpUse, *names: str, layouts: Sequence[str] = ("NCHW", "AnyLayout")) -> None:
    if use.text(*names, default="NCHW") not in layouts:
        raise Unmapped


# Elementwise ops.


def _axis(use: OpUse) -> int:
    return use.integer("axis", default=-1)


_UNARY = {
    **elementwise.capitalized(
        "relu tanh sigmoid exp log sqrt abs sign floor ceil round softsign sin cos reciprocal erf mish"
    ),
    "Identity": "assign c_identity",
    "Not": "logical_not",
}
_BINARY = {
    "Add": "elementwise_add Add",
    "Sub": "elementwise_sub minus Sub",
    "Mul": "elementwise_mul Mul",
    "Div": "elementwise_div Div",
    "Pow": "elementwise_pow Pow",
    "Max": "elementwise_max",
    "Min": "elementwise_min",
    "Equal": "equal",
    "NotEqual": "not_equal",
    "Less": "less_than",
    "LessOrEqual": "less_equal",
    "Greater": "greater_than",
    "GreaterOrEqual": "greater_equal",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
}
PADDLE.rows(unary, _UNARY)
PADDLE.rows(partial(elementwise.binary, axis=_axis), _BINARY)
PADDLE.rows(lambda op: with_scalar(op, number("scalar")), {op: f"{op}Scalar" for op in ("Add", "Sub", "Mul")})

PADDLE.rules_of(
    {
        "elementwise_mod": elementwise.binary("Mod", _axis),
        "increment": with_scalar("Add", number("step", "value", default=1.0)),
        "pow": with_scalar("Pow", number("factor", "y", default=1.0)),
        "RSubScalar": with_scalar("Sub", number("scalar"), reverse=True),
        "sum add_n": variadic("Sum"),
        "square": elementwise.square,
        "rsqrt": elementwise.rsqrt,
        "swish": elementwise.swish,
        "clip": elementwise.clip(number("min"), number("max")),
        "relu6": elementwise.clip(lambda use: 0, number("threshold", default=6.0)),
        "leaky_relu": with_attributes("LeakyRelu", alpha=number("alpha", "negative_slope", default=0.02)),
        "elu": with_attributes("Elu", alpha=number("alpha", default=1.0)),
        "hard_sigmoid": with_attributes(
            "HardSigmoid", alpha=number("slope", default=0.2), beta=number("offset", default=0.5)
        ),
        "gelu": lambda e, use, x: e.op("Gelu", x, approximate="tanh" if use.flag("approximate") else "none"),
        "silu": lambda e, use, x: e.mul(x, e.op("Sigmoid", x)),
        "where": lambda e, use, condition, x, y: e.where(condition, x, y),
    }
)


@PADDLE.op("softplus")
def softplus(e: Emit, use: OpUse, x: Val) -> Val:
    """log(1 + exp(beta · x)) / beta; x where beta · x is above the threshold."""
    beta, threshold = use.number("beta", default=1.0), use.number("threshold", default=20.0)
    inner = scaled(e, x, beta)
    smooth = scaled(e, e.op("Softplus", inner), 1 / beta)
    if threshold >= 20:  # the two agree to rounding
        return smooth
    return e.where(e.op("Greater", inner, e.scalar_like(threshold, x)), x, smooth)


@PADDLE.op("hard_swish")
def hard_swish(e: Emit, use: OpUse, x: Val) -> Val:
    """x · clip(x + offset, 0, threshold) / scale."""
    numbers = [use.number(name, default=default) for name, default in (("offset", 3), ("threshold", 6), ("scale", 6))]
    if numbers == [3, 6, 6]:
        return e.op("HardSwish", x)
    offset, threshold, divisor = numbers
    gate = e.op("Clip", shifted(e, x, offset), e.scalar_like(0, x), e.scalar_like(threshold, x))
    return scaled(e, e.mul(x, gate), 1 / divisor)


@PADDLE.op("scale")
def scale(e: Emit, use: OpUse, x: Val) -> Val:
    """scale · x + bias, or scale · (x + bias)."""
    factor, bias = use.number("scale", default=1.0), use.number("bias", default=0.0)
    if use.flag("bias_after_scale", default=True):
        return shifted(e, scaled(e, x, factor), bias)
    return scaled(e, shifted(e, x, bias), factor)


@PADDLE.op("swiglu")
def swiglu(e: Emit, use: OpUse, x: Val, y: Val | None = None) -> Val:
    if y is None:
        x, y = reshaping.split(e, x, 2, -1)
    return e.mul(e.mul(x, e.op("Sigmoid", x)), y)


@PADDLE.op("prelu")
def prelu(e: Emit, use: OpUse, x: Val, slope: Val | None = None) -> Val:
    return e.op("PRelu", x, aligned(e, x, slope, 1) if slope is not None and slope.rank == 1 else slope)


@PADDLE.op("cast")
def cast(e: Emit, use: OpUse, x: Val) -> Val:
    raw = use.raw(("out_dtype", "dtype"))
    if raw is None:
        raise ValueError("attribute out_dtype is missing")
    return e.cast(x, dtype_of(raw))


# Layers.

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


# Shapes. Ops whose name ends in 2 also return the shape they had, which is not needed.

PADDLE.rules_of(
    {
        "stack": reshaping.stack,
        "gather_nd": lambda e, use, x, index: e.op("GatherND", x, e.cast(index, "int64")),
        "tile": lambda e, use, x: reshaping.tiled(e, x, use.integers("repeat_times")),
        "unsqueeze unsqueeze2": lambda e, use, x: reshaping.with_axes(e, x, use.integers("axes", "axis", default=())),
        "shape": lambda e, use, x: e.cast(e.op("Shape", x), "int32"),
    }
)


@PADDLE.op("reshape", "reshape2")
def reshape(e: Emit, use: OpUse, x: Val, shape: Val | None = None) -> Val:
    if shape is None or e.known(shape) is None:
        codes = use.integers("shape", default=())
    else:
        codes = known_integers(e, shape)
    if not codes and shape is not None:
        return reshaping.reshaped(e, x, use.output_type().shape)
    return reshaping.reshaped(e, x, reshaping.decoded_shape(x.shape, codes))


@PADDLE.op("flatten", "flatten2", "flatten_contiguous_range")
def flatten(e: Emit, use: OpUse, x: Val) -> Val:
    if use.op != "flatten_contiguous_range" and "start_axis" not in use:
        return e.op("Flatten", x, axis=use.integer("axis", default=1))
    start, stop = (axis_of(x, use.integer(f"{end}_axis", default=d)) for end, d in (("start", 1), ("stop", -1)))
    return reshaping.reshaped(e, x, (*x.shape[:start], math.prod(x.shape[start : stop + 1]), *x.shape[stop + 1 :]))


@PADDLE.op("transpose", "transpose2")
def transpose(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("Transpose", x, perm=[axis_of(x, a) for a in use.integers("axis", "perm")])


@PADDLE.op("squeeze", "squeeze2")
def squeeze(e: Emit, use: OpUse, x: Val) -> Val:
    axes = [axis_of(x, a) for a in use.integers("axes", "axis", default=())] or range(x.rank)
    return _single(e, use, reshaping.without_axes(e, x, [a for a in axes if x.shape[a] == 1]))


@PADDLE.op("concat")
def concat(e: Emit, use: OpUse, *parts: Val) -> Val:
    return e.op("Concat", *parts, axis=axis_of(parts[0], use.integer("axis", default=0)))


@PADDLE.op("split", "unstack")
def split(e: Emit, use: OpUse, x: Val) -> tuple[Val, ...]:
    axis = axis_of(x, use.integer("axis", default=0))
    sections = list(use.integers("sections", default=()))
    if sections.count(-1) == 1:
        sections[sections.index(-1)] = x.shape[axis] - sum(sections) - 1
    count = use.integer("num", default=0) or len(sections) or use.outputs
    parts = reshaping.split(e, x, count, axis, sections or None)
    if use.op == "unstack":
        return tuple(reshaping.without_axes(e, part, [axis]) for part in parts)
    return parts


@PADDLE.op("slice", "strided_slice")
def slice_(e: Emit, use: OpUse, x: Val) -> Val:
    axes, begin, end = use.integers("axes"), use.integers("starts"), use.integers("ends")
    steps = use.integers("strides", default=()) or (1,) * len(axes)
    found = reshaping.sliced(e, x, axes, begin, end, steps)
    dropped = [axis_of(x, d) for d in use.integers("decrease_axis", default=())]
    return _single(e, use, reshaping.without_axes(e, found, dropped)) if dropped else found


@PADDLE.op("expand_v2", "expand_as_v2")
def expand(e: Emit, use: OpUse, x: Val, like: Val | None = None) -> Val:
    if use.op == "expand_as_v2" and like is not None:
        return e.expand(x, like.shape)
    codes = use.integers("shape")
    lengths = [x.shape[i + x.rank - len(codes)] if n == -1 else n for i, n in enumerate(codes)]
    return e.expand(x, checked_shape(lengths))


@PADDLE.op("gather")
def gather(e: Emit, use: OpUse, x: Val, index: Val) -> Val:
    flat = e.reshape(index, (index.shape[0],)) if index.rank == 2 and index.shape[1] == 1 else index
    return e.op("Gather", x, flat, axis=axis_of(x, use.integer("axis", default=0)))


@PADDLE.op("one_hot", "one_hot_v2")
def one_hot(e: Emit, use: OpUse, x: Val) -> Val:
    depth = use.integer("depth", "num_classes")
    if use.op == "one_hot" and x.rank > 1 and x.shape[-1] == 1:
        x = e.reshape(x, x.shape[:-1])
    checked_shape((*x.shape, depth))
    return e.op("OneHot", integral(e, x), e.ints([depth]), e.constant([0, 1], _dtype(use, "float32")))


@PADDLE.op("top_k_v2", "topk")
def top_k(e: Emit, use: OpUse, x: Val) -> tuple[Val, ...]:
    count, axis = e.ints([use.integer("k", default=1)]), use.integer("axis", default=-1)
    largest = int(use.flag("largest", default=True))
    return e.op("TopK", x, count, outputs=2, axis=axis, largest=largest)


@PADDLE.op("cumsum")
def cumsum(e: Emit, use: OpUse, x: Val) -> Val:
    if use.flag("flatten"):
        raise Unmapped
    axis = e.constant(use.integer("axis", default=-1), "int64")
    return e.op("CumSum", x, axis, exclusive=int(use.flag("exclusive")), reverse=int(use.flag("reverse")))


# Reductions.


def _reduction(op: str) -> TranslationRule:
    def reduction_rule(e: Emit, use: OpUse, x: Val) -> Val:
        return _reduced(e, use, op, x, use.integers("dim", "axis", default=()), use.flag("reduce_all"))

    return reduction_rule


def _reduced(e: Emit, use: OpUse, op: str, x: Val, axes: Sequence[int], reduce_all: bool = False) -> Val:
    """Reduction over the axes, or over all."""
    axes = range(x.rank) if reduce_all or not axes else axes
    x = e.cast(x, _dtype(use, x.dtype))
    return _single(e, use, reduced(e, op, x, axes, use.flag("keep_dim", "keepdim")))


def _single(e: Emit, use: OpUse, x: Val) -> Val:
    """`x`; in one dimension where an older program, which has no others, declares a single element so."""
    declared = use.declared[0] if use.declared else None
    return e.reshape(x, (1,)) if declared is not None and declared.shape == (1,) and x.shape == () else x


PADDLE.rows(
    _reduction,
    {
        "ReduceSum": "reduce_sum",
        "ReduceMean": "reduce_mean",
        "ReduceMax": "reduce_max max",
        "ReduceMin": "reduce_min min",
        "ReduceProd": "reduce_prod prod",
        "ReduceLogSumExp": "logsumexp",
        "ReduceL2": "frobenius_norm",
    },
)
PADDLE.rules_of({"squared_l2_norm": lambda e, use, x: _reduced(e, use, "ReduceSumSquare", x, ())})


@PADDLE.op("arg_max", "arg_min", "argmax", "argmin")
def arg_max(e: Emit, use: OpUse, x: Val) -> Val:
    op, axis = "ArgMax" if "max" in use.op else "ArgMin", use.integer("axis", default=-1)
    if use.flag("flatten"):
        x = e.reshape(x, (math.prod(x.shape),))
    return e.cast(arg_extreme(e, op, x, axis, use.flag("keepdims")), _dtype(use, "int64"))


@PADDLE.op("mean")
def mean(e: Emit, use: OpUse, x: Val) -> Val:
    """Of everything; with `axis` of some dimensions, as the newer dialect has it."""
    return _reduced(e, use, "ReduceMean", x, use.integers("axis", default=()))


@PADDLE.op("p_norm")
def norm(e: Emit, use: OpUse, x: Val) -> Val:
    """Of everything `asvector`, else along `axis`."""
    order, axis = use.number("porder", default=2.0), use.integer("axis", default=-1)
    op = {1.0: "ReduceL1", 2.0: "ReduceL2"}.get(order)
    if op is None:
        raise Unmapped
    return _reduced(e, use, op, x, [axis], use.flag("asvector"))


# Fills.


@PADDLE.op("fill_constant", "full")
def fill_constant(e: Emit, use: OpUse, shape: Val | None = None) -> Val:
    stated = use.integers("shape", default=())
    lengths = stated if shape is None else known_integers(e, shape)
    return filled(e, lengths, _fill_number(use), _dtype(use, "float32"))


def _fill_number(use: OpUse) -> float:
    """The number to fill with; its text takes precedence."""
    text, number = use.text("str_value", default=""), use.number("value", default=0.0)
    return float(text) if text else number


@PADDLE.op("fill_constant_batch_size_like")
def fill_like_batch(e: Emit, use: OpUse, like: Val) -> Val:
    lengths = list(use.integers("shape"))
    lengths[use.integer("output_dim_idx", default=0)] = like.shape[use.integer("input_dim_idx", default=0)]
    return filled(e, lengths, _fill_number(use), _dtype(use, "float32"))


@PADDLE.op("fill_any_like", "full_like", "fill_zeros_like")
def fill_like(e: Emit, use: OpUse, x: Val, *_: Val) -> Val:
    return filled(e, x.shape, use.number("value", default=0.0), _dtype(use, x.dtype))


@PADDLE.op("assign_value")
def assign_value(e: Emit, use: OpUse) -> Val:
    dtype, shape = _dtype(use, "float32"), checked_shape(use.integers("shape"))
    names = ("values", "fp32_values", "fp64_values", "int32_values", "int64_values", "bool_values")
    for numbers in [use.raw((name,)) for name in names]:
        if isinstance(numbers, list | tuple) and len(numbers) == math.prod(shape):
            return literal(e, numbers, shape, dtype)
    raise Unmapped


@PADDLE.op("gaussian_random")
def gaussian_random(e: Emit, use: OpUse) -> Val:
    mean, deviation = use.number("mean", default=0.0), use.number("std", default=1.0)
    return random(e, "RandomNormal", use, _dtype(use, "float32"), mean=mean, scale=deviation)


@PADDLE.op("uniform_random")
def uniform_random(e: Emit, use: OpUse) -> Val:
    low, high = use.number("min", default=-1.0), use.number("max", default=1.0)
    return random(e, "RandomUniform", use, _dtype(use, "float32"), low=low, high=high)


@PADDLE.op("seed")
def seed(e: Emit, use: OpUse) -> Any:
    """The state of a draw: one int32, drawn once and held."""
    return e.op("remat::Seed", seed=use.integer("seed", default=0) or None)


# Attributes that concern speed, memory and quantization that is off, repeat what the inputs say, or are defaults
# without a counterpart. The seed of a random op is that of a plan.
_FUSIONS = (
    "fuse_relu=0 fuse_with_relu=0 fuse_relu_before_depthwise_conv=0 fuse_residual_connection=0 fuse_activation "
    "fuse_alpha fuse_beta Scale_in=1 Scale_out=1 Scale_in_eltwise=1 Scale_weights=[1] Scale_weights=[1.0]"
)
_QUANTIZED = "Scale_x=1 Scale_y=1 Scale_out=1 scale_x=1 scale_y=1 scale_y=[1] scale_y=[1.0] scale_out=1"
PADDLE.harmless(
    {
        " ".join(_BINARY.values()): f"{_QUANTIZED} x_data_format y_data_format",
        "elementwise_mod": f"{_QUANTIZED} x_data_format y_data_format",
        "mul": f"{_QUANTIZED} force_fp32_output",
        "fc": f"{_QUANTIZED} padding_weights=0 ALPHA=1 force_fp32_output enable_int8=0 Scale_in=1 Scale_weights=[1]",
        "matmul": f"{_QUANTIZED} head_number=1 force_fp32_output",
        "matmul_v2": f"{_QUANTIZED} force_fp32_output "
        + " ".join(f"fused_{op}_{end}=[]" for op in ("reshape", "transpose") for end in ("X", "Y", "Out")),
        "lookup_table lookup_table_v2 embedding": "is_sparse sparse is_distributed remote_prefetch trainer_id slot "
        "epmap table_names height_sections entry entry_config grad_inplace",
        "conv2d depthwise_conv2d conv3d conv2d_transpose": f"{_FUSIONS} use_addto workspace_size_MB exhaustive_search "
        "force_fp32_output skip_quant",
        "batch_norm sync_batch_norm": "fuse_with_relu=0 fuse_with_add=0",
        "rms_norm": "quant_scale=-1 quant_round_type quant_max_bound quant_min_bound",
        "dropout": "seed fix_seed",
        "softmax log_softmax": "data_format",
        "mish": "threshold=20",
        "prelu": "mode data_format=NCHW",
        "softmax_with_cross_entropy cross_entropy_with_softmax": "numeric_stable_mode",
        "cast": "in_dtype",
        "reshape2 transpose transpose2 squeeze2 unsqueeze2": "data_format",
        "unstack": "num",
        "slice strided_slice": "infer_flags",
        "expand_as_v2": "target_shape",
        "gather": "overwrite",
        "one_hot one_hot_v2": "allow_out_of_range=0",
        "top_k_v2 topk": "sorted=1",
        "reduce_sum reduce_mean reduce_max max reduce_min min reduce_prod prod": "in_dtype out_dtype=-1",
        "p_norm": "epsilon",
        "gaussian_random": "seed",
        "uniform_random": "seed diag_num=0 diag_step=0 diag_val",
        "seed": "deterministic rng_name",
    }
)
