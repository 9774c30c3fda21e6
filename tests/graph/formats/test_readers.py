"""Readers of every format do what the caller's shapes say, or refuse them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from onnx import TensorProto, helper

from graph.errors import BadGraph
from graph.formats.readers import load
from graph.limits import ShapeOverrides


@pytest.mark.parametrize(
    ("shape", "shapes"),
    [
        (["N", 4], ShapeOverrides(batch=8, dims={"N": 3})),
        (["N", 4], ShapeOverrides(batch=8, inputs={"x": (3, 4)})),
        ([3, 8], ShapeOverrides(batch=8, inputs={"x": (3, 8)})),
        ([], ShapeOverrides(batch=8)),
    ],
)
@pytest.mark.parametrize("format", ["native", "onnx"])
def test_a_batch_that_changes_no_input_is_refused(format: str, shape: list[Any], shapes: ShapeOverrides) -> None:
    if format == "onnx":
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
        relu = helper.make_node("Relu", ["x"], ["y"])
        document = helper.make_model(helper.make_graph([relu], "g", ends[:1], ends[1:])).SerializeToString()
    else:
        x = {"name": "x", "shape": shape, "dtype": "float32", "role": "input"}
        node = {"name": "relu", "op": "Relu", "inputs": ["x"], "outputs": ["y"]}
        document = json.dumps({"format": "remat/1", "values": [x], "nodes": [node], "outputs": ["y"]}).encode()
    with pytest.raises(BadGraph) as caught:
        load(document, shapes=shapes)
    assert [(one.code, one.path) for one in caught.value.findings] == [("cannot_rebind", "batch")]
