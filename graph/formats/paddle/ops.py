"""Op table of Paddle: translations to standard and `remat` ops.

Programs name an op's inputs and outputs by slot; `SLOTS` defines their order in the rules. Semantics: the op
definitions of Paddle 1.x to 2.x (framework.proto programs), and the PIR dialect `pd_op` of 3.x, with positional
operands.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graph.builder.emit import Emit
from graph.formats.shared.op_helpers import (
    aligned,
    axis_of,
    checked_shape,
    dense,
    filled,
    integral,
    pads_both,
    picked_log,
    reduced,
    same_each,
    scaled,
    shifted,
    sliced,
    split,
    squared,
)
from graph.formats.shared.op_table import OpTable, OpUse, Unmapped
from graph.ir import DTYPE_BITS, Val
from graph.ops.training.seeded_random import SEED_TYPE

PADDLE = OpTable("paddle")

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

#: Input and output slots of an op in the order of its rule; `*` marks one that holds several names. Ops left out
#: take the slots of their kind: X (and Y) to Out.
SLOTS: dict[str, tuple[str, str]] = {
    "batch_norm": ("X Scale Bias Mean Variance", "Y MeanOut VarianceOut SavedMean SavedVariance"),
    "sync_batch_norm": ("X Scale Bias Mean Variance", "Y MeanOut VarianceOut SavedMean SavedVariance"),
    "conv2d": ("Input Filter Bias", "Output"),
    "depthwise_conv2d": ("Input Filter Bias", "Output"),
    "conv3d": ("Input Filter Bias", "Output"),
    "conv2d_transpose": ("Input Filter Bias", "Output"),
    "cross_entropy": ("X Label", "Y"),
    "cross_entropy2": ("X Label", "Y XShape MatchX"),
    "softmax_with_cross_entropy": ("Logits Label", "Loss Softmax"),
    "dropout": ("X Seed", "Out Mask"),
    "expand_v2": ("X Shape", "Out"),
    "expand_as_v2": ("X Y", "Out"),
    "fill_constant": ("ShapeTensor", "Out"),
    "fill_constant_batch_size_like": ("Input", "Out"),
    "flatten2": ("X", "Out XShape"),
    "flatten_contiguous_range": ("X", "Out XShape"),
    "fc": ("Input W Bias", "Out"),
    "gather": ("X Index", "Out"),
    "gather_nd": ("X Index", "Out"),
    "group_norm": ("X Scale Bias", "Y Mean Variance"),
    "instance_norm": ("X Scale Bias", "Y SavedMean SavedVariance"),
    "layer_norm": ("X Scale Bias", "Y Mean Variance"),
    "lookup_table": ("W Ids", "Out"),
    "lookup_table_v2": ("W Ids", "Out"),
    "nearest_interp": ("X", "Out"),
    "prelu": ("X Alpha", "Out"),
    "reshape2": ("X Shape", "Out XShape"),
    "reshape": ("X Shape", "Out"),
    "seed": ("", "Out"),
    "sigmoid_cross_entropy_with_logits": ("X Label", "Out"),
    "slice": ("Input", "Out"),
    "squeeze2": ("X", "Out XShape"),
    "stack": ("X*", "Y"),
    "sum": ("X*", "Out"),
    "concat": ("X*", "Out"),
    "split": ("X", "Out*"),
    "transpose2": ("X", "Out XShape"),
    "unsqueeze2": ("X", "Out XShape"),
    "where": ("Condition X Y", "Out"),
    "top_k_v2": ("X", "Out Indices"),
    "unstack": ("X", "Y*"),
    "add_n": ("X*", "Out"),
    "strided_slice": ("Input", "Out"),
    "embedding": ("W Ids", "Out"),
    "square_error_cost": ("X Y", "Out"),
    "pool2d": ("X", "Out"),
    "bilinear_interp_v2": ("X", "Out"),
    "nearest_interp_v2": ("X", "Out"),
    "rms_norm": ("X Scale", "Y InvVar"),
    "swiglu": ("X Y", "Out"),
    "one_hot_v2": ("X", "Out"),
    "range": ("Start End Step", "Out"),
}
_TWO, _ONE = ("X Y", "Out"), ("X", "Out")


def slots_of(type: str) -> tuple[list[str], list[str]]:
    """(input slots, output slots) of an op type in the order its rule takes them."""
    takes_two = type.startswith("elementwise_") or type in _PAIRS
    inputs, outputs = SLOTS.get(type, _TWO if takes_two else _ONE)
    return inputs.split(), outputs.split()


_PAIRS = frozenset(
    {
        "mul",
        "matmul",
        "matmul_v2",
        "bmm",
        "mv",
        "dot",
        "minus",
        "equal",
        "not_equal",
        "less_than",
        "less_equal",
        "greater_than",
        "greater_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "share_data",
    }
)


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


def _dtype(use: OpUse, name: str, default: str) -> str:
    raw = use.attributes.raw((name,))
    return default if raw is None or raw == -1 else dtype_of(raw)


@PADDLE.op("mul")
def mul(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    """x · y as matrices: x's first `x_num_col_dims` dimensions are rows, y's first `y_num_col_dims`."""
    rows, inner = (
        use.attributes.integer("x_num_col_dims", default=1),
        use.attributes.integer("y_num_col_dims", default=1),
    )
    left = x if x.rank == 2 and rows == 1 else e.reshape(x, (math.prod(x.shape[:rows]), math.prod(x.shape[rows:])))
    right = y if y.rank == 2 and inner == 1 else e.reshape(y, (math.prod(y.shape[:inner]), math.prod(y.shape[inner:])))
    return e.reshape(e.matmul(left, right), (*x.shape[:rows], *y.shape[inner:]))


@PADDLE.op("fc")
def fc(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    rows = use.attributes.integer("in_num_col_dims", "num_flatten_dims", default=1)
    y = dense(e, x, w, bias, rows=rows, outputs_first=False)
    act = use.attributes.text("activation_type", "act", default="")
    if act == "softmax":
        return e.op("Softmax", y, axis=-1)
    return y if not act else e.op(_UNARY[act], y)


@PADDLE.op("matmul", "matmul_v2", "bmm")
def matmul(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    a = use.attributes
    left = a.flag("trans_x", "transpose_X", "transpose_x", default=False) and x.rank > 1
    right = a.flag("trans_y", "transpose_Y", "transpose_y", default=False) and y.rank > 1
    product = e.op("remat::MatMul", x, y, trans_a=int(left), trans_b=int(right)) if left or right else e.matmul(x, y)
    return scaled(e, product, a.number("alpha", default=1.0))


@PADDLE.op("dot")
def dot(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    return reduced(e, "ReduceSum", e.mul(x, y), [x.rank - 1], False)


@PADDLE.op("lookup_table", "lookup_table_v2")
def lookup_table(e: Emit, use: OpUse, w: Val, ids: Val) -> Val:
    """The first version drops the last dimension, of one element, from the ids."""
    if use.op == "lookup_table" and ids.rank and ids.shape[-1] == 1:
        ids = e.reshape(ids, ids.shape[:-1])
    return e.op("Gather", w, integral(e, ids), axis=0)


@PADDLE.op("embedding")
def embedding(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    """The older dialect names (W, Ids), the newer gives (ids, weight)."""
    w, ids = (x, y) if x.dtype.startswith(("float", "bfloat")) else (y, x)
    return e.op("Gather", w, integral(e, ids), axis=0)


@PADDLE.op("conv2d", "depthwise_conv2d", "conv3d", "conv2d_transpose")
def conv(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    a, rank = use.attributes, x.rank - 2
    if a.text("data_format", default="NCHW") not in ("NCHW", "AnyLayout", "NCDHW") or rank < 1:
        raise Unmapped
    if a.text("padding_algorithm", default="EXPLICIT") != "EXPLICIT":
        raise Unmapped
    pads = list(a.integers("paddings", default=()))
    pads = [*pads[::2], *pads[1::2]] if len(pads) == 2 * rank else pads_both(same_each(pads, rank, 0), rank)
    common: dict[str, Any] = {
        "kernel_shape": list(w.shape[2:]),
        "strides": same_each(a.integers("strides", default=()), rank, 1),
        "dilations": same_each(a.integers("dilations", default=()), rank, 1),
        "pads": pads,
        "group": a.integer("groups", default=1),
    }
    if use.op == "conv2d_transpose":
        if a.integers("output_size", default=()):
            raise Unmapped
        common["output_padding"] = same_each(a.integers("output_padding", default=()), rank, 0)
    op = "ConvTranspose" if use.op == "conv2d_transpose" else "Conv"
    y = e.op(op, x, w, **common)
    return y if bias is None else e.add(y, aligned(e, y, bias, 1))


@PADDLE.op("pool2d")
def pool2d(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    kind = {"max": "MaxPool", "avg": "AveragePool"}[a.text("pooling_type")]
    if a.text("data_format", default="NCHW") not in ("NCHW", "AnyLayout") or (
        a.flag("adaptive", default=False) and a.integers("ksize") != (1, 1)
    ):
        raise Unmapped
    if a.flag("global_pooling", default=False) or a.flag("adaptive", default=False):
        return e.op(f"Global{kind}", x)
    pads = list(a.integers("paddings", default=()))
    pads = [*pads[::2], *pads[1::2]] if len(pads) == 4 else pads_both(same_each(pads, 2, 0), 2)
    window: dict[str, Any] = {
        "kernel_shape": same_each(a.integers("ksize"), 2, 1),
        "pads": pads,
        "strides": same_each(a.integers("strides", default=()), 2, 1),
        "ceil_mode": int(a.flag("ceil_mode", default=False)),
    }
    if kind == "AveragePool":
        window["count_include_pad"] = int(not a.flag("exclusive", default=True))
    return e.op(kind, x, **window)


@PADDLE.op("batch_norm", "sync_batch_norm")
def batch_norm(e: Emit, use: OpUse, x: Val, scale: Val, bias: Val, mean: Val, variance: Val) -> Any:
    """(y, running mean, running variance, the batch's mean, its inverse deviation)."""
    a = use.attributes
    if a.text("data_layout", "data_format", default="NCHW") not in ("NCHW", "AnyLayout"):
        raise Unmapped
    epsilon, momentum = a.number("epsilon", default=1e-5), a.number("momentum", default=0.9)
    if a.flag("is_test", default=False) or a.flag("use_global_stats", default=False) or use.outputs == 1:
        y = e.op("BatchNormalization", x, scale, bias, mean, variance, epsilon=epsilon, momentum=momentum)
        return (y, *([mean, variance] if use.outputs > 1 else []))
    y, now, inv_std = e.op("remat::BatchNorm", x, scale, bias, outputs=3, epsilon=epsilon)
    moved = e.op(
        "remat::RunningStatistics", mean, variance, now, inv_std, outputs=2, epsilon=epsilon, momentum=momentum
    )
    return (y, *moved, now, inv_std)


@PADDLE.op("layer_norm")
def layer_norm(e: Emit, use: OpUse, x: Val, scale: Val | None = None, bias: Val | None = None) -> Any:
    """(y, mean, variance); statistics of the dimensions from `begin_norm_axis` on."""
    axis = axis_of(x, use.attributes.integer("begin_norm_axis", default=1))
    shape, rows = x.shape[axis:], (math.prod(x.shape[:axis]),)
    epsilon = use.attributes.number("epsilon", default=1e-5)
    scale = filled(e, shape, 1, x.dtype) if scale is None else e.reshape(scale, shape)
    given = [x, scale] if bias is None else [x, scale, e.reshape(bias, shape)]
    y, mean, inverse = e.op(
        "LayerNormalization", *given, outputs=(True, use.outputs > 1, use.outputs > 2), axis=axis, epsilon=epsilon
    )
    variance = None
    if inverse is not None:
        variance = e.reshape(shifted(e, e.op("Reciprocal", squared(e, inverse)), -epsilon), rows)
    return y, None if mean is None else e.reshape(mean, rows), variance


@PADDLE.op("rms_norm")
def rms_norm(e: Emit, use: OpUse, x: Val, scale: Val) -> Any:
    axis = axis_of(x, use.attributes.integer("begin_norm_axis", default=x.rank - 1))
    if use.outputs > 1:
        raise Unmapped
    spread = reduced(e, "ReduceMean", squared(e, x), range(axis, x.rank), True)
    deviation = e.op("Sqrt", shifted(e, spread, use.attributes.number("epsilon", default=1e-5)))
    return e.mul(e.div(x, deviation), scale)


@PADDLE.op("group_norm", "instance_norm")
def group_norm(e: Emit, use: OpUse, x: Val, scale: Val, bias: Val) -> Val:
    epsilon = use.attributes.number("epsilon", default=1e-5)
    if use.outputs > 1 or use.attributes.text("data_layout", default="NCHW") not in ("NCHW", "AnyLayout"):
        raise Unmapped
    if use.op == "instance_norm":
        return e.op("InstanceNormalization", x, scale, bias, epsilon=epsilon)
    return e.op("GroupNormalization", x, scale, bias, num_groups=use.attributes.integer("groups"), epsilon=epsilon)


@PADDLE.op("dropout")
def dropout(e: Emit, use: OpUse, x: Val, seed: Val | None = None) -> Any:
    """(y, mask); the mask is uint8. With a seed among the inputs the op draws nothing itself."""
    a = use.attributes
    ratio = a.number("dropout_prob", "p", default=0.5)
    kept_scale = a.text("dropout_implementation", "mode", default="downgrade_in_infer") == "upscale_in_train"
    given = [x, e.constant(ratio, "float32")]
    wanted = (True, use.outputs > 1)
    if a.flag("is_test", default=False):
        y, mask = e.op("Dropout", *given, e.constant(False, "bool"), outputs=wanted)
    elif seed is not None and seed.type == SEED_TYPE:
        y, mask = e.op("remat::SeededDropout", x, seed, outputs=wanted, ratio=ratio)
    else:
        y, mask = e.op("Dropout", *given, outputs=wanted)
    if not kept_scale and ratio < 1:
        y = scaled(e, y, 1 - ratio)
    return y, None if mask is None else e.cast(mask, "uint8")


@PADDLE.op("seed")
def seed(e: Emit, use: OpUse) -> Any:
    """The state of a draw: one int32, drawn once and held."""
    return e.op("remat::Seed", seed=use.attributes.integer("seed", default=0) or None)


_UNARY = {
    "relu": "Relu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "sign": "Sign",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "softsign": "Softsign",
    "softplus": "Softplus",
    "sin": "Sin",
    "cos": "Cos",
    "reciprocal": "Reciprocal",
    "erf": "Erf",
    "assign": "Identity",
    "logical_not": "Not",
    "mish": "Mish",
    "c_identity": "Identity",
}
_BINARY = {
    "elementwise_add": "Add",
    "elementwise_sub": "Sub",
    "elementwise_mul": "Mul",
    "elementwise_div": "Div",
    "elementwise_pow": "Pow",
    "elementwise_max": "Max",
    "elementwise_min": "Min",
    "minus": "Sub",
    "equal": "Equal",
    "less_than": "Less",
    "less_equal": "LessOrEqual",
    "greater_than": "Greater",
    "greater_equal": "GreaterOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "Add": "Add",
    "Sub": "Sub",
    "Mul": "Mul",
    "Div": "Div",
    "Pow": "Pow",
}


@PADDLE.op(*_UNARY)
def unary(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op(_UNARY[use.op], x)


@PADDLE.op(*_BINARY)
def binary(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    return e.op(_BINARY[use.op], x, aligned(e, x, y, use.attributes.integer("axis", default=-1)))


@PADDLE.op("not_equal")
def not_equal(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    return e.op("Not", e.op("Equal", x, aligned(e, x, y, use.attributes.integer("axis", default=-1))))


@PADDLE.op("elementwise_mod")
def elementwise_mod(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    return e.op("Mod", x, y, fmod=int(x.dtype.startswith("float")))


@PADDLE.op("sum", "add_n")
def variadic_sum(e: Emit, use: OpUse, *terms: Val) -> Val:
    return e.op("Sum", *terms)


@PADDLE.op("scale")
def scale(e: Emit, use: OpUse, x: Val) -> Val:
    """scale · x + bias, or scale · (x + bias)."""
    a = use.attributes
    factor, bias = a.number("scale", default=1.0), a.number("bias", default=0.0)
    if a.flag("bias_after_scale", default=True):
        return shifted(e, scaled(e, x, factor), bias)
    return scaled(e, shifted(e, x, bias), factor)


@PADDLE.op("AddScalar", "SubScalar", "MulScalar", "RSubScalar")
def by_scalar(e: Emit, use: OpUse, x: Val) -> Val:
    number = e.scalar_like(use.attributes.number("scalar"), x)
    if use.op == "RSubScalar":
        return e.op("Sub", number, x)
    return e.op(use.op.removesuffix("Scalar"), x, number)


@PADDLE.op("pow")
def power(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("Pow", x, e.scalar_like(use.attributes.number("factor", "y", default=1.0), x))


@PADDLE.op("square")
def square(e: Emit, use: OpUse, x: Val) -> Val:
    return squared(e, x)


@PADDLE.op("rsqrt")
def rsqrt(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("Reciprocal", e.op("Sqrt", x))


@PADDLE.op("gelu")
def gelu(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("Gelu", x, approximate="tanh" if use.attributes.flag("approximate", default=False) else "none")


@PADDLE.op("silu", "swish")
def silu(e: Emit, use: OpUse, x: Val) -> Val:
    return e.mul(
        x, e.op("Sigmoid", scaled(e, x, use.attributes.number("beta", default=1.0) if use.op == "swish" else 1.0))
    )


@PADDLE.op("swiglu")
def swiglu(e: Emit, use: OpUse, x: Val, y: Val | None = None) -> Val:
    if y is None:
        x, y = split(e, x, 2, -1)
    return e.mul(e.mul(x, e.op("Sigmoid", x)), y)


@PADDLE.op("leaky_relu", "elu", "hard_sigmoid", "hard_swish", "relu6", "prelu")
def rectifier(e: Emit, use: OpUse, x: Val, slope: Val | None = None) -> Val:
    a = use.attributes
    if use.op == "prelu":
        return e.op("PRelu", x, aligned(e, x, slope, 1) if slope is not None and slope.rank == 1 else slope)
    if use.op == "relu6":
        return e.op("Clip", x, e.scalar_like(0, x), e.scalar_like(a.number("threshold", default=6.0), x))
    if use.op == "hard_sigmoid":
        return e.op("HardSigmoid", x, alpha=a.number("slope", default=0.2), beta=a.number("offset", default=0.5))
    if use.op == "hard_swish":
        return e.op("HardSwish", x)
    return e.op(
        "Elu" if use.op == "elu" else "LeakyRelu", x, alpha=a.number("alpha", default=1.0 if use.op == "elu" else 0.02)
    )


@PADDLE.op("clip")
def clip(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    return e.op("Clip", x, e.scalar_like(a.number("min"), x), e.scalar_like(a.number("max"), x))


@PADDLE.op("cast")
def cast(e: Emit, use: OpUse, x: Val) -> Val:
    raw = use.attributes.raw(("out_dtype", "dtype"))
    if raw is None:
        raise ValueError("attribute out_dtype is missing")
    return e.cast(x, dtype_of(raw))


@PADDLE.op("where")
def where(e: Emit, use: OpUse, condition: Val, x: Val, y: Val) -> Val:
    return e.where(condition, x, y)


def _reshaped(shape: tuple[int, ...], codes: tuple[int, ...]) -> tuple[int, ...]:
    lengths = [shape[i] if n == 0 else n for i, n in enumerate(codes)]
    if lengths.count(-1) == 1:
        rest = -math.prod(lengths)
        lengths[lengths.index(-1)] = math.prod(shape) // rest if rest else 0
    if min(lengths, default=0) < 0 or math.prod(lengths) != math.prod(shape):
        raise ValueError(f"{math.prod(shape)} elements do not have the shape {lengths[:12]}")
    return checked_shape(lengths)


@PADDLE.op("reshape", "reshape2")
def reshape(e: Emit, use: OpUse, x: Val, shape: Val | None = None) -> tuple[Val | None, ...]:
    """(reshaped value, None for XShape: the saved shape is not needed)."""
    known = None if shape is None else e.known(shape)
    codes = use.attributes.integers("shape", default=()) if known is None else tuple(int(n) for n in known.reshape(-1))
    if not codes and shape is not None:
        return e.op("Reshape", x, e.ints(use.output_type().shape), allowzero=1), None
    return e.op("Reshape", x, e.ints(_reshaped(x.shape, codes)), allowzero=1), None


@PADDLE.op("flatten", "flatten2", "flatten_contiguous_range")
def flatten(e: Emit, use: OpUse, x: Val) -> tuple[Val | None, ...]:
    a = use.attributes
    if use.op != "flatten_contiguous_range" and "start_axis" not in a:
        return e.op("Flatten", x, axis=a.integer("axis", default=1)), None
    start, stop = axis_of(x, a.integer("start_axis", default=1)), axis_of(x, a.integer("stop_axis", default=-1))
    shape = (*x.shape[:start], math.prod(x.shape[start : stop + 1]), *x.shape[stop + 1 :])
    return e.op("Reshape", x, e.ints(shape), allowzero=1), None


@PADDLE.op("transpose", "transpose2")
def transpose(e: Emit, use: OpUse, x: Val) -> tuple[Val | None, ...]:
    return e.op("Transpose", x, perm=[axis_of(x, a) for a in use.attributes.integers("axis", "perm")]), None


@PADDLE.op("squeeze", "squeeze2", "unsqueeze", "unsqueeze2")
def with_ones(e: Emit, use: OpUse, x: Val) -> tuple[Val | None, ...]:
    axes = use.attributes.integers("axes", "axis", default=())
    if use.op.startswith("squeeze"):
        gone = [axis_of(x, a) for a in axes] or range(x.rank)
        return e.reshape(x, [n for i, n in enumerate(x.shape) if i not in gone or n != 1]), None
    shape = list(x.shape)
    for axis in axes:
        at = axis + len(shape) + 1 if axis < 0 else axis
        if not 0 <= at <= len(shape):
            raise ValueError(f"axis {axis} of {x.type}")
        shape.insert(at, 1)
    return e.reshape(x, shape), None


@PADDLE.op("concat")
def concat(e: Emit, use: OpUse, *parts: Val) -> Val:
    return e.op("Concat", *parts, axis=axis_of(parts[0], use.attributes.integer("axis", default=0)))


@PADDLE.op("stack")
def stack(e: Emit, use: OpUse, *parts: Val) -> Val:
    axis = use.attributes.integer("axis", default=0)
    at = axis + parts[0].rank + 1 if axis < 0 else axis
    return e.op("Concat", *(e.reshape(x, (*x.shape[:at], 1, *x.shape[at:])) for x in parts), axis=at)


@PADDLE.op("split", "unstack")
def split_op(e: Emit, use: OpUse, x: Val) -> tuple[Val, ...]:
    a = use.attributes
    axis = axis_of(x, a.integer("axis", default=0))
    sections = list(a.integers("sections", default=()))
    if sections.count(-1) == 1:
        sections[sections.index(-1)] = x.shape[axis] - sum(sections) - 1
    parts = split(e, x, a.integer("num", default=0) or len(sections) or use.outputs, axis, sections or None)
    if use.op == "unstack":
        return tuple(e.reshape(part, [n for i, n in enumerate(part.shape) if i != axis]) for part in parts)
    return parts


@PADDLE.op("slice", "strided_slice")
def slice_(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    axes, begin, end = a.integers("axes"), a.integers("starts"), a.integers("ends")
    steps = a.integers("strides", default=()) or (1,) * len(axes)
    found = sliced(e, x, axes, begin, end, steps)
    gone = [axis_of(x, d) for d in a.integers("decrease_axis", default=())]
    return e.reshape(found, [n for i, n in enumerate(found.shape) if i not in gone]) if gone else found


@PADDLE.op("expand_v2", "expand_as_v2")
def expand(e: Emit, use: OpUse, x: Val, like: Val | None = None) -> Val:
    if use.op == "expand_as_v2" and like is not None:
        return e.expand(x, like.shape)
    codes = use.attributes.integers("shape")
    lengths = [x.shape[i + x.rank - len(codes)] if n == -1 else n for i, n in enumerate(codes)]
    return e.expand(x, checked_shape(lengths))


@PADDLE.op("tile")
def tile(e: Emit, use: OpUse, x: Val) -> Val:
    times = use.attributes.integers("repeat_times")
    rank = max(x.rank, len(times))
    wide = e.reshape(x, (*[1] * (rank - x.rank), *x.shape))
    repeats = [*[1] * (rank - len(times)), *times]
    checked_shape([n * k for n, k in zip(wide.shape, repeats, strict=True)])
    return e.op("Tile", wide, e.ints(repeats))


@PADDLE.op("gather")
def gather(e: Emit, use: OpUse, x: Val, index: Val) -> Val:
    flat = e.reshape(index, (index.shape[0],)) if index.rank == 2 and index.shape[1] == 1 else index
    return e.op("Gather", x, flat, axis=axis_of(x, use.attributes.integer("axis", default=0)))


@PADDLE.op("gather_nd")
def gather_nd(e: Emit, use: OpUse, x: Val, index: Val) -> Val:
    return e.op("GatherND", x, e.cast(index, "int64"))


@PADDLE.op("one_hot", "one_hot_v2")
def one_hot(e: Emit, use: OpUse, x: Val) -> Val:
    depth = use.attributes.integer("depth", "num_classes")
    if use.op == "one_hot" and x.rank > 1 and x.shape[-1] == 1:
        x = e.reshape(x, x.shape[:-1])
    checked_shape((*x.shape, depth))
    return e.op("OneHot", integral(e, x), e.ints([depth]), e.constant([0, 1], _dtype(use, "dtype", "float32")))


@PADDLE.op("top_k_v2", "topk")
def top_k(e: Emit, use: OpUse, x: Val) -> tuple[Val, ...]:
    a = use.attributes
    return e.op(
        "TopK",
        x,
        e.ints([a.integer("k", default=1)]),
        outputs=2,
        axis=a.integer("axis", default=-1),
        largest=int(a.flag("largest", default=True)),
    )


@PADDLE.op("cumsum")
def cumsum(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    if a.flag("flatten", default=False):
        raise Unmapped
    return e.op(
        "CumSum",
        x,
        e.constant(a.integer("axis", default=-1), "int64"),
        exclusive=int(a.flag("exclusive", default=False)),
        reverse=int(a.flag("reverse", default=False)),
    )


@PADDLE.op("arg_max", "arg_min", "argmax", "argmin")
def arg_extreme(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    if a.flag("flatten", default=False):
        x = e.reshape(x, (math.prod(x.shape),))
    axis = axis_of(x, a.integer("axis", default=-1))
    found = e.op(
        "ArgMax" if "max" in use.op else "ArgMin", x, axis=axis, keepdims=int(a.flag("keepdims", default=False))
    )
    return e.cast(found, _dtype(use, "dtype", "int64"))


_REDUCTIONS = {
    "reduce_sum": "ReduceSum",
    "reduce_mean": "ReduceMean",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
    "logsumexp": "ReduceLogSumExp",
}


@PADDLE.op(*_REDUCTIONS)
def reduction(e: Emit, use: OpUse, x: Val) -> Val:
    """Older programs keep one dimension where everything is reduced; the declared output says which."""
    a = use.attributes
    axes = list(a.integers("dim", "axis", default=()))
    axes = list(range(x.rank)) if a.flag("reduce_all", default=False) or not axes else axes
    found = reduced(e, _REDUCTIONS[use.op], x, axes, a.flag("keep_dim", "keepdim", default=False))
    return _as_declared(e, use, found)


def _as_declared(e: Emit, use: OpUse, found: Val) -> Val:
    said = use.declared[0] if use.declared else None
    if said is not None and said.shape == (1,) and found.shape == ():
        return e.reshape(found, (1,))
    return found


@PADDLE.op("mean")
def mean(e: Emit, use: OpUse, x: Val) -> Val:
    """Of everything; with `axis` of some dimensions, as the newer dialect has it."""
    axes = use.attributes.integers("axis", default=()) or tuple(range(x.rank))
    keepdims = use.attributes.flag("keepdim", default=False)
    return _as_declared(e, use, reduced(e, "ReduceMean", x, axes, keepdims))


@PADDLE.op("squared_l2_norm", "p_norm", "frobenius_norm")
def norm(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    if use.op == "squared_l2_norm":
        return _as_declared(e, use, reduced(e, "ReduceSumSquare", x, range(x.rank), False))
    if use.op == "p_norm" and a.number("porder", default=2.0) != 2:
        raise Unmapped
    axes = a.integers("dim", "axis", default=()) or tuple(range(x.rank))
    return _as_declared(e, use, reduced(e, "ReduceL2", x, axes, a.flag("keepdim", "keep_dim", default=False)))


@PADDLE.op("softmax", "log_softmax")
def softmax(e: Emit, use: OpUse, x: Val) -> Val:
    axis = axis_of(x, use.attributes.integer("axis", default=-1))
    return e.op("Softmax" if use.op == "softmax" else "LogSoftmax", x, axis=axis)


@PADDLE.op("cross_entropy", "cross_entropy2")
def cross_entropy(e: Emit, use: OpUse, prob: Val, labels: Val) -> Val:
    """-log of the probability at each row's label, as a column."""
    if use.attributes.flag("soft_label", default=False):
        return e.neg(reduced(e, "ReduceSum", e.mul(labels, e.op("Log", prob)), [prob.rank - 1], True))
    return picked_log(e, prob, labels)


@PADDLE.op("softmax_with_cross_entropy", "cross_entropy_with_softmax")
def softmax_with_cross_entropy(e: Emit, use: OpUse, x: Val, labels: Val) -> tuple[Val, ...]:
    """(loss per row as a column, probabilities); the newer dialect gives them the other way round."""
    a = use.attributes
    axis = axis_of(x, a.integer("axis", default=-1))
    if axis != x.rank - 1:
        raise Unmapped
    rows, column = math.prod(x.shape[:-1]), (*x.shape[:-1], 1)
    scores = e.reshape(x, (rows, x.shape[-1]))
    if a.flag("soft_label", default=False):
        log = e.op("LogSoftmax", scores, axis=1)
        weighted = e.mul(e.reshape(labels, scores.shape), log)
        loss = e.neg(reduced(e, "ReduceSum", weighted, [1], False))
    else:
        at = e.reshape(integral(e, labels), (rows,))
        loss, log = e.op(
            "SoftmaxCrossEntropyLoss",
            scores,
            at,
            outputs=2,
            reduction="none",
            ignore_index=a.integer("ignore_index", default=-100),
        )
    prob = e.reshape(e.op("Exp", log), x.shape)
    loss = e.reshape(loss, column)
    return (prob, loss) if use.op == "cross_entropy_with_softmax" else (loss, prob)


@PADDLE.op("sigmoid_cross_entropy_with_logits")
def sigmoid_cross_entropy(e: Emit, use: OpUse, x: Val, target: Val) -> Val:
    return e.sub(e.op("Softplus", x), e.mul(x, target))


@PADDLE.op("square_error_cost")
def square_error_cost(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    return squared(e, e.sub(x, y))


@PADDLE.op("fill_constant", "full")
def fill_constant(e: Emit, use: OpUse, shape: Val | None = None) -> Val:
    a = use.attributes
    known = None if shape is None else e.known(shape)
    if shape is not None and known is None:
        raise Unmapped
    lengths = a.integers("shape", default=()) if known is None else tuple(int(n) for n in known.reshape(-1))
    text = a.text("str_value", default="")
    number = float(text) if text else a.number("value", default=0.0)
    return filled(e, lengths, number, _dtype(use, "dtype", "float32"))


@PADDLE.op("fill_constant_batch_size_like")
def fill_like_batch(e: Emit, use: OpUse, like: Val) -> Val:
    a = use.attributes
    lengths = list(a.integers("shape"))
    lengths[a.integer("output_dim_idx", default=0)] = like.shape[a.integer("input_dim_idx", default=0)]
    return filled(e, lengths, a.number("value", default=0.0), _dtype(use, "dtype", "float32"))


@PADDLE.op("fill_any_like", "full_like", "fill_zeros_like")
def fill_like(e: Emit, use: OpUse, x: Val, *_: Val) -> Val:
    return filled(e, x.shape, use.attributes.number("value", default=0.0), _dtype(use, "dtype", x.dtype))


@PADDLE.op("assign_value")
def assign_value(e: Emit, use: OpUse) -> Val:
    a, dtype = use.attributes, _dtype(use, "dtype", "float32")
    shape = checked_shape(a.integers("shape"))
    for key in ("values", "fp32_values", "int32_values", "int64_values", "bool_values"):
        numbers = a.raw((key,))
        if isinstance(numbers, list | tuple) and len(numbers) == math.prod(shape):
            return e.op("Identity", e.constant(np.asarray(numbers).reshape(shape), dtype))
    raise Unmapped


@PADDLE.op("gaussian_random", "uniform_random")
def random(e: Emit, use: OpUse) -> Val:
    a = use.attributes
    shape = list(checked_shape(a.integers("shape")))
    if use.op == "gaussian_random":
        return e.op("RandomNormal", shape=shape, mean=a.number("mean", default=0.0), scale=a.number("std", default=1.0))
    return e.op("RandomUniform", shape=shape, low=a.number("min", default=-1.0), high=a.number("max", default=1.0))


@PADDLE.op("shape")
def shape(e: Emit, use: OpUse, x: Val) -> Val:
    return e.cast(e.op("Shape", x), "int32")


@PADDLE.op("increment")
def increment(e: Emit, use: OpUse, x: Val) -> Val:
    return e.add(x, e.scalar_like(use.attributes.number("step", default=1.0), x))
