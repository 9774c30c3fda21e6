"""A use of every op of other frameworks, and by numpy what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_chance = np.random.default_rng(7)
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Use:
    """One use. `expected` makes the first output, or several as a list, from the inputs; None: shapes only."""

    framework: str
    op: str
    inputs: Sequence[Array | None] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    expected: Callable[..., Any] | None = None
    outputs: int = 1
    gradient: Callable[..., Array] | None = None  # of a loss op by its first input, whatever comes in


def real(*shape: int, low: float = -1.0, high: float = 1.0) -> Array:
    return _chance.uniform(low, high, shape).astype(np.float32)


def ints(*values: int, dtype: str = "int32") -> Array:
    return np.array(values, dtype)


X, Y, POSITIVE, ROW = real(3, 4), real(3, 4), real(3, 4, low=0.2), real(4)
IMAGE, KERNEL = real(2, 4, 6, 6), real(4, 2, 3, 3)
LABELS, CUBE = ints(0, 3, 1), real(2, 3, 4)
PROB = np.full((3, 4), 0.25, np.float32)
DIVISOR = np.copysign(POSITIVE, Y)
SPOTS = np.stack([np.full((6, 6), 2), np.arange(36).reshape(6, 6) % 4]).astype(np.float32)  # a label per pixel
TRUE = X > 0


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def _erf(x: Array) -> Array:
    import math

    return np.vectorize(math.erf)(x)


_NUMPY: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "negative": np.negative,
    "_np_negative": np.negative,
    "reciprocal": np.reciprocal,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arcsin": np.arcsin,
    "arccos": np.arccos,
    "arctan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "arcsinh": np.arcsinh,
    "arccosh": lambda x: np.arccosh(x),
    "arctanh": np.arctanh,
    "erf": _erf,
    "softsign": lambda x: x / (1 + abs(x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "_copy": lambda x: x,
    "identity": lambda x: x,
    "rint": np.rint,
    "round": np.rint,
    "assign": lambda x: x,
    "share_data": lambda x: x,
    "c_identity": lambda x: x,
    "logical_not": np.logical_not,
    "not": np.logical_not,
    "copy": lambda x: x,
    "alias": lambda x: x,
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
}


def _kinds(rows: dict[str, str]) -> dict[str, str]:
    """Op type -> standard op, of rows of a table."""
    return {type: op for op, types in rows.items() for type in types.split()}


def _norm(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    return np.asarray((x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon))


def _softmax_outputs() -> list[Use]:
    """SoftmaxOutput divides its gradient by `count`: positions, rows or labels that are not `ignore_label`."""

    def use(x: Array, labels: Array, axis: int, count: float, ignored: int = -1, **attributes: Any) -> Use:
        def gradient(x: Array, i: Array) -> Array:
            one_hot = np.moveaxis(np.eye(x.shape[axis])[i.astype(int)], -1, axis)
            kept = np.expand_dims(i != ignored, axis) if "use_ignore" in attributes else 1
            return np.asarray(scale * kept * (softmax(x, axis) - one_hot) / count)

        scale = attributes.get("grad_scale", 1)
        words = {name: str(value) for name, value in attributes.items()}
        return Use("mxnet", "SoftmaxOutput", (x, labels), words, lambda x, i: softmax(x, axis), gradient=gradient)

    labels, some = LABELS.astype(np.float32), ints(0, 3, 3).astype(np.float32)
    return [
        use(IMAGE, SPOTS, 1, 36, multi_output=True),
        use(IMAGE, SPOTS, 1, 36 * 2, multi_output=True, normalization="batch"),
        use(IMAGE, SPOTS, 1, 36 + 27, 3, multi_output=True, normalization="valid", use_ignore=True, ignore_label=3),
        use(X, labels, 1, 1, grad_scale=2.0),
        use(X, labels, 1, 3, normalization="batch"),
        use(X, some, 1, 1, 3, normalization="valid", use_ignore=True, ignore_label=3),
        use(X, some, 1, 1, 3, normalization="valid", ignore_label=3),
        use(X, np.full(3, 3, np.float32), 1, 1, 3, normalization="valid", use_ignore=True, ignore_label=3),
        use(CUBE, ints(0, 3, 1, 2, 2, 0).reshape(2, 3), 2, 6, preserve_shape=True, normalization="batch"),
    ]


def _padded(w: Array, i: Array, padding: int = 2) -> Array:
    return np.where((i == padding)[:, None], 0, w[i])


def _windows(x: Array, starts: Sequence[int], length: int, reduce: Any) -> Array:
    """Windows of an image that begin at `starts` in both directions, cut off at the end, reduced to one element."""
    cut = [[reduce(x[:, :, i : i + length, j : j + length], (2, 3)) for j in starts] for i in starts]
    return np.moveaxis(np.array(cut), (0, 1), (2, 3))


def _mxnet() -> list[Use]:
    def use(op: str, *inputs: Array | None, expected: Any = None, outputs: int = 1, **attributes: Any) -> Use:
        return Use("mxnet", op, inputs, {k: str(v) for k, v in attributes.items()}, expected, outputs)

    stats = [real(4), real(4), real(4), real(4, low=0.5)]
    normed = lambda x, g, b, m, v: (x - m[:, None, None]) / np.sqrt(v[:, None, None] + 1e-3) + b[:, None, None]  # noqa: E731
    found = [
        use("FullyConnected", X, real(5, 4), real(5), num_hidden=5, expected=lambda x, w, b: x @ w.T + b),
        use("dense", X, real(5, 4), real(5), units=5, expected=lambda x, w, b: x @ w.T + b),
        use("dot", CUBE, real(4, 2), expected=lambda x, y: x @ y),
        use("dot", ROW, ROW, expected=lambda x, y: (x @ y)[None]),
        use("batch_dot", CUBE, CUBE, transpose_b=True, expected=lambda x, y: x @ y.swapaxes(1, 2)),
        use("linalg_gemm2", CUBE, CUBE, transpose_a=True, alpha=2, expected=lambda x, y: 2 * x.swapaxes(1, 2) @ y),
        use("Embedding", LABELS.astype(np.float32), real(4, 2), expected=lambda i, w: w[i.astype(int)]),
        use("Convolution", IMAGE, KERNEL, real(4), kernel=(3, 3), pad=(1, 1), num_group=2, num_filter=4),
        use("conv2d", IMAGE, KERNEL, kernel_size=(3, 3), groups=2, channels=4),
        use("Deconvolution", IMAGE, real(4, 3, 2, 2), kernel=(2, 2), stride=(2, 2), num_filter=3),
        use(
            "Pooling",
            IMAGE,
            global_pool=True,
            kernel=1,
            pool_type="avg",
            expected=lambda x: x.mean((2, 3), keepdims=True),
        ),
        use("max_pool2d", IMAGE, pool_size=(6, 6), expected=lambda x: x.max((2, 3), keepdims=True)),
        use("avg_pool2d", IMAGE, pool_size=(6, 6), expected=lambda x: x.mean((2, 3), keepdims=True)),
        use("global_max_pool2d", IMAGE, expected=lambda x: x.max((2, 3), keepdims=True)),
        use("BatchNorm", IMAGE, *stats, expected=normed),
        use("LRN", IMAGE, nsize=3),
        use("LayerNorm", X, real(4), real(4), expected=lambda x, g, b: _norm(x, (1,), 1e-5) * g + b),
        use(
            "InstanceNorm",
            IMAGE,
            stats[0],
            stats[1],
            expected=lambda x, g, b: _norm(x, (2, 3), 1e-3) * g[:, None, None] + b[:, None, None],
        ),
        use("GroupNorm", IMAGE, stats[0], stats[1], num_groups=2),
        use("L2Normalization", X, mode="instance", expected=lambda x: x / np.sqrt((x * x).sum(1, keepdims=True))),
        use("Dropout", X, p=0.5, expected=lambda x: x),
        use("LeakyReLU", X, act_type="gelu_erf", expected=lambda x: x * (1 + _erf(x / 2**0.5)) / 2),
        use("Activation", X, act_type="softrelu", expected=_NUMPY["softplus"]),
        use("Activation", X, act_type="log_sigmoid", expected=lambda x: np.log(sigmoid(x))),
        use("LeakyReLU", X, slope=0.1, expected=lambda x: np.where(x > 0, x, 0.1 * x)),
        use("LeakyReLU", X, ROW, act_type="prelu", expected=lambda x, s: np.where(x > 0, x, s * x)),
        use("broadcast_mod", 5 * X, DIVISOR, expected=np.mod),
        use("broadcast_mod", ints(-7, 7, -6), ints(3, -3, 3), expected=np.mod),
        use("_mod_scalar", 5 * X, scalar=-0.75, expected=lambda x: np.mod(x, -0.75)),
        use("_rmod_scalar", POSITIVE - 1.5, scalar=2.5, expected=lambda x: np.mod(2.5, x)),
        use("_not_equal", X, X, expected=lambda x, y: np.zeros((3, 4))),
        use("_not_equal_scalar", X, scalar=0, expected=lambda x: x != 0),
        use("add_n", X, Y, X, expected=lambda x, y, z: x + y + z),
        use("square", X, expected=np.square),
        use("rsqrt", POSITIVE, expected=lambda x: x**-0.5),
        use("cbrt", X, expected=np.cbrt),
        use("rcbrt", X, expected=lambda x: 1 / np.cbrt(x)),
        use("log2", POSITIVE, expected=np.log2),
        use("log10", POSITIVE, expected=np.log10),
        use("log1p", POSITIVE, expected=np.log1p),
        use("expm1", X, expected=np.expm1),
        use("hard_sigmoid", X, expected=lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
        use("smooth_l1", X, scalar=2, expected=lambda x: np.where(abs(x) < 0.25, 2 * x * x, abs(x) - 0.125)),
        use("clip", X, a_min=-0.5, a_max=0.5, expected=lambda x: np.clip(x, -0.5, 0.5)),
        use("Cast", X, dtype="float64", expected=lambda x: x.astype(np.float64)),
        use("where", TRUE.astype(np.float32), X, Y, expected=lambda c, x, y: np.where(c, x, y)),
        use("BlockGrad", X, expected=lambda x: x),
        use("_identity_with_attr_like_rhs", X, Y, expected=lambda x, y: x),
        use("Flatten", IMAGE, expected=lambda x: x.reshape(2, -1)),
        use("Reshape", CUBE, shape=(0, -3), expected=lambda x: x.reshape(2, 12)),
        use("Reshape", CUBE, shape=(-2, 1), expected=lambda x: x[..., None]),
        use("Reshape", CUBE, shape=(-1, 0), reverse=True, expected=lambda x: x.reshape(6, 4)),
        use("reshape_like", X, real(2, 6), expected=lambda x, y: x.reshape(2, 6)),
        use("transpose", CUBE, expected=lambda x: x.T),
        use("SwapAxis", CUBE, dim1=0, dim2=2, expected=lambda x: x.swapaxes(0, 2)),
        use("expand_dims", X, axis=1, expected=lambda x: x[:, None]),
        use("squeeze", X[:, None], expected=lambda x: x[:, 0]),
        use("Concat", X, Y, dim=1, expected=lambda x, y: np.concatenate([x, y], 1)),
        use("stack", X, Y, axis=1, expected=lambda x, y: np.stack([x, y], 1)),
        use("SliceChannel", X, num_outputs=2, axis=1, outputs=2, expected=lambda x: [x[:, :2], x[:, 2:]]),
        use("split", X, num_outputs=4, axis=1, squeeze_axis=1, outputs=4, expected=lambda x: list(x.T)),
        use("_split_v2", X, indices=(0, 1), axis=1, outputs=2, expected=lambda x: [x[:, :1], x[:, 1:]]),
        use("slice", X, begin="(2, None)", end="(None, 2)", step="(-1, 1)", expected=lambda x: x[2::-1, :2]),
        use("slice_axis", X, axis=1, begin=1, end=-1, expected=lambda x: x[:, 1:-1]),
        use("slice_like", X, real(2, 2), expected=lambda x, y: x[:2, :2]),
        use("reverse", X, axis=0, expected=lambda x: x[::-1]),
        use("broadcast_to", ROW[None], shape=(3, 0), expected=lambda x: np.tile(x, (3, 1))),
        use("broadcast_axis", ROW[None], axis=0, size=3, expected=lambda x: np.tile(x, (3, 1))),
        use("broadcast_like", ROW[None], X, expected=lambda x, y: np.tile(x, (3, 1))),
        use("tile", X, reps=(2, 1, 2), expected=lambda x: np.tile(x, (2, 1, 2))),
        use("repeat", X, repeats=2, expected=lambda x: np.repeat(x, 2)),
        use(
            "Pad",
            IMAGE,
            mode="constant",
            pad_width=(0, 0, 0, 0, 1, 2, 0, 1),
            constant_value=3,
            expected=lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 1)), constant_values=3),
        ),
        use("UpSampling", IMAGE, scale=2, sample_type="nearest", expected=lambda x: x.repeat(2, 2).repeat(2, 3)),
        use("take", X, ints(2, 0), expected=lambda x, i: x[i]),
        use("batch_take", X, LABELS, expected=lambda x, i: x[range(3), i]),
        use("pick", X, LABELS, keepdims=1, expected=lambda x, i: x[range(3), i][:, None]),
        use("gather_nd", X, np.array([[0, 2], [1, 3]]), expected=lambda x, i: x[i[0], i[1]]),
        use("one_hot", LABELS, depth=4, on_value=2, expected=lambda i: 2 * np.eye(4)[i]),
        use(
            "SequenceMask",
            CUBE,
            ints(1, 2, 1),
            use_sequence_length=1,
            value=9,
            expected=lambda x, n: np.where((np.arange(2)[:, None] < n)[..., None], x, 9),
        ),
        use("sum", CUBE, axis=1, exclude=True, expected=lambda x: x.sum((0, 2))),
        use("norm", CUBE, axis=2, keepdims=1, expected=lambda x: np.sqrt((x * x).sum(2, keepdims=True))),
        use("argmax", X, axis=1, expected=lambda x: x.argmax(1)),
        use("argmin", X, expected=lambda x: np.array(x.argmin()), axis="None"),
        use("softmax", X, temperature=2, expected=lambda x: softmax(x / 2)),
        use("softmin", X, expected=lambda x: softmax(-x)),
        use("log_softmax", X, axis=0, expected=lambda x: np.log(softmax(x, 0))),
        use("SoftmaxActivation", IMAGE, mode="channel", expected=lambda x: softmax(x, 1)),
        *_softmax_outputs(),
        use("softmax_cross_entropy", X, LABELS, expected=lambda x, i: -np.log(softmax(x)[range(3), i]).sum()[None]),
        *(
            Use("mxnet", op, (X, Y), {"grad_scale": "3"}, expected, gradient=gradient)
            for op, expected, gradient in (
                ("LinearRegressionOutput", lambda x, y: x, lambda x, y: 3 / 4 * (x - y)),
                ("LogisticRegressionOutput", lambda x, y: sigmoid(x), lambda x, y: 3 / 4 * (sigmoid(x) - y)),
                ("MAERegressionOutput", lambda x, y: x, lambda x, y: 3 / 4 * np.sign(x - y)),
            )
        ),
        Use("mxnet", "MakeLoss", (X,), {}, np.array, gradient=np.ones_like),
        Use(
            "mxnet",
            "MakeLoss",
            (X,),
            {"grad_scale": "2", "normalization": "batch"},
            np.array,
            gradient=lambda x: np.full_like(x, 2 / 3),
        ),
        use("_full", shape=(2, 3), value=4, expected=lambda: np.full((2, 3), 4)),
        use("_ones", shape=(2,), expected=lambda: np.ones(2)),
        use("zeros_like", X, expected=np.zeros_like),
        use("full_like", X, fill_value=2, expected=lambda x: np.full_like(x, 2)),
        use("_arange", start=1, stop=7, step=2, expected=lambda: np.arange(1, 7, 2)),
        use("_random_uniform", shape=(2, 3)),
        use("_random_normal", shape=(2, 3)),
        use(
            "RNN",
            CUBE,
            real(500),
            real(1, 3, 5),
            real(1, 3, 5),
            state_size=5,
            num_layers=1,
            mode="lstm",
            state_outputs=1,
            outputs=3,
        ),
        use("_contrib_div_sqrt_dim", X, expected=lambda x: x / 2),
    ]
    binary: dict[str, Callable[[Array, Array], Array]] = {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Div": np.divide,
        "Pow": np.power,
        "Max": np.maximum,
        "Min": np.minimum,
        "Mod": np.fmod,
    }
    from graph.formats.mxnet.ops import elementwise

    found += [use(op, POSITIVE, expected=_NUMPY[op]) for op in _kinds(elementwise.UNARY) if op != "arccosh"]
    found += [use("arccosh", 1 + POSITIVE, expected=np.arccosh)]
    found += [use(op, POSITIVE, POSITIVE + 1, expected=binary[kind]) for op, kind in _kinds(elementwise.BINARY).items()]
    found += [
        use(op, POSITIVE, scalar=2, expected=lambda x, f=binary[kind]: f(x, np.float32(2)))
        for op, kind in _kinds(elementwise.SCALARS).items()
    ]
    found += [
        use(op, POSITIVE, scalar=2, expected=lambda x, f=binary[kind]: f(np.float32(2), x))
        for op, kind in _kinds(elementwise.REVERSED).items()
    ]
    compared = {
        "equal": np.equal,
        "greater": np.greater,
        "greater_equal": np.greater_equal,
        "lesser": np.less,
        "lesser_equal": np.less_equal,
    }
    for word, function in compared.items():
        found += [use(f"broadcast_{word}", X, Y, expected=lambda x, y, f=function: f(x, y))]
        found += [use(f"_{word}_scalar", X, scalar=0, expected=lambda x, f=function: f(x, 0))]
    return found


def _caffe2() -> list[Use]:
    def use(op: str, *inputs: Array | None, expected: Any = None, outputs: int = 1, **attributes: Any) -> Use:
        return Use("caffe2", op, inputs, attributes, expected, outputs)

    four = [real(4), real(4), real(4), real(4, low=0.5)]
    from graph.formats.caffe2.ops import elementwise

    cast = {"Not": TRUE, "And": TRUE, "Or": TRUE, "Xor": TRUE}
    found = [
        use("FCTransposed", X, real(4, 5), real(5), expected=lambda x, w, b: x @ w + b),
        use("FC", X, real(5, 4), real(5), expected=lambda x, w, b: x @ w.T + b),
        use("MatMul", X, Y, trans_b=1, expected=lambda x, y: x @ y.T),
        use("BatchMatMul", CUBE, CUBE, trans_a=1),
        use("DotProduct", X, Y, expected=lambda x, y: (x * y).sum(1)),
        use("Conv", IMAGE, KERNEL, four[0], kernel=3, group=2, pad=1),
        use("Conv2D", IMAGE, KERNEL, kernels=[3, 3], group=2),
        use("ConvTranspose", IMAGE, real(4, 3, 2, 2), kernel=2, stride=2, adj=1),
        use("AveragePool", IMAGE, kernel_h=6, kernel_w=6, expected=lambda x: x.mean((2, 3), keepdims=True)),
        use("MaxPool", IMAGE, global_pooling=1, expected=lambda x: x.max((2, 3), keepdims=True)),
        use(
            "SpatialBN",
            IMAGE,
            *four,
            is_test=1,
            expected=lambda x, s, b, m, v: (
                (x - m[:, None, None]) / np.sqrt(v[:, None, None] + 1e-5) * s[:, None, None] + b[:, None, None]
            ),
        ),
        use("SpatialBN", IMAGE, *four, outputs=5),
        use("LRN", IMAGE, size=3, alpha=0.1, beta=0.5),
        use(
            "LayerNorm",
            X,
            outputs=3,
            expected=lambda x: [
                _norm(x, (1,), 1e-5),
                x.mean(1, keepdims=True),
                np.sqrt(x.var(1, keepdims=True) + 1e-5),
            ],
        ),
        use("InstanceNorm", IMAGE, four[0], four[1]),
        use("Dropout", X, outputs=2, is_test=1, expected=lambda x: [x, x == x]),
        use("NE", X, X, expected=lambda x, y: x != y),
        use("Sum", X, Y, X, expected=lambda x, y, z: x + y + z),
        use("Mean", X, Y, expected=lambda x, y: (x + y) / 2),
        use("WeightedSum", X, ROW[:1], Y, ROW[1:2], expected=lambda x, a, y, b: a * x + b * y),
        use("Pow", POSITIVE, exponent=0.5, expected=np.sqrt),
        use("Pow", POSITIVE, X, expected=np.power),
        use("Sqr", X, expected=np.square),
        use("Scale", X, scale=3.0, expected=lambda x: 3 * x),
        use("Rsqrt", POSITIVE, expected=lambda x: x**-0.5),
        use("Cube", X, expected=lambda x: x**3),
        use("Clip", X, min=-0.5, max=0.5, expected=lambda x: np.clip(x, -0.5, 0.5)),
        use("LeakyRelu", X, alpha=0.1, expected=lambda x: np.where(x > 0, x, 0.1 * x)),
        use("Elu", X, expected=lambda x: np.where(x > 0, x, np.expm1(x))),
        use("Selu", X),
        use("PRelu", IMAGE, four[0], expected=lambda x, s: np.where(x > 0, x, s[:, None, None] * x)),
        use("Swish", X, expected=lambda x: x * sigmoid(x)),
        use("Gelu", X, expected=lambda x: x * (1 + _erf(x / 2**0.5)) / 2),
        use("Where", TRUE, X, Y, expected=np.where),
        use("StopGradient", X, expected=lambda x: x),
        use("NegateGradient", X, expected=lambda x: x),
        use("Cast", X, to=13, expected=lambda x: x.astype(np.float64)),
        use("FloatToHalf", X, expected=lambda x: x.astype(np.float16)),
        use("Flatten", CUBE, axis=2, expected=lambda x: x.reshape(6, 4)),
        use("FlattenToVec", CUBE, expected=np.ravel),
        use("Reshape", CUBE, shape=[0, -1], outputs=2, expected=lambda x: [x.reshape(2, 12), np.array([2, 3, 4])]),
        use("ResizeLike", X, real(2, 6), expected=lambda x, y: x.reshape(2, 6)),
        use("ExpandDims", X, dims=[0], expected=lambda x: x[None]),
        use("Squeeze", X[None], dims=[0], expected=lambda x: x[0]),
        use("Transpose", CUBE, axes=[1, 0, 2], expected=lambda x: x.swapaxes(0, 1)),
        use("NCHW2NHWC", IMAGE, expected=lambda x: x.transpose(0, 2, 3, 1)),
        use("NHWC2NCHW", IMAGE, expected=lambda x: x.transpose(0, 3, 1, 2)),
        use("Concat", X, Y, axis=0, outputs=2, expected=lambda x, y: [np.concatenate([x, y]), np.array([3, 3])]),
        use("Concat", X, Y, axis=0, add_axis=1, expected=lambda x, y: np.stack([x, y])),
        use(
            "DepthConcat", IMAGE, IMAGE, outputs=2, expected=lambda x, y: [np.concatenate([x, y], 1), np.array([4, 4])]
        ),
        use("Split", X, axis=1, split=[1, 3], outputs=2, expected=lambda x: [x[:, :1], x[:, 1:]]),
        use("Slice", X, starts=[1, 0], ends=[-1, 2], expected=lambda x: x[1:, :2]),
        use("Tile", X, axis=1, tiles=2, expected=lambda x: np.tile(x, (1, 2))),
        use("Gather", X, ints(2, 0), expected=lambda x, i: x[i]),
        use("BatchGather", X, ints(2, 0), expected=lambda x, i: x[:, i]),
        use("Shape", X, expected=lambda x: np.array([3, 4])),
        use("PadImage", IMAGE, pad=1, expected=lambda x: np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))),
        use("ResizeNearest", IMAGE, width_scale=2.0, expected=lambda x: x.repeat(2, 3)),
        use("ReduceMean", CUBE, axes=[1], keepdims=0, expected=lambda x: x.mean(1)),
        use("ReduceFrontSum", CUBE, num_reduce_dim=2, expected=lambda x: x.sum((0, 1))),
        use("ReduceBackMax", CUBE, expected=lambda x: x.max(2)),
        use("SumElements", X, expected=np.sum),
        use("SumSqrElements", X, average=1, expected=lambda x: np.mean(x * x)),
        use("ArgMax", X, axis=1, keepdims=0, expected=lambda x: x.argmax(1)),
        use("Softmax", CUBE, axis=1, expected=lambda x: softmax(x.reshape(2, 12)).reshape(2, 3, 4)),
        use("LogSoftmax", X, expected=lambda x: np.log(softmax(x))),
        use(
            "SoftmaxWithLoss",
            X,
            LABELS,
            outputs=2,
            scale=2.0,
            expected=lambda x, i: [softmax(x), -2 * np.log(softmax(x)[range(3), i]).mean()],
        ),
        use("LabelCrossEntropy", PROB, LABELS[:, None], expected=lambda p, i: -np.log(p[range(3), i[:, 0]])),
        use("CrossEntropy", PROB, PROB, expected=lambda p, q: -(q * np.log(p)).sum(1)),
        use("SigmoidCrossEntropyWithLogits", X, PROB, expected=lambda x, t: (np.log1p(np.exp(x)) - x * t).mean(1)),
        use("SquaredL2Distance", X, Y, expected=lambda x, y: ((x - y) ** 2).sum(1) / 2),
        use("L1Distance", X, Y, expected=lambda x, y: abs(x - y).sum(1)),
        use("LSTMUnit", real(1, 2, 3), real(1, 2, 3), real(1, 2, 12), ints(1), sequence_lengths=0, outputs=2),
        use("GRUUnit", real(1, 2, 3), real(1, 2, 9), ints(2, 2), ints(1)),
        use("CreateScope"),
        use("HasScope", ints()),
        use("ConstantFill", shape=[2], value=7, dtype=10, expected=lambda: np.array([7, 7])),
        use("ConstantFill", ints(2, 3), input_as_shape=1, value=1.0, expected=lambda n: np.ones((2, 3))),
        use("GivenTensorFill", shape=[2], values=[1.0, 2.0], expected=lambda: np.array([1.0, 2.0])),
        use("GivenTensorInt64Fill", shape=[2], values=[1, 2], expected=lambda: np.array([1, 2])),
        *(use(op, shape=[2, 3]) for op in ("UniformFill", "XavierFill", "MSRAFill", "GaussianFill")),
        use("OneHot", ints(0, 2, dtype="int64"), ints(3, dtype="int64"), expected=lambda i, n: np.eye(3)[i]),
    ]
    for op, kind in _kinds(elementwise.UNARY).items():
        word = "copy" if kind in ("Identity", "remat::Copy") else {"Negative": "negative"}.get(op, op.lower())
        found.append(use(op, cast.get(op, POSITIVE), expected=_NUMPY[word]))
    numpy_of = {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Div": np.divide,
        "And": np.logical_and,
        "Or": np.logical_or,
        "Xor": np.logical_xor,
        "EQ": np.equal,
        "LT": np.less,
        "LE": np.less_equal,
        "GT": np.greater,
        "GE": np.greater_equal,
        "NE": np.not_equal,
    }
    found += [
        use(op, cast.get(op, POSITIVE), cast.get(op, POSITIVE + 1), expected=numpy_of[op])
        for op in _kinds(elementwise.BINARY)
    ]
    return found


def _paddle() -> list[Use]:
    def use(op: str, *inputs: Array | None, expected: Any = None, outputs: int = 1, **attributes: Any) -> Use:
        return Use("paddle", op, inputs, attributes, expected, outputs)

    from graph.formats.paddle.ops import elementwise

    four = [real(4), real(4), real(4), real(4, low=0.5)]
    found = [
        use("mul", X, real(4, 5), expected=np.matmul),
        use("fc", X, real(4, 5), real(5), act="relu", expected=lambda x, w, b: np.maximum(x @ w + b, 0)),
        use("matmul_v2", CUBE, CUBE, trans_y=True, expected=lambda x, y: x @ y.swapaxes(1, 2)),
        use("bmm", CUBE, real(2, 4, 3), expected=np.matmul),
        use("matmul", X, Y, transpose_X=True, alpha=2.0, expected=lambda x, y: 2 * x.T @ y),
        use("dot", X, Y, expected=lambda x, y: (x * y).sum(1)),
        use("lookup_table_v2", X, ints(2, 0), expected=lambda w, i: w[i]),
        use("lookup_table_v2", X, ints(2, 0, 2), padding_idx=2, expected=_padded),
        use("lookup_table", X, ints(2, 0, 1)[:, None], padding_idx=0, expected=lambda w, i: _padded(w, i[:, 0], 0)),
        use("embedding", ints(2, 0), X, expected=lambda i, w: w[i]),
        use("embedding", ints(2, 0), X, padding_idx=2, expected=lambda i, w: _padded(w, i)),
        use("conv2d", IMAGE, KERNEL, None, paddings=[1, 0], strides=[2, 2], groups=2),
        use("conv2d_transpose", IMAGE, real(4, 3, 2, 2), strides=[2, 2]),
        use(
            "pool2d",
            IMAGE,
            pooling_type="avg",
            ksize=[1, 1],
            adaptive=True,
            expected=lambda x: x.mean((2, 3), keepdims=True),
        ),
        use("pool2d", IMAGE, pooling_type="max", ksize=[6, 6], expected=lambda x: x.max((2, 3), keepdims=True)),
        use(
            "pool2d",
            IMAGE,
            pooling_type="max",
            ksize=[2, 2],
            strides=[4, 4],
            padding_algorithm="SAME",
            expected=lambda x: _windows(x, [0, 4], 2, np.max),
        ),
        use(
            "pool2d",
            IMAGE,
            pooling_type="avg",
            ksize=[2, 2],
            strides=[1, 1],
            paddings=[7, 7],
            padding_algorithm="SAME",
            expected=lambda x: _windows(x, range(6), 2, np.mean),
        ),
        use(
            "pool2d",
            IMAGE,
            pooling_type="avg",
            ksize=[2, 2],
            strides=[2, 2],
            paddings=[1, 1],
            padding_algorithm="VALID",
            expected=lambda x: _windows(x, [0, 2, 4], 2, np.mean),
        ),
        use(
            "conv2d",
            IMAGE,
            np.ones((4, 2, 2, 2), np.float32),
            groups=2,
            dilations=[2, 2],
            padding_algorithm="SAME",
            expected=lambda x, w: _windows(x, range(6), 2, np.sum).reshape(2, 2, 2, 6, 6).sum(2).repeat(2, 1),
        ),
        use("batch_norm", IMAGE, *four, outputs=5),
        use("rms_norm", X, ROW, expected=lambda x, s: x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * s),
        use(
            "layer_norm",
            X,
            ROW,
            ROW,
            outputs=3,
            expected=lambda x, s, b: [_norm(x, (1,), 1e-5) * s + b, x.mean(1), x.var(1)],
        ),
        use("group_norm", IMAGE, four[0], four[1], groups=2),
        use("instance_norm", IMAGE, four[0], four[1]),
        use("dropout", X, dropout_prob=0.25, outputs=2, expected=lambda x: [0.75 * x, np.ones((3, 4), np.uint8)]),
        use("seed"),
        use("not_equal", X, Y, expected=np.not_equal),
        use("elementwise_mod", 5 * X, DIVISOR, expected=np.mod),
        use("elementwise_mod", CUBE, DIVISOR[:, 0], axis=1, expected=lambda x, y: np.mod(x, y[:, None])),
        use("softplus", 30 * X, beta=2.0, expected=lambda x: np.logaddexp(0, 2 * x) / 2),
        use(
            "softplus",
            3 * X,
            beta=2.0,
            threshold=1.0,
            expected=lambda x: np.where(2 * x > 1, x, np.logaddexp(0, 2 * x) / 2),
        ),
        use("sum", X, Y, X, expected=lambda x, y, z: x + y + z),
        use("scale", X, scale=2.0, bias=1.0, expected=lambda x: 2 * x + 1),
        use("MulScalar", X, scalar=2, expected=lambda x: 2 * x),
        use("pow", POSITIVE, factor=2.0, expected=np.square),
        use("square", X, expected=np.square),
        use("rsqrt", POSITIVE, expected=lambda x: x**-0.5),
        use("gelu", X, expected=lambda x: x * (1 + _erf(x / 2**0.5)) / 2),
        use("silu", X, expected=lambda x: x * sigmoid(x)),
        use("swish", X, beta=2.0, expected=lambda x: x * sigmoid(2 * x)),
        use("swiglu", X, expected=lambda x: x[:, :2] * sigmoid(x[:, :2]) * x[:, 2:]),
        use("leaky_relu", X, alpha=0.1, expected=lambda x: np.where(x > 0, x, 0.1 * x)),
        use("elu", X, expected=lambda x: np.where(x > 0, x, np.expm1(x))),
        use("hard_sigmoid", X, expected=lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
        use("hard_swish", X, expected=lambda x: x * np.clip(x + 3, 0, 6) / 6),
        use("hard_swish", X, threshold=1.0, offset=0.5, scale=2.0, expected=lambda x: x * np.clip(x + 0.5, 0, 1) / 2),
        use("relu6", 9 * X, expected=lambda x: np.clip(x, 0, 6)),
        use("prelu", IMAGE, four[0], expected=lambda x, s: np.where(x > 0, x, s[:, None, None] * x)),
        use("clip", X, min=-0.5, max=0.5, expected=lambda x: np.clip(x, -0.5, 0.5)),
        use("cast", X, out_dtype=6, expected=lambda x: x.astype(np.float64)),
        use("where", TRUE, X, Y, expected=np.where),
        use("reshape2", CUBE, shape=[0, -1], outputs=2, expected=lambda x: [x.reshape(2, 12)]),
        use("flatten", CUBE, axis=2, expected=lambda x: x.reshape(6, 4)),
        use("flatten_contiguous_range", IMAGE, start_axis=1, stop_axis=2, expected=lambda x: x.reshape(2, 24, 6)),
        use("transpose2", CUBE, axis=[1, 0, 2], expected=lambda x: x.swapaxes(0, 1)),
        use("squeeze2", X[:, None], axes=[1], expected=lambda x: x[:, 0]),
        use("unsqueeze2", X, axes=[0, -1], expected=lambda x: x[None, ..., None]),
        use("concat", X, Y, axis=1, expected=lambda x, y: np.concatenate([x, y], 1)),
        use("stack", X, Y, axis=-1, expected=lambda x, y: np.stack([x, y], -1)),
        use("split", X, axis=1, sections=[1, -1], outputs=2, expected=lambda x: [x[:, :1], x[:, 1:]]),
        use("unstack", X, axis=0, outputs=3, expected=lambda x: list(x)),
        use("slice", X, axes=[1], starts=[1], ends=[3], expected=lambda x: x[:, 1:3]),
        use("strided_slice", X, axes=[1], starts=[0], ends=[4], strides=[2], expected=lambda x: x[:, ::2]),
        use("expand_v2", ROW[None], shape=[3, -1], expected=lambda x: np.tile(x, (3, 1))),
        use("expand_as_v2", ROW[None], X, expected=lambda x, y: np.tile(x, (3, 1))),
        use("tile", X, repeat_times=[2, 1], expected=lambda x: np.tile(x, (2, 1))),
        use("gather", X, ints(2, 0)[:, None], expected=lambda x, i: x[i[:, 0]]),
        use("gather_nd", X, np.array([[0, 1], [2, 3]]), expected=lambda x, i: x[i[:, 0], i[:, 1]]),
        use("one_hot_v2", LABELS, depth=4, expected=lambda i: np.eye(4)[i]),
        use("top_k_v2", X, k=2, outputs=2, expected=lambda x: [-np.sort(-x, 1)[:, :2], np.argsort(-x, 1)[:, :2]]),
        use("cumsum", X, axis=1, expected=lambda x: x.cumsum(1)),
        use("arg_max", X, axis=1, expected=lambda x: x.argmax(1)),
        use("reduce_sum", CUBE, dim=[1], keep_dim=True, expected=lambda x: x.sum(1, keepdims=True)),
        use("mean", CUBE, expected=np.mean),
        use("squared_l2_norm", X, expected=lambda x: np.sum(x * x)),
        use("p_norm", X, axis=1, keepdim=True, expected=lambda x: np.sqrt((x * x).sum(1, keepdims=True))),
        use("p_norm", X, expected=lambda x: np.sqrt((x * x).sum(1))),
        use("p_norm", X, axis=1, porder=1.0, asvector=True, expected=lambda x: abs(x).sum()),
        use("softmax", X, axis=0, expected=lambda x: softmax(x, 0)),
        use("log_softmax", X, expected=lambda x: np.log(softmax(x))),
        use(
            "cross_entropy",
            PROB,
            ints(0, 9, 1)[:, None],
            ignore_index=9,
            expected=lambda p, i: -np.log(p[range(3), [0, 0, 1]] ** [1, 0, 1])[:, None],
        ),
        use("cross_entropy", PROB, PROB, soft_label=True, expected=lambda p, q: -(q * np.log(p)).sum(1, keepdims=True)),
        use(
            "softmax_with_cross_entropy",
            X,
            LABELS[:, None],
            outputs=2,
            expected=lambda x, i: [-np.log(softmax(x)[range(3), i[:, 0]])[:, None], softmax(x)],
        ),
        use(
            "cross_entropy_with_softmax",
            X,
            PROB,
            soft_label=True,
            outputs=2,
            expected=lambda x, p: [softmax(x), -(p * np.log(softmax(x))).sum(1, keepdims=True)],
        ),
        use("sigmoid_cross_entropy_with_logits", X, PROB, expected=lambda x, t: np.log1p(np.exp(x)) - x * t),
        use(
            "sigmoid_cross_entropy_with_logits",
            X,
            np.where(TRUE, np.float32(-1), PROB),
            ignore_index=-1,
            normalize=True,
            expected=lambda x, t: np.where(TRUE, 0, np.log1p(np.exp(x)) - x * t) / (~TRUE).sum(),
        ),
        use("square_error_cost", X, Y, expected=lambda x, y: (x - y) ** 2),
        use("fill_constant", shape=[2], str_value="3", dtype=3, expected=lambda: np.array([3, 3])),
        use("fill_constant_batch_size_like", X, shape=[-1, 2], value=1.0, expected=lambda x: np.ones((3, 2))),
        use("fill_any_like", X, value=2.0, expected=lambda x: np.full_like(x, 2)),
        use("assign_value", shape=[2], int64_values=[1, 2], dtype=3, expected=lambda: np.array([1, 2])),
        use("gaussian_random", shape=[2, 3]),
        use("uniform_random", shape=[2, 3]),
        use("shape", X, expected=lambda x: np.array([3, 4])),
        use("increment", ROW[:1], step=2.0, expected=lambda x: x + 2),
        use("increment", ROW[:1], value=2.0, expected=lambda x: x + 2),
        use("leaky_relu", X, negative_slope=0.1, expected=lambda x: np.where(x > 0, x, 0.1 * x)),
    ]
    flags = {"logical_not", "logical_and", "logical_or", "logical_xor"}
    found += [use(op, TRUE if op in flags else POSITIVE, expected=_NUMPY[op]) for op in _kinds(elementwise.UNARY)]
    numpy_of = {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Div": np.divide,
        "Pow": np.power,
        "Max": np.maximum,
        "Min": np.minimum,
        "Equal": np.equal,
        "NotEqual": np.not_equal,
        "Less": np.less,
        "LessOrEqual": np.less_equal,
        "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
        "And": np.logical_and,
        "Or": np.logical_or,
        "Xor": np.logical_xor,
    }
    for op, kind in _kinds(elementwise.BINARY).items():
        pair = (TRUE, X < 0.5) if op in flags else (POSITIVE, POSITIVE + 1)
        found.append(use(op, *pair, expected=numpy_of[kind]))
    return found


USES: list[Use] = [*_mxnet(), *_caffe2(), *_paddle()]
