"""Uses of ops that no gradient meets, and of those it meets in other dtypes, empty, scalar and out of order."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.contracts.gradient_examples import Example, apart, ints, real

_chance = np.random.default_rng(11)
TWO = (True, True)


def _uses(op: str, *uses: tuple[Any, ...], **common: Any) -> list[Example]:
    return [Example(op, tuple(use[0]), use[1] if len(use) > 1 else {}, **common) for use in uses]


def integers(*shape: int, low: int = -9, high: int = 10, dtype: str = "int64") -> np.ndarray:
    return _chance.integers(low, high, shape).astype(dtype)


def flags(*shape: int) -> np.ndarray:
    return np.asarray(_chance.random(shape) < 0.5)


def _arithmetic() -> list[Example]:
    found: list[Example] = []
    for op in ("Floor", "Ceil", "Round", "Sign"):
        found += _uses(op, ([apart(3, 4)],), ([np.array([0.5, 1.5, -0.5, -2.5, 0.0])],), ([np.zeros((0, 3))],))
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
        found += _uses(
            op,
            ([integers(3, 4), integers(4, low=1)],),
            ([integers(2, 2, dtype="int32"), integers(2, 1, low=1, dtype="int32")],),
        )
    found += _uses("Div", ([ints(-7, 7, -7, 7), ints(2, -2, -2, 2)],), ([np.uint8([7, 250]), np.uint8([2, 3])],))
    found += _uses("Mod", ([ints(-7, 7, -7), ints(3, -3, -3)],), ([ints(-7, 7), ints(3, -3)], {"fmod": 1}))
    found += _uses(
        "Pow", ([ints(2, -3, 5), ints(3, 2, 0)],), ([ints(2, 3), real(2, low=0.5)],), ([real(2, 3), ints(2)],)
    )
    found += _uses("Mean", ([real(2, 3), real(3)],), ([real(2, 3)],))
    found += _uses("Neg", ([integers(5)],)) + _uses("Abs", ([integers(5, dtype="int8")],))
    found += _uses(
        "BitShift",
        ([np.uint8([1, 200, 3]), np.uint8([1, 3, 7])], {"direction": "LEFT"}),
        ([np.uint32([1, 200]), np.uint32([1, 3])], {"direction": "RIGHT"}),
    )
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        found += _uses(op, ([integers(3, 4), integers(4)],))
    found += _uses("BitwiseNot", ([integers(3)],)) + _uses("Not", ([flags(3, 2)],), ([np.array(True)],))
    for op in ("And", "Or", "Xor"):
        found += _uses(op, ([flags(3, 4), flags(4)],))
    for op in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"):
        found += _uses(op, ([real(3, 4), real(4)],), ([integers(3, 4, high=3, low=0), integers(3, 1, high=3, low=0)],))
    found += _uses("Equal", ([flags(3), flags(3)],))
    odd = np.array([np.nan, np.inf, -np.inf, 1.0])
    found += _uses("IsNaN", ([odd],)) + _uses(
        "IsInf", ([odd],), ([odd], {"detect_negative": 0}), ([odd], {"detect_positive": 0})
    )
    found += _uses("Clip", ([integers(6), np.array(-3), np.array(4)],)) + _uses(
        "Relu", ([integers(6, dtype="int32")],), ([odd],)
    )
    found += _uses("PRelu", ([integers(6), ints(3)],)) + _uses("Where", ([flags(3), integers(3), integers(3)],))
    for to in (1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 16, 17, 19, 21, 22):
        found += _uses(
            "Cast",
            ([np.array([0.0, 1.0, -2.0, 3.4, 6.0])[: 2 if to in (2, 12, 21) else 5]], {"to": to}),
            dtype="float32",
        )
        found += _uses("Cast", ([ints(0, 1, 3)], {"to": to}))
    found += _uses("Cast", ([np.array([True, False])], {"to": 1}), ([np.float16([1.5, -2])], {"to": 16}))
    return found


def _narrow() -> list[Example]:
    """Types of 16 bits."""
    found: list[Example] = []
    for dtype in ("float16", "bfloat16"):
        for op in ("Exp", "Tanh", "Sigmoid", "Erf", "Gelu", "Softmax", "ReduceSum", "Sqrt"):
            found += _uses(op, ([real(3, 70, low=0.1)],), dtype=dtype)
        for op in ("Add", "Mul", "Div", "Pow"):
            found += _uses(op, ([real(3, 4, low=0.1), real(4, low=0.5)],), dtype=dtype)
        found += _uses("MatMul", ([real(3, 40), real(40, 2)],), ([real(2, 3, 4), real(2, 4, 5)],), dtype=dtype)
        found += _uses("Gemm", ([real(3, 4), real(2, 4), real(2)], {"transB": 1, "alpha": 0.5}), dtype=dtype)
        found += _uses("Transpose", ([real(3, 4)],), dtype=dtype) + _uses(
            "Concat", ([real(3, 4), real(3, 1)], {"axis": 1}), dtype=dtype
        )
        found += _uses("Gather", ([real(5, 2), ints(0, 4, -1)],), dtype=dtype)
        found += _uses(
            "remat::GatherGrad", ([real(6, 2), ints(0, 4, 4, 0, 0, 1)], {"input_shape": [5, 2]}), dtype=dtype
        )
        found += _uses("SoftmaxCrossEntropyLoss", ([real(4, 3), ints(0, 2, 1, 2)],), outputs=TWO, dtype=dtype)
    return found


def _shapes() -> list[Example]:
    found = _uses(
        "Shape", ([real(2, 3, 4)],), ([real(2, 3, 4)], {"start": -2}), ([real(2, 3, 4)], {"start": 1, "end": 2})
    )
    found += _uses("Size", ([real(2, 3)],), ([real()],)) + _uses("Identity", ([integers(2)],), ([real()],))
    found += _uses("remat::Copy", ([integers(2)],)) + _uses("remat::StopGradient", ([real(2, 3)],), ([integers(2)],))
    found += _uses("remat::Offload", ([real(2, 3)],)) + _uses("remat::Fetch", ([real(2, 3)],))
    found += _uses("remat::ZeroGradient", ([real(2, 3)],), outputs=())
    found += _uses("ConstantOfShape", ([ints(2, 3)],), ([ints(2)], {"value": np.int64([7])}), ([ints(0)],))
    found += _uses("EyeLike", ([real(3, 4)],), ([real(3, 3)], {"k": -1, "dtype": 7}))
    found += _uses("Range", ([np.array(1), np.array(9), np.array(3)],), ([np.array(5), np.array(0), np.array(-2)],))
    found += _uses(
        "Constant", ([], {"value": np.float32([1, 2])}), ([], {"value_ints": [1, 2, 3]}), ([], {"value_float": 2.5})
    )
    found += _uses(
        "Reshape",
        ([real(2, 6), ints(0, -1, 2)],),
        ([np.zeros((0, 3)), ints(3, 0)], {"allowzero": 1}),
        ([integers(4), ints(2, 2)],),
    )
    found += _uses("Transpose", ([real()],), ([np.zeros((2, 0))],)) + _uses(
        "Concat", ([np.zeros((0, 2)), real(1, 2)], {"axis": -2})
    )
    found += _uses(
        "Slice",
        ([real(4), ints(3), ints(1)],),
        ([integers(4, 4), ints(-1, 0), ints(-100, 3), ints(-1, -2), ints(-1, 2)],),
    )
    found += _uses("Split", ([integers(7), None], {"num_outputs": 3}), outputs=(True, True, True))
    found += _uses("Expand", ([real(), ints(2, 2)],), ([integers(1), ints(0)],)) + _uses(
        "Tile", ([integers(2), ints(0)],)
    )
    found += _uses("Trilu", ([integers(3, 3)],), ([real(2, 4), np.array(-1)],))
    found += _uses(
        "OneHot",
        ([ints(0, -1, 5), np.array(3), integers(2)], {"axis": 0}),
        ([real(2, low=0, high=2).round(), np.array(3), real(2)],),
        fixed=(0,),
    )
    found += _uses("Pad", ([integers(2, 2), ints(1, 0, 0, 1), np.array(7)],), ([real(), ints()],))
    found += _uses(
        "Gather", ([integers(4), np.zeros((0, 2), np.int64)],), ([real(4, 2), np.int32([3, -4])], {"axis": -2})
    )
    found += _uses("Scatter", ([real(3, 3), np.array([[1, 0, 2], [0, 2, 1]]), real(2, 3)],), opset=10)
    for reduction in ("none", "add", "mul", "max", "min"):
        index = np.array([[0, 1], [2, 2]] if reduction != "none" else [[0, 1], [2, 0]])
        found += _uses("ScatterElements", ([real(3, 3), index, real(2, 2)], {"reduction": reduction, "axis": -1}))
        found += _uses("ScatterND", ([real(3, 2), ints(0, 2).reshape(2, 1), real(2, 2)], {"reduction": reduction}))
    found += _uses("GatherND", ([real(2, 3), np.array([[0, 1], [1, 2]])],), ([real(2, 3), np.array([1])],))
    return found


def _reductions() -> list[Example]:
    found: list[Example] = []
    for op in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceMean"):
        found += _uses(op, ([integers(3, 4), ints(-1)], {"keepdims": 0}), ([real()],))
    for op in ("ReduceMax", "ReduceMin"):
        found += _uses(op, ([flags(3, 4), ints(0)],), opset=21)
    found += _uses("ReduceSum", ([np.zeros((2, 0)), ints(1)],))
    for op in ("ArgMax", "ArgMin"):
        tied = np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 0.0]])
        found += _uses(
            op,
            ([tied], {"axis": 1}),
            ([tied], {"axis": -1, "select_last_index": 1, "keepdims": 0}),
            ([integers(3, 4)],),
        )
    found += _uses("CumSum", ([integers(5), np.array(0)], {"exclusive": 1}))
    found += _uses("TopK", ([integers(3, 5), ints(2)],), outputs=TWO)
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        found += _uses(op, ([apart(2, 3, 2)], {"axis": 1}), ([apart(4)],), ([np.zeros((0, 3))],))
        found += _uses(op, ([apart(2, 3, 2)],), ([apart(2, 3, 2)], {"axis": 2}), opset=11)
    found += _uses("MatMulInteger", ([integers(2, 3, low=0, dtype="uint8"), integers(3, 4, dtype="int8")],))
    found += _uses(
        "MatMul",
        ([integers(2, 3), integers(3, 4)],),
        ([np.zeros((2, 0)), np.zeros((0, 3))],),
        ([np.zeros((0, 2, 3)), real(3, 4)],),
    )
    scale, zero = np.float32(0.1), np.uint8(3)
    left, right = integers(2, 3, low=0, dtype="uint8"), integers(3, 2, low=0, dtype="uint8")
    step = [np.array(scale), np.array(zero)]
    found += _uses("QLinearMatMul", ([left, *step, right, *step, *step],))
    return found


def _quantized() -> list[Example]:
    x, step, zero = real(2, 3, low=-200, high=200), np.array(0.5), np.array(3, np.int8)
    image, kernel = integers(1, 2, 4, 4, low=0, dtype="uint8"), integers(3, 2, 2, 2, low=0, dtype="uint8")
    scale, offset = np.array(np.float32(0.1)), np.array(np.uint8(3))
    found = _uses("QuantizeLinear", ([x, step, zero],), ([x, step], {"output_dtype": 3}), dtype="float32")
    found += _uses("DynamicQuantizeLinear", ([x],), dtype="float32", outputs=(True, True, True))
    found += _uses("ConvInteger", ([image, kernel], {"pads": [1, 0, 0, 1]}))
    found += _uses("QLinearConv", ([image, scale, offset, kernel, scale, offset, scale, offset],))
    bounds = {"low": -128.0, "high": 127.0}
    return found + _uses(
        "remat::QuantizeLinearGrad",
        ([real(2, 3), x, step, zero], bounds),
        ([real(2, 3), x, real(3, low=0.5)], {**bounds, "rounded": 0}),
    )


def _signals() -> list[Example]:
    found: list[Example] = []
    for op in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        found += _uses(op, ([np.array(6)],), ([np.array(5)], {"periodic": 0}))
    edges = [np.array(np.float32(edge)) for edge in (0, 4000)]
    found += _uses("MelWeightMatrix", ([np.array(4), np.array(16), np.array(8000), *edges],))
    return found + _uses("BitCast", ([real(2, 3)], {"to": 7}), opset=26)


def _draws() -> list[Example]:
    found = _uses("Dropout", ([real(3, 4), np.array(0.3), np.array(True)],), outputs=TWO, fixed=(1,))
    found += _uses("Dropout", ([real(3, 4)],), ([real(3, 4), np.array(0.3), np.array(False)],), outputs=TWO, fixed=(1,))
    found += _uses("remat::SeededDropout", ([real(3, 4), np.int32([3])], {"ratio": 0.3}), outputs=TWO)
    found += _uses("remat::Seed", ([], {"seed": 5}))
    found += _uses("remat::DropoutGrad", ([real(3, 4), flags(3, 4)], {"ratio": 0.3}), ([real(3), flags(3)],))
    found += _uses("RandomNormal", ([], {"shape": [3, 4], "mean": 2.0}), ([], {"shape": [2], "dtype": 11, "seed": 3.0}))
    found += _uses("RandomUniform", ([], {"shape": [3, 4], "low": -1.0}))
    found += _uses("RandomNormalLike", ([real(3, 4)],)) + _uses("RandomUniformLike", ([real(3, 4)], {"dtype": 1}))
    found += _uses("Bernoulli", ([real(3, 4, low=0, high=1)],), ([real(3, low=0, high=1)], {"dtype": 7}))
    found += _uses("Multinomial", ([real(2, 4)], {"sample_size": 6}), dtype="float32")
    return found


def _training() -> list[Example]:
    w, g, m, v = real(3, 4), real(3, 4), real(3, 4), real(3, 4, low=0.1)
    found = _uses("remat::SGD", ([w, g], {"lr": 0.1, "weight_decay": 0.01}))
    found += _uses(
        "remat::SGD",
        ([w, g, m], {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}),
        ([w, g, m], {"momentum": 0.9, "nesterov": 1}),
        outputs=TWO,
    )
    found += _uses(
        "remat::Adam",
        ([w, g, m, v, np.array(3)],),
        ([w, g, m, v, np.array(1)], {"lr": 0.01, "weight_decay": 0.1}),
        outputs=(True, True, True),
    )
    weight, slope, scale = real(20, 30), real(20, 30), np.float32([0.5, 2.0, 0.0])
    codes, positive = (
        integers(20, 30, low=0, high=256, dtype="uint8"),
        integers(20, 30, low=99, high=256, dtype="uint8"),
    )
    found += _uses(
        "remat::SGD8bit",
        ([weight, slope, codes, scale], {"lr": 0.1, "momentum": 0.9, "nesterov": 1}),
        dtype="float32",
        outputs=(True, True, True),
    )
    found += _uses(
        "remat::Adam8bit",
        ([weight, slope, codes, scale, positive, scale, np.array(3)], {"lr": 0.01, "weight_decay": 0.1}),
        dtype="float32",
        outputs=(True,) * 5,
    )
    rows, columns = real(3, 1, low=0.1), real(1, 4, low=0.1)
    found += _uses(
        "remat::Adafactor",
        ([w, g, np.array(2), rows, columns],),
        ([w, g, np.array(1), rows, columns], {"lr": 0.5, "weight_decay": 0.1}),
        outputs=(True, True, True),
    )
    found += _uses("remat::Adafactor", ([real(5), real(5), np.array(3), real(5, low=0.1)],), outputs=TWO)
    mean, deviation = real(5), real(5, low=0.4)
    found += _uses(
        "remat::RunningStatistics", ([real(5), real(5, low=0.4), mean, deviation], {"momentum": 0.8}), outputs=TWO
    )
    found += (
        _uses("remat::Assign", ([w, g],))
        + _uses("remat::Clear", ([w],))
        + _uses("remat::SquaredNorm", ([w],), dtype="float32")
    )
    found += _uses("remat::MovingAverage", ([w, g], {"decay": 0.99}), ([w, g],))
    return found


def _recurrent() -> list[Example]:
    found: list[Example] = []
    for op, gates in {"RNN": 1, "GRU": 3, "LSTM": 4}.items():
        x, w, r, b = real(4, 2, 3), real(2, gates * 5, 3), real(2, gates * 5, 5), real(2, gates * 10)
        states = [real(2, 2, 5)] * (2 if op == "LSTM" else 1)
        attributes = {"hidden_size": 5, "direction": "bidirectional"}
        outputs = (True,) * (3 if op == "LSTM" else 2)
        found += _uses(
            op, ([x, w, r, b, np.int32([4, 2]), *states], attributes), ([x, w, r], attributes), outputs=outputs
        )
        peephole = [None] if op == "LSTM" else []
        incoming = [real(4, 2, 2, 5), *states]
        found += _uses(
            f"remat::{op}Grad",
            ([x, w, r, b, np.int32([4, 2]), *states, *peephole, *incoming], attributes),
            outputs=(True,) * (4 + len(states)),
        )
    return found


def _resized() -> list[Example]:
    nothing = np.zeros(0, np.float32)
    scales = np.float32([1, 1, 2, 1.5])
    found = _uses(
        "Resize",
        ([real(1, 2, 3, 4), None, scales],),
        ([real(1, 2, 3, 4), None, scales], {"mode": "linear"}),
        (
            [real(1, 2, 3, 4), nothing, None, ints(1, 2, 5, 3)],
            {"mode": "cubic", "coordinate_transformation_mode": "align_corners"},
        ),
        dtype="float32",
    )
    found += _uses("Upsample", ([real(1, 2, 3, 4), scales], {"mode": "nearest"}), opset=9, dtype="float32")
    found += _uses(
        "remat::ResizeGrad",
        ([real(1, 2, 6, 6)], {"input_shape": [1, 2, 3, 4], "scales": [1.0, 1.0, 2.0, 1.5], "mode": "linear"}),
    )
    return found


MORE: list[Example] = [
    *_arithmetic(),
    *_narrow(),
    *_shapes(),
    *_reductions(),
    *_quantized(),
    *_signals(),
    *_draws(),
    *_training(),
    *_recurrent(),
    *_resized(),
]

#: Ops whose output shapes depend on the data: (inputs, attributes, shapes of the outputs).
BY_DATA: dict[str, tuple[list[np.ndarray], dict[str, Any], list[tuple[int, ...]]]] = {
    "NonZero": ([np.float32([[0, 2], [3, 0]])], {}, [(2, 2)]),
    "Unique": ([np.float32([0, 2, 2, 5])], {}, [(3,)]),
    "Compress": ([np.float32([[0, 2], [3, 0]]), np.array([False, True])], {"axis": 0}, [(1, 2)]),
}
