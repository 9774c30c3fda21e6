"""Normalisations against second opinions, their gradients against slopes, and their bodies."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.graph.ops.judges import body_of, moved, ours, real, reference, runtime, same, slopes

FORWARD: list[tuple[str, list[tuple[int, ...]], dict[str, Any], int, int]] = [
    # op, shapes, attributes, outputs, opset
    ("LayerNormalization", [(2, 3, 4, 5), (4, 5), (4, 5)], {"axis": -2}, 3, 21),
    ("LayerNormalization", [(2, 3, 5), (1, 5)], {"axis": 1, "epsilon": 0.1}, 3, 21),
    ("InstanceNormalization", [(2, 3, 4, 5), (3,), (3,)], {"epsilon": 0.1}, 1, 21),
    ("GroupNormalization", [(2, 6, 4, 5), (6,), (6,)], {"num_groups": 2}, 1, 21),
    ("GroupNormalization", [(2, 6, 4), (2,), (2,)], {"num_groups": 2}, 1, 18),
    ("RMSNormalization", [(2, 3, 4), (4,)], {}, 1, 23),
    ("RMSNormalization", [(2, 3, 4), (3, 1)], {"axis": 1, "epsilon": 0.1}, 1, 23),
    ("LRN", [(2, 7, 4, 5)], {"size": 3, "alpha": 0.3, "beta": 0.6, "bias": 1.5}, 1, 21),
]


@pytest.mark.parametrize(("op", "shapes", "attributes", "outputs", "opset"), FORWARD)
def test_a_normalisation_is_that_of_the_runtime(
    op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any], outputs: int, opset: int
):
    arrays = [real(*shape, seed=i, dtype=np.float32) for i, shape in enumerate(shapes)]
    expected = runtime(op, arrays, attributes, outputs, opset)
    for found, other in zip(ours(op, arrays, attributes, outputs, opset), expected, strict=True):
        same(found, other)


@pytest.mark.parametrize("training", [0, 1])
def test_batch_normalisation_is_that_of_the_reference(training: int):
    arrays = [real(3, 2, 4, 5), real(2, seed=1), real(2, seed=2), real(2, seed=3), 1 + real(2, seed=4) / 2]
    attributes, outputs = {"training_mode": training, "momentum": 0.75, "epsilon": 1e-3}, 3 if training else 1
    expected = reference("BatchNormalization", arrays, attributes, outputs)
    for found, other in zip(ours("BatchNormalization", arrays, attributes, outputs), expected, strict=True):
        same(found, other, 1e-9)


def test_batch_statistics_are_mean_and_inverse_deviation_of_each_channel():
    x, scale, bias = real(3, 2, 4, 5), real(2, seed=1), real(2, seed=2)
    y, mean, inv_std = ours("remat::BatchNorm", [x, scale, bias], {"epsilon": 0.1}, 3)
    same(mean, x.mean(axis=(0, 2, 3)), 1e-12)
    same(inv_std, (x.var(axis=(0, 2, 3)) + 0.1) ** -0.5, 1e-12)
    zeros = [np.zeros(2), np.ones(2)]
    attributes = {"epsilon": 0.1, "training_mode": 1}
    same(y, ours("BatchNormalization", [x, scale, bias, *zeros], attributes, 3)[0], 1e-12)
    bodies = body_of("remat::BatchNorm", [x, scale, bias], {"epsilon": 0.1}, 3)
    for found, other in zip(bodies, (y, mean, inv_std), strict=True):
        same(found, other, 1e-10)


def test_an_even_window_of_channels_reaches_one_further_up():
    x, n = real(1, 6, 2, 1), 4
    total = np.stack([(x[:, max(0, c - 1) : c + 3] ** 2).sum(axis=1) for c in range(6)], axis=1)
    expected = x / (1.5 + 0.3 / n * total) ** 0.6
    same(ours("LRN", [x], {"size": n, "alpha": 0.3, "beta": 0.6, "bias": 1.5})[0], expected, 1e-12)


GRADIENTS: dict[str, tuple[str, str, list[tuple[int, ...]], dict[str, Any], int]] = {
    "batch": ("remat::BatchNorm", "remat::BatchNormGrad", [(3, 2, 2, 2), (2,), (2,)], {"epsilon": 0.01}, 3),
    "layer": ("LayerNormalization", "remat::LayerNormGrad", [(2, 3, 4), (4,), (4,)], {"epsilon": 0.01}, 3),
    "layers": ("LayerNormalization", "remat::LayerNormGrad", [(2, 3, 4), (3, 1), (3, 1)], {"axis": 1}, 3),
    "rms": ("RMSNormalization", "remat::RMSNormGrad", [(2, 3, 4), (4,)], {"epsilon": 0.01}, 1),
    "rms axis": ("RMSNormalization", "remat::RMSNormGrad", [(2, 3, 4), (3, 4)], {"axis": -2}, 1),
    "group": ("GroupNormalization", "remat::GroupNormGrad", [(2, 4, 3), (4,), (4,)], {"num_groups": 2}, 1),
    "old group": ("GroupNormalization", "remat::GroupNormGrad", [(2, 4, 3), (2,), (2,)], {"num_groups": 2}, 1),
    "one group": ("GroupNormalization", "remat::GroupNormGrad", [(2, 4, 3), (1,), (1,)], {"num_groups": 1}, 1),
    "instance": ("InstanceNormalization", "remat::InstanceNormGrad", [(2, 3, 4), (3,), (3,)], {"epsilon": 0.01}, 1),
    "lrn": ("LRN", "remat::LRNGrad", [(2, 5, 2, 1)], {"size": 3, "alpha": 0.5, "beta": 0.6}, 1),
    "even lrn": ("LRN", "remat::LRNGrad", [(1, 5, 3)], {"size": 4, "alpha": 0.5, "bias": 2.0}, 1),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients_are_slopes_and_bodies_say_the_same(case: str):
    forward, backward, shapes, attributes, outputs = GRADIENTS[case]
    opset = {"RMSNormalization": 23}.get(forward, 18 if len(shapes) == 3 and case in ("old group", "one group") else 21)
    arrays = [real(*shape, seed=i) for i, shape in enumerate(shapes)]

    def loss(*arrays: np.ndarray) -> float:
        return float(np.vdot(ours(forward, arrays, attributes, outputs, opset)[0], dy))

    dy = real(*shapes[0], seed=9)
    saved = ours(forward, arrays, attributes, outputs, opset)[1:]
    given = [dy, *arrays[:2], *saved] if len(shapes) > 1 else [dy, arrays[0]]
    count = min(3, 2 * len(shapes) - 1)
    found = ours(backward, given, attributes, count)
    for place in range(len(shapes)):
        same(found[place], slopes(loss, arrays, place), 1e-6)
    for body, kernel in zip(body_of(backward, given, attributes, count), found, strict=True):
        same(body, kernel, 1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_types_have_wide_statistics(dtype: Any):
    # 4096 cells of about 300: their sum of squares overflows float16 many times over
    x = (300 + real(1, 1, 64, 64)).astype(dtype)
    scale, bias = np.ones(1, dtype), np.zeros(1, dtype)
    y, mean, inv_std = ours("remat::BatchNorm", [x, scale, bias], {}, 3)
    assert mean.dtype == inv_std.dtype == np.float32
    exact = x.astype(np.float64)
    same(y, (exact - exact.mean()) / np.sqrt(exact.var() + 1e-5), 1e-2)
    grads = ours("remat::BatchNormGrad", [y, x, scale, mean, inv_std], {}, 3)
    for body, kernel in zip(body_of("remat::BatchNormGrad", [y, x, scale, mean, inv_std], {}, 3), grads, strict=True):
        same(body, kernel, 2e-2)


def test_a_batch_of_no_images_has_zero_gradients():
    x, scale = np.zeros((0, 2, 3)), real(2)
    y, mean, inv_std = ours("remat::BatchNorm", [x, scale, scale], {}, 3)
    dx, dscale, dbias = ours("remat::BatchNormGrad", [y, x, scale, mean, inv_std], {}, 3)
    assert dx.shape == x.shape and not dscale.any() and not dbias.any()
    for op, attributes in (("GroupNorm", {"num_groups": 1}), ("InstanceNorm", {})):
        assert ours(f"remat::{op}Grad", [x, x, scale], attributes, 3)[0].shape == x.shape


def test_unwanted_gradients_are_left_out():
    x, scale, zero = real(2, 2, 3), real(2), np.zeros(2)
    dx, dscale, _ = ours("remat::BatchNormGrad", [x, x, scale, zero, scale], {}, (False, True, False))
    assert dx is None
    same(dscale, ours("remat::BatchNormGrad", [x, x, scale, zero, scale], {}, 3)[1])


def test_the_same_bits_come_from_any_address():
    x, scale = real(4, 6, 9, 9, dtype=np.float32), real(6, dtype=np.float32)
    for op, arrays, attributes in (
        ("remat::BatchNorm", [x, scale, scale], {}),
        ("remat::BatchNormGrad", [x, x, scale, scale, scale], {}),
        ("remat::GroupNormGrad", [x, x, scale], {"num_groups": 3}),
    ):
        first = [a.tobytes() for a in ours(op, arrays, attributes, 3)]
        assert [a.tobytes() for a in ours(op, [moved(a) for a in arrays], attributes, 3)] == first


def test_shapes_that_do_not_belong_together_are_told():
    with pytest.raises(ValueError, match="one entry a channel"):
        ours("remat::BatchNorm", [real(2, 3, 4), real(2), real(2)], {}, 3)
    with pytest.raises(ValueError, match="must have one shape"):
        ours("remat::GroupNormGrad", [real(2, 4), real(2, 4, 1), real(4)], {}, 3)
