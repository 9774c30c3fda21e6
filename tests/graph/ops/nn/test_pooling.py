"""Pools against onnxruntime and plain loops, their gradients, and their bodies."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.ops.numeric import precision
from tests.graph.ops.judges import body_of, moved, ours, real, runtime, same, slopes

Example = tuple[np.ndarray, dict[str, Any]]


@st.composite
def pools(draw: st.DrawFn) -> Example:
    """x and attributes of a small pool, 1D to 3D; every window meets the input."""
    rank = draw(st.integers(1, 3))
    kernel, stride = (draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)) for _ in range(2))
    dilation = [draw(st.integers(1, 2)) for _ in range(rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": stride, "dilations": dilation}
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if auto == "NOTSET":
        attributes["ceil_mode"] = draw(st.integers(0, 1))
        begin, end = ([draw(st.integers(0, k - 1)) for k in kernel] for _ in range(2))
        attributes["pads"] = [*begin, *end]
    else:
        attributes["auto_pad"] = auto
        attributes["dilations"] = dilation = [1] * rank
    spatial = [(k - 1) * d + 1 + draw(st.integers(0, 4 - rank)) for k, d in zip(kernel, dilation, strict=True)]
    return real(draw(st.integers(1, 2)), 2, *spatial, dtype=np.float32), attributes


@given(pools(), st.integers(0, 1))
@settings(max_examples=60)
def test_a_maximum_and_its_place_are_those_of_the_runtime(example: Example, storage_order: int):
    x, attributes = example
    expected = runtime("MaxPool", [x], attributes | {"storage_order": storage_order}, outputs=2)
    found = ours("MaxPool", [x], attributes | {"storage_order": storage_order}, outputs=2)
    assert (found[0] == expected[0]).all() and (found[1] == expected[1]).all()
    assert (ours("MaxPool", [x], attributes)[0] == expected[0]).all()


@given(pools(), st.integers(0, 1))
@settings(max_examples=60)
def test_means_and_norms_are_those_of_the_runtime(example: Example, include: int):
    x, attributes = example
    counted = attributes | {"count_include_pad": include}
    same(ours("AveragePool", [x], counted)[0], runtime("AveragePool", [x], counted)[0])
    same(ours("LpPool", [x], attributes | {"p": 3})[0], runtime("LpPool", [x], attributes | {"p": 3}, opset=22)[0])


@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"])
def test_a_global_pool_is_that_of_the_runtime(op: str):
    x = real(2, 3, 4, 5, dtype=np.float32)
    same(ours(op, [x])[0], runtime(op, [x])[0])


@given(pools())
@settings(max_examples=60)
def test_a_maximum_hands_its_gradient_to_its_place(example: Example):
    x, attributes = example
    y, places = ours("MaxPool", [x], attributes, outputs=2)
    dy = real(*y.shape, seed=1, dtype=np.float32)
    expected = np.zeros(x.size, np.float64)
    for place, share in zip(places.ravel(), dy.ravel(), strict=True):
        expected[place] += share
    (dx,) = ours("remat::MaxPoolGrad", [dy, x], attributes)
    same(dx, expected.reshape(x.shape))
    same(body_of("remat::MaxPoolGrad", [dy, x], attributes)[0], dx)


@given(pools(), st.integers(0, 1))
@settings(max_examples=60)
def test_the_gradient_of_a_mean_is_its_adjoint_and_its_body_says_the_same(example: Example, include: int):
    x, attributes = example[0].astype(np.float64), example[1] | {"count_include_pad": include}
    (y,) = ours("AveragePool", [x], attributes, opset=22)
    dy = real(*y.shape, seed=1)
    attributes = attributes | {"input_shape": list(x.shape)}
    (dx,) = ours("remat::AveragePoolGrad", [dy], attributes)
    assert np.vdot(x, dx) == pytest.approx(np.vdot(y, dy), abs=1e-10)
    same(body_of("remat::AveragePoolGrad", [dy], attributes)[0], dx, 1e-10)


@pytest.mark.parametrize("power", [1, 2, 3])
def test_the_gradient_of_a_norm_is_its_slope_and_its_body_says_the_same(power: int):
    x, attributes = real(1, 2, 5, 4), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "p": power}
    (y,) = ours("LpPool", [x], attributes, opset=22)
    dy = real(*y.shape, seed=1)
    (dx,) = ours("remat::LpPoolGrad", [dy, x, y], attributes)
    same(dx, slopes(lambda x: np.vdot(ours("LpPool", [x], attributes, opset=22)[0], dy), [x], 0), 1e-6)
    same(body_of("remat::LpPoolGrad", [dy, x, y], attributes)[0], dx, 1e-10)


def test_among_equal_cells_the_first_is_the_maximum_even_lowest_ones():
    attributes = {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}
    for value in (0.0, -np.inf):
        x = np.full((1, 1, 2, 2), value, np.float32)
        y, places = ours("MaxPool", [x], attributes, outputs=2)
        assert (y == value).all()
        assert places.ravel().tolist() == [0, 0, 0, 0]


def test_a_window_with_a_nan_has_no_maximum():
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
    x[0, 0, 2] = np.nan
    for outputs in (1, 2):
        y = ours("MaxPool", [x], {"kernel_shape": [2]}, outputs)[0]
        assert np.isnan(y).ravel().tolist() == [False, True, True, False, False]


def test_integers_have_maxima():
    x = np.array([[[-128, -128, 5, 127]]], np.int8)
    y, places = ours("MaxPool", [x], {"kernel_shape": [2], "strides": [2], "pads": [1, 1]}, outputs=2)
    assert y.tolist() == [[[-128, 5, 127]]] and places.tolist() == [[[0, 2, 3]]]


def test_a_batch_of_no_images_is_pooled_to_none():
    x, attributes = np.zeros((0, 2, 4, 4), np.float32), {"kernel_shape": [2, 2]}
    y, places = ours("MaxPool", [x], attributes, outputs=2)
    assert y.shape == places.shape == (0, 2, 3, 3)
    assert ours("remat::MaxPoolGrad", [y, x], attributes)[0].shape == x.shape
    assert ours("AveragePool", [x], attributes)[0].shape == y.shape
    shape = {"input_shape": list(x.shape)}
    assert ours("remat::AveragePoolGrad", [y], attributes | shape)[0].shape == x.shape


def test_the_same_bits_come_from_any_address_and_any_chunk(monkeypatch: pytest.MonkeyPatch):
    x, dy = real(3, 4, 8, 8, dtype=np.float32), real(3, 4, 7, 7, seed=1, dtype=np.float32)
    attributes = {"kernel_shape": [2, 2], "input_shape": list(x.shape)}
    calls = {"MaxPool": [x], "AveragePool": [x], "remat::MaxPoolGrad": [dy, x], "remat::AveragePoolGrad": [dy]}
    first = {op: _bits(op, arrays, attributes) for op, arrays in calls.items()}
    monkeypatch.setattr(precision, "CHUNK_BYTES", 1)
    for op, arrays in calls.items():
        assert _bits(op, [moved(a) for a in arrays], attributes) == first[op]


def _bits(op: str, arrays: list[np.ndarray], attributes: dict[str, Any]) -> bytes:
    known = attributes if op.startswith("remat") else {"kernel_shape": attributes["kernel_shape"]}
    return bytes(ours(op, arrays, known)[0].tobytes())


def test_a_gradient_of_another_shape_than_the_pools_output_is_refused():
    x, attributes = real(1, 1, 4), {"kernel_shape": [2]}
    with pytest.raises(ValueError, match=r"but the pool returns \[1, 1, 3\]"):
        ours("remat::MaxPoolGrad", [real(1, 1, 4), x], attributes)
    with pytest.raises(ValueError, match="kernel_shape"):
        ours("remat::MaxPoolGrad", [real(1, 1, 4), x])


def test_windows_that_start_past_the_input_are_left_out():
    for n, k, s, before, after in itertools.product(range(2, 6), (1, 2, 3), (1, 2, 3), (0, 1), (0, 1)):
        if max(before, after) >= k or n + before + after < k:
            continue
        x = real(1, 1, n, dtype=np.float32)
        attributes = {"kernel_shape": [k], "strides": [s], "pads": [before, after], "ceil_mode": 1}
        assert ours("MaxPool", [x], attributes)[0].shape == runtime("MaxPool", [x], attributes)[0].shape
