"""RoiAlign and MaxRoiPool on regions that no detector proposes."""

from __future__ import annotations

import numpy as np
import pytest

from graph.errors import CannotExecute
from graph.ops.nn.region_pooling import MAX_SAMPLES
from graph.ops.registry import Call, run
from graph.ops.registry.onnx_fallback import type_of_array

IMAGE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)


def pooled(op: str, *inputs: np.ndarray, **attributes: object) -> np.ndarray:
    types = tuple(type_of_array(x) for x in (IMAGE, *inputs))
    (found,) = run(Call(op, attributes, types, (None,), (True,), opset=22), IMAGE, *inputs)
    assert found is not None
    return found


def aligned(*region: float) -> np.ndarray:
    return pooled("RoiAlign", np.array([region], np.float32), np.zeros(1, np.int64), output_height=2, output_width=2)


def test_a_region_far_beyond_any_image_is_refused():
    assert aligned(0, 0, 2 * MAX_SAMPLES, 4).shape == (1, 1, 2, 2)
    for length in (2 * MAX_SAMPLES + 1, 1e30, np.nan):
        with pytest.raises(CannotExecute, match="samples per bin"):
            aligned(0, 0, length, 4)


def test_a_region_turned_inside_out_or_outside_the_image_is_zero():
    np.testing.assert_array_equal(aligned(3, 3, 1, 1), 0)
    np.testing.assert_array_equal(aligned(9, 9, 12, 12), 0)
    boxes = np.array([[0, 9, 9, 12, 12]], np.float32)
    np.testing.assert_array_equal(pooled("MaxRoiPool", boxes, pooled_shape=[2, 2]), 0)
