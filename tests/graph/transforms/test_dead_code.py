"""Dead code elimination, identity elimination and extraction."""

from __future__ import annotations

import numpy as np
import pytest

from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.ir import Effect, Graph, Role, TensorType
from graph.transforms.dead_code import without_dead_nodes, without_identities
from graph.transforms.extract import extract
from tests.graph.evaluate import evaluate

VECTOR = TensorType("float32", (4,))


def forked() -> Graph:
    #   x ── a ── b ── out
    #         ╰── c (dead)
    builder = Builder("forked")
    x = builder.value("x", VECTOR, Role.INPUT)
    (a,) = builder.node("Relu", [x], name="a", outputs=["a"])
    (b,) = builder.node("Neg", [a], name="b", outputs=["b"])
    builder.node("Exp", [a], name="c", outputs=["c"])
    (out,) = builder.node("Abs", [b], name="out", outputs=["out"])
    return builder.build([out])


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes]


def test_dead_nodes_are_removed_with_their_values():
    graph = without_dead_nodes(forked())
    assert names(graph) == ["a", "b", "out"]
    assert [value.name for value in graph.values] == ["x", "a", "b", "out"]


def test_a_node_with_a_side_effect_is_not_dead():
    builder = Builder("log")
    x = builder.value("x", VECTOR, Role.INPUT)
    (out,) = builder.node("Relu", [x], name="a")
    builder.node("acme::Log", [x], name="log", outputs=0, effect=Effect.ONCE)
    assert names(without_dead_nodes(builder.build([out]))) == ["a", "log"]


def test_a_node_that_overwrites_a_state_is_not_dead():
    builder = Builder("state")
    x, s = builder.value("x", VECTOR, Role.INPUT), builder.value("s", VECTOR, Role.STATE)
    builder.node("Add", [s, x], name="add", in_place=((0, 0),))
    assert names(without_dead_nodes(builder.build())) == ["add"]


def test_extraction_stops_at_given_values():
    graph = extract(forked(), ["out"], given=["a"])
    assert names(graph) == ["b", "out"]
    assert [graph.values[v].name for v in graph.inputs] == ["a"]


def test_an_extracted_subgraph_computes_the_same_values():
    x = np.array([-1.0, 0.5, 2.0, -3.0], np.float32)
    whole = evaluate(forked(), {"x": x})
    part = evaluate(extract(forked(), ["out"], given=["a"]), {"a": whole["a"]})
    assert (part["out"] == whole["out"]).all()


def test_extraction_of_an_unknown_name_reports_the_name():
    with pytest.raises(BadGraph, match="'nothing'"):
        extract(forked(), ["out", "nothing"])


def test_readers_of_an_identity_read_its_input():
    builder = Builder("identities")
    x = builder.value("x", VECTOR, Role.INPUT)
    (i,) = builder.node("Identity", [x], name="i")
    (j,) = builder.node("Identity", [i], name="j")
    (y,) = builder.node("Relu", [j], name="y")
    (out,) = builder.node("Identity", [y], name="out")
    graph = without_identities(builder.build([out]))
    assert names(graph) == ["y", "out"]
    assert graph.values[graph.nodes[0].inputs[0]].name == "x"
