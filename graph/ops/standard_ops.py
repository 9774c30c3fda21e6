"""Types and arrays of standard ONNX ops, by the `onnx` package itself; answers are cached by call."""

from __future__ import annotations

import numpy as np

from graph.ir import TensorType
from graph.ops.table import Call


def infer(call: Call) -> tuple[TensorType | None, ...]:
    raise NotImplementedError


def run(call: Call, arrays: tuple[np.ndarray | None, ...]) -> tuple[np.ndarray | None, ...]:
    raise NotImplementedError
