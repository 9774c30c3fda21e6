"""Benchmark documents are what they say they are."""

from __future__ import annotations

import json

import pytest

from bench.catalogue import Instance
from bench.generators import (
    PUBLISHED_LAYERED,
    chain,
    deep_transformer,
    layered,
    published_like,
    resnet,
    transformer,
    unet,
)
from bench.tape import Tape
from graph.formats.readers import load
from graph.ir import Phase, consumers

DOCUMENTS = {
    "transformer": lambda: transformer(300),
    "chain": lambda: chain(20),
    "unet": lambda: unet(2),
    "layered": lambda: layered(120, seed=3),
    "published_like": lambda: published_like(250),
    "resnet": lambda: resnet(50, batch=2, image=(3, 32, 32)),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_document_is_read_without_a_finding(name):
    document = DOCUMENTS[name]()
    graph = load(json.dumps(document).encode())
    assert len(graph.nodes) == len(document["nodes"])


@pytest.mark.parametrize("nodes", [60, 1_000, 3_333])
def test_a_transformer_has_at_least_the_nodes_asked_for_and_less_than_a_layer_more(nodes):
    layer = len(transformer(2_000)["nodes"]) - len(transformer(1_950)["nodes"])
    assert nodes <= len(transformer(nodes)["nodes"]) < nodes + 100
    assert layer < 100


def test_layers_of_a_transformer_are_equal():
    #   nodes: ends, then one layer after the other forward, and the same number of nodes per layer backward
    sizes = [value["bytes"] for value in transformer(500)["values"]]
    forward = [node["op"] for node in transformer(500)["nodes"] if node["phase"] == "forward"][1:-1]
    per_layer = 15
    layers = [tuple(forward[i : i + per_layer]) for i in range(0, len(forward), per_layer)]
    assert len(set(layers)) == 1
    assert len(set(sizes)) < 10


def test_every_gradient_of_a_tape_reads_what_its_op_saves():
    tape = Tape("three ops")
    x = tape.input("x", 8)
    a = tape.matmul(x, 8, 1e-6, weight_bytes=4)
    b = tape.op("Exp", [a], 8, 1e-6, saves="output")
    c = tape.op("Mul", [a, b], 8, 1e-6, saves="others")
    graph = load(json.dumps(tape.training(tape.op("Loss", [c], 4, 1e-6, saves="input"))).encode())
    readers = consumers(graph)

    def backward_readers(value: str) -> list[str]:
        return [
            graph.nodes[n].op.partition("::")[2]
            for n in readers[graph.value_named(value)]
            if graph.nodes[n].phase is Phase.BACKWARD
        ]

    assert sorted(backward_readers("x")) == ["MatMulGradWeight"]
    assert sorted(backward_readers(a)) == ["MulGrad"]
    assert sorted(backward_readers(b)) == ["ExpGrad", "MulGrad"]
    assert sorted(backward_readers(c)) == ["LossGrad"]


def test_a_random_graph_depends_on_its_seed_only():
    assert layered(100, seed=1) == layered(100, seed=1)
    assert layered(100, seed=1) != layered(100, seed=2)


@pytest.mark.parametrize("count", [100, 250, 500, 1000])
def test_a_graph_like_the_published_has_as_many_nodes_reads_and_layers(count):
    nodes = published_like(count, seed=2)["nodes"]
    layer: dict[str, int] = {}
    for node in nodes:
        layer[node["outputs"][0]] = 1 + max((layer[name] for name in node["inputs"]), default=-1)
    reads, layers = PUBLISHED_LAYERED[count]
    assert (len(nodes), sum(len(node["inputs"]) for node in nodes)) == (count, reads)
    assert max(layer.values()) == layers + 1
    assert all(len(node["inputs"]) == len(set(node["inputs"])) for node in nodes)
    unread = {*layer} - {name for node in nodes for name in node["inputs"]}
    assert ([node["inputs"] for node in nodes].count([]), len(unread)) == (1, 1)


def test_a_deep_transformer_of_as_many_layers_is_the_instance():
    def columns(document):
        maker = {row["outputs"][0]: node for node, row in enumerate(document["nodes"])}
        size = {value["name"]: value["bytes"] for value in document["values"]}
        return [
            ([maker[name] for name in row["inputs"]], size[row["outputs"][0]], row["cost"]["seconds"])
            for row in document["nodes"]
        ]

    instance = json.loads(Instance("transformer120_n6k").bytes)
    assert columns(deep_transformer(120)) == columns(instance)
    assert len(deep_transformer(3)["nodes"]) == 8 + 50 * 3


def test_a_resnet_of_152_layers_has_that_many_weighted_ones():
    ops = [node["op"] for node in resnet(152)["nodes"]]
    on_shortcuts = 4
    assert ops.count("Conv") - on_shortcuts + ops.count("Gemm") == 152
