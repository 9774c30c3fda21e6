"""Readers of every format do what the caller's shapes say, or refuse them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from onnx import TensorProto, helper

from graph.errors import BadGraph
from graph.formats.readers import import_warnings, load
from graph.limits import ShapeOverrides

RELU = {"name": "relu", "op": "Relu", "inputs": ["x"], "outputs": ["y"]}


def relu(format: str, shape: list[Any]) -> bytes:
    """One Relu of an input of that shape."""
    if format == "onnx":
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
        node = helper.make_node("Relu", ["x"], ["y"])
        return helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:])).SerializeToString()
    x = {"name": "x", "shape": shape, "dtype": "float32", "role": "input"}
    return json.dumps({"format": "remat/1", "values": [x], "nodes": [RELU], "outputs": ["y"]}).encode()


@pytest.mark.parametrize("format", ["native", "onnx"])
def test_a_batch_of_a_model_without_a_leading_length_is_refused(format: str) -> None:
    with pytest.raises(BadGraph) as caught:
        load(relu(format, []), shapes=ShapeOverrides(batch=8))
    assert [(one.code, one.path) for one in caught.value.findings] == [("cannot_rebind", "batch")]


@pytest.mark.parametrize(
    ("shape", "shapes", "is_warned"),
    [
        (["N", 4], ShapeOverrides(batch=8, dims={"N": 3}), True),
        (["N", 4], ShapeOverrides(batch=8, inputs={"x": (3, 4)}), True),
        ([3, 8], ShapeOverrides(batch=8, inputs={"x": (3, 8)}), True),
        (["N", 4], ShapeOverrides(batch=3, dims={"N": 3}), False),
        (["N", 4], ShapeOverrides(batch=3), False),
        ([2, 4], ShapeOverrides(batch=3), False),
    ],
)
@pytest.mark.parametrize("format", ["native", "onnx"])
def test_a_batch_that_other_lengths_replace_is_warned_of(
    format: str, shape: list[Any], shapes: ShapeOverrides, is_warned: bool
) -> None:
    graph = load(relu(format, shape), shapes=shapes)
    type = graph.values[graph.inputs[0]].type
    assert type is not None and type.shape[0] == 3
    assert any("batch 8 changes no input" in warning for warning in import_warnings(graph)) == is_warned
