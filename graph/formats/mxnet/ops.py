"""Op table of MXNet and NNVM, which share the file format: translations to standard and `remat` ops.

Semantics: MXNet 1.x operator documentation (mxnet.symbol, src/operator parameter structs); NNVM top-level ops.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from graph.builder.emit import Emit
from graph.formats.shared.op_helpers import (
    aligned,
    as_number,
    axis_of,
    checked_shape,
    dense,
    filled,
    floating,
    integral,
    opaque,
    pads_both,
    reduced,
    same_each,
    scaled,
    shifted,
    sliced,
    split,
    squared,
)
from graph.formats.shared.op_table import OpTable, OpUse, Unmapped
from graph.ir import DTYPE_BITS, TensorType, Val

MXNET = OpTable("mxnet")

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


def dtype_of(word: str) -> str:
    """An element type by name or number. Raises ValueError."""
    name = DTYPES.get(int(word), word) if word.lstrip("-").isdigit() else word
    if name not in DTYPE_BITS:
        raise ValueError(f"element type {word!r}")
    return name


@MXNET.op("FullyConnected")
def fully_connected(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    return dense(e, x, w, bias, rows=1 if use.attributes.flag("flatten", default=True) else max(x.rank - 1, 1))


@MXNET.op("dense")
def nnvm_dense(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    return dense(e, x, w, bias)


@MXNET.op("dot")
def dot(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    """Last dimension of x by first of y, after turning either around."""
    a, b = use.attributes.flag("transpose_a", default=False), use.attributes.flag("transpose_b", default=False)
    if x.rank > 2 or y.rank > 2:
        return _dot_of_tensors(e, x, y, a, b)
    left = e.transpose(x, [1, 0]) if a and x.rank == 2 else x
    right = e.transpose(y, [1, 0]) if b and y.rank == 2 else y
    return e.reshape(e.matmul(left, right), (1,)) if x.rank == y.rank == 1 else e.matmul(left, right)


def _dot_of_tensors(e: Emit, x: Val, y: Val, a: bool, b: bool) -> Val:
    left = e.transpose(x, [*range(1, x.rank), 0]) if a else x
    right = e.transpose(y, [y.rank - 1, *range(y.rank - 1)]) if b else y
    rest = right.shape[1:]
    matrix = e.reshape(right, (right.shape[0], math.prod(rest)))
    flat = e.matmul(e.reshape(left, (math.prod(left.shape[:-1]), left.shape[-1])), matrix)
    return e.reshape(flat, (*left.shape[:-1], *rest))


@MXNET.op("batch_dot", "_linalg_gemm2", "linalg_gemm2")
def batch_dot(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    a, b = use.attributes.flag("transpose_a", default=False), use.attributes.flag("transpose_b", default=False)
    if not a and not b:
        product = e.matmul(x, y)
    else:
        product = e.op("remat::MatMul", x, y, trans_a=int(a), trans_b=int(b))
    return scaled(e, product, use.attributes.number("alpha", default=1.0))


@MXNET.op("Embedding")
def embedding(e: Emit, use: OpUse, indices: Val, weight: Val) -> Val:
    return e.op("Gather", weight, integral(e, indices), axis=0)


@MXNET.op("Convolution", "Convolution_v1")
def convolution(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    return _convolution(e, use, x, w, bias, "kernel", "pad", "stride", "dilate", "num_group")


@MXNET.op("conv2d")
def conv2d(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    return _convolution(e, use, x, w, bias, "kernel_size", "padding", "strides", "dilation", "groups")


def _convolution(
    e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None, kernel: str, pad: str, stride: str, dilate: str, groups: str
) -> Val:
    a, rank = use.attributes, x.rank - 2
    if a.text("layout", default="NC")[:2] != "NC":
        raise Unmapped
    if rank < 1 or w.rank != x.rank:
        raise ValueError(f"data {x.type} and weight {w.type}")
    a.integers(kernel, "kernel", default=())
    return e.op(
        "Conv",
        x,
        w,
        *([] if bias is None else [bias]),
        kernel_shape=list(w.shape[2:]),
        strides=same_each(a.integers(stride, default=()), rank, 1),
        dilations=same_each(a.integers(dilate, default=()), rank, 1),
        pads=pads_both(same_each(a.integers(pad, default=()), rank, 0), rank),
        group=a.integer(groups, default=1),
    )


@MXNET.op("Deconvolution")
def deconvolution(e: Emit, use: OpUse, x: Val, w: Val, bias: Val | None = None) -> Val:
    a, rank = use.attributes, x.rank - 2
    if a.text("layout", default="NC")[:2] != "NC" or "target_shape" in a:
        raise Unmapped
    if rank < 1 or w.rank != x.rank:
        raise ValueError(f"data {x.type} and weight {w.type}")
    return e.op(
        "ConvTranspose",
        x,
        w,
        *([] if bias is None else [bias]),
        kernel_shape=list(w.shape[2:]),
        strides=same_each(a.integers("stride", default=()), rank, 1),
        dilations=same_each(a.integers("dilate", default=()), rank, 1),
        pads=pads_both(same_each(a.integers("pad", default=()), rank, 0), rank),
        output_padding=same_each(a.integers("adj", default=()), rank, 0),
        group=a.integer("num_group", default=1),
    )


@MXNET.op("Pooling", "Pooling_v1")
def pooling(e: Emit, use: OpUse, x: Val) -> Val:
    a, rank = use.attributes, x.rank - 2
    kind = a.text("pool_type", default="max")
    if a.text("layout", default="NC")[:2] != "NC" or kind not in ("max", "avg", "sum"):
        raise Unmapped
    if a.flag("global_pool", default=False):
        if kind == "sum":
            return reduced(e, "ReduceSum", x, range(2, x.rank), True)
        return e.op("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", x)
    kernel = a.integers("kernel")
    window: dict[str, Any] = {
        "kernel_shape": same_each(kernel, rank, 1),
        "strides": same_each(a.integers("stride", default=()), rank, 1),
        "pads": pads_both(same_each(a.integers("pad", default=()), rank, 0), rank),
    }
    convention = a.text("pooling_convention", default="valid")
    if convention == "full":
        window["ceil_mode"] = 1
    elif convention != "valid":
        raise Unmapped
    if kind == "max":
        return e.op("MaxPool", x, **window)
    counted = kind == "sum" or a.flag("count_include_pad", default=True)
    mean = e.op("AveragePool", x, count_include_pad=int(counted), **window)
    return scaled(e, mean, math.prod(window["kernel_shape"])) if kind == "sum" else mean


@MXNET.op("max_pool2d", "avg_pool2d")
def nnvm_pool(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    size = same_each(a.integers("pool_size", "pool"), 2, 1)
    window: dict[str, Any] = {
        "kernel_shape": size,
        "strides": same_each(a.integers("strides", default=()), 2, 1),
        "pads": pads_both(same_each(a.integers("padding", default=()), 2, 0), 2),
        "ceil_mode": int(a.flag("ceil_mode", default=False)),
    }
    return e.op("MaxPool" if use.op == "max_pool2d" else "AveragePool", x, **window)


@MXNET.op("global_max_pool2d", "global_avg_pool2d")
def nnvm_global_pool(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("GlobalMaxPool" if "max" in use.op else "GlobalAveragePool", x)


@MXNET.op("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "batch_norm")
def batch_norm(e: Emit, use: OpUse, x: Val, gamma: Val, beta: Val, mean: Val, variance: Val) -> Val:
    """`fix_gamma`, MXNet's default, reads the scale as ones and does not train it."""
    a = use.attributes
    nnvm = use.op == "batch_norm"
    if axis_of(x, a.integer("axis", default=1)) != 1 or a.flag("output_mean_var", default=False):
        raise Unmapped
    if not nnvm and a.flag("fix_gamma", default=True):
        gamma = filled(e, gamma.shape, 1, gamma.dtype)
    return e.op(
        "BatchNormalization",
        x,
        gamma,
        beta,
        mean,
        variance,
        epsilon=a.number("eps", "epsilon", default=1e-5 if nnvm else 1e-3),
        momentum=a.number("momentum", default=0.9),
    )


