"""Renaming one version of a name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graph.errors import BadGraph
from graph.formats.native.mutable_names import mutable_document
from graph.ir import Graph
from graph.ssa.analysis import analysis_json
from graph.transforms.rename import rename_initial_graph, rename_input, rename_output, rename_value
from graph.transforms.structural_equality import difference
from tests.graph.ssa.programs import mutable_programs, program, ran, read

ROLES = {"x": "input", "w": "parameter"}


def drawn(graph: Graph) -> list[str]:
    return [f"{' '.join(node.inputs)} -> {' '.join(node.outputs)}" for node in mutable_document(graph).nodes]


def refused(call) -> str:
    with pytest.raises(BadGraph) as caught:
        call()
    return caught.value.findings[0].code


def test_only_the_readers_of_the_version_follow():
    graph = read(program("a: x -> y", "b: y -> z", "c: y -> y", "d: y -> u", given=ROLES, outputs=["y", "z"]))
    after = rename_output(graph, 0, 0, "q")
    assert drawn(after) == ["x -> q", "q -> z", "q -> y", "y -> u"]
    assert mutable_document(after).outputs == ["y", "z"]


def test_an_output_of_the_graph_follows_its_last_version():
    graph = read(program("a: x -> y", "b: y -> y", given=ROLES, outputs=["y"]))
    after = rename_output(graph, 1, 0, "q")
    assert (drawn(after), mutable_document(after).outputs) == (["x -> y", "y -> q"], ["q"])


def test_the_overwrite_order_of_the_old_name_is_dropped():
    graph = read(program("a: x -> y", "b: y -> z", "c: x -> y", given=ROLES, outputs=["y", "z"]))
    assert analysis_json(graph)["overwrite_order"] == [[], [], [1, 0]]
    assert analysis_json(rename_output(graph, 0, 0, "q"))["overwrite_order"] == [[], [], []]


def test_an_input_with_other_readers_is_renamed_at_its_producer_or_not_at_all():
    graph = read(program("a: x -> y", "b: y y -> z", "c: y -> u", given=ROLES, outputs=["z", "u"]))
    assert refused(lambda: rename_input(graph, 1, 0, "q")) == "several_readers"
    assert drawn(rename_input(graph, 1, 0, "q", from_producer=True)) == ["x -> q", "q q -> z", "q -> u"]
    assert refused(lambda: rename_input(graph, 0, 0, "q", from_producer=True)) == "no_producer"


def test_one_op_that_reads_a_value_twice_is_one_reader():
    graph = read(program("a: x -> y", "b: y y -> z", given=ROLES, outputs=["z"]))
    assert drawn(rename_input(graph, 1, 1, "q")) == ["x -> q", "q q -> z"]


def test_the_initialization_graph_follows_a_rename():
    initial = read(program("fill: -> w", outputs=["w"]))
    graph = read(program("a: x w -> y", given=ROLES, outputs=["y"]))
    after = rename_input(graph, 0, 1, "w2")
    assert drawn(after) == ["x w2 -> y"]
    assert drawn(rename_initial_graph(graph, after, initial)) == [" -> w2"]


@pytest.mark.parametrize("taken", ["x", "y", "y/2", "z"])
def test_a_name_that_is_taken_is_refused(taken):
    graph = read(program("a: x -> y", "b: y -> y", "c: y -> z", given=ROLES, outputs=["z"]))
    assert refused(lambda: rename_output(graph, 1, 0, taken if taken != "y/2" else "z")) == "name_taken"
    assert refused(lambda: rename_value(graph, graph.value_named("z"), "y/2")) == "name_taken"


def test_empty_slots_and_empty_names_are_refused():
    graph = read(program("a: x -> y", given=ROLES, outputs=["y"]))
    assert refused(lambda: rename_output(graph, 0, 1, "q")) == "unknown_id"
    assert refused(lambda: rename_input(graph, 5, 0, "q")) == "unknown_id"
    assert refused(lambda: rename_output(graph, 0, 0, "")) == "empty_name"


@settings(max_examples=100, deadline=None)
@given(mutable_programs(), st.data())
def test_renaming_keeps_the_data_flow(document, data):
    graph = read(document)
    written = [v for v, value in enumerate(graph.values) if value.role == "activation"]
    after = rename_value(graph, data.draw(st.sampled_from(written)), "fresh name")
    assert difference(graph, after) is None
    again = read(mutable_document(after))
    assert difference(graph, again) is None
    for one, other in zip(ran(graph), ran(again), strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=60, deadline=None)
@given(mutable_programs(), st.data())
def test_a_reused_name_does_not_conflict_with_its_old_value(document, data):
    graph = read(document)
    versions = [v for v, value in enumerate(graph.values) if "version_of" in value.annotations]
    assume(versions)
    v = data.draw(st.sampled_from(versions))
    freed = graph.values[v].name
    after = rename_value(rename_value(graph, v, "fresh name"), v, freed)
    assert difference(graph, read(mutable_document(after))) is None
