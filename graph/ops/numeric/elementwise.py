"""Elementwise ops: arithmetic, functions, comparisons, logic, casts. Outputs may overwrite inputs of their type.

Narrow floats are computed in float32 and rounded once; integers wrap around.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from graph.ir import FLOAT_DTYPES
from graph.ops.numeric.elementwise_helpers import (
    ANY_INPUT,
    EITHER_INPUT,
    TRANSCENDENTAL,
    as_new_array,
    elementwise_work,
    pointwise,
)
from graph.ops.numeric.precision import upcast as wide_float
from graph.ops.numeric.special_functions import erf
from graph.ops.registry import onnx_fallback
from graph.ops.registry.onnx_fallback import dtype_name, numpy_dtype
from graph.ops.registry.registry import Call, op


def _divide(call: Call, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x / y; integers truncate towards zero as in the standard, and x / 0 is 0."""
    if x.dtype.kind in "fc":
        return np.asarray(x / y)
    quotient = np.floor_divide(x, y)
    inexact = (quotient * y != x) & ((x < 0) != (y < 0)) & (y != 0)
    return np.asarray(quotient + inexact, x.dtype)


def _power(call: Call, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x ** y in the type of x; integers use float64 if the exponent is negative or fractional."""
    if x.dtype.kind == "f":
        if y.size == 1 and float(y.reshape(-1)[0]) == 2.0:
            return np.asarray(x * x).reshape(np.broadcast_shapes(x.shape, y.shape))
        return np.asarray(np.power(x, y.astype(x.dtype)))
    if y.dtype.kind in "iu" and (y.size == 0 or y.min() >= 0):
        return np.asarray(np.power(x, y.astype(x.dtype)))
    return np.asarray(np.power(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype))


def _remainder(call: Call, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Remainder with the sign of x if fmod=1, else with the sign of y."""
    return np.asarray(np.fmod(x, y) if call.attribute("fmod", 0) else np.mod(x, y))


def _shift(call: Call, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Bit shift, arithmetic to the right; shifting by the bit width or more leaves copies of the sign, or 0."""
    width = x.dtype.itemsize * 8
    inside = (y >= 0) & (y < width)  # as an unsigned number, a negative shift exceeds the width
    places = np.where(inside, y, width - 1).astype(x.dtype)
    if call.attribute("direction") == "RIGHT":
        moved = np.right_shift(x, places)
        return np.where(inside | (moved < 0), moved, np.zeros((), x.dtype))
    return np.where(inside, np.left_shift(x, places), np.zeros((), x.dtype))


def _clip(call: Call, x: np.ndarray, low: np.ndarray | None = None, high: np.ndarray | None = None) -> np.ndarray:
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _mean(call: Call, *xs: np.ndarray) -> np.ndarray:
    return np.asarray(functools.reduce(np.add, xs) / np.asarray(len(xs), xs[0].dtype))


def _is_inf(call: Call, x: np.ndarray) -> np.ndarray:
    found = np.zeros(x.shape, bool)
    if call.attribute("detect_positive", 1):
        found |= x == np.inf
    if call.attribute("detect_negative", 1):
        found |= x == -np.inf
    return found


def _round(call: Call, x: np.ndarray) -> np.ndarray:
    return np.asarray(np.rint(x))


#: (op, function, flops per element, values its gradient reads)
_Rows = tuple[tuple[str, Callable[..., Any], int, tuple[str, ...]], ...]

_UNARY: _Rows = (
    ("Abs", np.abs, 1, ("i0",)),
    ("Neg", np.negative, 1, ()),
    ("Sign", np.sign, 1, ()),
    ("Floor", np.floor, 1, ()),
    ("Ceil", np.ceil, 1, ()),
    ("Not", np.logical_not, 1, ()),
    ("BitwiseNot", np.invert, 1, ()),
    ("Sqrt", np.sqrt, 2, ("o0",)),
    ("Exp", np.exp, TRANSCENDENTAL, ("o0",)),
    ("Log", np.log, TRANSCENDENTAL, ("i0",)),
    ("Sin", np.sin, TRANSCENDENTAL, ("i0",)),
    ("Cos", np.cos, TRANSCENDENTAL, ("i0",)),
    ("Tan", np.tan, TRANSCENDENTAL, ("o0",)),
    ("Asin", np.arcsin, TRANSCENDENTAL, ("i0",)),
    ("Acos", np.arccos, TRANSCENDENTAL, ("i0",)),
    ("Atan", np.arctan, TRANSCENDENTAL, ("i0",)),
    ("Sinh", np.sinh, TRANSCENDENTAL, ("i0",)),
    ("Cosh", np.cosh, TRANSCENDENTAL, ("i0",)),
    ("Asinh", np.arcsinh, TRANSCENDENTAL, ("i0",)),
    ("Acosh", np.arccosh, TRANSCENDENTAL, ("i0",)),
    ("Atanh", np.arctanh, TRANSCENDENTAL, ("i0",)),
    ("Erf", erf, TRANSCENDENTAL, ("i0",)),
)
for _name, _function, _flops, _saves in _UNARY:
    pointwise(_name, lambda call, x, f=_function: np.asarray(f(x)), flops=_flops, saves=_saves)

pointwise("Round", _round)
pointwise("Reciprocal", lambda call, x: np.asarray(1 / x), saves=("o0",))
pointwise("Clip", _clip, flops=2, saves=("i0", "i1", "i2"))
pointwise("IsNaN", lambda call, x: np.isnan(x), result="bool", takeover=())
pointwise("IsInf", _is_inf, result="bool", takeover=())

_BINARY: _Rows = (
    ("Add", np.add, 1, ()),
    ("Sub", np.subtract, 1, ()),
    ("Mul", np.multiply, 1, ("i0", "i1")),
    ("And", np.logical_and, 1, ()),
    ("Or", np.logical_or, 1, ()),
    ("Xor", np.logical_xor, 1, ()),
    ("BitwiseAnd", np.bitwise_and, 1, ()),
    ("BitwiseOr", np.bitwise_or, 1, ()),
    ("BitwiseXor", np.bitwise_xor, 1, ()),
)
for _name, _function, _flops, _saves in _BINARY:
    pointwise(_name, lambda call, x, y, f=_function: np.asarray(f(x, y)), takeover=EITHER_INPUT, saves=_saves)

pointwise("Div", _divide, takeover=EITHER_INPUT, saves=("i1", "o0"))
pointwise("Pow", _power, takeover=EITHER_INPUT, flops=TRANSCENDENTAL, saves=("i0", "i1", "o0"))
pointwise("Mod", _remainder, takeover=EITHER_INPUT, flops=2, saves=("i0", "i1", "o0"))
pointwise("BitShift", _shift, takeover=EITHER_INPUT)

_COMPARISONS: _Rows = (
    ("Equal", np.equal, 1, ()),
    ("Greater", np.greater, 1, ()),
    ("Less", np.less, 1, ()),
    ("GreaterOrEqual", np.greater_equal, 1, ()),
    ("LessOrEqual", np.less_equal, 1, ()),
)
for _name, _function, _flops, _saves in _COMPARISONS:
    pointwise(
        _name,
        lambda call, x, y, f=_function: np.asarray(f(x, y)),
        result="bool",
        takeover=EITHER_INPUT if _name == "Equal" else (),
    )

_VARIADIC: _Rows = (("Sum", np.add, 1, ()), ("Max", np.maximum, 1, ("i0", "o0")), ("Min", np.minimum, 1, ("i0", "o0")))
for _name, _function, _flops, _saves in _VARIADIC:
    pointwise(_name, lambda call, *xs, f=_function: functools.reduce(f, xs), takeover=ANY_INPUT, saves=_saves)
pointwise("Mean", _mean, takeover=ANY_INPUT)


@op("Where", takeover=((0, 1), (0, 2)), work=elementwise_work(1), gradient_reads=("i0",))
def where(call: Call, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return as_new_array(np.where(condition, x, y), x.dtype, x, y)


@op("Cast", work=elementwise_work(1))
def cast(call: Call, x: np.ndarray) -> np.ndarray:
    return _converted(call, x, dtype_name(int(call.attributes["to"])))


@op("CastLike", shape_only=(1,), work=elementwise_work(1))
def cast_like(call: Call, x: np.ndarray, like: np.ndarray) -> np.ndarray:
    return _converted(call, x, dtype_name(like.dtype))


#: Dtypes whose conversion by numpy agrees with the standard.
_PLAIN = FLOAT_DTYPES & {"float16", "bfloat16", "float32", "float64"} | {
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
}


def _converted(call: Call, x: np.ndarray, to: str) -> np.ndarray:
    """`x` as dtype `to`; by `onnx.reference` if either dtype is below 8 bits, float8 or complex."""
    source = dtype_name(x.dtype)
    if source in _PLAIN and to in _PLAIN:
        with np.errstate(all="ignore"):
            wide = wide_float(x) if source in FLOAT_DTYPES else x
            return np.asarray(wide != 0) if to == "bool" else as_new_array(wide, numpy_dtype(to), x)
    attributes: dict[str, Any] = {"to": onnx_fallback.onnx_dtype(to)}
    if to.startswith("float8"):
        attributes["saturate"] = call.attribute("saturate", 1)
    one = Call("Cast", attributes, call.inputs[:1], call.outputs, (True,), (), call.opset)
    (result,) = onnx_fallback.run(one, (x,))
    assert result is not None
    return as_new_array(result, numpy_dtype(to), x)
