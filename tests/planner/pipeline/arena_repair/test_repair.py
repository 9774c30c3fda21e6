"""Arena repair: re-plan when the addresses of a plan exceed the budget although its peak does not."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from bench.generators import layered
from planner.formulation.formulation import Formulation
from planner.pipeline import solve as pipeline
from planner.pipeline.arena_repair import probable_part, repair, repair_arena
from planner.pipeline.arena_repair.attempts import Attempts
from planner.pipeline.arena_repair.descent import Descent
from planner.pipeline.arena_repair.repair import EXCEEDED_PART, LARGE_EXCESS, LARGE_TASKS
from planner.request.plan_request import parse_request
from planner.search import improvers
from tests.graph.stopping import set_event
from tests.planner.pipeline.arena_repair.plans import (
    as_given,
    formulated,
    question,
    repairs,
    searched_plan,
    solved,
    stacked,
)

pytestmark = pytest.mark.usefixtures("bounds")


def test_a_plan_whose_arena_exceeds_the_budget_is_replaced_by_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    found, repeated = solved(), solved()
    monkeypatch.setattr(repair, "search_fitting", lambda *_: None)
    before = solved()
    plan, loose = found.report["plan"], before.report["plan"]
    assert loose["peak_bytes"] <= loose["budget_bytes"] < loose["arena_bytes"] and not repairs(before)
    assert (loose["status"], loose["within_budget"], loose["gap"]) == ("over_budget", False, None)
    assert before.exit_code == 1 and loose["smallest_budget_bytes"] == loose["arena_bytes"]
    assert plan["arena_bytes"] <= plan["budget_bytes"] and plan["within_budget"] and found.exit_code == 0
    assert np.array_equal(found.plan.order, repeated.plan.order)
    assert np.array_equal(found.plan.offsets, repeated.plan.offsets)


def test_a_runtime_with_its_own_allocator_needs_no_repair() -> None:
    found = solved(runtime="ort")
    plan = found.report["plan"]
    assert plan["peak_bytes"] <= plan["budget_bytes"] < plan["arena_bytes"] and not repairs(found)
    assert plan["within_budget"] and plan["needed_bytes"] == plan["peak_bytes"]


def test_a_plan_that_fits_is_not_replanned(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = question()
    monkeypatch.delattr(repair, "search_fitting")  # nothing is to be searched
    found = repair_arena(asked, as_given(asked), "fast", "auto", threading.Event())
    assert found.plan.offsets is not None and np.array_equal(found.plan.order, as_given(asked).order)
    assert found.notes == ()


def test_time_is_kept_for_the_repair_in_proportion_to_what_the_arena_exceeds() -> None:
    asked = formulated(budget="80%", search_seconds=60)
    order = asked.search("greedy", asked.monitor()).order
    monitor = asked.monitor()
    monitor.seconds = 0.0  # one sweep
    arena = asked.placed(asked.evaluated(order, ""), "fast", monitor).arena_bytes or 0
    part = EXCEEDED_PART * asked.lowered.problem.tasks / LARGE_TASKS

    def kept(excess: float) -> float:
        budget = int(arena / (1 + excess))
        return probable_part(replace(asked, budget_bytes=budget, goal=replace(asked.goal, budget_bytes=budget)), order)

    assert kept(0) == 0 and kept(LARGE_EXCESS / 2) == pytest.approx(part / 2, rel=1e-2)
    assert kept(LARGE_EXCESS) == kept(2 * LARGE_EXCESS) == pytest.approx(part, rel=1e-2)


def test_no_search_follows_a_stop_and_the_first_plan_is_kept() -> None:
    asked, stopped = question(), threading.Event()
    asked = replace(asked, budget_bytes=asked.baseline_bytes // 2)
    stopped.set()
    found = repair_arena(asked, as_given(asked), "fast", "auto", stopped)
    assert np.array_equal(found.plan.order, as_given(asked).order) and asked.bytes_over_budget(found.plan)


def test_a_plan_whose_peak_exceeds_the_budget_is_not_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulated(budget="10%", iterations=5)
    monkeypatch.delattr(repair, "search_fitting")  # nothing is to be searched
    found = repair_arena(asked, as_given(asked), "fast", "auto", threading.Event())
    assert found.plan.score.bytes_over_budget and found.plan.offsets is not None


def test_by_the_clock_a_plan_whose_peak_exceeds_the_budget_has_the_requested_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulated(budget="10%", search_seconds=60)
    plan = as_given(asked)
    placed = asked.placed(plan, "fast")
    wasteful = replace(placed, arena_bytes=2 * (placed.arena_bytes or 0))
    monkeypatch.setattr(Attempts, "swept", lambda *_: wasteful)
    found = repair_arena(asked, plan, "fast", "auto", threading.Event(), time.monotonic() + 60)
    assert found.plan.arena_bytes == placed.arena_bytes


def test_by_the_clock_the_plan_whose_addresses_exceed_the_budget_least_is_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulated(budget="70%", search_seconds=60)
    plan = searched_plan(asked)
    wasteful, swept = stacked(asked, plan)[0], asked.swept(plan, asked.monitor())
    assert 0 < asked.bytes_over_budget(swept) < asked.bytes_over_budget(wasteful)
    monkeypatch.setattr(Attempts, "swept", lambda *_: wasteful)
    monkeypatch.setattr(Attempts, "packed", lambda *_: swept)
    for name in ("recompute_flat", "walk_on"):
        monkeypatch.setattr(repair, name, lambda *_: None)
    monkeypatch.setattr(Descent, "run", lambda *_, **__: None)
    found = repair_arena(asked, plan, "fast", "auto", threading.Event(), time.monotonic() + 60)
    assert asked.bytes_over_budget(found.plan) == asked.bytes_over_budget(swept)


def test_arena_repair_ends_with_the_requested_search_time() -> None:
    asked = formulated(budget="70%", search_seconds=60)
    plan = searched_plan(asked)
    began = time.process_time()  # which other processes of a busy machine do not add to
    repair_arena(asked, plan, "fast", "auto", threading.Event(), time.monotonic() + 1.0)
    assert time.process_time() - began < 3.0


def test_the_whole_of_a_graph_with_odd_sizes_fits_by_construction() -> None:
    for seed in range(4):
        document = json.dumps(layered(40, seed=seed)).encode()
        for order in ("free", "given"):
            fields = {"budget": "100%", "order": order, "iterations": 5, "execute": "no"}
            plan = pipeline.solve(document, parse_request(fields)).report["plan"]
            assert plan["status"] == "proven" and plan["arena_bytes"] <= plan["budget_bytes"], (seed, order)


def test_a_stopped_search_of_a_large_graph_is_placed_once_and_not_evaluated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulated(budget="80%", search_seconds=60)
    plan = asked.search("greedy", asked.monitor())
    stopped = asked.monitor(cancel=set_event())
    monkeypatch.delattr(Formulation, "evaluated")
    monkeypatch.delattr(Formulation, "placed")
    monkeypatch.setattr(improvers, "MAX_SLOW_TASKS", 10)
    until = time.monotonic() + 60
    found = repair_arena(asked, plan, "best", "auto", set_event(), until).plan
    assert found.order is plan.order and found.arena_bytes == asked.swept(plan, stopped).arena_bytes
    asked.check(found)


def test_a_layout_that_the_clock_ends_is_told() -> None:
    asked = formulated(budget="70%", search_seconds=60)
    first = asked.plan_of(solved().plan.candidate)
    stopped = [repair_arena(asked, first, layout, "as_given", threading.Event(), 0.0) for layout in ("fast", "best")]
    assert [found.stopped_by_clock for found in stopped] == [True, True]
