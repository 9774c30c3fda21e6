"""Op table of Caffe2: translations to standard and `remat` ops.

Semantics: Caffe2 operator catalogue and the schemas in caffe2/operators.
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
    opaque,
    pads_both,
    picked_log,
    reduced,
    same_each,
    scaled,
    sliced,
    split,
    squared,
)
from graph.formats.shared.op_table import OpTable, OpUse, Unmapped
from graph.ir import TensorType, Val
from graph.ops.registry.onnx_fallback import onnx_dtype

CAFFE2 = OpTable("caffe2")

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


def dtype_of(number: int) -> str:
    """Element type by Caffe2's number. Raises Unmapped for strings and other non-numeric types."""
    if number not in DTYPES:
        raise Unmapped
    return DTYPES[number]


@CAFFE2.op("FC", "FCTransposed")
def fc(e: Emit, use: OpUse, x: Val, w: Val, bias: Val) -> Val:
    """x · wᵀ + b, the dimensions from `axis` on as one, as are those of w from `axis_w` on."""
    a = use.attributes
    axis, w_axis = a.integer("axis", default=1), a.integer("axis_w", default=1)
    if w.rank != 2:
        w = e.reshape(w, (math.prod(w.shape[:w_axis]), math.prod(w.shape[w_axis:])))
    return dense(e, x, w, bias, rows=axis_of(x, axis), outputs_first=use.op == "FC")