@MXNET.op("LayerNorm")
def layer_norm(e: Emit, use: OpUse, x: Val, gamma: Val, beta: Val) -> Val:
    if axis_of(x, use.attributes.integer("axis", default=-1)) != x.rank - 1 or use.outputs > 1:
        raise Unmapped
    return e.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=use.attributes.number("eps", default=1e-5))


@MXNET.op("InstanceNorm")
def instance_norm(e: Emit, use: OpUse, x: Val, gamma: Val, beta: Val) -> Val:
    return e.op("InstanceNormalization", x, gamma, beta, epsilon=use.attributes.number("eps", default=1e-3))


@MXNET.op("GroupNorm")
def group_norm(e: Emit, use: OpUse, x: Val, gamma: Val, beta: Val) -> Val:
    if gamma.shape != x.shape[1:2]:
        raise Unmapped  # older files scale by group
    return e.op(
        "GroupNormalization",
        x,
        gamma,
        beta,
        num_groups=use.attributes.integer("num_groups", default=1),
        epsilon=use.attributes.number("eps", default=1e-5),
    )


@MXNET.op("LRN")
def lrn(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    return e.op(
        "LRN",
        x,
        size=a.integer("nsize"),
        alpha=a.number("alpha", default=1e-4),
        beta=a.number("beta", default=0.75),
        bias=a.number("knorm", default=2.0),
    )


@MXNET.op("L2Normalization")
def l2_normalization(e: Emit, use: OpUse, x: Val) -> Val:
    mode = use.attributes.text("mode", default="instance")
    axes = {"instance": range(1, x.rank), "channel": [1], "spatial": range(2, x.rank)}.get(mode)
    if axes is None:
        raise ValueError(f"mode {mode!r}")
    total = shifted(e, reduced(e, "ReduceSumSquare", x, axes, True), use.attributes.number("eps", default=1e-10))
    return e.div(x, e.op("Sqrt", total))


@MXNET.op("Dropout", "dropout")
def dropout(e: Emit, use: OpUse, x: Val) -> tuple[Val | None, ...]:
    ratio = use.attributes.number("p", "rate", default=0.5)
    if use.attributes.integers("axes", default=()):
        raise Unmapped
    wanted = (True, use.outputs > 1)
    return e.op("Dropout", x, e.constant(ratio, "float32"), outputs=wanted)


_UNARY = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softsign": "Softsign",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "sign": "Sign",
    "floor": "Floor",
    "ceil": "Ceil",
    "negative": "Neg",
    "_np_negative": "Neg",
    "reciprocal": "Reciprocal",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "arcsin": "Asin",
    "arccos": "Acos",
    "arctan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "arcsinh": "Asinh",
    "arccosh": "Acosh",
    "arctanh": "Atanh",
    "erf": "Erf",
    "_copy": "Identity",
    "identity": "Identity",
    "rint": "Round",
}
_ACTIVATIONS = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softrelu": "Softplus",
    "softsign": "Softsign",
    "mish": "Mish",
}
_BINARY = {
    "elemwise_add": "Add",
    "_plus": "Add",
    "_Plus": "Add",
    "_add": "Add",
    "_grad_add": "Add",
    "broadcast_add": "Add",
    "broadcast_plus": "Add",
    "Add": "Add",
    "passthrough_add": "Add",
    "elemwise_sub": "Sub",
    "_minus": "Sub",
    "_Minus": "Sub",
    "_sub": "Sub",
    "broadcast_sub": "Sub",
    "broadcast_minus": "Sub",
    "Sub": "Sub",
    "elemwise_mul": "Mul",
    "_mul": "Mul",
    "_Mul": "Mul",
    "broadcast_mul": "Mul",
    "Mul": "Mul",
    "elemwise_div": "Div",
    "_div": "Div",
    "_Div": "Div",
    "broadcast_div": "Div",
    "Div": "Div",
    "_power": "Pow",
    "_Power": "Pow",
    "broadcast_power": "Pow",
    "elemwise_pow": "Pow",
    "broadcast_pow": "Pow",
    "_maximum": "Max",
    "_Maximum": "Max",
    "broadcast_maximum": "Max",
    "broadcast_max": "Max",
    "_minimum": "Min",
    "_Minimum": "Min",
    "broadcast_minimum": "Min",
    "broadcast_min": "Min",
}
_COMPARISONS = {
    "equal": "Equal",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "lesser": "Less",
    "lesser_equal": "LessOrEqual",
}
_SCALARS = {
    "_plus_scalar": "Add",
    "_PlusScalar": "Add",
    "AddScalar": "Add",
    "__add_scalar__": "Add",
    "_minus_scalar": "Sub",
    "_MinusScalar": "Sub",
    "SubScalar": "Sub",
    "__sub_scalar__": "Sub",
    "_mul_scalar": "Mul",
    "_MulScalar": "Mul",
    "MulScalar": "Mul",
    "__mul_scalar__": "Mul",
    "_div_scalar": "Div",
    "_DivScalar": "Div",
    "__div_scalar__": "Div",
    "_power_scalar": "Pow",
    "_PowerScalar": "Pow",
    "pow_scalar": "Pow",
    "__pow_scalar__": "Pow",
    "_maximum_scalar": "Max",
    "_MaximumScalar": "Max",
    "_minimum_scalar": "Min",
    "_MinimumScalar": "Min",
    "_mod_scalar": "Mod",
}
_REVERSED = {
    "_rminus_scalar": "Sub",
    "_RMinusScalar": "Sub",
    "RSubScalar": "Sub",
    "__rsub_scalar__": "Sub",
    "_rdiv_scalar": "Div",
    "_RDivScalar": "Div",
    "__rdiv_scalar__": "Div",
    "_rpower_scalar": "Pow",
    "_RPowerScalar": "Pow",
    "__rpow_scalar__": "Pow",
}


