"""Body plans: columns equal those of the rewritten graph, and plans with choices execute with equal results."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from msgspec import structs

from bench.bodies import as_given, planned, resident_bytes, rows, step_of
from bench.scans import recurrence, transformer
from graph.analysis.cost import device_named
from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.cancellation import CancellationError, cancellation_scope
from graph.formats.onnx.writer import dump
from graph.ir import Graph, Role
from graph.loop_remat import SnapshotPolicy, TailPolicy, find_pairs, with_saved_values
from graph.ops.control_flow import SNAPSHOT_SCAN
from planner.body_plans.body_alternatives import MAX_PER_PAIR, MAX_TAILS, with_body_plans
from planner.lowering.lower import lower
from planner.lowering.lowered_graph import LoweredGraph
from planner.pipeline.solve import solve
from planner.problem import liveness
from planner.problem.alternatives import resolve_choices
from planner.report.saved_report import explain, verify
from planner.request.plan_request import parse_request
from planner.request.target_runtime import runtime_named
from tests.graph.autodiff.gradients.control_flow.test_branch_and_call import called, two_branches
from tests.graph.autodiff.gradients.control_flow.test_loop import powers
from tests.graph.autodiff.gradients.control_flow.test_scan import recurrence as small_recurrence
from tests.graph.ops.control_flow.building import ROW, ROWS, bodies, body_of, loss_of

pytestmark = pytest.mark.usefixtures("quick_bounds")

DEVICE, RUNTIME = device_named("a100-80gb"), runtime_named("arena")


def lowered_of(graph: Graph) -> LoweredGraph:
    return with_body_plans(lower(graph, DEVICE, RUNTIME), DEVICE, RUNTIME)


def scan_in_scan() -> Graph:
    """For every row of xs, twice: h = tanh(h w + x)."""
    b = Builder("nested")
    h0, xs, w = (b.value(name, type, Role.PARAMETER) for name, type in (("h0", ROW), ("xs", ROWS), ("w", ROW)))

    def step(inner, v):
        (product,) = inner.node("Mul", [v["h"], v["w"]])
        (sum_,) = inner.node("Add", [product, v["x"]])
        return inner.node("Tanh", [sum_])

    def pass_(middle, v):
        (h,) = middle.node(
            "Scan",
            [v["g"], v["xs"]],
            name="rows",
            types=[ROW],
            attributes={"num_scan_inputs": 1},
            bodies=bodies(body=body_of(middle, {"h": ROW, "x": ROW}, [v["w"]], step)),
        )
        return middle.node("Mul", [h, v["twice"]])

    outer = body_of(b, {"g": ROW, "twice": ROW}, [xs, w], pass_)
    times = b.value("times", ROWS, Role.PARAMETER)
    (y,) = b.node(
        "Scan", [h0, times], name="passes", types=[ROW], attributes={"num_scan_inputs": 1}, bodies=bodies(body=outer)
    )
    return differentiate(loss_of(b, y), ["loss"])


GRAPHS = {
    "transformer": lambda: step_of(transformer(2, 8, 16, 2)),
    "recurrence": lambda: step_of(recurrence(6, 2, 8)),
    "draws": lambda: differentiate(small_recurrence(6, dropout=True), ["loss"]),
    "loop": lambda: differentiate(powers(5, None), ["loss"]),
    "branches": lambda: differentiate(two_branches(), ["loss"]),
    "call": lambda: differentiate(called(True), ["loss"]),
    "nested": scan_in_scan,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_columns_of_every_alternative_are_those_of_the_graph_rewritten(name: str):
    low = lowered_of(GRAPHS[name]())
    order = np.arange(low.problem.tasks)
    for choice in range(max((int(c) for c in low.problem.choices.counts()), default=0)):
        vector = [min(choice, int(count) - 1) for count in low.problem.choices.counts()]
        under = low.under(vector)
        again = lower(under.graph, DEVICE, RUNTIME).problem
        assert liveness.profile(under.problem, order).tolist() == liveness.profile(again, order).tolist()
        seconds = liveness.cost(under.problem, order) * under.problem.tick
        assert seconds == pytest.approx(liveness.cost(again, order) * again.tick, rel=1e-9)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("budget", ["90%", 0])
def test_plans_with_other_bodies_run_in_their_arena_and_are_equal(name: str, budget: object):
    request = parse_request(
        {"budget": budget, "execute": "yes", "iterations": 60, "return": ["plan", "timeline", "layout", "source"]}
    )
    outcome = solve(GRAPHS[name](), request)
    assert outcome.report["executed"]["status"] == "equal"
    saved = json.loads(json.dumps(outcome.report))
    assert verify(saved)["valid"]
    assert explain(saved)["holders"]


def test_a_pair_has_few_alternatives_for_a_trip_and_more_over_time():
    (group,) = lowered_of(step_of(recurrence(100, 2, 8))).groups
    over_time = [saving for saving in group.savings if saving and isinstance(saving.checkpoints, SnapshotPolicy)]
    tails = [saving for saving in group.savings if saving and isinstance(saving.checkpoints, TailPolicy)]
    assert len(group.savings) - len(over_time) - len(tails) <= MAX_PER_PAIR < len(over_time)
    assert len(tails) <= MAX_TAILS


def test_a_pair_without_tails_has_more_alternatives_for_a_trip():
    graph = step_of(transformer(layers=2, tokens=16, width=16, heads=2))
    (pair,) = find_pairs(graph)
    nodes = list(graph.nodes)
    nodes[pair.forward] = structs.replace(nodes[pair.forward], annotations={"checkpointed": False})
    (group,) = lowered_of(structs.replace(graph, nodes=tuple(nodes))).groups
    assert MAX_PER_PAIR < len(group.savings) <= MAX_PER_PAIR + MAX_TAILS
    assert not any(saving and saving.checkpoints for saving in group.savings)


def two_recurrences() -> Graph:
    """h = tanh(h w + x) over xs, twice in sequence."""
    b = Builder("two")
    h0, xs, w = (b.value(name, type, Role.PARAMETER) for name, type in (("h0", ROW), ("xs", ROWS), ("w", ROW)))

    def step(inner, v):
        (product,) = inner.node("Mul", [v["h"], v["w"]])
        return inner.node("Tanh", [inner.node("Add", [product, v["x"]])[0]])

    h = h0
    for name in ("first", "second"):
        body = body_of(b, {"h": ROW, "x": ROW}, [w], step)
        (h,) = b.node(
            "Scan", [h, xs], name=name, types=[ROW], attributes={"num_scan_inputs": 1}, bodies=bodies(body=body)
        )
    return differentiate(loss_of(b, h), ["loss"])


def test_equal_pairs_are_of_one_kind():
    low = lowered_of(two_recurrences())
    assert low.problem.choices.kind.tolist() == [0, 0]
    assert low.groups[0].savings == low.groups[1].savings


def test_a_graph_without_bodies_has_no_choices():
    b = Builder("plain")
    x = b.value("x", ROW, Role.PARAMETER)
    (y,) = b.node("Tanh", [x])
    assert len(lowered_of(differentiate(loss_of(b, y), ["loss"])).problem.choices) == 0


def test_a_trip_saves_its_states_once_where_it_can():
    #   tanh reads what the trip leaves, the product what it finds: one state behind the other
    graph = step_of(recurrence(12, 2, 8))
    (pair,) = find_pairs(graph)
    every, once = as_given(graph), as_given(with_saved_values(graph, pair, ["h", "h_next"]))
    assert once[0] < every[0] and once[1] <= every[1]


@pytest.mark.parametrize("model", [transformer(4, 16, 32, 2), recurrence(30, 4, 16)], ids=["transformer", "recurrence"])
def test_planned_bodies_beat_storing_and_recomputing_everything(model: Graph):
    step = step_of(model)
    stored, recomputed, *plans = rows(step, seconds=3.0, shares=(1.0, 0.5, 0.0))
    least, most = recomputed.seconds, stored.peak_bytes
    assert plans[0].seconds <= stored.seconds * (1 + 1e-9)
    for plan in plans[1:]:  # storing everything does not fit
        assert plan.peak_bytes < most and plan.seconds <= least * (1 + 1e-9)
    assert plans[1].seconds < least


def test_a_recurrence_goes_below_storing_its_states_within_two_percent_of_revolve():
    step = step_of(recurrence(100, 2, 8))
    (pair,) = find_pairs(step)
    peak, _ = as_given(with_saved_values(step, pair, []))
    row = planned(step, peak * 2 // 3, "planned", 3.0, True)
    assert row.executed.endswith("equal")
    assert row.trips is not None and row.least_trips is not None and row.trips <= 1.02 * row.least_trips


@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
def test_auto_needs_no_planner_for_nets_over_time(share: float):
    #   `recurrent` cuts the net into parts and runs whole parts again; auto's plans of bodies take less time
    step = step_of(recurrence(300, 8, 8))
    (pair,) = find_pairs(step)
    resident, least = resident_bytes(step), as_given(with_saved_values(step, pair, []))[0]
    budget = round(resident + share * (least - resident))
    request = {"budget": budget, "iterations": 60, "execute": "no"}
    auto, parts = (
        solve(step, parse_request({**request, "planner": name})).report["plan"] for name in ("auto", "recurrent")
    )
    assert auto["peak_bytes"] <= budget and auto["seconds"] <= parts["seconds"]


def test_the_report_names_what_each_pair_saves():
    outcome = solve(step_of(recurrence(20, 4, 16)), parse_request({"budget": 0, "iterations": 60}))
    (row,) = outcome.report["plan"]["choices"]
    assert row["forward"] == "steps" and row["saves"] and row["saved_bytes"] > 0 and row["alternative"] > 0
    assert any(node.op == SNAPSHOT_SCAN for node in outcome.graph.nodes)


def test_a_scan_from_an_onnx_file_is_planned_alike():
    model = recurrence(10, 2, 8)
    request = {"budget": "60%", "loss": "loss", "execute": "yes", "iterations": 60}
    outcome = solve(dump(model), parse_request(request))
    assert outcome.report["plan"]["choices"] and outcome.report["executed"]["status"] == "equal"


def test_with_the_memory_of_recomputing_everything_the_last_trips_still_save():
    step = step_of(transformer(6, 16, 32, 2))
    recomputed, row = list(rows(step, seconds=3.0, shares=(0.0,), execute=True))[1:]
    assert row.peak_bytes <= recomputed.peak_bytes and row.seconds < recomputed.seconds
    assert row.executed.endswith("equal")


def test_tails_of_several_lengths_lie_between_two_policies():
    #   way A in all trips and way B in all trips are points; what lies between is linear in the number of trips
    step = step_of(transformer(9, 16, 32, 2))
    low = lowered_of(step)
    savings, order = low.groups[0].savings, np.arange(low.problem.tasks)
    tails = {s.checkpoints.trips for s in savings if s and isinstance(s.checkpoints, TailPolicy)}
    assert len(tails) > 4 and max(tails) < 9
    plain = [resolve_choices(low.problem, (k,)) for k in range(len(savings))]
    at = [(liveness.peak(columns, order), liveness.cost(columns, order)) for columns in plain]
    whole = [at[k] for k, s in enumerate(savings) if s is None or not isinstance(s.checkpoints, TailPolicy)]
    unbeaten = [here for here in at if all(other[0] > here[0] or other[1] > here[1] for other in whole)]
    assert len(unbeaten) > 4


def test_cancel_ends_the_planning_of_bodies():
    low, stop = lower(two_recurrences(), DEVICE, RUNTIME), threading.Event()
    with cancellation_scope(stop):
        assert len(with_body_plans(low, DEVICE, RUNTIME).groups) == 2
        stop.set()
        with pytest.raises(CancellationError):
            with_body_plans(low, DEVICE, RUNTIME)


def test_a_plan_that_was_cancelled_before_its_bodies_were_planned_is_checked():
    cancel = threading.Event()
    cancel.set()
    request = parse_request({"budget": "60%", "return": ["plan", "source"]})
    report = json.loads(json.dumps(solve(two_recurrences(), request, cancel=cancel).report))
    assert not report["plan"]["choices"] and report["plan"]["stopped"]
    assert verify(report)["valid"]
