"""What a body holds is charged to its node: without captures, outputs once, states where the next one lies."""

from __future__ import annotations

import numpy as np
import pytest

from graph.analysis.cost import resolve_device, seconds_of, workspace_of
from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.errors import ArenaFault
from graph.execution.arena import Arena
from graph.execution.interpreter import execute
from graph.ir import Cost, Graph, Phase, Role, TensorType
from tests.graph.autodiff.gradients.control_flow.test_branch_and_call import two_branches
from tests.graph.autodiff.gradients.control_flow.test_scan import recurrence
from tests.graph.ops.control_flow.building import ROW, SQUARE, bodies, body_of, loss_of

ROW_BYTES, SQUARE_BYTES = 24, 72


def test_a_trip_holds_its_states_and_what_lies_between():
    graph = recurrence(4)
    (scan,) = (node for node in graph.nodes if node.bodies)
    # The state before, the element, the product and the sum; the state after lies in the node's output.
    assert workspace_of(graph, scan) == 4 * ROW_BYTES


def test_sums_of_weight_gradients_are_carried_where_they_lie():
    step = differentiate(recurrence(4), ["loss"])
    (backward,) = (node for node in step.nodes if node.bodies and node.phase is Phase.BACKWARD)
    # One product for w beside rows: the sum so far is written over.
    assert SQUARE_BYTES < workspace_of(step, backward) < 2 * SQUARE_BYTES + 8 * ROW_BYTES


def test_an_if_is_charged_for_its_larger_branch():
    step = differentiate(two_branches(), ["loss"])
    (forward,) = (node for node in step.nodes if node.bodies and node.phase is Phase.FORWARD)
    assert workspace_of(step, forward) == ROW_BYTES  # else: x w_b; its exponential is saved, so it is an output


def test_a_loop_takes_its_body_once_a_trip():
    device = resolve_device({"bandwidth": 1e3, "flops": 1e3})
    seconds = [seconds_of(g, n, device) for g in (recurrence(2), recurrence(4)) for n in g.nodes if n.bodies]
    assert seconds[1] == pytest.approx(2 * seconds[0], rel=1e-3)


def arena_of(graph: Graph) -> Arena:
    """Every value and workspace at an address of its own."""
    offsets, at = [], 0
    for value in graph.values:
        offsets.append(at)
        at += value.nbytes
    places = {}
    for n, node in enumerate(graph.nodes):
        places[n] = at
        at += workspace_of(graph, node)
    return Arena(at, offsets, places)


def test_bodies_run_in_an_arena_hold_no_more_than_is_charged():
    step = differentiate(recurrence(4), ["loss"])
    arena = execute(step, arena=arena_of(step)).outputs["loss"]
    assert (arena == execute(step).outputs["loss"]).all()


def test_a_body_that_holds_more_than_its_node_is_charged_is_a_fault(monkeypatch: pytest.MonkeyPatch):
    graph = recurrence(4)
    arena = arena_of(graph)
    monkeypatch.setattr("graph.execution.interpreter.workspace_of", lambda graph, node: 3 * ROW_BYTES)
    with pytest.raises(ArenaFault, match="a body of steps holds 96 bytes"):
        execute(graph, arena=arena)


def test_what_a_document_says_of_the_workspace_goes_first():
    b = Builder("said")
    x, w = b.value("x", ROW, Role.INPUT), b.value("w", SQUARE, Role.PARAMETER)
    xs = b.value("xs", TensorType("float64", (2, 3)), Role.INPUT)
    body = body_of(b, {"h": ROW, "e": ROW}, [w], lambda inner, v: inner.node("MatMul", [v["h"], v["w"]]))
    (y,) = b.node(
        "Scan", [x, xs], attributes={"num_scan_inputs": 1}, bodies=bodies(body=body), cost=Cost(workspace_bytes=1)
    )
    graph = loss_of(b, y)
    assert [workspace_of(graph, node) for node in graph.nodes if node.bodies] == [1]
    assert np.isfinite(execute(graph, arena=arena_of(graph)).outputs["loss"])
