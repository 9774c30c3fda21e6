"""Values of elementwise ops where numpy and the standard differ."""

from __future__ import annotations

import numpy as np

from graph.ops.registry import Call, run
from graph.ops.registry.onnx_fallback import type_of_array


def shifted(x: np.ndarray, places: np.ndarray, direction: str) -> list[int]:
    types = (type_of_array(x), type_of_array(places))
    call = Call("BitShift", {"direction": direction}, types, (None,), (True,), opset=28)
    (found,) = run(call, x, places)
    assert found is not None and found.dtype == x.dtype
    return list(found.tolist())


def test_a_right_shift_of_a_negative_number_keeps_its_sign_whatever_the_width():
    x, places = np.array([-1, -100, -100, 100, 7], np.int8), np.array([9, 2, 8, 8, 1], np.int8)
    assert shifted(x, places, "RIGHT") == [-1, -25, -1, 0, 3]


def test_a_shift_by_the_width_moves_out_every_bit_of_an_unsigned_number():
    x, places = np.array([255, 255, 1], np.uint8), np.array([8, 7, 200], np.uint8)
    assert shifted(x, places, "RIGHT") == [0, 1, 0]
    assert shifted(x, places, "LEFT") == [0, 128, 0]
