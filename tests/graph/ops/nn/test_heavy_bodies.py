"""Bodies of the heavy gradient ops, exported and run in onnxruntime, make what their kernels make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph.formats.onnx.writer import dump
from tests.graph.formats.onnx.onnx_runs import run
from tests.graph.ops.judges import body_graph, ours, real, same

CONV = {"group": 2, "strides": [2, 1], "dilations": [1, 2], "pads": [1, 2, 0, 1]}
POOL = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "ceil_mode": 1}
IMAGE, CHANNEL, TOKENS = (2, 4, 6, 7), (4,), (2, 3, 5)
CASES: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any], int]] = {
    "conv dx": ("remat::ConvGradInput", [(2, 6, 3, 6), (6, 2, 3, 3)], CONV | {"input_shape": [2, 4, 6, 7]}, 1),
    "conv dw": ("remat::ConvGradWeight", [(2, 6, 3, 6), IMAGE], CONV | {"weight_shape": [6, 2, 3, 3]}, 1),
    "max": ("remat::MaxPoolGrad", [(2, 4, 4, 7), IMAGE], POOL, 1),
    "average": ("remat::AveragePoolGrad", [(2, 4, 4, 7)], POOL | {"input_shape": list(IMAGE)}, 1),
    "lp": ("remat::LpPoolGrad", [(2, 4, 4, 7), IMAGE, (2, 4, 4, 7)], POOL, 1),
    "batch": ("remat::BatchNorm", [IMAGE, CHANNEL, CHANNEL], {}, 3),
    "batch back": ("remat::BatchNormGrad", [IMAGE, IMAGE, CHANNEL, CHANNEL, CHANNEL], {}, 3),
    "layer": ("remat::LayerNormGrad", [TOKENS, TOKENS, (5,), (2, 3, 1), (2, 3, 1)], {}, 3),
    "rms": ("remat::RMSNormGrad", [TOKENS, TOKENS, (5,)], {}, 2),
    "group": ("remat::GroupNormGrad", [IMAGE, IMAGE, CHANNEL], {"num_groups": 2}, 3),
    "instance": ("remat::InstanceNormGrad", [IMAGE, IMAGE, CHANNEL], {}, 3),
    "lrn": ("remat::LRNGrad", [IMAGE, IMAGE], {"size": 3}, 1),
    "resize": ("remat::ResizeGrad", [(2, 4, 9, 9)], {"mode": "cubic", "input_shape": list(IMAGE)}, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_an_exported_body_makes_what_the_kernel_makes(case: str):
    op, shapes, attributes, outputs = CASES[case]
    arrays = [np.abs(real(*shape, seed=i, dtype=np.float32)) + 0.1 for i, shape in enumerate(shapes)]
    graph, given = body_graph(op, arrays, attributes, outputs)
    made = run(dump(graph), given)
    for v, expected in zip(graph.outputs, ours(op, arrays, attributes, outputs), strict=False):
        same(made[graph.values[v].name], expected, 1e-4)
