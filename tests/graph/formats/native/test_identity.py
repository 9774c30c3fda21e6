"""Names that models are given, and what reports say of their inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs
from onnx import helper

from graph.formats.native.identity import (
    MAX_INPUTS,
    inputs_and_batch,
    model_identity,
    renamed,
    with_model_name,
    without_model_name,
)
from graph.formats.native.writer import canonical
from graph.formats.readers import load, name_of_file
from graph.ir import Graph, Role, TensorType, Value
from tests.app.conftest import chain

GRAPH = load(json.dumps(chain(3)).encode())


def taking(*types: TensorType | None) -> Graph:
    """A graph with inputs of these types."""
    values = tuple(Value(f"x{n}", type, Role.INPUT, 8 if type is None else None) for n, type in enumerate(types))
    return Graph("net", values, (), inputs=tuple(range(len(values))))


def test_a_given_name_leaves_the_hash_as_it_is_and_the_own_name_beside_it() -> None:
    named = with_model_name(GRAPH, "resnet50")
    identity = model_identity(named)
    assert (identity["name"], identity["graph_name"]) == ("resnet50", GRAPH.name)
    assert identity["hash"] == model_identity(GRAPH)["hash"]
    assert "graph_name" not in model_identity(GRAPH)
    assert without_model_name(named) == GRAPH
    assert without_model_name(with_model_name(named, "again")) == GRAPH
    assert renamed(model_identity(GRAPH), "resnet50") == identity
    assert renamed(identity, "again")["graph_name"] == GRAPH.name


def test_the_name_survives_a_document() -> None:
    named = with_model_name(GRAPH, "resnet50")
    assert model_identity(load(canonical(named))) == model_identity(named)


@pytest.mark.parametrize(
    ("types", "batch"),
    [
        ((), None),
        ((TensorType("float32", (4, 8)), TensorType("int64", (4,))), 4),
        ((TensorType("float32", (4, 8)), TensorType("int64", (5,))), None),
        ((TensorType("float32", (4, 8)), TensorType("float32", ())), 4),
        ((TensorType("float32", ()),), None),
        ((TensorType("float32", (4, 8)), None), None),
        ((TensorType("float32", (0, 8)),), 0),
    ],
)
def test_the_batch_is_the_leading_length_that_all_inputs_share(
    types: tuple[TensorType | None, ...], batch: int | None
) -> None:
    found = inputs_and_batch(taking(*types))
    assert found["batch"] == batch
    assert [entry["shape"] for entry in found["inputs"]] == [type and list(type.shape) for type in types]


def test_of_many_inputs_the_first_are_listed_and_all_decide_the_batch() -> None:
    types = [TensorType("float32", (4, 8))] * MAX_INPUTS + [TensorType("float32", (3, 8))]
    found = inputs_and_batch(taking(*types))
    assert [entry["name"] for entry in found["inputs"]] == [f"x{n}" for n in range(MAX_INPUTS)]
    assert found["batch"] is None


def test_a_file_of_a_framework_is_called_by_its_name() -> None:
    model = helper.make_model(helper.make_graph([], "main_graph", [], [])).SerializeToString()
    assert name_of_file("models/resnet50.v1.onnx", model) == "resnet50.v1"
    assert name_of_file(Path("net-symbol.json"), b'{"nodes": [], "arg_nodes": [], "heads": []}') == "net"
    assert name_of_file("anything.json", json.dumps(chain(3)).encode()) is None


def test_a_graph_without_a_name_keeps_that_it_had_none() -> None:
    unnamed = structs.replace(GRAPH, name="")
    assert model_identity(unnamed)["name"] == ""
    named = with_model_name(unnamed, "resnet50")
    assert model_identity(named)["graph_name"] == ""
    assert without_model_name(named) == unnamed


@pytest.mark.parametrize("name", [None, "", GRAPH.name])
def test_without_a_new_name_a_graph_is_unchanged(name: str | None) -> None:
    assert with_model_name(GRAPH, name) is GRAPH
