"""A recurrence that keeps some states and makes the others again computes the same bits; trips against Revolve's."""

from __future__ import annotations

import itertools
import json

import pytest

from bench.scans import recurrence as long_recurrence
from graph.errors import BadGraph
from graph.formats.native.writer import document
from graph.formats.onnx.writer import dump
from graph.formats.readers import load
from graph.ir import Graph
from graph.loop_remat import SavePolicy, SnapshotPolicy, joint_graphs, just_in_time_backward, with_save_policies
from graph.ops.control_flow import SNAPSHOT_GRAD, SNAPSHOT_SCAN, CheckpointedGrad
from planner.algorithms.checkpointing.revolve import forward_steps
from planner.body_plans.snapshot_schedules import backward_schedule, row_counts
from tests.graph.autodiff.gradients.control_flow.test_loop import powers
from tests.graph.autodiff.gradients.control_flow.test_scan import recurrence
from tests.graph.loop_remat.test_saved_values import SCANS, assert_equal_bits, pair_of, step_of


def kept(graph: Graph, trips: int, rows: int, *names: str) -> Graph:
    """The pair with so many rows of states; its way back is given `names` beside what is emitted."""
    pair = pair_of(graph)
    (joint,) = joint_graphs(graph, pair)
    named = [v for v in range(joint.forward_values) if joint.graph.values[v].name in names]
    saving = SavePolicy(
        (just_in_time_backward(joint, [*joint.emitted, *named]),), (), SnapshotPolicy(*backward_schedule(trips, rows))
    )
    return with_save_policies(graph, {pair: saving})


@pytest.mark.parametrize("kind", [kind for kind in SCANS if kind != "of one trip"])
@pytest.mark.parametrize("trips", [3, 5, 12])
def test_however_many_states_are_kept_the_bits_are_the_same(kind: str, trips: int):
    graph = step_of(recurrence(**{**SCANS[kind], "trips": trips}))
    for rows in range(1, trips):
        assert_equal_bits(graph, kept(graph, trips, rows))


def test_the_pair_becomes_a_snapshot_scan_and_a_scheduled_backward_scan():
    graph = kept(step_of(recurrence(12)), 12, 3)
    forward, backward = (node for node in graph.nodes if node.bodies)
    assert (forward.op, backward.op) == (SNAPSHOT_SCAN, SNAPSHOT_GRAD)
    rows = graph.value_named("steps/kept/h")
    assert graph.values[rows].type is not None and graph.values[rows].type.shape == (3, 3)
    assert rows in forward.outputs and rows in backward.inputs and backward.in_place


def test_a_backward_pass_that_carries_the_next_iterations_state_recomputes_no_iteration():
    #   h_next = tanh(h w + x): the way back reads h and h_next, and what trip 5 found is what trip 4 left
    graph = step_of(long_recurrence(12, 2, 4))
    for rows in range(1, 12):
        carried = kept(graph, 12, rows, "h", "h_next")
        assert_equal_bits(graph, carried)
        back = next(node for node in carried.nodes if node.op == SNAPSHOT_GRAD)
        run = {node.name for node in back.bodies["advance"].graph.nodes}
        assert run and run.isdisjoint(node.name for node in back.bodies["body"].graph.nodes)
        assert not run.isdisjoint(
            node.name
            for other in kept(graph, 12, rows).nodes
            if other.op == SNAPSHOT_GRAD
            for node in other.bodies["body"].graph.nodes
        )


def test_both_documents_bring_such_a_pair_back():
    graph = kept(step_of(recurrence(6)), 6, 2)
    for sent in (json.dumps(document(graph)).encode(), dump(graph)):
        assert_equal_bits(graph, load(sent))


@pytest.mark.parametrize("trips", [100, 1000])
def test_the_trips_run_altogether_are_within_two_percent_of_revolve(trips: int):
    step = step_of(recurrence(trips))
    for rows in row_counts(trips):
        node = next(node for node in kept(step, trips, rows).nodes if node.op == SNAPSHOT_GRAD)
        optimum = forward_steps(trips, rows) + trips  # its advances, and each trip once more to go back
        assert trips + CheckpointedGrad.of(node).runs()["advance"] + trips <= 1.02 * optimum


def test_offered_numbers_of_rows_are_dense_enough_for_any_memory():
    """Between two numbers offered Revolve itself gains less than two percent, while it runs each trip five times."""
    offered = list(row_counts(1000))
    for more, fewer in itertools.pairwise(offered):
        if fewer < more - 1 and forward_steps(1000, fewer) <= 4000:
            assert forward_steps(1000, fewer) <= 1.04 * forward_steps(1000, more - 1)


def test_a_loop_keeps_something_of_each_trip():
    graph = step_of(powers(4, None))
    pair = pair_of(graph)
    (joint,) = joint_graphs(graph, pair)
    saving = SavePolicy((just_in_time_backward(joint, ()),), (), SnapshotPolicy(*backward_schedule(4, 2)))
    with pytest.raises(BadGraph, match="Loop"):
        with_save_policies(graph, {pair: saving})
