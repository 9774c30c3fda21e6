"""What is computed ahead: small, known, and the same as when it runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.ir import TensorType
from graph.ops.registry import infer, run
from graph.ops.registry.constant_folding import MAX_FLOAT_ELEMENTS, MAX_INTEGER_ELEMENTS, fold_constants
from graph.ops.registry.onnx_fallback import type_of_array
from graph.ops.registry.registry import Call


def call(op: str, *arrays: np.ndarray | None, outputs: int = 1, **attributes: object) -> Call:
    types = tuple(None if a is None else type_of_array(a) for a in arrays)
    return Call(op, attributes, types, (None,) * outputs, (True,) * outputs, arrays)


def fold(made: Call) -> tuple[np.ndarray | None, ...] | None:
    return fold_constants(made, infer(made))


small = st.lists(st.integers(-5, 5), min_size=1, max_size=6).map(lambda x: np.array(x, np.int64))


@given(small, st.sampled_from(["Add", "Sub", "Mul", "Max", "Equal", "Less"]), st.integers(-3, 3))
def test_arithmetic_on_known_integers_is_what_running_it_gives(x: np.ndarray, op: str, k: int) -> None:
    made = call(op, x, np.array([k]))
    found = fold(made)
    assert found is not None
    np.testing.assert_array_equal(found[0], run(made, x, np.array([k]))[0])


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(-6, 6), st.integers(-6, 6))
def test_a_shape_is_known_from_the_type_alone(shape: list[int], start: int, end: int) -> None:
    made = Call(
        "Shape", {"start": start, "end": end}, (TensorType("float32", tuple(shape)),), (None,), (True,), (None,)
    )
    found = fold(made)
    assert found is not None and found[0] is not None
    assert found[0].tolist() == shape[slice(_clamp(start, shape), _clamp(end, shape))]


def _clamp(place: int, shape: list[int]) -> int:
    return min(max(place + len(shape) if place < 0 else place, 0), len(shape))


@pytest.mark.parametrize(
    ("dtype", "most"),
    [(np.int64, MAX_INTEGER_ELEMENTS), (np.bool_, MAX_INTEGER_ELEMENTS), (np.float32, MAX_FLOAT_ELEMENTS)],
)
def test_only_small_tensors_are_computed_ahead(dtype: type, most: int) -> None:
    assert fold(call("Identity", np.zeros(most, dtype))) is not None
    assert fold(call("Identity", np.zeros(most + 1, dtype))) is None


def test_nothing_large_is_computed_to_find_that_it_is_large() -> None:
    assert fold(call("Expand", np.zeros(1), np.array([1 << 40]))) is None
    assert fold(call("Range", np.array(0), np.array(1 << 50), np.array(1))) is None
    assert fold(call("ConstantOfShape", np.array([1 << 20, 1 << 20]))) is None


def test_what_is_not_known_or_draws_numbers_stays_a_node() -> None:
    made = Call("Add", {}, (TensorType("int64", (2,)),) * 2, (None,), (True,), (np.zeros(2, np.int64), None))
    assert fold(made) is None
    assert fold(call("Bernoulli", np.full(3, 0.5, np.float32))) is None
    assert fold(call("Dropout", np.ones(3, np.float32))) is None
    assert (
        fold_constants(
            Call("mine::Op", {}, (TensorType("int64", (1,)),), (None,), (True,), (np.zeros(1, np.int64),)), (None,)
        )
        is None
    )
