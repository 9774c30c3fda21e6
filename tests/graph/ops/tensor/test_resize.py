"""Resize against the reference over its modes, and its gradient as the exact adjoint."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.graph.ops.judges import body_of, moved, ours, real, reference, same

TRANSFORMS = [
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "half_pixel_symmetric",
    "tf_crop_and_resize",
]
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "nearest": [{"nearest_mode": m} for m in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")],
    "linear": [{}, {"antialias": 1}, {"exclude_outside": 1}],
    "cubic": [{}, {"antialias": 1}, {"exclude_outside": 1}, {"cubic_coeff_a": -0.5}],
}
TARGETS: list[dict[str, list[Any]]] = [
    {"scales": [1, 1, 2, 1.6]},
    {"scales": [1, 1, 0.7, 0.4]},
    {"sizes": [1, 2, 7, 3]},
    {"sizes": [1, 2, 1, 1]},
]
ROI = np.array([0, 0, 0.1, -0.2, 1, 1, 1.2, 0.8], np.float32)


def arguments(x: np.ndarray, target: dict[str, list[Any]], roi: np.ndarray | None) -> list[np.ndarray | None]:
    if "scales" in target:
        return [x, roi, np.array(target["scales"], np.float32)]
    return [x, roi, None, np.array(target["sizes"], np.int64)]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("mode", VARIANTS)
def test_resizing_is_that_of_the_reference_and_its_gradient_the_adjoint(mode: str, transform: str):
    x, roi = real(1, 2, 5, 6), ROI if transform == "tf_crop_and_resize" else None
    for variant, target in itertools.product(VARIANTS[mode], TARGETS):
        attributes = {"mode": mode, "coordinate_transformation_mode": transform} | variant
        (y,) = ours("Resize", arguments(x, target, roi), attributes)
        same(y, reference("Resize", arguments(x, target, roi), attributes)[0])
        dy = real(*y.shape, seed=1)
        back = attributes | target | {"input_shape": list(x.shape)} | ({} if roi is None else {"roi": roi.tolist()})
        if "scales" in back:
            back["scales"] = np.array(back["scales"], np.float32).tolist()
        (dx,) = ours("remat::ResizeGrad", [dy], back)
        assert np.vdot(x, dx) == pytest.approx(np.vdot(y, dy), abs=1e-10)  # nothing is extrapolated but zeros
        same(body_of("remat::ResizeGrad", [dy], back)[0], dx, 1e-10)


def test_extrapolated_cells_take_the_value_and_hand_nothing_back():
    x = real(1, 1, 4, 4)
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5, "mode": "linear"}
    roi = np.array([0, 0, 0, -1, 1, 1, 1, 1], np.float32)
    (y,) = ours("Resize", [x, roi, None, np.array([1, 1, 4, 5])], attributes)
    same(y, reference("Resize", [x, roi, None, np.array([1, 1, 4, 5])], attributes)[0])
    assert (y[..., :2] == 7.5).all() and (y[..., 2:] != 7.5).all()
    back = attributes | {"input_shape": [1, 1, 4, 4], "roi": roi.tolist(), "sizes": [1, 1, 4, 5]}
    dy = np.zeros_like(y)
    dy[..., :2] = 1
    assert not ours("remat::ResizeGrad", [dy], back)[0].any()


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_the_aspect_ratio_is_kept_as_the_reference_keeps_it(policy: str):
    x, attributes = real(1, 2, 5, 6), {"mode": "linear", "keep_aspect_ratio_policy": policy, "axes": [3, 2]}
    sizes = np.array([8, 8])
    (y,) = ours("Resize", [x, None, None, sizes], attributes)
    (full,) = reference("Resize", [x.transpose(0, 1, 3, 2), None, None, sizes], attributes | {"axes": [2, 3]})
    same(y, full.transpose(0, 1, 3, 2))
    dy = real(*y.shape, seed=1)
    back = attributes | {"input_shape": list(x.shape), "sizes": [8, 8]}
    assert np.vdot(x, ours("remat::ResizeGrad", [dy], back)[0]) == pytest.approx(np.vdot(y, dy), abs=1e-10)


def test_integers_are_rounded_and_clipped():
    x = (100 * (1 + real(1, 1, 4, 5))).astype(np.uint8)
    arrays = [x, None, np.array([1, 1, 2, 1.5], np.float32)]
    for mode in ("nearest", "linear", "cubic"):
        assert (ours("Resize", arrays, {"mode": mode})[0] == reference("Resize", arrays, {"mode": mode})[0]).all()


def test_picking_cells_copies_them_whatever_they_hold():
    x = np.array([[np.inf, -np.inf, np.nan]], np.float32)
    (y,) = ours("Resize", [x, None, np.array([1, 2], np.float32)])
    assert y.tobytes() == np.repeat(x, 2, axis=1).tobytes()


def test_the_ancestor_upsample_repeats_cells():
    x = real(1, 1, 2, 2)
    (y,) = ours("Upsample", [x, np.array([1, 1, 2, 3], np.float32)], {"mode": "nearest"}, opset=9)
    same(y, x.repeat(2, axis=2).repeat(3, axis=3))


def test_a_batch_of_no_images_and_the_same_size_are_legal():
    for shape in ((0, 2, 3, 3), (1, 2, 3, 3)):
        x = real(*shape)
        for scale in (1, 2):
            arrays = [x, None, np.array([1, 1, scale, scale], np.float32)]
            (y,) = ours("Resize", arrays, {"mode": "linear"})
            back = {"mode": "linear", "scales": [1, 1, scale, scale], "input_shape": list(shape)}
            (dx,) = ours("remat::ResizeGrad", [y], back)
            assert dx.shape == shape
            assert not np.shares_memory(y, x) and not np.shares_memory(dx, y)


def test_the_same_bits_come_from_any_address():
    dy, attributes = real(2, 3, 8, 8, dtype=np.float32), {"mode": "cubic", "sizes": [2, 3, 8, 8]}
    back = attributes | {"input_shape": [2, 3, 5, 3]}
    assert (
        ours("remat::ResizeGrad", [moved(dy)], back)[0].tobytes() == ours("remat::ResizeGrad", [dy], back)[0].tobytes()
    )


def test_mismatched_shapes_are_refused():
    dy = real(1, 1, 4, 4)
    with pytest.raises(ValueError, match="but is not resized"):
        ours("remat::ResizeGrad", [dy], {"axes": [2], "scales": [2.0], "input_shape": [1, 1, 2, 2]})
    with pytest.raises(ValueError, match="must have 4 entries"):
        ours("remat::ResizeGrad", [dy], {"scales": [2.0], "input_shape": [1, 1, 2, 2]})
    with pytest.raises(ValueError, match="mode 'area'"):
        ours("remat::ResizeGrad", [dy], {"mode": "area", "input_shape": [1, 1, 2, 2]})
