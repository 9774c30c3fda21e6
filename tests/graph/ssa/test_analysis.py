"""Version analysis of programs and graphs, free names, references to versions, version names of exporters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.errors import BadGraph
from graph.formats.caffe2.compat.names import with_version_names
from graph.ssa.analysis import analysis_json, analysis_of, analysis_of_document
from graph.ssa.free_names import external_names
from graph.ssa.lookup import find_value
from graph.transforms.dead_code import without_dead_nodes
from graph.transforms.initial_values import initial_values
from graph.transforms.structural_equality import difference
from tests.graph.ssa.programs import mutable_programs, parsed, program, read

ROLES = {"x": "input", "w": "parameter"}


def test_dead_ops_are_those_without_dependent_results_and_side_effects():
    document = program("a: x -> y", "b: y -> y", "c: x -> y", "log: y ->", "print: y ->", given=ROLES, outputs=["y"])
    document["nodes"][3]["effect"] = "once"
    found = analysis_of_document(parsed(document))
    assert found.dead == [0, 1, 4]
    assert [found.table.version(v) for v in found.unread] == [("y", 2)]


def test_explicit_order_keeps_what_must_run_before():
    document = program("a: x -> y", "b: x -> z", given=ROLES, outputs=["z"])
    document["nodes"][1]["after"] = ["a"]
    assert analysis_of_document(parsed(document)).dead == []
    assert analysis_of(read(document)).dead == []


def test_the_analysis_of_a_graph_lists_names_and_positions():
    document = program("a: x w -> y", "b: y -> y", given=ROLES, outputs=["y"])
    found = analysis_json(read(document))
    assert found["final"] == {"x": 0, "w": 0, "y": 2}
    last = found["value"].index("y/2")
    assert (found["name"][last], found["version"][last], found["producer"][last]) == ("y", 2, [1, 0])
    assert found["consumers"][found["value"].index("y")] == [[1, 0]]
    assert found["undefined"] == [["x", 0], ["w", 0]]


@settings(max_examples=100, deadline=None)
@given(mutable_programs())
def test_a_document_and_its_graph_have_one_analysis(document):
    of_document, graph = analysis_of_document(parsed(document)), read(document)
    of_graph = analysis_of(graph)
    assert of_document.dead == of_graph.dead
    alive = [node.name for n, node in enumerate(graph.nodes) if n not in of_graph.dead]
    assert [node.name for node in without_dead_nodes(graph).nodes] == alive
    pairs = [sorted(map(found.table.version, found.unread)) for found in (of_document, of_graph)]
    assert pairs[0] == pairs[1]


def test_free_names_are_read_before_a_write_or_visible_and_written():
    rows = parsed(program("a: x t0 -> t", "b: t -> y", "c: y -> t")).nodes
    found = external_names(rows, {"x", "y", "t0", "z"}, declared=["z"])
    assert (found.reads, found.writes) == (("x", "t0", "z"), ("y",))
    with pytest.raises(BadGraph) as caught:
        external_names(rows, {"x", "y"})
    assert "'t0'" in str(caught.value)
    assert caught.value.findings[0].path == "nodes[0]"


def test_a_version_is_named_by_its_number_or_as_the_last():
    document = program("a: x -> y", "b: y -> y", "c: y -> z@1", given=ROLES, outputs=["y"])
    graph = read(document)
    names = {
        reference: graph.values[find_value(graph, reference, "value")].name
        for reference in ("y", "y@1", "y@2", "y@last", "x@0", "x@last", "z@1", "z@1@1")
    }
    assert names == {
        "y": "y",
        "y@1": "y",
        "y@2": "y/2",
        "y@last": "y/2",
        "x@0": "x",
        "x@last": "x",
        "z@1": "z@1",
        "z@1@1": "z@1",
    }
    for wrong in ("y@3", "y@", "y@-1", "@1", "", "y@١"):
        with pytest.raises(BadGraph):
            find_value(graph, wrong, "value")


def test_every_version_is_named_with_its_number_or_where_it_needs_one():
    document = program("fc: x w -> y", "add: y -> y", given=ROLES, outputs=["y"])
    graph = read(document)
    every = with_version_names(graph)
    assert [value.name for value in every.graph.values] == ["x_0", "w_0", "y_1", "y_2"]
    assert every.names["y", 2] == "y_2"
    needed = with_version_names(graph, "needed")
    assert [value.name for value in needed.graph.values] == ["x", "w", "y_1", "y_2"]


def test_existing_names_are_not_reused_for_versions():
    document = program("a: x -> y", "b: y -> y", "c: y -> y_1", given=ROLES, outputs=["y", "y_1"])
    names = with_version_names(read(document), "needed").names
    assert len(set(names.values())) == len(names)
    assert names["y_1", 1] == "y_1"


@settings(max_examples=80, deadline=None)
@given(mutable_programs(), st.sampled_from(["all", "needed"]))
def test_names_of_versions_are_distinct_and_keep_the_data_flow(document, style):
    graph = read(document)
    found = with_version_names(graph, style)
    names = [value.name for value in found.graph.values]
    assert len(set(names)) == len(names)
    assert difference(graph, found.graph, inputs_by_name=False) is None


def test_the_initialization_program_has_the_parameter_names_and_fills_only():
    initial = read(program("fill: -> w", outputs=["w"]))
    graph = read(program("a: x w -> y", given=ROLES, outputs=["y"]))
    made = with_version_names(graph, "all", initial).initial
    assert made is not None and [value.name for value in made.values] == ["w_0"]
    computed = read(program("fill: -> a b", outputs=["a"]))
    with pytest.raises(BadGraph) as caught:
        with_version_names(graph, "all", computed)
    assert caught.value.findings[0].code == "not_a_fill"


def test_initial_values_have_the_device_of_their_producer():
    document = {
        "format": "remat/1",
        "values": [],
        "nodes": [
            {
                "name": "w",
                "op": "Constant",
                "inputs": [],
                "outputs": ["w"],
                "attributes": {"value_floats": [1.0, 2.0]},
                "annotations": {"device": "gpu:0"},
            },
            {
                "name": "c",
                "op": "remat::Copy",
                "inputs": ["w"],
                "outputs": ["host"],
                "annotations": {"device": "cpu", "copied_from": "gpu:0"},
            },
        ],
        "outputs": ["w", "host"],
    }
    found = initial_values(read(document))
    assert {name: value.device for name, value in found.items()} == {"w": "gpu:0", "host": "cpu"}
    np.testing.assert_array_equal(found["host"].content, np.array([1, 2], np.float32))
