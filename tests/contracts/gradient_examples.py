"""Example uses of every op that has a gradient rule: shapes, broadcasts, attributes, absent inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_chance = np.random.default_rng(7)


@dataclass(frozen=True, eq=False)
class Example:
    """One use of an op. Floating arrays are differentiated by, the others are constants; None is absent."""

    op: str
    inputs: tuple[np.ndarray | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[bool, ...] = (True,)
    fixed: tuple[int, ...] = ()  # floating inputs that are constants all the same
    tolerance: float = 1e-6
    dtype: str = "float64"  # in which differences are taken; the op may not have float64
    opset: int = 21

    def __str__(self) -> str:
        shapes = ",".join("-" if x is None else "x".join(map(str, x.shape)) or "scalar" for x in self.inputs)
        return f"{self.op}({shapes} {' '.join(f'{k}={v}' for k, v in self.attributes.items())})".replace(" )", ")")


def real(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return _chance.uniform(low, high, shape)


def apart(*shape: int) -> np.ndarray:
    """Numbers of both signs that are far from each other and from zero, for ops with kinks and maxima."""
    count = int(np.prod(shape))
    return _chance.permutation(np.linspace(-2, 2, count + count % 2))[:count].reshape(shape) + 0.01


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _uses(op: str, *uses: tuple[Any, ...], **common: Any) -> list[Example]:
    """Examples from (inputs, attributes) or (inputs,)."""
    return [Example(op, tuple(use[0]), use[1] if len(use) > 1 else {}, **common) for use in uses]


def _elementwise() -> list[Example]:
    found: list[Example] = []
    plain = (
        "Abs Exp Sin Cos Tan Atan Sinh Cosh Asinh Erf Sigmoid Tanh Relu Softplus Softsign HardSwish Mish Neg Identity"
    )
    for op in (*plain.split(), "remat::Copy"):
        found += _uses(op, ([apart(3, 4) * (0.6 if op == "Tan" else 1)],), ([apart()],))
    for op in ("Log", "Sqrt", "Reciprocal"):
        found += _uses(op, ([real(2, 3, low=0.3)],))
    for op in ("Asin", "Acos", "Atanh"):
        found += _uses(op, ([real(2, 3, low=-0.9, high=0.9)],))
    found += _uses("Acosh", ([real(2, 3, low=1.2, high=3)],))
    for op, attributes in {
        "LeakyRelu": {"alpha": 0.3},
        "ThresholdedRelu": {"alpha": 0.5},
        "Elu": {"alpha": 1.5},
        "Selu": {"alpha": 1.2, "gamma": 0.9},
        "Celu": {"alpha": 0.7},
        "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
        "Gelu": {"approximate": "tanh"},
        "Shrink": {"lambd": 0.4, "bias": 0.2},
    }.items():
        single = {"dtype": "float32", "tolerance": 1e-3} if op == "Celu" else {}
        found += _uses(op, ([apart(3, 5)], attributes), ([apart(4)],), **single)
    found += _uses("Swish", ([apart(3, 5)], {"alpha": 1.5}), ([apart(4)],), opset=24)
    found += _uses("PRelu", ([apart(2, 3, 4), real(3, 1)],), ([apart(2, 3), real()],), ([apart(2, 3), real(2, 3)],))
    found += _uses(
        "Clip",
        ([apart(3, 4), np.array(-0.7), np.array(0.9)],),
        ([apart(3, 4), None, np.array(0.5)],),
        ([apart(3, 4), np.array(-0.4)],),
        ([apart(5)],),
    )
    drop = [np.array(0.4), np.array(True)]
    found += _uses(
        "Dropout", ([real(3, 4), *drop],), ([real(5), None, np.array(True)],), outputs=(True, False), fixed=(1,)
    )
    found += _uses("Dropout", ([real(3, 4), np.array(0.4)],), fixed=(1,))
    found += _uses("Dropout", ([real(3, 4)], {"seed": 3}))
    found += _uses("remat::SeededDropout", ([real(3, 4), np.int32([7])], {"ratio": 0.3}), outputs=(True, False))
    for op in ("Softmax", "LogSoftmax"):
        found += _uses(op, ([real(3, 4)],), ([real(2, 3, 4)], {"axis": 1}), ([real(5)], {"axis": 0}))
    return found


def _arithmetic() -> list[Example]:
    found: list[Example] = []
    shapes = (((3, 4), (3, 4)), ((3, 4), (4,)), ((2, 1, 4), (3, 1)), ((), (2, 2)))
    for op in ("Add", "Sub", "Mul"):
        found += _uses(op, *[([real(*a), real(*b)],) for a, b in shapes])
    found += _uses("Div", *[([real(*a), real(*b, low=0.5)],) for a, b in shapes])
    found += _uses(
        "Pow", ([real(3, 4, low=0.4), real(3, 4)],), ([real(2, 3, low=0.4), real()],), ([real(3, low=0.4), real(2, 1)],)
    )
    found += _uses("Pow", ([apart(3, 4), np.array(2.0)],), ([apart(4), np.array([3.0])],), fixed=(1,))
    found += _uses("Pow", ([apart(3, 4), np.array(2, np.int64)],))
    found += _uses("Mod", ([real(3, 4, low=1.1, high=1.9), real(4, low=0.4, high=0.5)], {"fmod": 1}))
    for op in ("Sum", "Mean", "Max", "Min"):
        found += _uses(
            op, ([apart(3, 4), apart(3, 4) * 0.9, apart(4) * 0.7],), ([apart(2)],), ([apart(2, 1), apart(3) * 0.7],)
        )
    condition = np.array([[True, False, True], [False, False, True]])
    found += _uses("Where", ([condition, real(2, 3), real(2, 3)],), ([condition, real(3), real()],))
    found += _uses("Cast", ([real(2, 3)], {"to": 11}))
    found += _uses("CastLike", ([real(2, 3), real(1)],), fixed=(1,))
    found += _uses("remat::FirstRows", ([real(2, 3), np.array([2, 3])],), fixed=(1,))
    found += _uses("remat::PadRows", ([real(2, 3)], {"shape": [2, 3]}))
    found += _uses("remat::RowsLike", ([real(2, 3), real(2, 3)],), fixed=(1,))
    return found


def _products() -> list[Example]:
    found = _uses(
        "MatMul",
        *[
            ([real(*a), real(*b)],)
            for a, b in (
                ((3, 4), (4, 2)),
                ((2, 3, 4), (4, 5)),
                ((2, 3, 4), (2, 4, 5)),
                ((2, 1, 3, 4), (5, 4, 2)),
                ((4,), (4,)),
                ((4,), (4, 3)),
                ((2, 3, 4), (4,)),
                ((4,), (2, 4, 3)),
                ((3, 4), (2, 4, 5)),
                ((2, 4, 3, 4), (4,)),
            )
        ],
    )
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = real(*((4, 3) if ta else (3, 4))), real(*((2, 4) if tb else (4, 2)))
            found += _uses(
                "Gemm",
                ([a, b, real(2)], {"transA": ta, "transB": tb, "alpha": 0.5, "beta": 2.0}),
                ([a, b], {"transA": ta, "transB": tb}),
                ([a, b, real(3, 1)], {"transA": ta, "transB": tb}),
            )
            stacks = real(2, *a.shape), real(3, 2, *b.shape)
            found += _uses("remat::MatMul", ([*stacks], {"trans_a": ta, "trans_b": tb}))
    q, kt, v = real(2, 3, 4), real(2, 4, 5), real(2, 5, 6)
    seen = np.array([[True, False, True, True, True], [True] * 5, [False, True, False, True, True]])
    found += _uses(
        "remat::FusedAttention",
        ([q, kt, v, real(3, 5), seen], {"scale": 0.5, "fill": -9.0}),
        ([q, kt, v, real(2, 1, 5)],),
        ([q[0], kt[0], v[0], None, seen], {"scale": 0.7}),
        ([q, kt, v], {"lowest": -1, "highest": 1}),
        ([q[0], kt[0], v[0], None, seen], {"highest": 2}),
        ([real(2, 1, 150, 2), real(2, 1, 2, 3), real(2, 1, 3, 2), real(1, 150, 1)],),
        outputs=(True, True),
    )
    found += _uses("remat::FusedAttention", ([q, kt, v],))
    found += _uses(
        "Einsum",
        ([real(2, 3, 4), real(2, 4, 5)], {"equation": "bij,bjk->bik"}),
        ([real(2, 3), real(4)], {"equation": "ij,k->k"}),
        ([real(2, 3)], {"equation": "ij -> i"}),
        ([real(2, 3), real(3, 4), real(4)], {"equation": "ij,jk,k"}),
        ([real(2, 3), real(1, 4), real(3, 4), real(3, 3)], {"equation": "ij,ik,jk,jj->k"}),
        ([real(5, 2, 3), real(3, 4)], {"equation": "...ij,jk->...ik"}),
        ([real(3, 2), real(1, 2)], {"equation": "...i,...i"}),
        ([real(2, 5, 3)], {"equation": "i...k->...i"}),
        ([real(3, 3)], {"equation": "ii->i"}),
        ([real(2, 3, 3), real(3)], {"equation": "bii,i"}),
        ([real(2, 2, 2), real(2, 4)], {"equation": "iii,ij->j"}),
        ([real(1, 3), real(4, 3)], {"equation": "ij,ij->ij"}),
        ([real(1, 3), real(4, 3)], {"equation": "ij,ij->j"}),
    )
    found += _uses(
        "Det", ([real(3, 3)],), ([np.outer([1.0, 2, 3], [3.0, 1, 2])],), ([real(2, 4, 2, 2)],), ([real(2, 1, 1)],)
    )
    return found


def _reductions() -> list[Example]:
    found: list[Example] = []
    for op in (
        "ReduceSum",
        "ReduceMean",
        "ReduceSumSquare",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
    ):
        found += _uses(
            op,
            ([apart(2, 3, 4), ints(1)],),
            ([apart(2, 3, 4), ints(0, -1)], {"keepdims": 0}),
            ([apart(3, 2)],),
            ([apart(3, 2)], {"noop_with_empty_axes": 1}),
        )
    zeros = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 3.0]])
    found += _uses("ReduceProd", ([zeros, ints(1)],))
    found += _uses("ReduceLogSum", ([real(2, 3, low=0.2)], {"noop_with_empty_axes": 1}))
    found += _uses("ReduceLogSum", ([real(2, 3, low=0.2), ints(1)],), ([real(2, 3, low=0.2), ints(0)], {"keepdims": 0}))
    found += _uses(
        "CumSum",
        ([real(2, 3), np.array(1)],),
        ([real(2, 3), np.array(0)], {"reverse": 1}),
        ([real(4), np.array(0)], {"exclusive": 1}),
        ([real(2, 4), np.array(1)], {"exclusive": 1, "reverse": 1}),
    )
    found += _uses(
        "CumProd",
        ([real(2, 5), np.array(1)],),
        ([np.array([2.0, 0, 3, 0, 1.5]), np.array(0)], {"reverse": 1}),
        ([np.array([[2.0, 0], [3, 0.5], [0, 4]]), np.array(0)], {"exclusive": 1}),
        ([real(3, 4), np.array(-1)], {"exclusive": 1, "reverse": 1}),
        opset=26,
    )
    found += _transforms()
    found += _uses("LpNormalization", ([real(3, 4)],), ([apart(2, 3, 2)], {"axis": 1, "p": 1}))
    found += _uses("MeanVarianceNormalization", ([real(3, 2, 2, 3)],), ([real(3, 4)], {"axes": [1]}))
    return found


def _transforms() -> list[Example]:
    axis, length = np.array(1), np.array
    real_signal, signal, spectrum = [real(2, 5, 1)], [real(2, 5, 2)], [real(2, 4, 3, 2)]
    found = _uses(
        "DFT",
        (signal,),
        (real_signal, {"inverse": 1}),
        ([*real_signal, None, axis], {"onesided": 1}),
        ([*real_signal, length(4), axis], {"onesided": 1}),
        ([*signal, length(7), axis],),
        ([*spectrum, length(3), axis], {"inverse": 1}),
        ([*spectrum, None, axis], {"inverse": 1, "onesided": 1}),
        ([*spectrum, length(5), axis], {"inverse": 1, "onesided": 1}),
    )
    found += _uses("DFT", (signal, {"axis": 1, "inverse": 1}), (real_signal, {"axis": 1, "onesided": 1}), opset=17)
    step, window = np.array(2), real(4, low=0.2)
    found += _uses(
        "STFT",
        ([real(2, 9, 1), step, window],),
        ([real(1, 9, 2), step, window, length(4)], {"onesided": 0}),
        ([real(1, 9, 1), step, None, length(5)],),
        ([real(1, 6, 1), step],),
    )
    return found


def _shapes() -> list[Example]:
    found = _uses(
        "Reshape", ([real(2, 6), ints(3, 4)],), ([real(2, 3), ints(-1)],), ([real(2, 3), ints(3, 2)], {"allowzero": 1})
    )
    found += _uses("Flatten", ([real(2, 3, 4)],), ([real(2, 3)], {"axis": 0}))
    found += _uses("Squeeze", ([real(2, 1, 3, 1)],), ([real(1, 2, 1), ints(0)],))
    found += _uses("Unsqueeze", ([real(2, 3), ints(0, 3)],))
    found += _uses("Transpose", ([real(2, 3, 4)],), ([real(2, 3, 4)], {"perm": [1, 2, 0]}))
    found += _uses("Expand", ([real(3, 1), ints(2, 3, 4)],), ([real(2, 3), ints(2, 3)],))
    found += _uses("Tile", ([real(2, 3), ints(2, 3)],), ([real(2, 3, 1), ints(1, 1, 4)],))
    found += _uses("Concat", ([real(2, 3), real(2, 1), real(2, 2)], {"axis": 1}), ([real(2, 3)], {"axis": -1}))
    found += _uses("Split", ([real(6, 2), ints(1, 3, 2)],), outputs=(True, True, True))
    found += _uses("Split", ([real(2, 6)], {"axis": -1, "num_outputs": 3}), outputs=(True, False, True))
    found += _uses(
        "Slice",
        ([real(4, 5), ints(1), ints(3)],),
        ([real(4, 5), ints(1, -4), ints(100, -1), ints(0, 1)],),
        ([real(7, 3), ints(5), ints(0), ints(0), ints(-2)],),
        ([real(7, 4), ints(0, 1), ints(7, 4), ints(0, 1), ints(3, 1)],),
        ([real(5), ints(4), ints(-9), ints(0), ints(-1)],),
        ([real(3, 2), ints(0), ints(3), ints(0)],),
    )
    found += _uses(
        "Pad",
        ([real(2, 3), ints(1, 0, 0, 2)],),
        ([real(2, 3), ints(0, 1, 1, 0), np.array(0.5)],),
        ([real(3, 4), ints(1, -1, 0, 2)],),
        ([real(3, 4), ints(2, 1), None, ints(1)],),
        ([real(3, 4), ints(2, 1, 1, 3)], {"mode": "reflect"}),
        ([real(3, 4), ints(2, 1, 1, 3)], {"mode": "edge"}),
        ([real(3, 4), ints(2, 1, 1, 3)], {"mode": "wrap"}),
    )
    found += _uses("Trilu", ([real(3, 4)],), ([real(2, 3, 3), np.array(1)], {"upper": 0}))
    found += _uses(
        "DepthToSpace", ([real(1, 8, 2, 3)], {"blocksize": 2}), ([real(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"})
    )
    found += _uses("SpaceToDepth", ([real(1, 2, 4, 6)], {"blocksize": 2}))
    found += _uses("SpaceToDepth", ([real(1, 2, 4, 6)], {"blocksize": 2, "mode": "CRD"}), opset=28)
    found += _uses("ReverseSequence", ([real(4, 3), ints(2, 4, 1)], {"time_axis": 0, "batch_axis": 1}))
    found += _uses(
        "CenterCropPad",
        ([real(4, 5), ints(7, 2)],),
        ([real(5, 4), ints(2, 5)],),
        ([real(2, 5), ints(4)], {"axes": [1]}),
    )
    return found


def _indexing() -> list[Example]:
    found = _uses(
        "Gather",
        ([real(5, 3), np.array([[0, 4], [4, -1]])],),
        ([real(2, 4, 3), ints(3, 3)], {"axis": 1}),
        ([real(4), np.array(2)],),
    )
    found += _uses(
        "GatherElements", ([real(3, 4), np.array([[0, 2], [2, 2]])], {"axis": 1}), ([real(3, 2), np.array([[0, 2]])],)
    )
    found += _uses(
        "GatherND",
        ([real(3, 4, 2), np.array([[0, 1], [2, 3], [0, 1]])],),
        ([real(2, 3, 2), np.array([[1], [1]])], {"batch_dims": 1}),
    )
    found += _uses(
        "ScatterElements",
        ([real(3, 4), np.array([[0, 2], [1, 3]]), real(2, 2)], {"axis": 1}),
        ([real(3, 4), np.array([[0, 2], [0, 1]]), real(2, 2)], {"reduction": "add"}),
        *(
            ([apart(3, 4), np.array([[0, 0], [1, 1]]), apart(2, 2) * 0.9], {"reduction": reduction, "axis": 1})
            for reduction in ("mul", "max", "min")
        ),
        ([apart(1, 4), np.array([[0, 0, 1, 3, 3]]), np.array([[0, 2.0, 3, 0, 0]])], {"reduction": "mul", "axis": 1}),
    )
    found += _uses(
        "ScatterND",
        ([real(4, 2), np.array([[0], [3]]), real(2, 2)],),
        ([real(4), np.array([[1], [1]]), real(2)], {"reduction": "add"}),
        *(
            ([apart(4, 2), np.array([[1], [1], [2]]), apart(3, 2) * 0.9], {"reduction": reduction})
            for reduction in ("mul", "max", "min")
        ),
    )
    found += _uses(
        "TensorScatter",
        ([real(2, 5, 3), real(2, 2, 3)],),
        ([real(2, 2, 5, 3), real(2, 2, 2, 3), ints(1, 3)],),
        ([real(2, 5, 3), real(2, 2, 3), ints(4, 1)], {"mode": "circular", "axis": 1}),
        opset=24,
    )
    found += _uses(
        "Col2Im",
        ([real(2, 8, 6), ints(3, 4), ints(2, 2)],),
        ([real(1, 8, 9), ints(6, 5), ints(2, 2)], {"strides": [2, 1], "pads": [1, 0, 0, 1], "dilations": [1, 3]}),
        ([real(1, 6, 4), ints(6), ints(3)],),
        ([real(1, 8, 3), ints(2, 2, 4), ints(2, 2, 2)],),
    )
    found += _uses(
        "MaxUnpool",
        (
            [real(1, 2, 2, 2), np.array([[[[5, 7], [13, 15]], [[16, 19], [24, 26]]]])],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
        ),
        (
            [real(1, 1, 2, 2), np.array([[[[0, 3], [8, 11]]]]), ints(1, 1, 5, 6)],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
        ),
        ([real(1, 1, 3), np.array([[[0, 2, 3]]])], {"kernel_shape": [2], "strides": [2], "pads": [1, 1]}),
    )
    found += _uses(
        "Compress",
        ([real(2, 3), np.array([True, False, False, True, True])],),
        ([real(3, 4), np.array([False, True])], {"axis": 0}),
        ([real(2, 4), np.array([True, False, True, True])], {"axis": -1}),
    )
    found += _uses(
        "TopK",
        ([apart(3, 5), ints(2)],),
        ([apart(4, 2), ints(3)], {"axis": 0, "largest": 0, "sorted": 0}),
        outputs=(True, True),
    )
    found += _uses(
        "OneHot", ([ints(0, 2, 1), np.array(4), real(2)],), ([np.array([[1, 0]]), np.array(3), real(2)], {"axis": 1})
    )
    return found


def _windows() -> list[Example]:
    found = _uses(
        "Conv",
        (
            [real(2, 3, 5, 6), real(4, 3, 3, 2), real(4)],
            {"pads": [1, 0, 1, 1], "strides": [2, 1], "kernel_shape": [3, 2]},
        ),
        ([real(2, 4, 5, 5), real(6, 2, 3, 3)], {"group": 2, "dilations": [2, 1], "pads": [2, 1, 2, 1]}),
        ([real(1, 2, 7), real(3, 2, 3), real(3)], {"strides": [3]}),
        ([real(1, 2, 3, 4, 3), real(2, 1, 2, 2, 2)], {"group": 2}),
        ([real(1, 3, 5, 4), real(3, 1, 3, 3)], {"group": 3, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    )
    found += _uses(
        "ConvTranspose",
        (
            [real(2, 3, 3, 4), real(3, 2, 3, 2), real(2)],
            {"pads": [1, 0, 1, 1], "strides": [2, 1], "kernel_shape": [3, 2]},
        ),
        ([real(1, 4, 3, 3), real(4, 3, 2, 2)], {"group": 2, "strides": [2, 2], "output_padding": [1, 0]}),
        ([real(1, 2, 4), real(2, 3, 3)], {"dilations": [2]}),
        ([real(1, 2, 4), real(2, 3, 3)], {"strides": [2], "output_shape": [10]}),
        ([real(1, 2, 4), real(2, 3, 3)], {"strides": [2], "auto_pad": "SAME_LOWER"}),
        ([real(1, 1, 2, 2, 2), real(1, 2, 2, 1, 2)], {"strides": [1, 2, 1]}),
    )
    for op, attributes in {"MaxPool": {}, "AveragePool": {"count_include_pad": 1}, "LpPool": {"p": 3}}.items():
        found += _uses(
            op,
            ([apart(2, 3, 5, 6)], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], **attributes}),
            ([apart(1, 2, 7)], {"kernel_shape": [3]}),
            ([apart(1, 2, 5, 5)], {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}),
            ([apart(1, 1, 3, 4, 3)], {"kernel_shape": [2, 2, 2], "strides": [1, 2, 1]}),
            ([apart(1, 1, 6)], {"kernel_shape": [2], "dilations": [2]}),
        )
    found += _uses(
        "AveragePool", ([real(1, 2, 6)], {"kernel_shape": [3], "strides": [2], "ceil_mode": 1, "pads": [1, 1]})
    )
    found += _uses("MaxPool", ([apart(1, 2, 6)], {"kernel_shape": [3], "strides": [2]}), outputs=(True, True))
    columns_first = {"kernel_shape": [2, 3], "strides": [2, 2], "storage_order": 1, "ceil_mode": 1}
    found += _uses("MaxPool", ([apart(1, 2, 3, 6)], columns_first), outputs=(True, True))
    found += _uses("LpPool", ([apart(1, 2, 6)], {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}), opset=22)
    found += _uses("GlobalLpPool", ([apart(2, 3, 4)], {"p": 3}))
    for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        found += _uses(op, ([apart(2, 3, 4, 5)],), ([apart(2, 3, 7)],))
    found += _sampling()
    return found


def _sampling() -> list[Example]:
    image, volume = real(2, 3, 4, 5), real(1, 2, 3, 3, 4)
    grid, points = real(2, 3, 2, 2, low=-1.4, high=1.4), real(1, 2, 2, 2, 3, low=-1.4, high=1.4)
    found: list[Example] = []
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for aligned in (0, 1):
                how = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
                found += _uses("GridSample", ([image, grid], how))
    found += _uses("GridSample", ([volume, points],), ([volume, points], {"mode": "cubic", "padding_mode": "border"}))
    found += _uses("GridSample", ([image, grid],))
    found += _uses("GridSample", ([image, grid], {"mode": "bicubic"}), opset=16)
    found += _uses(
        "AffineGrid",
        ([real(2, 2, 3), ints(2, 3, 4, 5)],),
        ([real(2, 2, 3), ints(2, 3, 4, 5)], {"align_corners": 1}),
        ([real(1, 3, 4), ints(1, 2, 2, 3, 4)],),
    )
    regions = np.array([[0.3, 0.4, 3.6, 3.1], [-2.0, 1.0, 2.2, 7.5], [1.0, 1.0, 1.2, 1.3]])
    size = {"output_height": 2, "output_width": 3}
    found += _uses(
        "RoiAlign",
        ([image, regions, ints(0, 1, 1)], {**size, "sampling_ratio": 2}),
        ([image, regions, ints(0, 1, 1)], {**size, "spatial_scale": 0.7}),
        ([image, regions, ints(1, 0, 1)], {**size, "coordinate_transformation_mode": "output_half_pixel"}),
        ([image, regions, ints(0, 1, 1)], {**size, "mode": "max", "sampling_ratio": 2}),
        fixed=(1,),
    )
    boxes = np.array([[0, 0.0, 0, 3, 3], [1, 1.0, 1, 8, 2], [1, 9.0, 9, 9, 9]])
    found += _uses(
        "MaxRoiPool",
        ([apart(2, 3, 4, 5), boxes], {"pooled_shape": [2, 2]}),
        ([apart(2, 3, 4, 5), boxes], {"pooled_shape": [2, 3], "spatial_scale": 0.5}),
        fixed=(1,),
    )
    window = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 0, 0, 1], "dilations": [1, 2]}
    found += _uses(
        "DeformConv",
        ([real(2, 3, 4, 4), real(2, 3, 2, 2), real(2, 8, 3, 3), real(2)],),
        (
            [real(2, 4, 4, 6), real(4, 2, 2, 3), real(2, 24, 2, 3), None, real(2, 12, 2, 3)],
            {**window, "group": 2, "offset_group": 2},
        ),
        ([real(1, 2, 5), real(2, 2, 3), real(1, 3, 3)],),
    )
    return found


def _normalisations() -> list[Example]:
    statistics = real(3), real(3, low=0.4)
    found = _uses(
        "BatchNormalization",
        ([real(4, 3, 2, 2), real(3), real(3), *statistics],),
        ([real(4, 3), real(3), real(3), *statistics], {"epsilon": 0.1}),
    )
    found += _uses(
        "BatchNormalization",
        ([real(4, 3, 2), real(3), real(3), *statistics], {"training_mode": 1, "momentum": 0.8}),
        fixed=(3, 4),
        outputs=(True, False, False),
    )
    found += _uses(
        "remat::BatchNorm", ([real(4, 3, 2, 2), real(3), real(3)], {"epsilon": 0.01}), outputs=(True, False, False)
    )
    found += _uses("remat::BatchNorm", ([real(6, 3), real(3), real(3)],), outputs=(True, True, True))
    found += _uses(
        "LayerNormalization",
        ([real(2, 3, 4), real(4), real(4)],),
        ([real(2, 3, 4), real(3, 4)], {"axis": 1, "epsilon": 0.1}),
        ([real(2, 3, 4), real(4), real(3, 1)], {"axis": 1, "stash_type": 1}),
        tolerance=1e-5,
    )
    found += _uses(
        "RMSNormalization",
        ([real(2, 3, 4), real(4)],),
        ([real(2, 3, 4), real(3, 4)], {"axis": 1, "epsilon": 0.1, "stash_type": 1}),
        tolerance=1e-5,
        opset=23,
    )
    found += _uses(
        "GroupNormalization",
        ([real(2, 4, 3), real(4), real(4)], {"num_groups": 2, "epsilon": 0.1, "stash_type": 1}),
        tolerance=1e-5,
    )
    found += _uses(
        "InstanceNormalization",
        ([real(2, 3, 4), real(3), real(3)],),
        ([real(2, 3, 2, 3), real(3), real(3)], {"epsilon": 0.1}),
    )
    found += _uses(
        "LRN", ([real(2, 5, 2, 2)], {"size": 3}), ([real(1, 4, 3)], {"size": 2, "alpha": 0.3, "beta": 0.6, "bias": 2.0})
    )
    return found


def _losses() -> list[Example]:
    labels, grid = ints(0, 2, 1, 2), _chance.integers(0, 3, (2, 4))
    found: list[Example] = []
    for reduction in ("mean", "sum", "none"):
        found += _uses(
            "SoftmaxCrossEntropyLoss",
            ([real(4, 3), labels], {"reduction": reduction}),
            ([real(2, 3, 4), grid, real(3, low=0.2)], {"reduction": reduction, "ignore_index": 1}),
            outputs=(True, True),
        )
        found += _uses(
            "NegativeLogLikelihoodLoss",
            ([real(4, 3), labels], {"reduction": reduction}),
            ([real(2, 3, 4), grid, real(3, low=0.2)], {"reduction": reduction, "ignore_index": 1}),
        )
    found += _uses("SoftmaxCrossEntropyLoss", ([real(4, 3), labels],))
    return found


def _recurrent() -> list[Example]:
    moments, batch, width, hidden = 4, 3, 2, 2
    lengths = np.array([4, 2, 3], np.int32)
    found: list[Example] = []
    for op, gates in {"RNN": 1, "GRU": 3, "LSTM": 4}.items():
        for ways in (1, 2):
            x = real(moments, batch, width)
            w, r = real(ways, gates * hidden, width), real(ways, gates * hidden, hidden)
            b, h, c = real(ways, 2 * gates * hidden), real(ways, batch, hidden), real(ways, batch, hidden)
            p = real(ways, 3 * hidden)
            attributes = {"hidden_size": hidden, "direction": "bidirectional" if ways == 2 else "reverse"}
            outputs = (True, True, True) if op == "LSTM" else (True, True)
            states = [h, c, p] if op == "LSTM" else [h]
            found += _uses(op, ([x, w, r, b, lengths, *states], attributes), outputs=outputs)
            found += _uses(
                op,
                ([x, w, r], {"hidden_size": hidden, **({"direction": "bidirectional"} if ways == 2 else {})}),
                outputs=(False, True),
            )
    found += _uses(
        "GRU",
        ([real(3, 2, 2), real(1, 6, 2), real(1, 6, 2), real(1, 12)], {"hidden_size": 2, "linear_before_reset": 1}),
        outputs=(True, False),
    )
    found += _uses(
        "LSTM",
        ([real(2, 3, 2), real(1, 8, 2), real(1, 8, 2)], {"hidden_size": 2, "layout": 1, "input_forget": 0}),
        outputs=(True,),
    )
    return found


def _recurrent_options() -> list[Example]:
    """Activations with parameters, clipping, and the batch as the first axis."""
    found: list[Example] = []
    for op, gates, functions in (
        ("RNN", 1, ["Affine"]),
        ("GRU", 3, ["HardSigmoid", "Affine"]),
        ("LSTM", 4, ["HardSigmoid", "Affine", "Tanh"]),
    ):
        x, w, r = real(3, 2, 2), real(1, 2 * gates, 2), real(1, 2 * gates, 2)
        options = {"activations": functions, "activation_alpha": [0.3, 0.4][: len(functions)]}
        options |= {"activation_beta": [0.45, 0.1][: len(functions)], "clip": 1.5, "layout": 1, "hidden_size": 2}
        found += _uses(op, ([x, w, r], options))
    return found


def _recurrent_units() -> list[Example]:
    h, c, time, lengths = real(1, 3, 2), real(1, 3, 2), ints(2), np.array([4, 2, 3], np.int32)
    lstm, gru, both = real(1, 3, 8), real(1, 3, 6), (True, True)
    return [
        *_uses(
            "remat::LSTMUnit",
            ([h, c, lstm],),
            ([h, c, lstm, lengths, time], {"forget_bias": 0.5}),
            ([h, c, lstm, lengths, time], {"drop_states": 1}),
            outputs=both,
        ),
        *_uses("remat::LSTMUnit", ([h, c, lstm, lengths, time],), outputs=(True, False)),
        *_uses("remat::GRUUnit", ([h, gru],), ([h, gru, lengths, time],)),
        *_uses("remat::GRUUnit", ([h, gru, lengths, time], {"drop_states": 1})),
    ]


def _resizing() -> list[Example]:
    x, scales = real(1, 2, 3, 4), np.array([1, 1, 2, 1.5])
    found: list[Example] = []
    for attributes in (
        {"mode": "nearest"},
        {"mode": "linear"},
        {"mode": "cubic"},
        {"mode": "linear", "antialias": 1},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ):
        found += _uses(
            "Resize",
            ([x, None, scales.astype(np.float32)], attributes),
            ([x, None, None, ints(1, 2, 5, 2)], attributes),
        )
    cut = np.array([0.1, 0.2, 0.7, 1.3], np.float32)
    found += _uses(
        "Resize",
        ([x, None, None, ints(5, 3)], {"mode": "cubic", "axes": [2, 3], "exclude_outside": 1, "cubic_coeff_a": -0.5}),
        ([x, None, None, ints(6, 6)], {"axes": [3, 2], "mode": "linear", "keep_aspect_ratio_policy": "not_larger"}),
        (
            [x, cut, None, ints(4, 5)],
            {
                "axes": [2, 3],
                "mode": "linear",
                "coordinate_transformation_mode": "tf_crop_and_resize",
                "extrapolation_value": 2.0,
            },
        ),
    )
    floats = np.array([1, 1, 2, 1.5], np.float32)
    found += _uses("Upsample", ([x, floats], {"mode": "linear"}), ([x, floats], {"mode": "nearest"}), opset=9)
    return found


def _quantized() -> list[Example]:
    """Scales of numbers that are quantized already; for the rounding see `test_straight_through.py`."""
    q = _chance.integers(-100, 100, (2, 4)).astype(np.int8)
    narrow = {"output_dtype": 1, "axis": 0, "block_size": 0}
    found = _uses("DequantizeLinear", ([q, real(2, low=0.1)], narrow), opset=23, dtype="float32", tolerance=1e-3)
    return found + _uses(
        "DequantizeLinear",
        ([q, np.array(0.5), np.int8(3)],),
        ([q, real(4, low=0.1)], {"axis": 1}),
        ([q, real(2, 2, low=0.1), np.int8([[1, 2], [3, 4]])], {"axis": 1, "block_size": 2}),
        dtype="float32",
        tolerance=1e-3,
    )


def _marks() -> list[Example]:
    return _uses("remat::GradientScale", ([real(2, 3)], {"scale": 1.0}))


EXAMPLES: list[Example] = [
    *_elementwise(),
    *_arithmetic(),
    *_products(),
    *_reductions(),
    *_shapes(),
    *_indexing(),
    *_windows(),
    *_normalisations(),
    *_losses(),
    *_recurrent(),
    *_recurrent_options(),
    *_recurrent_units(),
    *_resizing(),
    *_quantized(),
    *_marks(),
]
