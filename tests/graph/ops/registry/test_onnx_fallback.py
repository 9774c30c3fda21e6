"""Types by the standard: what is refused, in which words, and what a cached answer costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph.ir import DTYPE_BITS, TensorType
from graph.ops.registry import Call, infer
from graph.ops.registry.onnx_fallback import dtype_name, numpy_dtype, onnx_dtype, type_of_array

X = TensorType("float32", (2, 3, 4))


def call(
    op: str, *inputs: TensorType | None, constants: tuple[Any, ...] = (), outputs: int = 1, **attributes: Any
) -> Call:
    declared = (None,) * outputs
    return Call(op, attributes, inputs, declared, (True,) * outputs, constants)


@pytest.mark.parametrize("name", DTYPE_BITS)
def test_a_dtype_has_one_name_in_three_systems(name: str):
    assert dtype_name(numpy_dtype(name)) == dtype_name(onnx_dtype(name)) == name
    assert type_of_array(np.zeros((2, 3), numpy_dtype(name))) == TensorType(name, (2, 3))


def test_an_unknown_dtype_raises_an_error_listing_the_known_ones():
    for ask in (numpy_dtype, onnx_dtype):
        with pytest.raises(ValueError, match="dtype 'float' is not known; use one of bool"):
            ask("float")
    with pytest.raises(ValueError, match="STRING is not supported"):
        dtype_name(8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (call("MatMul", X, X), "Incompatible dimensions for matrix multiplication"),
        (call("Add", X, TensorType("float32", (5,))), "Incompatible dimensions"),
        (call("Add", X, TensorType("int32", (4,))), r"input 1 \(B\) is int32 but input 0 is float32"),
        (call("Add", X), "has 1 inputs; the op takes 2"),
        (call("Relu", X, outputs=2), "has 2 outputs; the op returns 1"),
        (call("Softmax", X, axes=1), "axes"),
        (call("Softmax", X, axis=1.5), "attribute axis is 1.5, which is not of type int"),
        (call("Softmax", X, axis="last"), "attribute axis is 'last'"),
        (call("Softmax", X, axis=7), "axis"),
        (call("Relu", TensorType("bool", (2,))), r"input 0 \(X\) is bool\[2\], a type the op does not accept"),
        (call("Reshape", X, TensorType("int64", (2,)), constants=(None, np.array([5, -1]))), "incompatible shapes"),
        (call("Transpose", X, perm=[0, 1]), "perm is"),
        (call("Transpose", X, perm=[0, 1, 1]), "perm is"),
    ],
)
def test_a_contradiction_is_one_readable_line(wrong: Call, message: str):
    with pytest.raises(ValueError, match=message) as caught:
        infer(wrong)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_shapes_follow_the_content_of_constants():
    shape = TensorType("int64", (2,))
    for lengths, expected in (([6, 4], (6, 4)), ([-1, 8], (3, 8)), ([2, -1], (2, 12))):
        assert infer(call("Reshape", X, shape, constants=(None, np.array(lengths)))) == (
            TensorType("float32", expected),
        )


def test_a_shape_that_depends_on_data_is_the_declared_one_where_that_is_possible():
    shape = TensorType("int64", (2,))
    declared = TensorType("float32", (4, 6))
    asked = Call("Reshape", {}, (X, shape), (declared,), (True,))
    assert infer(asked) == (declared,)
    with pytest.raises(ValueError, match=r"output 0 is declared as int32\[4,6\], but the op returns float32"):
        infer(Call("Reshape", {}, (X, shape), (TensorType("int32", (4, 6)),), (True,)))


def test_an_integer_stands_for_a_float_attribute():
    assert infer(call("LeakyRelu", X, alpha=1)) == (X,)
