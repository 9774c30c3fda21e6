"""Layers of a graph: by names, else by the planner's blocks."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from app.render.plan.columns import decode_columns, encode_columns
from app.render.plan.graph_layers import layers_by_name, layers_of, path_of
from bench import generators
from graph.analysis.cost import resolve_device
from graph.formats.readers import load
from graph.ir import Phase
from planner.lowering.lower import lower
from planner.request.target_runtime import runtime_named


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/layer1/layer1.0/conv1/Conv", ("layer1", "layer1", "0", "conv1")),
        ("grad/layer1/conv1/1", ("layer1",)),
        ("grad/grad/a/b", ("a",)),
        ("conv", ()),
        ("", ()),
        ("///", ()),
    ],
)
def test_a_gradient_node_belongs_to_the_layer_of_its_forward_node(name: str, path: tuple[str, ...]) -> None:
    assert path_of(name) == path


def test_layers_are_name_prefixes() -> None:
    names = [f"net/layer{k // 10}/op{k}" for k in range(100)]
    found = layers_by_name([*names, *(f"grad/{name}" for name in reversed(names)), "loss"])
    assert found is not None
    layers, layer = found
    assert layers == [*(f"net/layer{k}" for k in range(10)), "the rest"]
    assert layer.tolist() == [*(k // 10 for k in range(100)), *(k // 10 for k in reversed(range(100))), 10]


def test_names_without_parts_give_no_layers() -> None:
    assert layers_by_name([f"n{k}" for k in range(20)]) is None
    assert layers_by_name([]) is None
    assert layers_by_name(["a/b", "a/c"]) is None  # one layer is none


def test_a_net_without_structured_names_has_the_planners_blocks_as_layers() -> None:
    graph = load(json.dumps(generators.transformer(600)).encode())
    lowered = lower(graph, resolve_device("a100-80gb"), runtime_named("arena"))
    names, layer = layers_of(graph, lowered, True)
    assert len(layer) == len(graph.nodes) and set(layer.tolist()) <= set(range(len(names)))
    assert any("equal blocks" in name for name in names)
    parts = {(k, node.phase) for k, node in zip(layer.tolist(), graph.nodes, strict=True)}
    both = [k for k in range(len(names)) if {(k, Phase.FORWARD), (k, Phase.BACKWARD)} <= parts]
    assert len(both) > 5  # a block is a stretch of the way out with what belongs to it on the way back


def test_columns_survive_encoding_and_decoding() -> None:
    arrays = {
        "large": np.asarray([2**52, 1], np.int64),
        "real": np.asarray([0.5]),
        "small": np.asarray([1, -1], np.int32),
        "bytes": np.asarray([255], np.uint8),
        "none": np.zeros(0, np.int32),
        "short": np.asarray([65535, 3]),
        "below": np.asarray([-1, 2**31 - 1]),
        "word": np.asarray([2**32 - 1]),
    }
    meta, columns = decode_columns(encode_columns({"a": [1]}, arrays, {"names": ["é", "\0", ""]}))
    assert meta == {"a": [1]} and columns["names"] == ["é", "\0", ""]
    assert all(columns[name].tolist() == array.tolist() for name, array in arrays.items())
    assert (columns["bytes"] + 1).tolist() == [256]
    data = encode_columns({}, arrays, {})
    header = msgspec.json.decode(data[4 : 4 + int.from_bytes(data[:4], "little")])
    assert (4 + int.from_bytes(data[:4], "little")) % 8 == 0
    assert all(said["at"] % 8 == 0 for said in header["columns"].values())
    assert {name: said["type"] for name, said in header["columns"].items()} == {
        "large": "f64",
        "real": "f64",
        "small": "i32",
        "bytes": "u8",
        "none": "u8",
        "short": "u16",
        "below": "i32",
        "word": "u32",
    }
