"""Pairs that plans rewrote, in the standard's own ops: the same bits here and in onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from bench.scans import recurrence as long_recurrence
from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.execution.sample_inputs import sample_arrays
from graph.formats.onnx.writer import dump
from graph.loop_remat.to_standard_ops import lower_to_standard_ops
from tests.graph.autodiff.gradients.control_flow.test_scan import recurrence
from tests.graph.formats.onnx.onnx_runs import session
from tests.graph.loop_remat.test_saved_values import SCANS, assert_equal_bits, step_of
from tests.graph.loop_remat.test_snapshots import kept
from tests.graph.loop_remat.test_tails import small_step, two_squashes, with_tail

PLAIN = [kind for kind in SCANS if kind not in ("of one trip", "with draws")]


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_schedule_is_written_out(kind: str, rows: int):
    graph = kept(step_of(recurrence(**{**SCANS[kind], "trips": 6})), 6, rows)
    assert any(node.op.startswith("remat::Snapshot") for node in graph.nodes)
    plain = lower_to_standard_ops(graph)
    assert not any("Snapshot" in node.op for node in plain.nodes)
    assert_equal_bits(graph, plain)


def test_states_that_are_carried_along_are_written_out():
    graph = kept(step_of(long_recurrence(7, 2, 4)), 7, 2, "h", "h_next")
    assert_equal_bits(graph, lower_to_standard_ops(graph))


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("trips", [1, 3])
def test_longer_stacks_of_the_last_trips_are_written_out(kind: str, trips: int):
    step = step_of(recurrence(**{"squash": "Gelu", **SCANS[kind], "trips": 5}))
    graph = with_tail(step, trips, ["sum", "h"])
    plain = lower_to_standard_ops(graph)
    assert not any("Tail" in node.op for node in plain.nodes)
    assert_equal_bits(graph, plain)
    carried = with_tail(step_of(two_squashes()), trips, ["h", "h_next", "sum"], ("h", "h_next"))
    assert_equal_bits(carried, lower_to_standard_ops(carried))


def test_what_draws_is_refused():
    graph = kept(step_of(recurrence(dropout=True, trips=4)), 4, 2)
    with pytest.raises(BadGraph, match="draws random numbers"):
        lower_to_standard_ops(graph)


REWRITTEN = {
    "states kept": lambda: kept(step_of(recurrence(6)), 6, 2),
    "last trips save more": lambda: with_tail(small_step(), 2, ["q", "k"]),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_another_runtime_computes_the_same(name: str):
    graph = REWRITTEN[name]()
    running = session(dump(graph))
    feeds = {graph.values[v].name: array for v, array in sample_arrays(graph, 0).items()}
    given = {each.name: feeds[each.name] for each in running.get_inputs()}
    found = running.run(None, given)
    expected = execute(graph, given).outputs
    for each, array in zip(running.get_outputs(), found, strict=True):
        assert np.allclose(array, expected[each.name], rtol=1e-5, atol=1e-6)
