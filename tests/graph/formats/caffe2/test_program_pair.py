"""The init net and the net that runs: fills with shape, type and values, placeholders for inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.formats.caffe2.ops import fill_type
from graph.formats.caffe2.program_pair import program_pair
from graph.formats.caffe2.proto import net_of, value_of
from graph.formats.readers import import_warnings, load
from graph.formats.shared.op_table import OpUse
from graph.formats.writers import dump
from graph.ir import Graph, Role, TensorType
from graph.limits import ShapeOverrides
from tests.graph.formats.caffe2.nets import net, op


def types(graph: Graph) -> dict[str, str]:
    return {value.name: str(value.type) for value in graph.values}


def fills(init: bytes) -> dict[str, tuple[str, Any]]:
    """Name -> its type and values."""
    found = {}
    for each in net_of(init).op:
        attributes = {argument.name: value_of(argument) for argument in each.arg}
        found[each.output[0]] = (str(fill_type(each.type, OpUse(each.type, attributes))), attributes.get("values"))
    return found


def _given(name: str, shape: list[int], values: list[float]) -> Any:
    made = op("GivenTensorFill", "", name, shape=shape)
    made.arg.add(name="values").floats.extend(values)
    return made


def exported() -> bytes:
    """An init net as exporters write it, and the net that runs, as one file."""
    weights = [_given("w", [5, 6], [0.5] * 30), _given("b", [5], [1.0] * 5), _given("scale", [1], [2.0])]
    init = net(*weights, _given("x", [1, 1], [0.0]), name="init")
    main = net(op("FC", "x w b", "y"), op("Mul", "y scale", "z"), inputs="x w b scale", outputs="z", name="main")
    data: bytes = init.SerializeToString() + main.SerializeToString()
    return data


def elsewhere() -> Graph:
    """A graph of another source: its parameter has a shape and no values."""
    builder, type = Builder("elsewhere"), TensorType("float32", (5, 6))
    x, w = builder.value("x", type, Role.INPUT), builder.value("w", type, Role.PARAMETER)
    c = builder.constant(np.full((5, 6), 3, np.float32), "c")
    (y,) = builder.node("Mul", [x, w], outputs=["y"])
    return builder.build(builder.node("Add", [y, c], outputs=["z"]))


def test_a_placeholder_of_an_init_net_is_an_input_of_any_shape() -> None:
    with pytest.raises(BadGraph, match="the placeholder in the init net"):
        load(exported())
    graph = load(exported(), shapes=ShapeOverrides(inputs={"x": (4, 6)}))
    role = {value.name: value.role for value in graph.values}
    assert role["x"] is Role.INPUT and role["w"] is role["b"] is role["scale"] is Role.PARAMETER
    assert types(graph)["z"] == "float32[4,5]" and not import_warnings(graph)
    assert types(load(dump(graph, "caffe2"))) == types(graph)


def test_fills_keep_shape_type_and_values() -> None:
    graph = load(exported(), shapes=ShapeOverrides(inputs={"x": (4, 6)}))
    init, main = program_pair(graph)
    assert fills(init) == {
        "w": ("float32[5,6]", [0.5] * 30),
        "b": ("float32[5]", [1.0] * 5),
        "scale": ("float32[1]", [2.0]),
        "x": ("float32[1,1]", [0.0]),
    }
    assert [each.type for each in net_of(main).op] == ["FC", "Mul"]
    again = load(init + main)
    assert types(again) == types(graph) and not import_warnings(again)


def test_a_pair_of_a_graph_without_values_says_that_it_has_shapes_only() -> None:
    init, main = program_pair(elsewhere())
    assert fills(init) == {"x": ("float32[1,1]", [0.0]), "w": ("float32[5,6]", None), "c": ("float32[5,6]", [3.0] * 30)}
    graph = load(init + main)
    assert types(graph)["z"] == "float32[5,6]"
    for each in (graph, load(dump(graph, "caffe2")), load(dump(elsewhere(), "caffe2"))):
        (warning,) = import_warnings(each)
        assert "shapes only" in warning and "w" in warning


def test_a_noted_shape_that_contradicts_the_fill_is_refused() -> None:
    message = net_of(exported())
    message.arg.add(name="shape/w").ints.extend([5, 7])
    with pytest.raises(BadGraph, match="its fill op makes"):
        load(message.SerializeToString(), shapes=ShapeOverrides(inputs={"x": (4, 6)}))