@CAFFE2.op("MatMul")
def matmul(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    a = use.attributes
    left = x if x.rank == 2 else e.op("Flatten", x, axis=axis_of(x, a.integer("axis_a", default=1)))
    right = y if y.rank == 2 else e.op("Flatten", y, axis=axis_of(y, a.integer("axis_b", default=1)))
    return _product(e, use, left, right)


@CAFFE2.op("BatchMatMul")
def batch_matmul(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    return _product(e, use, x, y)


def _product(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    a, b = use.attributes.flag("trans_a", default=False), use.attributes.flag("trans_b", default=False)
    return e.matmul(x, y) if not a and not b else e.op("remat::MatMul", x, y, trans_a=int(a), trans_b=int(b))


@CAFFE2.op("DotProduct")
def dot_product(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    """Per row the inner product of all other dimensions."""
    return reduced(e, "ReduceSum", e.mul(x, y), range(1, x.rank), False)


def _window(use: OpUse, x: Val) -> dict[str, Any]:
    """Kernel, strides, dilations and pads of a Caffe2 op, however they are written."""
    a, rank = use.attributes, x.rank - 2
    if rank < 1:
        raise ValueError(f"{x.type} has no window to slide over")
    if a.text("order", default="NCHW") != "NCHW":
        raise Unmapped

    def each(name: str, default: int) -> list[int]:
        if rank == 2 and f"{name}_h" in a:
            return [a.integer(f"{name}_h"), a.integer(f"{name}_w")]
        return same_each(a.integers(f"{name}s", default=()) or (a.integer(name, default=default),), rank, default)

    if a.integer("legacy_pad", default=0) not in (0, 3):
        raise Unmapped
    if "pad_t" in a:
        pads = [a.integer(f"pad_{side}", default=0) for side in ("t", "l", "b", "r")]
    else:
        pads = list(a.integers("pads", default=()))
        pads = (
            pads
            if len(pads) == 2 * rank
            else pads_both(same_each(pads or [a.integer("pad", default=0)], rank, 0), rank)
        )
    return {
        "kernel_shape": each("kernel", 1),
        "strides": each("stride", 1),
        "dilations": each("dilation", 1),
        "pads": pads,
    }


@CAFFE2.op("Conv", "Conv1D", "Conv2D", "Conv3D")
def conv(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    window = _window(use, x) | {"kernel_shape": list(w.shape[2:])}
    return e.op(
        "Conv", x, w, *([] if bias is None else [bias]), group=use.attributes.integer("group", default=1), **window
    )


@CAFFE2.op("ConvTranspose")
def conv_transpose(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    window = _window(use, x) | {"kernel_shape": list(w.shape[2:])}
    extra = same_each(
        use.attributes.integers("adjs", default=()) or (use.attributes.integer("adj", default=0),), x.rank - 2, 0
    )
    return e.op(
        "ConvTranspose",
        x,
        w,
        *([] if bias is None else [bias]),
        output_padding=extra,
        group=use.attributes.integer("group", default=1),
        **window,
    )


@CAFFE2.op(
    "MaxPool", "MaxPool1D", "MaxPool2D", "MaxPool3D", "AveragePool", "AveragePool1D", "AveragePool2D", "AveragePool3D"
)
def pool(e: Emit, use: OpUse, x: Val) -> Val:
    kind = "MaxPool" if use.op.startswith("Max") else "AveragePool"
    if use.attributes.flag("global_pooling", default=False):
        return e.op(f"Global{kind}", x)
    window = _window(use, x)
    if use.attributes.integer("legacy_pad", default=0) == 3:
        window["ceil_mode"] = 1
    if kind == "AveragePool":
        window["count_include_pad"] = int(use.attributes.flag("count_include_pad", default=False))
    return e.op(kind, x, **window)


@CAFFE2.op("SpatialBN")
def spatial_bn(e: Emit, use: OpUse, x: Val, scale: Val, bias: Val, mean: Val, variance: Val, *sums: Val) -> Any:
    """Outputs: y, and in training the new running statistics and the batch's."""
    a = use.attributes
    if a.text("order", default="NCHW") != "NCHW" or sums:
        raise Unmapped
    common: dict[str, Any] = {
        "epsilon": a.number("epsilon", default=1e-5),
        "momentum": a.number("momentum", default=0.9),
    }
    if a.flag("is_test", default=False) or use.outputs == 1:
        return e.op("BatchNormalization", x, scale, bias, mean, variance, **common)
    y, now, inv_std = e.op("remat::BatchNorm", x, scale, bias, outputs=3, epsilon=common["epsilon"])
    moved = e.op("remat::RunningStatistics", mean, variance, now, inv_std, outputs=2, **common)
    return (y, *moved, now, inv_std)


@CAFFE2.op("LayerNorm")
def layer_norm(e: Emit, use: OpUse, x: Val, scale: Val | None = None, bias: Val | None = None) -> Any:
    axis = axis_of(x, use.attributes.integer("axis", default=1))
    epsilon = use.attributes.number("epsilon", default=1e-5)
    shape = x.shape[axis:]
    scale = filled(e, shape, 1, x.dtype) if scale is None else e.reshape(scale, shape)
    inputs = [x, scale] if bias is None else [x, scale, e.reshape(bias, shape)]
    wanted = [True, use.outputs > 1, use.outputs > 2]
    y, mean, inverse = e.op("LayerNormalization", *inputs, outputs=wanted, axis=axis, epsilon=epsilon)
    mean = None if mean is None else e.reshape(mean, (*x.shape[:axis], 1))
    deviation = None if inverse is None else e.reshape(e.op("Reciprocal", inverse), (*x.shape[:axis], 1))
    return y, mean, deviation


@CAFFE2.op("LRN")
def lrn(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    if use.outputs > 1 or a.text("order", default="NCHW") != "NCHW":
        raise Unmapped
    return e.op(
        "LRN",
        x,
        size=a.integer("size"),
        alpha=a.number("alpha"),
        beta=a.number("beta"),
        bias=a.number("bias", default=1.0),
    )


@CAFFE2.op("InstanceNorm")
def instance_norm(e: Emit, use: OpUse, x: Val, scale: Val, bias: Val) -> Val:
    if use.outputs > 1 or use.attributes.text("order", default="NCHW") != "NCHW":
        raise Unmapped
    return e.op("InstanceNormalization", x, scale, bias, epsilon=use.attributes.number("epsilon", default=1e-5))


@CAFFE2.op("Dropout")
def dropout(e: Emit, use: OpUse, x: Val) -> Any:
    ratio = e.constant(use.attributes.number("ratio", default=0.5), "float32")
    if use.attributes.flag("is_test", default=False):
        return e.op("Dropout", x, ratio, e.constant(False, "bool"), outputs=(True, use.outputs > 1))
    return e.op("Dropout", x, ratio, outputs=(True, use.outputs > 1))


_UNARY = {
    "Relu": "Relu",
    "Tanh": "Tanh",
    "Sigmoid": "Sigmoid",
    "Exp": "Exp",
    "Log": "Log",
    "Sqrt": "Sqrt",
    "Abs": "Abs",
    "Negative": "Neg",
    "Sign": "Sign",
    "Softsign": "Softsign",
    "Softplus": "Softplus",
    "Sin": "Sin",
    "Cos": "Cos",
    "Floor": "Floor",
    "Ceil": "Ceil",
    "Not": "Not",
    "Copy": "Identity",
    "Alias": "Identity",
    "CopyGPUToCPU": "Identity",
    "CopyCPUToGPU": "Identity",
    "CopyToCPU": "Identity",
    "CopyFromCPUInput": "Identity",
    "EnsureCPUOutput": "Identity",
    "EnsureDense": "Identity",
    "Reciprocal": "Reciprocal",
    "Erf": "Erf",
}
_BINARY = {
    "Add": "Add",
    "Sub": "Sub",
    "Mul": "Mul",
    "Div": "Div",
    "And": "And",
    "Or": "Or",
    "Xor": "Xor",
    "EQ": "Equal",
    "LT": "Less",
    "LE": "LessOrEqual",
    "GT": "Greater",
    "GE": "GreaterOrEqual",
}


@CAFFE2.op(*_UNARY)
def unary(e: Emit, use: OpUse, x: Val) -> Val:
    """Copies between devices are identities that write: a copy has bytes of its own."""
    if "Copy" in use.op:
        return e.op("remat::Copy", x)
    return e.op(_UNARY[use.op], x)


@CAFFE2.op(*_BINARY)
def binary(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    """Ranks meet at the end, or with `broadcast` from `axis` on."""
    return e.op(_BINARY[use.op], x, _met(e, use, x, y))


@CAFFE2.op("NE")
def not_equal(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    return e.op("Not", e.op("Equal", x, _met(e, use, x, y)))


def _met(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    a = use.attributes
    return aligned(e, x, y, a.integer("axis", default=-1)) if a.flag("broadcast", default=False) else y


@CAFFE2.op("Sum", "Max", "Min", "Mean")
def variadic(e: Emit, use: OpUse, *terms: Val) -> Val:
    return e.op(use.op, *terms)


@CAFFE2.op("WeightedSum")
def weighted_sum(e: Emit, use: OpUse, *pairs: Val) -> Val:
    return e.op("Sum", *(e.mul(x, w) for x, w in zip(pairs[::2], pairs[1::2], strict=True)))


@CAFFE2.op("Pow")
def power(e: Emit, use: OpUse, x: Val, exponent: Val | None = None) -> Val:
    return e.op("Pow", x, e.scalar_like(use.attributes.number("exponent"), x) if exponent is None else exponent)


@CAFFE2.op("Sqr")
def square(e: Emit, use: OpUse, x: Val) -> Val:
    return squared(e, x)


@CAFFE2.op("Scale")
def scale(e: Emit, use: OpUse, x: Val) -> Val:
    return scaled(e, x, use.attributes.number("scale", default=1.0))


@CAFFE2.op("Rsqrt", "Cube")
def root_or_cube(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("Reciprocal", e.op("Sqrt", x)) if use.op == "Rsqrt" else e.mul(squared(e, x), x)


@CAFFE2.op("Clip")
def clip(e: Emit, use: OpUse, x: Val) -> Val:
    low, high = use.attributes.number("min", default=-3.4028234e38), use.attributes.number("max", default=3.4028234e38)
    return e.op("Clip", x, e.scalar_like(low, x), e.scalar_like(high, x))


@CAFFE2.op("LeakyRelu", "Elu")
def leaky(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op(use.op, x, alpha=use.attributes.number("alpha", default=0.01 if use.op == "LeakyRelu" else 1.0))


@CAFFE2.op("Selu")
def selu(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    return e.op(
        "Selu",
        x,
        alpha=a.number("alpha", default=1.6732632423543772),
        gamma=a.number("scale", default=1.0507009873554805),
    )


@CAFFE2.op("PRelu")
def prelu(e: Emit, use: OpUse, x: Val, slope: Val) -> Val:
    return e.op("PRelu", x, aligned(e, x, slope, 1))


@CAFFE2.op("Swish", "Gelu")
def swish(e: Emit, use: OpUse, x: Val) -> Val:
    return e.mul(x, e.op("Sigmoid", x)) if use.op == "Swish" else e.op("Gelu", x)


@CAFFE2.op("Where")
def where(e: Emit, use: OpUse, condition: Val, x: Val, y: Val) -> Val:
    return e.where(aligned(e, x, condition, 0) if condition.rank < x.rank else condition, x, y)


@CAFFE2.op("NegateGradient")
def negate_gradient(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("remat::GradientScale", x, scale=-1.0)


@CAFFE2.op("StopGradient")
def stop_gradient(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("remat::StopGradient", x)


@CAFFE2.op("Cast")
def cast(e: Emit, use: OpUse, x: Val) -> Val:
    return e.cast(x, dtype_of(use.attributes.integer("to")))


@CAFFE2.op("FloatToHalf", "HalfToFloat")
def half(e: Emit, use: OpUse, x: Val) -> Val:
    return e.cast(x, "float16" if use.op == "FloatToHalf" else "float32")


@CAFFE2.op("Flatten", "FlattenToVec")
def flatten(e: Emit, use: OpUse, x: Val) -> Val:
    if use.op == "FlattenToVec":
        return e.op("Reshape", x, e.ints([math.prod(x.shape)]), allowzero=1)
    return e.op("Flatten", x, axis=use.attributes.integer("axis", default=1))


@CAFFE2.op("Reshape")
def reshape(e: Emit, use: OpUse, x: Val, shape: Val | None = None) -> tuple[Val, ...]:
    """The value, and the shape it had."""
    codes = use.attributes.integers("shape", default=())
    if shape is not None and not codes:
        known = e.known(shape)
        if known is None:
            raise Unmapped
        codes = tuple(int(n) for n in known.reshape(-1))
    lengths = [x.shape[i] if n == 0 else n for i, n in enumerate(codes)]
    if lengths.count(-1) == 1:
        rest = -math.prod(lengths)
        lengths[lengths.index(-1)] = math.prod(x.shape) // rest if rest else 0
    return e.op("Reshape", x, e.ints(checked_shape(lengths)), allowzero=1), e.op("Identity", e.ints(x.shape))


@CAFFE2.op("ResizeLike")
def resize_like(e: Emit, use: OpUse, x: Val, like: Val) -> Val:
    return e.reshape(x, like.shape)


@CAFFE2.op("ExpandDims", "Squeeze")
def with_ones(e: Emit, use: OpUse, x: Val) -> Val:
    dims = sorted(use.attributes.integers("dims"))
    if use.op == "Squeeze":
        return e.reshape(x, [n for i, n in enumerate(x.shape) if i not in dims])
    shape = list(x.shape)
    for at in dims:
        if not 0 <= at <= len(shape):
            raise ValueError(f"dimension {at} of {x.type}")
        shape.insert(at, 1)
    return e.reshape(x, shape)


@CAFFE2.op("Transpose")
def transpose(e: Emit, use: OpUse, x: Val) -> Val:
    axes = use.attributes.integers("axes", default=()) or tuple(range(x.rank))[::-1]
    return e.op("Transpose", x, perm=[axis_of(x, a) for a in axes])


@CAFFE2.op("NCHW2NHWC", "NHWC2NCHW")
def layout(e: Emit, use: OpUse, x: Val) -> Val:
    behind = list(range(2, x.rank)) if use.op == "NCHW2NHWC" else list(range(1, x.rank - 1))
    return e.op("Transpose", x, perm=[0, *behind, 1] if use.op == "NCHW2NHWC" else [0, x.rank - 1, *behind])


@CAFFE2.op("Concat")
def concat(e: Emit, use: OpUse, *parts: Val) -> tuple[Val, ...]:
    """The value, and the length of each part along the axis."""
    a = use.attributes
    adds = a.flag("add_axis", default=False)
    if "axis" in a:
        axis = a.integer("axis")
    else:
        axis = 1 if a.text("order", default="NCHW") == "NCHW" else parts[0].rank - 1
    if adds:
        at = axis % (parts[0].rank + 1)
        parts = tuple(e.reshape(x, (*x.shape[:at], 1, *x.shape[at:])) for x in parts)
        axis = at
    axis = axis_of(parts[0], axis)
    joined = e.op("Concat", *parts, axis=axis)
    if use.outputs == 1:
        return (joined,)
    return joined, e.op("Identity", e.constant([x.shape[axis] for x in parts], "int32"))


@CAFFE2.op("DepthConcat")
def depth_concat(e: Emit, use: OpUse, *parts: Val) -> tuple[Val, ...]:
    joined = e.op("Concat", *parts, axis=1)
    return joined, e.op("Identity", e.constant([x.shape[1] for x in parts], "int32"))


@CAFFE2.op("Split", "DepthSplit")
def split_op(e: Emit, use: OpUse, x: Val, lengths: Val | None = None) -> tuple[Val, ...]:
    a = use.attributes
    axis = axis_of(x, a.integer("axis", default=1 if a.text("order", default="NCHW") == "NCHW" else x.rank - 1))
    sizes = a.integers("split", default=())
    known = None if lengths is None else e.known(lengths)
    if lengths is not None and known is None:
        raise Unmapped
    if known is not None:
        sizes = tuple(int(n) for n in known.reshape(-1))
    return split(e, x, use.outputs, axis, sizes or None)


@CAFFE2.op("Slice")
def slice_(e: Emit, use: OpUse, x: Val, starts: Val | None = None, ends: Val | None = None) -> Val:
    """Ends of -1 reach to the end, -2 leave one out, and so on."""
    a = use.attributes
    if starts is not None and ends is not None:
        known = e.known(starts), e.known(ends)
        if known[0] is None or known[1] is None:
            raise Unmapped
        begin, end = (tuple(int(n) for n in k.reshape(-1)) for k in known if k is not None)
    else:
        begin, end = a.integers("starts"), a.integers("ends")
    behind = [n + x.shape[i] + 1 if n < 0 else n for i, n in enumerate(end)]
    return sliced(e, x, range(len(begin)), begin, behind, [1] * len(begin))


@CAFFE2.op("Tile")
def tile(e: Emit, use: OpUse, x: Val) -> Val:
    axis, times = axis_of(x, use.attributes.integer("axis", default=0)), use.attributes.integer("tiles", default=1)
    repeats = [times if i == axis else 1 for i in range(x.rank)]
    checked_shape([n * k for n, k in zip(x.shape, repeats, strict=True)])
    return e.op("Tile", x, e.ints(repeats))


@CAFFE2.op("Gather")
def gather(e: Emit, use: OpUse, x: Val, indices: Val) -> Val:
    return e.op("Gather", x, integral(e, indices), axis=use.attributes.integer("axis", default=0))


@CAFFE2.op("BatchGather")
def batch_gather(e: Emit, use: OpUse, x: Val, indices: Val) -> Val:
    return e.op("Gather", x, integral(e, indices), axis=1)


@CAFFE2.op("OneHot")
def one_hot(e: Emit, use: OpUse, indices: Val, size: Val) -> Val:
    if e.known(size) is None:
        raise Unmapped
    return e.op("OneHot", indices, e.reshape(size, (1,)), e.constant([0, 1], "uint8"))


@CAFFE2.op("Shape", "Size")
def shape(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op(use.op, x)


@CAFFE2.op("PadImage")
def pad_image(e: Emit, use: OpUse, x: Val) -> Val:
    window, mode = _window(use, x), use.attributes.text("mode", default="constant")
    pads = window["pads"]
    pads = [0, 0, *pads[: x.rank - 2], 0, 0, *pads[x.rank - 2 :]]
    number = e.scalar_like(use.attributes.number("value", default=0.0), x)
    return e.op("Pad", x, e.ints(pads), *([number] if mode == "constant" else []), mode=mode)


@CAFFE2.op("ResizeNearest", "UpsampleNearest")
def resize_nearest(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    both = a.number("scale", default=1.0)
    scales = np.array([1, 1, a.number("height_scale", default=both), a.number("width_scale", default=both)], np.float32)
    return e.op(
        "Resize",
        x,
        None,
        e.constant(scales),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


_REDUCTIONS = {
    "ReduceSum": "ReduceSum",
    "ReduceMean": "ReduceMean",
    "ReduceMax": "ReduceMax",
    "ReduceMin": "ReduceMin",
    "ReduceL1": "ReduceL1",
    "ReduceL2": "ReduceL2",
}
_ENDS = {
    "ReduceFrontSum": "ReduceSum",
    "ReduceFrontMean": "ReduceMean",
    "ReduceFrontMax": "ReduceMax",
    "ReduceBackSum": "ReduceSum",
    "ReduceBackMean": "ReduceMean",
    "ReduceBackMax": "ReduceMax",
}


@CAFFE2.op(*_REDUCTIONS)
def reduction(e: Emit, use: OpUse, x: Val) -> Val:
    axes = use.attributes.integers("axes", default=()) or range(x.rank)
    return reduced(e, _REDUCTIONS[use.op], x, list(axes), use.attributes.flag("keepdims", default=True))


@CAFFE2.op(*_ENDS)
def reduce_ends(e: Emit, use: OpUse, x: Val) -> Val:
    many = use.attributes.integer("num_reduce_dim", default=1)
    axes = range(many) if "Front" in use.op else range(x.rank - many, x.rank)
    return reduced(e, _ENDS[use.op], x, list(axes), False)


@CAFFE2.op("SumElements", "AveragedLoss", "SumSqrElements")
def reduce_all(e: Emit, use: OpUse, x: Val) -> Val:
    """One element without dimensions."""
    mean = use.op == "AveragedLoss" or use.attributes.flag("average", default=False)
    if use.op == "SumSqrElements":
        x = squared(e, x)
    return reduced(e, "ReduceMean" if mean else "ReduceSum", x, range(x.rank), False)


@CAFFE2.op("ArgMax", "ArgMin")
def arg_extreme(e: Emit, use: OpUse, x: Val) -> Val:
    keepdims = int(use.attributes.flag("keepdims", default=True))
    return e.op(use.op, x, axis=axis_of(x, use.attributes.integer("axis", default=-1)), keepdims=keepdims)


@CAFFE2.op("Softmax", "LogSoftmax")
def softmax(e: Emit, use: OpUse, x: Val) -> Val:
    """Over all dimensions from `axis` on as one."""
    axis = axis_of(x, use.attributes.integer("axis", default=1)) if x.rank > 1 else 0
    if axis == x.rank - 1:
        return e.op(use.op, x, axis=axis)
    flat = e.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return e.reshape(e.op(use.op, flat, axis=1), x.shape)


@CAFFE2.op("SoftmaxWithLoss")
def softmax_with_loss(e: Emit, use: OpUse, x: Val, labels: Val, weights: Val | None = None) -> tuple[Val, ...]:
    """Probabilities and their mean cross-entropy."""
    a = use.attributes
    if weights is not None or a.flag("label_prob", default=False) or a.text("order", default="NCHW") != "NCHW":
        raise Unmapped
    axis = axis_of(x, a.integer("axis", default=1))
    rows, classes = math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
    scores, at = e.reshape(x, (rows, classes)), e.reshape(integral(e, labels), (rows,))
    loss, log = e.op("SoftmaxCrossEntropyLoss", scores, at, outputs=2, reduction="mean")
    return e.reshape(e.op("Exp", log), x.shape), scaled(e, loss, a.number("scale", default=1.0))


@CAFFE2.op("LabelCrossEntropy")
def label_cross_entropy(e: Emit, use: OpUse, prob: Val, labels: Val) -> Val:
    """Per row -log of the probability of its label."""
    return e.reshape(picked_log(e, prob, labels), (prob.shape[0],))


@CAFFE2.op("CrossEntropy")
def cross_entropy(e: Emit, use: OpUse, prob: Val, wanted: Val) -> Val:
    return e.neg(reduced(e, "ReduceSum", e.mul(wanted, e.op("Log", prob)), [1], False))


@CAFFE2.op("SigmoidCrossEntropyWithLogits")
def sigmoid_cross_entropy(e: Emit, use: OpUse, x: Val, target: Val) -> Val:
    """Per row the mean of softplus(x) - x · target."""
    if "log_D_trick" in use.attributes or "unjoined_lr_loss" in use.attributes:
        raise Unmapped
    each = e.sub(e.op("Softplus", x), e.mul(x, target))
    return reduced(e, "ReduceMean", each, [x.rank - 1], False)


@CAFFE2.op("SquaredL2Distance")
def squared_l2_distance(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    """Per row half the squared distance."""
    return scaled(e, reduced(e, "ReduceSum", squared(e, e.sub(x, y)), range(1, x.rank), False), 0.5)


@CAFFE2.op("L1Distance")
def l1_distance(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    return reduced(e, "ReduceSum", e.op("Abs", e.sub(x, y)), range(1, x.rank), False)


@CAFFE2.op("LSTMUnit")
def lstm_unit(e: Emit, use: OpUse, hidden: Val, cell: Val, gates: Val, *rest: Val) -> tuple[Val, ...]:
    """One step from gates [1, batch, 4 · size], before their activations: input, forget, output and candidate."""
    a = use.attributes
    return e.op(
        "remat::LSTMUnit",
        hidden,
        cell,
        gates,
        *_time(e, use, hidden, rest),
        outputs=2,
        forget_bias=a.number("forget_bias", default=0.0),
        drop_states=int(a.flag("drop_states", default=False)),
    )


@CAFFE2.op("GRUUnit")
def gru_unit(e: Emit, use: OpUse, hidden: Val, gates: Val, *rest: Val) -> Val:
    drop = int(use.attributes.flag("drop_states", default=False))
    return e.op("remat::GRUUnit", hidden, gates, *_time(e, use, hidden, rest), drop_states=drop)


def _time(e: Emit, use: OpUse, hidden: Val, rest: tuple[Val, ...]) -> list[Val]:
    """Lengths of the sequences and the time, where a sequence may end early."""
    if len(rest) not in (1, 2):
        raise ValueError(f"{len(rest)} inputs behind the gates; lengths and the time, or the time alone")
    if len(rest) == 1 or not use.attributes.flag("sequence_lengths", default=True):
        return []
    return [rest[0], e.cast(rest[1], rest[0].dtype)]


@CAFFE2.op("CreateScope", "HasScope")
def scope(e: Emit, use: OpUse, *inputs: Val) -> Any:
    """A handle to scopes, which has no bytes; whether it holds any."""
    type = TensorType("int32", (0,)) if use.op == "CreateScope" else TensorType("bool", (1,))
    return opaque(e, f"caffe2::{use.op}", inputs, [type], recompute="never")


@CAFFE2.op("ConstantFill", "Const")
def constant_fill(e: Emit, use: OpUse, like: Val | None = None) -> Val:
    """A shape of its own, of an input, or the content of an input."""
    a = use.attributes
    dtype = dtype_of(a.integer("dtype", default=1))
    number = a.number("value", default=0.0)
    if like is None:
        return filled(e, a.integers("shape", default=()), number, dtype)
    if a.flag("input_as_shape", default=False):
        known = e.known(like)
        if known is None:
            raise Unmapped
        return filled(e, [int(n) for n in known.reshape(-1)], number, dtype)
    return filled(e, (*like.shape, *a.integers("extra_shape", default=())), number, dtype)


@CAFFE2.op(
    "GivenTensorFill", "GivenTensorIntFill", "GivenTensorInt64Fill", "GivenTensorBoolFill", "GivenTensorDoubleFill"
)
def given_tensor_fill(e: Emit, use: OpUse) -> Val:
    dtype = GIVEN_DTYPES[use.op]
    shape = checked_shape(use.attributes.integers("shape"))
    numbers = use.attributes.raw(("values",))
    count = math.prod(shape)
    if not isinstance(numbers, list | tuple) or len(numbers) != count or count > 1 << 16:
        return filled(e, shape, 0, dtype)
    return e.op("Identity", e.constant(np.asarray(numbers).reshape(shape), dtype))


GIVEN_DTYPES = {
    "GivenTensorFill": "float32",
    "GivenTensorIntFill": "int32",
    "GivenTensorInt64Fill": "int64",
    "GivenTensorBoolFill": "bool",
    "GivenTensorDoubleFill": "float64",
}


@CAFFE2.op("UniformFill", "XavierFill", "MSRAFill", "GaussianFill")
def random_fill(e: Emit, use: OpUse) -> Val:
    a = use.attributes
    shape = list(checked_shape(a.integers("shape")))
    fan_in = math.prod(shape[1:]) or 1
    if use.op == "UniformFill":
        return e.op("RandomUniform", shape=shape, low=a.number("min", default=0.0), high=a.number("max", default=1.0))
    if use.op == "XavierFill":
        reach = math.sqrt(3 / fan_in)
        return e.op("RandomUniform", shape=shape, low=-reach, high=reach)
    spread = a.number("std", default=1.0) if use.op == "GaussianFill" else math.sqrt(2 / (fan_in or 1))
    return e.op(
        "RandomNormal", shape=shape, mean=a.number("mean", default=0.0), scale=spread, dtype=onnx_dtype("float32")
    )


def fill_type(op: str, use: OpUse) -> TensorType | None:
    """Output type of a fill op of an init net, from its arguments alone; None for other ops."""
    a = use.attributes
    if op in GIVEN_DTYPES:
        return TensorType(GIVEN_DTYPES[op], checked_shape(a.integers("shape")))
    if op in ("UniformFill", "XavierFill", "MSRAFill", "GaussianFill"):
        return TensorType("float32", checked_shape(a.integers("shape")))
    if op in ("ConstantFill", "UniformIntFill", "UniqueUniformFill"):
        known = dtype_of(a.integer("dtype", default=1 if op == "ConstantFill" else 2))
        return TensorType(known, checked_shape(a.integers("shape", default=())))
    return None
