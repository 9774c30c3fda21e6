"""Version tables, conversion of mutable names to SSA form, and the round trip."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.formats.native.mutable_names import mutable_document
from graph.formats.native.writer import canonical
from graph.ssa import versions_of, versions_of_each
from graph.ssa.naming import versions_of_graph
from tests.graph.ssa.programs import FEEDS, interpreted, mutable_programs, parsed, program, ran, read

ROLES = {"x": "input", "w": "parameter"}


def test_a_given_name_is_version_0_and_each_write_adds_one():
    table = versions_of(parsed(program("a: x w -> y", "b: y -> y", "c: y -> w", given=ROLES)))
    assert [table.versioned(n) for n in range(3)] == [
        ([("x", 0), ("w", 0)], [("y", 1)]),
        ([("y", 1)], [("y", 2)]),
        ([("y", 2)], [("w", 1)]),
    ]
    assert table.final_numbers() == {"x": 0, "w": 1, "y": 2}


def test_names_read_first_are_inputs_when_nothing_is_declared():
    table = versions_of(parsed(program("a: x -> y", "b: y z -> x")))
    assert table.final_numbers() == {"x": 1, "z": 0, "y": 1}
    assert not table.undeclared


def test_an_undeclared_name_is_version_0_and_reported():
    table = versions_of(parsed(program("a: x z -> y", given=ROLES)))
    assert table.versioned(0)[0] == [("x", 0), ("z", 0)]
    assert [table.names[v] for v in table.undeclared] == ["z"]
    assert "z" not in table.final_numbers()


def test_undefined_names_are_those_read_at_version_0():
    document = parsed(program("a: x z -> y", "b: y -> x", given=ROLES))
    table = versions_of(document)
    assert [table.names[v] for v in table.undefined()] == ["x", "z"]
    going_on = versions_of(document, {"x": 3})
    assert [going_on.names[v] for v in going_on.undefined()] == ["z"]


def test_programs_in_sequence_continue_the_version_numbers():
    first, second = versions_of_each([parsed(program("f: -> w")), parsed(program("a: w -> w", given=ROLES))])
    assert first.versioned(0) == ([], [("w", 1)])
    assert second.versioned(0) == ([("w", 1)], [("w", 2)])


def test_producers_and_consumers_name_op_and_slot():
    table = versions_of(parsed(program("a: x -> y z", "b: z y z -> y", given=ROLES)))
    ids = table.ids()
    assert table.producers()[ids["z", 1]] == (0, 1)
    assert table.producers()[ids["x", 0]] is None
    assert table.consumers()[ids["z", 1]] == [(1, 0), (1, 2)]


def test_an_op_that_writes_a_name_twice_is_refused():
    document = program("a: x -> y y", given=ROLES, outputs=["y"])
    for refused in (lambda: versions_of(parsed(document)), lambda: read(document)):
        with pytest.raises(BadGraph) as caught:
            refused()
        assert [finding.code for finding in caught.value.findings] == ["output_twice"]
        assert "'y'" in str(caught.value)


def test_captures_of_a_body_are_reads_of_its_node():
    document = program("a: x -> y", "b: y -> y", given=ROLES)
    body = {"inputs": [], "captures": {"inner": "y"}, "nodes": [], "outputs": ["inner"]}
    document["nodes"].insert(1, {"name": "if", "op": "If", "inputs": ["x"], "outputs": ["z"], "bodies": {"then": body}})
    table = versions_of(parsed(document))
    assert table.reads[1] == (table.ids()["x", 0], table.ids()["y", 1])
    assert table.consumers()[table.ids()["y", 1]] == [(1, 1), (2, 0)]


SCOPED = {
    "format": "remat/1",
    "naming": "mutable",
    "outputs": ["y"],
    "values": [
        {"name": "c", "shape": [], "dtype": "bool", "role": "input"},
        {"name": "x", "shape": [4], "dtype": "float32", "role": "input"},
        {"name": "y", "shape": [4], "dtype": "float32"},
    ],
    "nodes": [
        {"name": "a", "op": "Neg", "inputs": ["x"], "outputs": ["y"]},
        {
            "name": "if",
            "op": "If",
            "inputs": ["c"],
            "outputs": ["y"],
            "bodies": {
                "then_branch": {
                    "inputs": [],
                    "captures": {"y": "y"},
                    "outputs": ["y"],
                    "nodes": [
                        {"name": "b", "op": "Exp", "inputs": ["y"], "outputs": ["y"]},
                        {"name": "d", "op": "Neg", "inputs": ["y"], "outputs": ["y"]},
                    ],
                },
                "else_branch": {
                    "inputs": [],
                    "captures": {"z": "y"},
                    "outputs": ["y"],
                    "nodes": [{"name": "e", "op": "Abs", "inputs": ["z"], "outputs": ["y"]}],
                },
            },
        },
    ],
}


def test_bodies_are_scopes_with_mutable_names():
    #   y ──▶ then: y = exp(y), y = -y      the body captures y/1 and writes its own versions
    graph = read(SCOPED)
    feeds = {"x": np.array([1, 2, -3, 4], np.float32)}
    for choice, expected in ((True, -np.exp(-feeds["x"])), (False, np.abs(feeds["x"]))):
        (result,) = execute(graph, {**feeds, "c": np.array(choice)}).outputs.values()
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_a_program_with_bodies_round_trips_with_its_names():
    graph = read(SCOPED)
    document = mutable_document(graph)
    assert [(node.inputs, node.outputs) for node in document.nodes] == [(["x"], ["y"]), (["c"], ["y"])]
    then = document.nodes[1].bodies["then_branch"]
    assert [(node.inputs, node.outputs) for node in then.nodes] == [(["y"], ["y"]), (["y"], ["y"])]
    assert then.captures == {"y": "y"}
    assert canonical(read(document)) == canonical(graph)


def test_the_name_of_a_live_value_is_not_overwritten():
    #   y ──▶ b ──▶ y/2      when y is read after b wrote y/2, the two cannot share the name y
    document = program("a: x -> y", "b: y -> y", "c: y -> z", given=ROLES, outputs=["z"])
    graph = read(document)
    first = graph.value_named("y")
    swapped = replace(graph, nodes=(*graph.nodes[:2], replace(graph.nodes[2], inputs=(first,))))
    names = [node.outputs for node in mutable_document(swapped).nodes]
    assert names == [["y"], ["y/2"], ["z"]]


def test_versions_of_an_unknown_op_with_different_sizes_have_unique_names():
    document = program("a: x -> y", "b: y -> y2", given=ROLES, outputs=["y2"])
    document["values"][-1] |= {"bytes": 8, "annotations": {"version_of": "y"}}
    document["naming"] = "single"
    assert [node.outputs for node in mutable_document(read(document)).nodes] == [["y"], ["y2"]]


def test_a_foreign_version_of_annotation_is_harmless():
    document = program("a: x -> y", given=ROLES, outputs=["y"], naming="single")
    document["values"][0]["annotations"] = {"version_of": 3}
    assert mutable_document(read(document)).nodes[0].inputs == ["x"]


@settings(max_examples=150, deadline=None)
@given(mutable_programs())
def test_a_program_computes_the_same_in_ssa_form_and_after_the_round_trip(document):
    expected = interpreted(document, FEEDS)
    graph = read(document)
    back = mutable_document(graph)
    written = [(node["inputs"], node["outputs"]) for node in document["nodes"]]
    assert [(node.inputs, node.outputs) for node in back.nodes] == written
    assert back.outputs == document["outputs"]
    assert canonical(read(back)) == canonical(graph)
    for name, array in zip(document["outputs"], ran(graph), strict=True):
        np.testing.assert_array_equal(array, expected[name])


@settings(max_examples=100, deadline=None)
@given(mutable_programs())
def test_the_table_of_a_graph_is_that_of_its_document(document):
    graph = read(document)
    of_graph, of_document = versions_of_graph(graph), versions_of(parsed(document))
    for n in range(len(graph.nodes)):
        assert of_graph.versioned(n) == of_document.versioned(n)
    written = {name: k for name, k in of_document.final_numbers().items() if k or name in ("x", "w")}
    assert of_graph.final_numbers() == written


@settings(max_examples=100, deadline=None)
@given(mutable_programs())
def test_overwrite_order_lists_the_readers_and_the_writer_of_each_replaced_version(document):
    graph = read(json.loads(json.dumps(document)))
    table = versions_of_graph(graph)
    readers, writers = table.consumers(), table.producers()
    expected: list[set[int]] = [set() for _ in graph.nodes]
    for v, old in enumerate(table.replaced):
        if old >= 0:
            writer = writers[v][0]
            before = {op for op, _ in readers[old]} | ({writers[old][0]} if writers[old] else set())
            expected[writer] |= before - {writer}
    assert [set(before) for before in table.overwrite_order()] == expected


def test_reused_names_add_no_order_edges():
    lines = ("a: x -> y", "b: y -> z", "c: z -> y", "d: y z -> z")
    graph = read(program(*lines, given=ROLES, outputs=["y", "z"]))
    assert [node.after for node in graph.nodes] == [(), (), (), ()]
    assert versions_of_graph(graph).overwrite_order() == [[], [], [1, 0], [2, 1]]
