"""A pair that saves other values computes the same bits, whatever it saves and whatever kind of node it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
import pytest

from bench.scans import recurrence as over_time
from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.ir import Graph, Role
from graph.loop_remat import BodyPair, find_pairs, joint_graphs, just_in_time_backward, structure_key, with_saved_values
from tests.graph.autodiff.gradients.control_flow.test_branch_and_call import called, nested_if, two_branches
from tests.graph.autodiff.gradients.control_flow.test_loop import powers
from tests.graph.autodiff.gradients.control_flow.test_scan import recurrence
from tests.graph.ops.control_flow.building import ROW, ROWS, bodies, body_of, loss_of


def step_of(graph: Graph) -> Graph:
    return differentiate(graph, ["loss"], unreachable="zeros")


def pair_of(graph: Graph) -> BodyPair:
    (pair,) = find_pairs(graph)
    return pair


def savable(graph: Graph, pair: BodyPair) -> list[str]:
    """Names of what a trip can save."""
    return sorted(
        {
            joint.graph.values[v].name
            for joint in joint_graphs(graph, pair)
            for v in range(joint.forward_values)
            if joint.must_be_saved(v)
        }
    )


def subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    for count in range(len(names) + 1):
        yield from itertools.combinations(names, count)


def assert_equal_bits(graph: Graph, other: Graph, at: Mapping[str, np.ndarray] = MappingProxyType({})) -> None:
    expected, found = execute(graph, at).outputs, execute(other, at).outputs
    assert list(expected) == list(found)
    for name, array in expected.items():
        assert np.array_equal(array, found[name]), name


SCANS = {
    "plain": {},
    "backwards": {"backwards": True},
    "along axis 1": {"axis": 1},
    "with draws": {"dropout": True},
    "of one trip": {"trips": 1},
}


@pytest.mark.parametrize("kind", SCANS)
def test_whatever_a_scan_saves_it_computes_the_same_bits(kind: str):
    graph = step_of(recurrence(**SCANS[kind]))
    pair = pair_of(graph)
    for keep in subsets(savable(graph, pair)):
        assert_equal_bits(graph, with_saved_values(graph, pair, keep))


OTHERS = {
    "counted loop": (powers(5, None), {"left": np.array(0)}),
    "loop that stops early": (powers(None), {"left": np.array(4)}),
    "loop that stacks": (powers(None, emit=True), {"left": np.array(4)}),
    "loop that makes no trip": (powers(None), {"left": np.array(0)}),
    "branch taken": (two_branches(True), {"c": np.array(True)}),
    "branch not taken": (two_branches(), {"c": np.array(False)}),
    "branches in branches": (nested_if({}), {"outer": np.array(True), "inner": np.array(False)}),
    "call": (called(), {}),
    "call with draws": (called(True), {}),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_whatever_another_node_saves_it_computes_the_same_bits(kind: str):
    forward, at = OTHERS[kind]
    graph = step_of(forward)
    pair = pair_of(graph)
    names = savable(graph, pair)
    for keep in subsets(names if len(names) < 7 else names[:5]):
        assert_equal_bits(graph, with_saved_values(graph, pair, keep), at)


def test_nothing_kept_saves_the_states_alone():
    #   h ── MatMul ── Add ── Dropout ── Tanh ── h'        the mask is drawn again, the state is what a trip starts with
    graph = step_of(recurrence(dropout=True))
    saved = with_saved_values(graph, pair_of(graph), [])
    assert [v.name for v in saved.values if v.name.startswith("steps/saved/")] == ["steps/saved/h"]


def test_what_is_saved_by_the_gradient_already_changes_nothing_else():
    graph = step_of(recurrence(dropout=True))
    pair = pair_of(graph)
    saved = with_saved_values(graph, pair, ["h", "drop:1", "h_next"])
    assert {graph.values[v].name for v in pair.droppable} <= {value.name for value in saved.values}
    assert len(saved.values) == len(graph.values) and len(saved.nodes) == len(graph.nodes)


def test_nodes_that_only_dropped_values_need_leave_the_forward_body():
    graph = step_of(recurrence(dropout=True))
    pair = pair_of(graph)
    body = with_saved_values(graph, pair, ["sum"]).nodes[pair.forward].bodies["body"].graph
    assert "sum" in {body.values[v].name for v in body.outputs}


@pytest.mark.parametrize("trips", [1, 2, 5])
def test_a_state_saved_as_each_trip_finds_it_is_there_as_the_one_before_left_it(trips: int):
    #   trip      0      1      2           saved: what trips 0, 1, 2 find; what they leave is found by the next
    #   h  ──▶ h_next = h ──▶ h_next ──▶    and behind the last it is the state handed out
    graph = step_of(over_time(trips, 2, 4))
    pair = pair_of(graph)
    for keep in subsets(savable(graph, pair)):
        assert_equal_bits(graph, with_saved_values(graph, pair, keep))
    once = with_saved_values(graph, pair, ["h", "h_next"])
    assert [v.name for v in once.values if v.name.startswith("steps/saved/")] == ["steps/saved/h"]


def test_a_name_that_is_no_value_of_the_body_is_refused():
    graph = step_of(recurrence())
    with pytest.raises(BadGraph, match="nowhere"):
        with_saved_values(graph, pair_of(graph), ["nowhere"])


def test_equal_pairs_have_equal_structures_and_other_ones_have_not():
    one, other, turned = (step_of(g) for g in (recurrence(), recurrence(), recurrence(backwards=True)))
    assert structure_key(one, pair_of(one)) == structure_key(other, pair_of(other))
    assert structure_key(one, pair_of(one)) != structure_key(turned, pair_of(turned))
    assert hash(structure_key(one, pair_of(one)))


def test_a_forward_graph_has_no_pair():
    assert find_pairs(recurrence()) == ()


def test_a_value_with_two_readers_is_recomputed_once():
    #   a ──▶ b ──▶ c ──▶ h        c reads both; the backward pass reads h and a
    #    ╰──────────╯
    b = Builder("two readers")
    start, rows = b.value("h0", ROW, Role.PARAMETER), b.value("xs", ROWS, Role.PARAMETER)

    def make(inner: Builder, v: dict[str, int]) -> list[int]:
        (a,) = inner.node("Add", [v["h"], v["x"]], outputs=["a"])
        (once,) = inner.node("Exp", [a], outputs=["b"])
        (product,) = inner.node("Mul", [a, once], outputs=["c"])
        return [*inner.node("Tanh", [product], outputs=["h_next"])]

    body = body_of(b, {"h": ROW, "x": ROW}, [], make)
    (last,) = b.node(
        "Scan",
        [start, rows],
        outputs=["last"],
        types=[ROW],
        attributes={"num_scan_inputs": 1},
        bodies=bodies(body=body),
    )
    graph = step_of(loss_of(b, last))
    (joint,) = joint_graphs(graph, pair_of(graph))
    order = just_in_time_backward(joint, ())
    assert [joint.graph.nodes[n].op for n in order if n < joint.split] == ["Add", "Exp", "Mul", "Tanh"]
    assert_equal_bits(graph, with_saved_values(graph, pair_of(graph), ()))