@MXNET.op(*_UNARY)
def unary(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op(_UNARY[use.op], x)


@MXNET.op("Activation")
def activation(e: Emit, use: OpUse, x: Val) -> Val:
    kind = use.attributes.text("act_type")
    if kind == "log_sigmoid":
        return e.neg(e.op("Softplus", e.neg(x)))
    if kind not in _ACTIVATIONS:
        raise Unmapped
    return e.op(_ACTIVATIONS[kind], x)


@MXNET.op("LeakyReLU")
def leaky_relu(e: Emit, use: OpUse, x: Val, gamma: Val | None = None) -> Val:
    kind, slope = use.attributes.text("act_type", default="leaky"), use.attributes.number("slope", default=0.25)
    if kind == "prelu" and gamma is not None:
        return e.op("PRelu", x, aligned(e, x, gamma, 1))
    known: dict[str, tuple[str, dict[str, Any]]] = {
        "leaky": ("LeakyRelu", {"alpha": slope}),
        "elu": ("Elu", {"alpha": slope}),
        "selu": ("Selu", {}),
        "gelu": ("Gelu", {}),
    }
    found = known.get(kind)
    if found is None:
        raise Unmapped
    return e.op(found[0], x, **found[1])


@MXNET.op(*_BINARY)
def binary(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    return e.op(_BINARY[use.op], x, y)


@MXNET.op("broadcast_mod", "_mod", "_Mod")
def modulo(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    return e.op("Mod", x, y, fmod=int(x.dtype.startswith("float")))


@MXNET.op(*(form + word for word in _COMPARISONS for form in ("broadcast_", "_")))
def comparison(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    return as_number(e, e.op(_COMPARISONS[use.op.removeprefix("broadcast_").removeprefix("_")], x, y), x)


@MXNET.op("broadcast_not_equal", "_not_equal")
def not_equal(e: Emit, use: OpUse, x: Val, y: Val) -> Val:
    return as_number(e, e.op("Not", e.op("Equal", x, y)), x)


@MXNET.op(*(f"_{word}_scalar" for word in _COMPARISONS))
def scalar_comparison(e: Emit, use: OpUse, x: Val) -> Val:
    number = e.scalar_like(use.attributes.number("scalar"), x)
    return as_number(e, e.op(_COMPARISONS[use.op.removeprefix("_").removesuffix("_scalar")], x, number), x)


@MXNET.op("_not_equal_scalar")
def scalar_not_equal(e: Emit, use: OpUse, x: Val) -> Val:
    number = e.scalar_like(use.attributes.number("scalar"), x)
    return as_number(e, e.op("Not", e.op("Equal", x, number)), x)


@MXNET.op(*_SCALARS)
def by_scalar(e: Emit, use: OpUse, x: Val) -> Val:
    number = e.scalar_like(use.attributes.number("scalar", "exponent"), x)
    fmod = {"fmod": int(x.dtype.startswith("float"))} if use.op == "_mod_scalar" else {}
    return e.op(_SCALARS[use.op], x, number, **fmod)


@MXNET.op(*_REVERSED)
def scalar_by(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op(_REVERSED[use.op], e.scalar_like(use.attributes.number("scalar"), x), x)


@MXNET.op("add_n", "ElementWiseSum", "elemwise_sum", "_sum_n")
def add_n(e: Emit, use: OpUse, *terms: Val) -> Val:
    return e.op("Sum", *terms)


@MXNET.op("square")
def square(e: Emit, use: OpUse, x: Val) -> Val:
    return squared(e, x)


@MXNET.op("rsqrt", "rcbrt", "cbrt")
def root(e: Emit, use: OpUse, x: Val) -> Val:
    if use.op == "rsqrt":
        return e.op("Reciprocal", e.op("Sqrt", x))
    power = e.scalar_like(1 / 3, x)
    found = e.mul(e.op("Sign", x), e.op("Pow", e.op("Abs", x), power))
    return found if use.op == "cbrt" else e.op("Reciprocal", found)


@MXNET.op("log2", "log10", "log1p", "expm1")
def logarithm(e: Emit, use: OpUse, x: Val) -> Val:
    if use.op == "log1p":
        return e.op("Log", shifted(e, x, 1))
    if use.op == "expm1":
        return shifted(e, e.op("Exp", x), -1)
    return scaled(e, e.op("Log", x), 1 / math.log(2 if use.op == "log2" else 10))


@MXNET.op("hard_sigmoid")
def hard_sigmoid(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    return e.op("HardSigmoid", x, alpha=a.number("alpha", default=0.2), beta=a.number("beta", default=0.5))


@MXNET.op("smooth_l1")
def smooth_l1(e: Emit, use: OpUse, x: Val) -> Val:
    """(σx)²/2 within 1/σ² of zero, |x| - 1/(2σ²) outside."""
    sigma2 = use.attributes.number("scalar", default=1.0) ** 2
    size = e.op("Abs", x)
    near = e.op("Less", size, e.scalar_like(1 / sigma2, x))
    return e.where(near, scaled(e, squared(e, x), sigma2 / 2), shifted(e, size, -0.5 / sigma2))


@MXNET.op("clip")
def clip(e: Emit, use: OpUse, x: Val) -> Val:
    low, high = use.attributes.number("a_min"), use.attributes.number("a_max")
    return e.op("Clip", x, e.scalar_like(low, x), e.scalar_like(high, x))


@MXNET.op("Cast", "cast", "amp_cast")
def cast(e: Emit, use: OpUse, x: Val) -> Val:
    return e.cast(x, dtype_of(use.attributes.text("dtype")))


@MXNET.op("where")
def where(e: Emit, use: OpUse, condition: Val, x: Val, y: Val) -> Val:
    truth = e.cast(condition, "bool")
    return e.where(aligned(e, x, truth, 0) if truth.rank < x.rank else truth, x, y)


@MXNET.op("BlockGrad", "stop_gradient", "block_grad")
def block_gradient(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("remat::StopGradient", x)


@MXNET.op("_identity_with_attr_like_rhs")
def identity_like(e: Emit, use: OpUse, x: Val, like: Val) -> Val:
    return x


@MXNET.op("Flatten", "flatten")
def flatten(e: Emit, use: OpUse, x: Val) -> Val:
    return e.op("Flatten", x, axis=1)


@MXNET.op("Reshape", "reshape")
def reshape(e: Emit, use: OpUse, x: Val) -> Val:
    """Codes: 0 copies, -1 infers, -2 copies the rest, -3 joins two, -4 splits one in two."""
    codes, reverse = use.attributes.integers("shape", default=()), use.attributes.flag("reverse", default=False)
    if not codes:
        codes = use.attributes.integers("target_shape")  # the older spelling, in which 0 infers
        codes = tuple(-1 if c == 0 else c for c in codes)
    return e.reshape(x, coded_shape(x.shape, codes, reverse))


def coded_shape(shape: tuple[int, ...], codes: tuple[int, ...], reverse: bool = False) -> tuple[int, ...]:
    """Target shape of MXNet's reshape codes. Raises ValueError."""
    if reverse:
        return coded_shape(shape[::-1], codes[::-1])[::-1]
    made: list[int] = []
    at, k, elements = 0, 0, math.prod(shape)
    while k < len(codes):
        code = codes[k]
        if code == 0:
            made.append(shape[at])
            at += 1
        elif code == -2:
            made.extend(shape[at:])
            at = len(shape)
        elif code == -3:
            made.append(shape[at] * shape[at + 1])
            at += 2
        elif code == -4:
            first, second = codes[k + 1], codes[k + 2]
            first = shape[at] // second if first == -1 else first
            made.extend((first, shape[at] // first if second == -1 else second))
            at, k = at + 1, k + 2
        else:
            made.append(code)
            at += 1
        k += 1
    return inferred_shape(made, elements)


def inferred_shape(shape: list[int], elements: int) -> tuple[int, ...]:
    """The shape with its single -1 inferred. Raises ValueError when it does not match the element count."""
    if shape.count(-1) == 1:
        rest = -math.prod(shape)
        shape = [elements // rest if n == -1 and rest else n for n in shape]
    if min(shape, default=0) < 0 or math.prod(shape) != elements:
        raise ValueError(f"{elements} elements do not have the shape {shape[:12]}")
    return checked_shape(shape)


@MXNET.op("reshape_like")
def reshape_like(e: Emit, use: OpUse, x: Val, like: Val) -> Val:
    if any(key in use.attributes for key in ("lhs_begin", "lhs_end", "rhs_begin", "rhs_end")):
        raise Unmapped
    return e.reshape(x, like.shape)


@MXNET.op("transpose")
def transpose(e: Emit, use: OpUse, x: Val) -> Val:
    axes = use.attributes.integers("axes", default=()) or tuple(range(x.rank))[::-1]
    return e.op("Transpose", x, perm=[axis_of(x, a) for a in axes])


@MXNET.op("SwapAxis", "swapaxes")
def swap_axes(e: Emit, use: OpUse, x: Val) -> Val:
    axes = list(range(x.rank))
    one, two = (axis_of(x, use.attributes.integer(key, default=0)) for key in ("dim1", "dim2"))
    axes[one], axes[two] = axes[two], axes[one]
    return e.transpose(x, axes)


@MXNET.op("expand_dims")
def expand_dims(e: Emit, use: OpUse, x: Val) -> Val:
    axis = use.attributes.integer("axis")
    count = use.attributes.integer("num_newaxis", default=1)
    axis = axis + x.rank + 1 if axis < 0 else axis
    if not 0 <= axis <= x.rank or not 0 < count < 32:
        raise ValueError(f"axis {axis} of a value of {x.rank} dimensions")
    return e.reshape(x, (*x.shape[:axis], *[1] * count, *x.shape[axis:]))


@MXNET.op("squeeze")
def squeeze(e: Emit, use: OpUse, x: Val) -> Val:
    axes = [axis_of(x, a) for a in use.attributes.integers("axis", default=())]
    axes = axes or [i for i, n in enumerate(x.shape) if n == 1]
    return e.reshape(x, [n for i, n in enumerate(x.shape) if i not in axes])


@MXNET.op("Concat", "concat", "concatenate", "_rnn_param_concat")
def concat(e: Emit, use: OpUse, *parts: Val) -> Val:
    axis = use.attributes.integer("dim", "axis", default=1)
    return e.op("Concat", *parts, axis=axis_of(parts[0], axis))


@MXNET.op("stack")
def stack(e: Emit, use: OpUse, *parts: Val) -> Val:
    axis = use.attributes.integer("axis", default=0)
    axis = axis + parts[0].rank + 1 if axis < 0 else axis
    rows = [e.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in parts]
    return e.op("Concat", *rows, axis=axis)


@MXNET.op("SliceChannel", "split")
def slice_channel(e: Emit, use: OpUse, x: Val) -> tuple[Val, ...]:
    a = use.attributes
    axis = axis_of(x, a.integer("axis", default=1))
    parts = split(e, x, a.integer("num_outputs", "indices_or_sections", default=use.outputs), axis)
    if not a.flag("squeeze_axis", default=False):
        return parts
    return tuple(e.reshape(part, [n for i, n in enumerate(part.shape) if i != axis]) for part in parts)


@MXNET.op("_split_v2", "split_v2")
def split_v2(e: Emit, use: OpUse, x: Val) -> tuple[Val, ...]:
    a = use.attributes
    axis, sections = axis_of(x, a.integer("axis", default=0)), a.integer("sections", default=0)
    cuts = [0, *(i for i in a.integers("indices", default=()) if i), x.shape[axis]]
    sizes = None if sections else [behind - at for at, behind in itertools.pairwise(cuts)]
    parts = split(e, x, sections or len(cuts) - 1, axis, sizes)
    if not a.flag("squeeze_axis", default=False):
        return parts
    return tuple(e.reshape(part, [n for i, n in enumerate(part.shape) if i != axis]) for part in parts)


@MXNET.op("slice", "crop")
def slice_(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    begin, end = a.maybe_integers("begin") or (), a.maybe_integers("end") or ()
    step = a.maybe_integers("step") or ()
    steps = [s or 1 for s in (*step, *[None] * (len(begin) - len(step)))]
    far = (1 << 62) - 1
    begins = [(far if s < 0 else 0) if b is None else b for b, s in zip(begin, steps, strict=True)]
    ends = [(-far if s < 0 else far) if n is None else n for n, s in zip(end, steps, strict=True)]
    return sliced(e, x, range(len(begins)), begins, ends, steps)


@MXNET.op("slice_axis")
def slice_axis(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    axis, end = axis_of(x, a.integer("axis")), a.maybe_integer("end")
    return sliced(e, x, [axis], [a.integer("begin", default=0)], [x.shape[axis] if end is None else end], [1])


@MXNET.op("slice_like")
def slice_like(e: Emit, use: OpUse, x: Val, like: Val) -> Val:
    axes = [axis_of(x, a) for a in use.attributes.integers("axes", default=())] or list(range(x.rank))
    return sliced(e, x, axes, [0] * len(axes), [like.shape[a] for a in axes], [1] * len(axes))


@MXNET.op("reverse", "flip")
def reverse(e: Emit, use: OpUse, x: Val) -> Val:
    axes = [axis_of(x, a) for a in use.attributes.integers("axis")]
    return sliced(e, x, axes, [-1] * len(axes), [-(1 << 62)] * len(axes), [-1] * len(axes))


@MXNET.op("broadcast_to", "_np_broadcast_to")
def broadcast_to(e: Emit, use: OpUse, x: Val) -> Val:
    shape = use.attributes.integers("shape")
    lengths = [n or x.shape[i + x.rank - len(shape)] for i, n in enumerate(shape)]
    return e.expand(x, checked_shape(lengths))


@MXNET.op("broadcast_axis", "broadcast_axes")
def broadcast_axis(e: Emit, use: OpUse, x: Val) -> Val:
    lengths = list(x.shape)
    axes, sizes = use.attributes.integers("axis", default=()), use.attributes.integers("size", default=())
    for axis, n in zip(axes, sizes, strict=True):
        lengths[axis_of(x, axis)] = n
    return e.expand(x, checked_shape(lengths))


@MXNET.op("broadcast_like")
def broadcast_like(e: Emit, use: OpUse, x: Val, like: Val) -> Val:
    if "lhs_axes" in use.attributes:
        raise Unmapped
    return e.expand(x, like.shape)


@MXNET.op("tile")
def tile(e: Emit, use: OpUse, x: Val) -> Val:
    reps = use.attributes.integers("reps")
    rank = max(len(reps), x.rank)
    wide = e.reshape(x, (*[1] * (rank - x.rank), *x.shape))
    times = [*[1] * (rank - len(reps)), *reps]
    checked_shape([n * k for n, k in zip(wide.shape, times, strict=True)])
    return e.op("Tile", wide, e.ints(times))


@MXNET.op("repeat")
def repeat(e: Emit, use: OpUse, x: Val) -> Val:
    times, axis = use.attributes.integer("repeats"), use.attributes.maybe_integer("axis")
    if axis is None:
        x, axis = e.reshape(x, (math.prod(x.shape),)), 0
    axis = axis_of(x, axis)
    before, length, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    shape = checked_shape((*before, length, times, *after))
    wide = e.expand(e.reshape(x, (*before, length, 1, *after)), shape)
    return e.reshape(wide, (*before, length * times, *after))


@MXNET.op("Pad", "pad")
def pad(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    width, mode = a.integers("pad_width"), a.text("mode")
    number = e.scalar_like(a.number("constant_value", default=0.0), x)
    return e.op("Pad", x, e.ints([*width[::2], *width[1::2]]), *([number] if mode == "constant" else []), mode=mode)


@MXNET.op("UpSampling")
def up_sampling(e: Emit, use: OpUse, x: Val, *more: Val) -> Val:
    scale = use.attributes.integer("scale")
    if use.attributes.text("sample_type") != "nearest" or more or x.rank != 4:
        raise Unmapped
    scales = e.constant(np.array([1, 1, scale, scale], np.float32))
    return e.op(
        "Resize", x, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )


@MXNET.op("take")
def take(e: Emit, use: OpUse, x: Val, indices: Val) -> Val:
    axis = axis_of(x, use.attributes.integer("axis", default=0))
    return e.op("Gather", x, integral(e, indices), axis=axis)


@MXNET.op("batch_take")
def batch_take(e: Emit, use: OpUse, x: Val, indices: Val) -> Val:
    return _picked(e, x, indices, 1, keepdims=False)


@MXNET.op("pick", "choose_element_0index")
def pick(e: Emit, use: OpUse, x: Val, indices: Val) -> Val:
    axis = axis_of(x, use.attributes.integer("axis", default=-1))
    return _picked(e, x, indices, axis, use.attributes.flag("keepdims", default=False))


def _picked(e: Emit, x: Val, indices: Val, axis: int, keepdims: bool) -> Val:
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    found = e.op("GatherElements", x, e.reshape(integral(e, indices), shape), axis=axis)
    return found if keepdims else e.reshape(found, (*x.shape[:axis], *x.shape[axis + 1 :]))


@MXNET.op("gather_nd")
def gather_nd(e: Emit, use: OpUse, x: Val, indices: Val) -> Val:
    """MXNet lists coordinates along the first dimension, the standard along the last."""
    turned = e.transpose(e.cast(indices, "int64"), [*range(1, indices.rank), 0])
    return e.op("GatherND", x, turned)


@MXNET.op("one_hot")
def one_hot(e: Emit, use: OpUse, indices: Val) -> Val:
    a = use.attributes
    dtype = dtype_of(a.text("dtype", default="float32"))
    values = e.constant([a.number("off_value", default=0.0), a.number("on_value", default=1.0)], dtype)
    depth = a.integer("depth")
    checked_shape((*indices.shape, depth))
    return e.op("OneHot", integral(e, indices), e.ints([depth]), values)


@MXNET.op("SequenceMask")
def sequence_mask(e: Emit, use: OpUse, x: Val, lengths: Val | None = None) -> Val:
    """Steps at or behind a sequence's length get the given number."""
    a = use.attributes
    if not a.flag("use_sequence_length", default=False) or lengths is None:
        return x
    axis = a.integer("axis", default=0)
    if axis not in (0, 1) or x.rank < 2 or x.shape[axis] > 1 << 20:
        raise Unmapped
    steps = np.arange(x.shape[axis]).astype(np.float32)
    steps = steps.reshape((-1, 1) if axis == 0 else (1, -1))
    each = (1, lengths.shape[0]) if axis == 0 else (lengths.shape[0], 1)
    inside = e.op("Less", e.constant(steps), e.reshape(e.cast(lengths, "float32"), each))
    return e.where(aligned(e, x, inside, 0), x, e.scalar_like(a.number("value", default=0.0), x))


_REDUCTIONS = {
    "sum": "ReduceSum",
    "sum_axis": "ReduceSum",
    "nansum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "max_axis": "ReduceMax",
    "min": "ReduceMin",
    "min_axis": "ReduceMin",
    "prod": "ReduceProd",
}


def _axes(use: OpUse, x: Val) -> list[int]:
    axes = [axis_of(x, a) for a in use.attributes.integers("axis", default=())] or list(range(x.rank))
    if use.attributes.flag("exclude", default=False):
        axes = [a for a in range(x.rank) if a not in axes]
    return axes


@MXNET.op(*_REDUCTIONS)
def reduction(e: Emit, use: OpUse, x: Val) -> Val:
    """A reduction over everything leaves one element in one dimension."""
    axes, keepdims = _axes(use, x), use.attributes.flag("keepdims", default=False)
    found = reduced(e, _REDUCTIONS[use.op], x, axes, keepdims)
    return found if found.rank else e.reshape(found, (1,))


@MXNET.op("norm")
def norm(e: Emit, use: OpUse, x: Val) -> Val:
    kind = {1: "ReduceL1", 2: "ReduceL2"}[use.attributes.integer("ord", default=2)]
    found = reduced(e, kind, x, _axes(use, x), use.attributes.flag("keepdims", default=False))
    return found if found.rank else e.reshape(found, (1,))


@MXNET.op("argmax", "argmin")
def arg_extreme(e: Emit, use: OpUse, x: Val) -> Val:
    axis = use.attributes.maybe_integer("axis")
    if axis is None:
        x, axis = e.reshape(x, (math.prod(x.shape),)), 0
    op, keepdims = {"argmax": "ArgMax", "argmin": "ArgMin"}[use.op], use.attributes.flag("keepdims", default=False)
    return e.cast(e.op(op, x, axis=axis_of(x, axis), keepdims=int(keepdims)), x.dtype)


@MXNET.op("softmax", "log_softmax", "softmin")
def softmax(e: Emit, use: OpUse, x: Val, *lengths: Val) -> Val:
    if lengths:
        raise Unmapped
    x = scaled(e, x, 1 / use.attributes.number("temperature", default=1.0))
    x = e.neg(x) if use.op == "softmin" else x
    axis = axis_of(x, use.attributes.integer("axis", default=-1))
    return e.op("LogSoftmax" if use.op == "log_softmax" else "Softmax", x, axis=axis)


@MXNET.op("SoftmaxActivation")
def softmax_activation(e: Emit, use: OpUse, x: Val) -> Val:
    if use.attributes.text("mode", default="instance") == "channel":
        return e.op("Softmax", x, axis=1)
    flat = e.reshape(x, (x.shape[0], math.prod(x.shape[1:])))
    return e.reshape(e.op("Softmax", flat, axis=1), x.shape)


@MXNET.op("SoftmaxOutput", "Softmax")
def softmax_output(e: Emit, use: OpUse, x: Val, labels: Val) -> Val:
    """Softmax probabilities; the loss is the cross-entropy, summed unless `normalization` is set.

    The gradient is (probability - one hot) · grad_scale, independent of the incoming gradient.
    """
    a = use.attributes
    if a.number("smooth_alpha", default=0.0) or a.flag("out_grad", default=False):
        raise Unmapped
    floating(x)
    several = a.flag("multi_output", default=False)
    if several:
        scores, at = x, e.reshape(integral(e, labels), (x.shape[0], *x.shape[2:]))
    else:
        classes = x.shape[-1] if a.flag("preserve_shape", default=False) else math.prod(x.shape[1:])
        rows = math.prod(x.shape) // max(classes, 1)
        scores, at = e.reshape(x, (rows, classes)), e.reshape(integral(e, labels), (rows,))
    ignored = a.integer("ignore_label", default=-1) if a.flag("use_ignore", default=False) else None
    how = a.text("normalization", default="null")
    loss, log = e.op(
        "SoftmaxCrossEntropyLoss",
        scores,
        at,
        outputs=2,
        ignore_index=ignored,
        reduction="mean" if how == "valid" else "sum",
    )
    factor = a.number("grad_scale", default=1.0) / (x.shape[0] if how == "batch" else 1)
    use.losses.append(scaled(e, loss, factor))
    return e.reshape(e.op("Exp", log), x.shape)


@MXNET.op("softmax_cross_entropy")
def softmax_cross_entropy(e: Emit, use: OpUse, x: Val, labels: Val) -> Val:
    loss = e.op("SoftmaxCrossEntropyLoss", x, integral(e, labels), reduction="sum")
    return e.reshape(loss, (1,))


@MXNET.op("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")
def regression_output(e: Emit, use: OpUse, x: Val, labels: Val) -> Val:
    """The prediction; its gradient is (prediction - label) · grad_scale over the outputs of a row, or its sign."""
    made = e.op("Sigmoid", x) if use.op.startswith("Logistic") else e.op("Identity", x)
    target = e.reshape(e.cast(labels, x.dtype), x.shape)
    factor = use.attributes.number("grad_scale", default=1.0) / max(math.prod(x.shape[1:]), 1)
    every = list(range(x.rank))
    if use.op.startswith("MAE"):
        total = e.reduce_sum(e.op("Abs", e.sub(x, target)), every, False)
    elif use.op.startswith("Linear"):
        total = scaled(e, e.reduce_sum(squared(e, e.sub(x, target)), every, False), 0.5)
    else:  # its slope by x is sigmoid(x) - label
        total = e.reduce_sum(e.sub(e.op("Softplus", x), e.mul(x, target)), every, False)
    use.losses.append(scaled(e, total, factor))
    return made


@MXNET.op("MakeLoss", "make_loss")
def make_loss(e: Emit, use: OpUse, x: Val) -> Val:
    a = use.attributes
    how = a.text("normalization", default="null")
    factor = a.number("grad_scale", default=1.0) / (x.shape[0] if how == "batch" and x.rank else 1)
    if how == "valid":
        raise Unmapped
    use.losses.append(scaled(e, e.reduce_sum(x, list(range(x.rank)), False), factor))
    return x


@MXNET.op("_zeros", "_ones", "_full", "zeros", "ones", "full")
def constant_fill(e: Emit, use: OpUse) -> Val:
    a = use.attributes
    number = {"_zeros": 0.0, "zeros": 0.0, "_ones": 1.0, "ones": 1.0}.get(use.op)
    number = a.number("value", "fill_value") if number is None else number
    return filled(e, a.integers("shape"), number, dtype_of(a.text("dtype", default="float32")))


@MXNET.op("zeros_like", "ones_like", "full_like")
def fill_like(e: Emit, use: OpUse, x: Val) -> Val:
    number = {"zeros_like": 0.0, "ones_like": 1.0}.get(use.op)
    number = use.attributes.number("fill_value", "value") if number is None else number
    return filled(e, x.shape, number, x.dtype)


@MXNET.op("_arange")
def arange(e: Emit, use: OpUse) -> Val:
    a = use.attributes
    start, stop, step = a.number("start", default=0.0), a.raw(("stop",)), a.number("step", default=1.0)
    times = a.integer("repeat", default=1)
    start, stop = (0.0, start) if stop is None else (start, float(stop))
    count = max(0, math.ceil((stop - start) / step))
    if times != 1 or count > 1 << 20:
        raise Unmapped
    return e.op("Identity", e.constant(start + step * np.arange(count), dtype_of(a.text("dtype", default="float32"))))


@MXNET.op("_random_uniform", "random_uniform", "uniform")
def random_uniform(e: Emit, use: OpUse) -> Val:
    return _random(e, use, "RandomUniform", low="low", high="high")


@MXNET.op("_random_normal", "random_normal", "normal")
def random_normal(e: Emit, use: OpUse) -> Val:
    return _random(e, use, "RandomNormal", mean="loc", scale="scale")


def _random(e: Emit, use: OpUse, op: str, **attributes: str) -> Val:
    """Numbers drawn by an op with two attributes, of which the first is 0 and the second 1 by default."""
    a, shape = use.attributes, list(checked_shape(use.attributes.integers("shape")))
    defaults = enumerate(attributes.items())
    numbers: dict[str, Any] = {key: a.number(name, default=float(k)) for k, (key, name) in defaults}
    return e.op(op, shape=shape, **numbers)


@MXNET.op("RNN")
def fused_rnn(e: Emit, use: OpUse, x: Val, parameters: Val, state: Val, cell: Val | None = None) -> Any:
    """The fused recurrent layer, whose packed weights stay packed: planned, not executed."""
    a = use.attributes
    ways = 2 if a.flag("bidirectional", default=False) else 1
    size = a.integer("projection_size", default=a.integer("state_size"))
    types = [TensorType(x.dtype, checked_shape((*x.shape[:2], ways * size)))]
    if a.flag("state_outputs", default=False):
        types += [state.type] + ([cell.type] if cell is not None else [])
    given = [v for v in (x, parameters, state, cell) if v is not None]
    made = opaque(
        e,
        "mxnet::RNN",
        given,
        types,
        attributes=dict(use.given),
        gradient_reads=[v.id for v in given],
        recompute="never" if a.number("p", default=0.0) else None,
    )
    return made


@MXNET.op("_contrib_div_sqrt_dim")
def div_sqrt_dim(e: Emit, use: OpUse, x: Val) -> Val:
    return scaled(e, x, 1 / math.sqrt(x.shape[-1]))
