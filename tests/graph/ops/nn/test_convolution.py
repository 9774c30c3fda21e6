"""Convolutions against the reference, their gradients as adjoints, and their bodies."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.ops.numeric import precision
from graph.ops.registry import HEAVY, find_op, work
from tests.graph.ops.judges import body_of, call_for, moved, ours, real, reference, runtime, same

Example = tuple[np.ndarray, np.ndarray, dict[str, Any]]


@st.composite
def convolutions(draw: st.DrawFn) -> Example:
    """x, w and attributes of a small convolution, 1D to 3D, that has at least one window."""
    rank = draw(st.integers(1, 3))
    small = st.integers(1, 3)
    group, per_group, filters = draw(small), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel, stride, dilation = (draw(st.lists(small, min_size=rank, max_size=rank)) for _ in range(3))
    attributes: dict[str, Any] = {"group": group, "strides": stride, "dilations": dilation}
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    auto = draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if auto == "NOTSET":
        attributes["pads"] = draw(st.lists(st.integers(0, 2), min_size=2 * rank, max_size=2 * rank))
    else:
        attributes["auto_pad"] = auto
    if auto.startswith("SAME"):
        attributes["dilations"] = [1] * rank
    spatial = [r + draw(st.integers(0, 4 - rank)) for r in reach]
    x = real(draw(st.integers(1, 2)), group * per_group, *spatial)
    return x, real(group * filters, per_group, *kernel, seed=1), attributes


@given(convolutions())
@settings(max_examples=60)
def test_a_convolution_is_that_of_the_reference(example: Example):
    x, w, attributes = example
    bias = real(w.shape[0], seed=2)
    same(ours("Conv", [x, w, bias], attributes)[0], reference("Conv", [x, w, bias], attributes)[0], 1e-10)


@given(convolutions())
@settings(max_examples=60)
def test_gradients_are_the_adjoints_and_bodies_say_the_same(example: Example):
    x, w, attributes = example
    (y,) = ours("Conv", [x, w], attributes)
    dy = real(*y.shape, seed=3)
    to_x, to_w = attributes | {"input_shape": list(x.shape)}, attributes | {"weight_shape": list(w.shape)}
    (dx,), (dw,) = ours("remat::ConvGradInput", [dy, w], to_x), ours("remat::ConvGradWeight", [dy, x], to_w)
    # conv(x, w) is linear in x and in w: <x', dx> = <conv(x', w), dy> and <w', dw> = <conv(x, w'), dy> for all x', w'
    other_x, other_w = real(*x.shape, seed=4), real(*w.shape, seed=5)
    assert np.vdot(other_x, dx) == pytest.approx(np.vdot(ours("Conv", [other_x, w], attributes)[0], dy), abs=1e-10)
    assert np.vdot(other_w, dw) == pytest.approx(np.vdot(ours("Conv", [x, other_w], attributes)[0], dy), abs=1e-10)
    same(body_of("remat::ConvGradInput", [dy, w], to_x)[0], dx, 1e-10)
    same(body_of("remat::ConvGradWeight", [dy, x], to_w)[0], dw, 1e-10)


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"strides": [2, 3], "output_padding": [1, 2], "pads": [1, 0, 2, 1]},
        {"strides": [2, 3], "output_shape": [9, 16]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
        {"strides": [3, 1], "auto_pad": "VALID", "dilations": [2, 3]},
    ],
)
def test_a_transposed_convolution_is_that_of_the_runtime(group: int, attributes: dict[str, Any]):
    arrays = [real(2, 4, 4, 5, dtype=np.float32), real(4, 4 // group, 3, 3, seed=1, dtype=np.float32)]
    arrays.append(real(4, seed=2, dtype=np.float32))
    attributes = attributes | {"group": group}
    same(ours("ConvTranspose", arrays, attributes)[0], runtime("ConvTranspose", arrays, attributes)[0])


@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_batch_of_no_images_has_no_outputs_and_zero_weight_gradients(group: int):
    x, w, attributes = np.zeros((0, 4, 5, 5)), real(4, 4 // group, 3, 3), {"group": group}
    (y,) = ours("Conv", [x, w], attributes)
    assert y.shape == (0, 4, 3, 3)
    assert ours("remat::ConvGradInput", [y, w], attributes | {"input_shape": [0, 4, 5, 5]})[0].shape == x.shape
    (dw,) = ours("remat::ConvGradWeight", [y, x], attributes | {"weight_shape": list(w.shape)})
    assert dw.shape == w.shape and not dw.any()
    assert ours("ConvTranspose", [y, real(4, 4 // group, 3, 3)], attributes)[0].shape == x.shape


@pytest.mark.parametrize("group", [1, 2, 6])
def test_the_same_bits_come_from_any_address_and_any_chunk(group: int, monkeypatch: pytest.MonkeyPatch):
    x, w = real(5, 6, 9, 9, dtype=np.float32), real(6, 6 // group, 3, 3, dtype=np.float32)
    attributes = {"group": group, "pads": [1, 1, 1, 1]}
    calls = {
        "Conv": ([x, w], attributes),
        "remat::ConvGradInput": ([x, w], attributes | {"input_shape": list(x.shape)}),
        "remat::ConvGradWeight": ([x, x], attributes | {"weight_shape": list(w.shape)}),
    }
    first = {op: ours(op, *call)[0].tobytes() for op, call in calls.items()}
    monkeypatch.setattr(precision, "CHUNK_BYTES", 1)
    for op, (arrays, attrs) in calls.items():
        assert ours(op, [moved(a) for a in arrays], attrs)[0].tobytes() == first[op]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_types_are_computed_in_float32_and_rounded_once(dtype: Any):
    x, w = real(1, 64, 5, 5).astype(dtype), real(3, 64, 3, 3).astype(dtype)
    (exact,) = ours("Conv", [x.astype(np.float32), w.astype(np.float32)])
    assert (ours("Conv", [x, w], opset=22)[0] == exact.astype(dtype)).all()


def test_shapes_that_do_not_belong_together_are_told():
    dy, w = real(1, 4, 3, 3), real(4, 2, 3, 3)
    with pytest.raises(ValueError, match="input_shape"):
        ours("remat::ConvGradInput", [dy, w])
    with pytest.raises(ValueError, match="do not agree with group 1"):
        ours("remat::ConvGradInput", [dy, w], {"input_shape": [1, 3, 5, 5]})
    with pytest.raises(ValueError, match="only \\[1, 1\\] windows fit"):
        ours("remat::ConvGradInput", [dy, w], {"input_shape": [1, 2, 3, 3]})
    with pytest.raises(ValueError, match="4 expected"):
        ours("remat::ConvGradInput", [dy, w], {"input_shape": [1, 2, 5, 5], "pads": [1, 1]})


def test_a_convolution_costs_two_flops_a_multiply_add_and_no_workspace():
    x, w = real(2, 8, 10, 10), real(16, 4, 3, 3)
    for op, arrays, attributes in (
        ("Conv", [x, w], {}),
        ("remat::ConvGradInput", [real(2, 16, 8, 8), w], {"input_shape": list(x.shape)}),
        ("remat::ConvGradWeight", [real(2, 16, 8, 8), x], {"weight_shape": list(w.shape)}),
    ):
        found = work(call_for(op, arrays, {"group": 2} | attributes))
        assert (found.flops, found.workspace_bytes) == (2 * (2 * 16 * 8 * 8) * (4 * 3 * 3), 0)
        assert find_op(op).recompute == HEAVY
