"""Dead code, extraction, boundaries and group removal on programs with mutable names."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.errors import BadGraph
from graph.formats.native.mutable_names import mutable_document
from graph.ir.reachability import required_nodes
from graph.ssa.analysis import analysis_json
from graph.ssa.naming import naming_of
from graph.transforms.boundary import boundary
from graph.transforms.dead_code import without_dead_nodes, without_identities
from graph.transforms.extract import extract
from graph.transforms.remove_group import replace_by_identity
from graph.transforms.remove_reshapes import reshape_groups, without_reshapes
from graph.transforms.structural_equality import difference
from tests.graph.ssa.programs import FEEDS, interpreted, mutable_programs, program, ran, read
from tests.graph.transforms.test_rename import drawn, refused

ROLES = {"x": "input", "w": "parameter", "shape": "parameter"}


def test_an_op_is_removed_when_all_its_readers_are():
    graph = read(program("a: x -> y", "b: y -> z", "c: y -> u", given=ROLES, outputs=["z"]))
    assert drawn(without_dead_nodes(graph)) == ["x -> y", "y -> z"]


def test_an_unread_version_is_removed_even_if_its_name_is_an_output():
    graph = read(program("a: x -> y", "b: y -> y", "c: x -> y", given=ROLES, outputs=["y"]))
    assert drawn(without_dead_nodes(graph)) == ["x -> y"]


def test_order_between_kept_ops_survives_the_removal_of_others():
    #   a: x ─▶ y   b: y ─▶ z   c: x ─▶ y (dead)   d: x ─▶ y        d writes y, which b reads at version 1
    lines = ("a: x -> y", "b: y -> z", "c: x -> y", "d: x -> y")
    graph = without_dead_nodes(read(program(*lines, given=ROLES, outputs=["y", "z"])))
    assert [node.name for node in graph.nodes] == ["a", "b", "d"]
    assert analysis_json(graph)["overwrite_order"] == [[], [], [1, 0]]


def test_an_after_edge_to_a_removed_node_is_replaced_by_its_after_edges():
    document = program("a: x ->", "b: y1 -> z", "c: z -> u", given={**ROLES, "y1": "input"}, outputs=["u"])
    document["nodes"][0] |= {"effect": "once"}
    document["nodes"][1] |= {"op": "Identity", "after": ["a"]}
    document["nodes"].insert(
        2, {"name": "late", "op": "my::Late", "inputs": [], "outputs": [], "effect": "once", "after": ["b"]}
    )
    for value in document["values"]:
        value |= {"shape": [1], "dtype": "float32"}
        del value["bytes"]
    graph = without_identities(read(document))
    assert [node.name for node in graph.nodes] == ["a", "late", "c"]
    assert graph.nodes[1].after == (0,)


def test_given_values_become_inputs_under_the_requested_names():
    graph = read(program("a: x w -> y", "b: y -> y", "c: y w -> z", given=ROLES, outputs=["z"]))
    part = extract(graph, ["z"], {"y@2": "start"}, "part/")
    assert drawn(part) == ["start w -> part/z"]
    assert [part.values[v].name for v in part.inputs] == ["start"]
    assert [node.name for node in part.nodes] == ["part/c"]


def test_a_given_value_keeps_its_base_name_when_unused():
    graph = read(program("a: x -> y", "b: y -> y", "c: y -> z", given=ROLES, outputs=["z"]))
    assert drawn(extract(graph, ["z"], ["y@last"])) == ["y -> z"]


def test_names_follow_in_place_chains():
    graph = read(program("a: x -> e", "b: e -> e", "c: e -> e", given=ROLES, outputs=["e"]))
    assert drawn(extract(graph, ["e@last"], prefix="p/")) == ["x -> p/e", "p/e -> p/e", "p/e -> p/e"]


def test_extraction_that_would_recompute_a_given_value_is_refused():
    #   x ── a ── b1 ── c1 ── d        c2 is given, but d needs c1, hence a, which also makes c2's b2
    #        ╰─── b2 ── c2 ──╯
    lines = ("a: x -> b1 b2", "c1: b1 -> c1", "c2: b2 -> c2", "d: c1 c2 -> d")
    graph = read(program(*lines, given=ROLES, outputs=["d"]))
    with pytest.raises(BadGraph) as caught:
        extract(graph, ["d"], ["c2"])
    assert caught.value.findings[0].code == "given_recomputed"
    assert "'a'" in str(caught.value) and "'c2'" in str(caught.value)


def test_two_values_under_one_name_are_refused():
    graph = read(program("a: x -> y", "b: y w -> z", given=ROLES, outputs=["z"]))
    assert refused(lambda: extract(graph, ["z"], {"y": "w"})) == "name_taken"


def test_all_unknown_names_are_reported():
    graph = read(program("a: x -> y", given=ROLES, outputs=["y"]))
    with pytest.raises(BadGraph) as caught:
        extract(graph, ["nope", "y@7"], ["y@x"])
    assert [finding.path for finding in caught.value.findings] == ["outputs[0]", "outputs[1]", "given[0]"]


@settings(max_examples=80, deadline=None)
@given(mutable_programs(), st.data())
def test_a_subgraph_computes_the_same_values_as_the_graph(document, data):
    graph = read(document)
    wanted = data.draw(st.sampled_from([v for v, value in enumerate(graph.values) if value.role == "activation"]))
    part = extract(graph, [graph.values[wanted].name], prefix="p/")
    assert part.nodes and len(part.nodes) == len(required_nodes(graph, [wanted]))
    whole = {**document, "outputs": []}
    table = naming_of(graph)
    # The interpreter runs up to the op that writes the wanted version.
    maker = next(n for n, node in enumerate(graph.nodes) if wanted in node.outputs)
    whole["nodes"] = document["nodes"][: maker + 1]
    whole["outputs"] = [table.names[wanted]]
    held = interpreted(whole, FEEDS)
    np.testing.assert_array_equal(ran(part)[0], held[table.names[wanted]])


def test_the_boundary_is_the_values_that_cross_it():
    lines = ("a: x -> y", "b: y w -> z", "c: z -> y", "d: y z -> u")
    graph = read(program(*lines, given=ROLES, outputs=["u", "y"]))
    found = boundary(graph, [1, 2])
    names = [graph.values[v].name for v in (*found.inputs, *found.outputs)]
    assert names == ["y", "w", "z", "y/2"]
    whole = boundary(graph, range(4))
    assert [graph.values[v].name for v in whole.outputs] == ["y/2", "u"]
    assert boundary(graph, []) == boundary(graph, ())


RESHAPED = (
    "relu: x -> r",
    "Shape: r -> s",
    "Slice: s shape -> s0",
    "Concat: s0 w -> ns",
    "Reshape: r ns -> rr",
    "FC: rr w -> f",
)


def test_a_reshape_group_is_the_nodes_between_data_and_target():
    graph = read(program(*RESHAPED, given=ROLES, outputs=["f"]))
    assert reshape_groups(graph) == [[1, 2, 3, 4]]
    after = without_reshapes(graph)
    assert drawn(after) == ["x -> r", "r w -> f"]
    assert [value.name for value in after.values] == ["x", "r", "w", "f"]


def test_a_group_with_another_reader_is_kept():
    graph = read(program(*RESHAPED, "tanh: rr -> t", given=ROLES, outputs=["f", "t"]))
    assert drawn(without_reshapes(graph)) == drawn(graph)
    shared = read(program(*RESHAPED, "look: ns -> t", given=ROLES, outputs=["f", "t"]))
    assert drawn(without_reshapes(shared)) == drawn(shared)


def test_a_reshape_group_deep_in_a_graph_is_complete():
    lines = [f"n{i}: r{i} -> r{i + 1}" for i in range(400)]
    between = [f"s{i}: t{i} -> t{i + 1}" for i in range(50)]
    lines += ["Shape: r400 -> t0", *between, "Reshape: r400 t50 -> rr", "FC: rr w -> f"]
    graph = read(program(*lines, given={"r0": "input", "w": "parameter"}, outputs=["f"]))
    assert reshape_groups(graph) == [list(range(400, 452))]
    assert len(without_reshapes(graph).nodes) == 401


def test_a_group_is_removed_only_with_one_input_and_one_output():
    graph = read(program("a: x -> y", "b: y w -> z", "c: z -> u", "d: z -> v", given=ROLES, outputs=["u", "v"]))
    assert drawn(replace_by_identity(graph, [1])) == ["x -> y", "y -> u", "y -> v"]
    assert refused(lambda: replace_by_identity(graph, [1, 2])) == "not_isolated"
    assert refused(lambda: replace_by_identity(graph, [2])) == "not_isolated"
    assert refused(lambda: replace_by_identity(graph, [])) == "not_isolated"


def test_a_reader_that_needs_the_other_shape_keeps_the_group():
    document = program("a: x -> y", "b: y -> z", "c: z -> u", given=ROLES, outputs=["u"])
    next(value for value in document["values"] if value["name"] == "z")["bytes"] = 8
    graph = read(document)
    assert refused(lambda: replace_by_identity(graph, [1])) == "type_conflict"
    assert drawn(replace_by_identity(graph, [1], lambda node: True)) == ["x -> y", "y -> u"]


@settings(max_examples=80, deadline=None)
@given(mutable_programs())
def test_without_dead_ops_the_results_are_the_same_under_the_same_names(document):
    graph = read(json.loads(json.dumps(document)))
    less = without_dead_nodes(graph)
    back = mutable_document(less)
    assert back.outputs == document["outputs"]
    assert difference(less, read(back)) is None
    for one, other in zip(ran(graph), ran(less), strict=True):
        np.testing.assert_array_equal(one, other)
