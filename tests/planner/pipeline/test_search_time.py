"""The time of a search: nothing compiles in it, and it covers bounds and addresses."""

from __future__ import annotations

import json
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from graph.cancellation import seconds_left
from planner import warm
from planner.formulation.formulation import Formulation
from planner.pipeline import arena_repair, report_beside, search_clock, search_watch, solve_stages
from planner.pipeline.bound_beside import BoundBeside
from planner.pipeline.curve import curve
from planner.pipeline.progress import Progress
from planner.pipeline.sections import SLOW_SECTIONS
from planner.pipeline.solve import solve
from planner.pipeline.solve_stages import SolveStages
from planner.problem import Problem, jit, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Plan, Score
from planner.problem.recompute import base_order
from planner.request.curve_and_fit_request import parse_curve
from planner.request.plan_request import parse_request
from planner.search import lexicographic
from tests.app.conftest import chain
from tests.planner.pipeline.test_multi_shape import DECODER, LENGTHS


def test_nothing_compiles_while_the_clock_of_a_search_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    genuine = lexicographic.search

    def compile_(kernels: jit.Kernels) -> dict[str, jit.Kernel]:
        seen.append("compiled")
        return kernels.interpreted()

    def search(*asked: Any) -> Any:
        seen.append("search")
        return genuine(*asked)

    monkeypatch.setattr(jit, "_compiled", {})
    monkeypatch.setattr(jit.Kernels, "is_on_disk", lambda kernels: False)
    monkeypatch.setattr(jit.Kernels, "_compile", compile_)
    monkeypatch.setattr(warm, "compile_to_disk", lambda absent: None)
    monkeypatch.setattr(solve_stages.lexicographic, "search", search)

    def event(progress: Progress) -> None:
        if progress.stage == "compile":
            seen.append("event")

    request = parse_request({"budget": "60%", "iterations": 2, "planner": "anneal", "layout": "best"})
    solve(json.dumps(chain(12)).encode(), request, on_progress=event)
    assert seen == ["event", *["compiled"] * len(warm.KERNEL_SETS), "search"]


def test_bounds_and_repair_leave_the_search_the_rest_of_the_time() -> None:
    request = parse_request({"budget": "60%", "search_seconds": 40})
    stages = SolveStages(None, threading.Event())
    source = solve(json.dumps(chain(6)).encode(), parse_request({"iterations": 1, "budget": "60%"})).source
    formulation = stages.formulate(source, request)
    stages.start_clock(formulation)
    stages.clock.until -= 10  # as if the first bound had taken a quarter of the time
    left = stages.for_search(formulation, request).goal.seconds
    assert 18 < left <= 40 * (1 - 0.15 - 0.125) - 10
    counted = stages.formulate(source, parse_request({"budget": "60%", "iterations": 7}))
    assert stages.for_search(counted, request).goal == counted.goal


def test_a_search_of_a_large_graph_leaves_time_to_the_sections_of_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_clock, "MIN_OUTSIDE_TASKS", 1)
    model, outside, start = json.dumps(chain(6)).encode(), list[float](), SolveStages.start_clock

    def started(stages: SolveStages, formulation: Formulation, sections_part: float) -> None:
        stages.lowered_after, stages.formulated_in = 4.0, 2.0
        start(stages, formulation, sections_part)
        outside.append(stages.clock.outside)

    monkeypatch.setattr(SolveStages, "start_clock", started)
    explain, source, graph = SLOW_SECTIONS.values()
    every = ["plan", "explain", "source", "graph"]
    for sections in (["plan"], ["plan", "timeline", "explain"], every):
        solve(model, parse_request({"budget": "60%", "search_seconds": 40, "return": sections}))
    monkeypatch.setattr(report_beside, "MIN_TASKS", 0)
    monkeypatch.setattr(report_beside, "cores", lambda: 2)  # the document of the source is made beside the search
    solve(model, parse_request({"budget": "60%", "search_seconds": 40, "return": every}))
    more = [each - outside[0] for each in outside]
    assert more == pytest.approx([0, 2 * explain, 2 * (explain + source + graph), 2 * (explain + graph)])


def test_no_time_is_kept_for_a_last_bound_that_cannot_be_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    source = solve(json.dumps(chain(6)).encode(), parse_request({"iterations": 1, "budget": "60%"})).source
    stages = SolveStages(None, threading.Event())
    request = parse_request({"budget": "60%", "search_seconds": 40, "layout": "none"})
    formulation = stages.formulate(source, request)
    stages.start_clock(formulation)
    assert stages.for_search(formulation, request).goal.seconds <= 40 * (1 - solve_stages.BESIDE_BOUND_PART)
    monkeypatch.setattr(search_clock, "VERIFY_SECONDS", 1.0)
    assert stages.for_search(formulation, request).goal.seconds > 39


def test_the_bound_over_a_set_of_tasks_and_its_proof_have_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = solve(json.dumps(chain(6)).encode(), parse_request({"iterations": 1, "budget": "60%"}))
    stages, left = SolveStages(None, threading.Event()), list[float]()
    request = parse_request({"budget": "60%", "search_seconds": 40, "layout": "none"})
    formulation = stages.formulate(outcome.source, request)
    assert search_clock.set_seconds(formulation) == (0, 0)  # a chain has no set
    stages.start_clock(formulation)
    monkeypatch.setattr(solve_stages, "is_bounded_beside", lambda _: False)
    monkeypatch.setattr(solve_stages, "with_multi_step_bound", lambda *_, **__: left.append(seconds_left()))
    searches = []
    for arcs in (0, 2_000_000):
        monkeypatch.setattr(search_clock, "first_of_set_arcs", lambda _, arcs=arcs: arcs)
        searches.append(stages.for_search(formulation, request).goal.seconds)
        stages.with_tight_bound(formulation, outcome.plan)
    whole, proof = (
        2e6 * (search_clock.SET_SECONDS + search_clock.SET_VERIFY_SECONDS),
        2e6 * search_clock.SET_VERIFY_SECONDS,
    )
    assert searches[0] - searches[1] == pytest.approx(whole - 0.15 * 40, abs=0.05)
    assert left[0] - left[1] == pytest.approx(proof, abs=0.05)


def test_a_repair_that_may_walk_leaves_the_report_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    request = parse_request({"budget": "60%", "search_seconds": 40})
    outcome = solve(json.dumps(chain(6)).encode(), parse_request({"iterations": 1, "budget": "60%"}))
    stages, ends = SolveStages(None, threading.Event()), list[float]()
    formulation = stages.formulate(outcome.source, request)
    stages.start_clock(formulation)
    stages.clock.left_outside = 5.0

    def repaired(_: Any, plan: Plan, *given: Any) -> arena_repair.Repaired:
        ends.append(given[3])
        return arena_repair.Repaired(plan)

    monkeypatch.setattr(solve_stages.arena_repair, "repair_arena", repaired)
    for most in (5, 50):
        monkeypatch.setattr(solve_stages.improvers, "MAX_SLOW_TASKS", most)
        stages.placed(formulation, outcome.plan, request)
    assert ends[0] - ends[1] == pytest.approx(5.0) and ends[1] <= stages.clock.until


def test_a_repair_knows_the_bound_that_a_thread_has_tightened(monkeypatch: pytest.MonkeyPatch) -> None:
    request = parse_request({"budget": "60%", "search_seconds": 40})
    outcome = solve(json.dumps(chain(6)).encode(), parse_request({"iterations": 1, "budget": "60%"}))
    stages, costs = SolveStages(None, threading.Event()), list[int]()
    formulation = stages.formulate(outcome.source, request)
    stages.start_clock(formulation)

    def repaired(given: Formulation, plan: Plan, *_: Any) -> arena_repair.Repaired:
        costs.append(given.bound.cost)
        return arena_repair.Repaired(plan)

    monkeypatch.setattr(solve_stages.arena_repair, "repair_arena", repaired)
    stages.placed(formulation, outcome.plan, request)
    tight = formulation.bound.cost + 3
    bound = SimpleNamespace(cost=tight)
    stages.beside = cast(BoundBeside, SimpleNamespace(bound=bound, paused=nullcontext))
    stages.placed(formulation, outcome.plan, request)
    assert costs == [formulation.bound.cost, tight]


def test_a_bound_whose_tree_takes_longer_to_verify_is_ended_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = solve(json.dumps(chain(6)).encode(), parse_request({"iterations": 1, "budget": "60%"}))
    stages, left = SolveStages(None, threading.Event()), list[float]()
    request = parse_request({"budget": "60%", "search_seconds": 40})
    formulation = stages.formulate(outcome.source, request)
    stages.start_clock(formulation)
    monkeypatch.setattr(solve_stages, "with_multi_step_bound", lambda *_, **__: left.append(seconds_left()))
    size = formulation.lowered.problem.tasks + len(formulation.lowered.problem.reads.index)
    for tree, other in ((0.0, 0.0), (0.5, 0.1), (9.0, 0.1), (0.5, 0.7)):
        monkeypatch.setattr(search_clock, "TREE_VERIFY_SECONDS", tree)
        monkeypatch.setattr(search_clock, "VERIFY_SECONDS", other / size)
        stages.with_tight_bound(formulation, outcome.plan)
    assert [left[0] - each for each in left[1:]] == pytest.approx([0.5, 0.4 * 0.15 * 40, 0.7], abs=0.05)


@pytest.mark.parametrize("kind", ["curve", "shapes"])
def test_bounds_of_curves_and_of_several_shapes_end_with_the_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[float] = []
    genuine, start_clock, clocks = SolveStages._stop_of_bound, SolveStages.start_clock, list[float]()

    def started(stages: SolveStages, formulation: Any) -> None:
        start_clock(stages, formulation)
        clocks.append(stages.clock.until)

    def stop(stages: SolveStages, formulation: Any, until: float) -> Any:
        ends.append(until)
        return genuine(stages, formulation, until)

    monkeypatch.setattr(SolveStages, "_stop_of_bound", stop)
    monkeypatch.setattr(SolveStages, "start_clock", started)
    seconds = 0.5
    if kind == "curve":
        curve(json.dumps(chain(6)).encode(), parse_curve({"budgets": ["60%", "50%"], "search_seconds": seconds}))
    else:
        request = {"shapes": LENGTHS, "batch": 2, "budget": "70%", "search_seconds": seconds, "execute": "no"}
        solve(DECODER, parse_request(request))
    (until,) = clocks
    assert len(ends) > 2 and all(end <= until for end in ends)


def test_a_search_of_a_large_graph_leaves_time_to_what_surrounds_it_once_a_plan_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = parse_request({"budget": "60%", "search_seconds": 40, "layout": "none"})
    source = solve(json.dumps(chain(6)).encode(), parse_request({"iterations": 1, "budget": "60%"})).source
    left: list[float] = []

    def search(problem: Problem, goal: Goal, planner: str, monitor: Monitor, seeds: Any) -> Candidate:
        order = base_order(problem)
        assert monitor.on_progress is not None
        for reported, over in ((order, 5), *((seed.order, 0) for seed in seeds), (order, 0), (order, 0)):
            left.append(monitor.seconds)
            monitor.on_progress(reported, Score(over, 100, 100))
        left.append(monitor.seconds)
        return Candidate(order, "as_given")

    def searched(least_tasks: int) -> tuple[SolveStages, float]:
        monkeypatch.setattr(search_clock, "MIN_OUTSIDE_TASKS", least_tasks)
        stages = SolveStages(None, threading.Event())
        formulation = stages.formulate(source, request)
        stages.lowered_after = 5.0
        stages.start_clock(formulation)
        until = stages.clock.until
        left.clear()
        stages.search(formulation, "auto")
        return stages, until

    monkeypatch.setattr(solve_stages.lexicographic, "search", search)
    stages, until = searched(1)
    outside = 5 * (1 + search_clock.AFTER_PART) - search_clock.FREE_SECONDS
    assert left == pytest.approx([40, 40, 40 - outside, 40 - outside])
    assert stages.clock.until == pytest.approx(until - outside)
    stages, until = searched(100)
    assert left == [40] * 4 and stages.clock.until == until
    first = Candidate(base_order(stages.formulate(source, request).lowered.problem), "segments")
    monkeypatch.setattr(solve_stages.first_plan, "first_within", lambda *_: first)
    searched(1)  # the plan found at once shortens nothing, the next does
    assert left == pytest.approx([40, 40, 40, 40 - outside, 40 - outside])


def test_a_search_of_a_large_graph_leaves_room_for_gaps_between_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    source = solve(json.dumps(chain(6)).encode(), parse_request({"iterations": 1, "budget": "60%"})).source
    budgets: list[int | None] = []

    def search(problem: Problem, goal: Goal, planner: str, monitor: Monitor, seeds: Any) -> Candidate:
        budgets.append(goal.budget_bytes)
        return Candidate(base_order(problem), "as_given")

    monkeypatch.setattr(solve_stages.lexicographic, "search", search)

    def searched(least_tasks: int, is_seeded: bool = False, **fields: Any) -> tuple[int | None, int | None]:
        monkeypatch.setattr(search_watch, "MIN_GAPS_TASKS", least_tasks)
        stages = SolveStages(None, threading.Event())
        formulation = stages.formulate(source, parse_request({"budget": "60%", **fields}))
        seed = formulation.in_arena_bytes().baseline.candidate
        if is_seeded:  # and it needs all of the budget, which the baseline is said to miss
            peak, score = formulation.baseline.score.peak_bytes, formulation.baseline.score
            baseline = replace(formulation.baseline, score=score._replace(peak_bytes=peak + 1))
            formulation = replace(formulation, baseline=baseline, goal=replace(formulation.goal, budget_bytes=peak))
        stages.start_clock(formulation)
        stages.search(formulation, "auto", [seed] if is_seeded else [])
        return budgets.pop(), formulation.in_arena_bytes().goal.budget_bytes

    less, budget = searched(1, search_seconds=5)
    assert budget is not None and less == int(budget * (1 - search_watch.GAPS_PART)) < budget
    for unchanged in (
        searched(100, search_seconds=5),
        searched(1, iterations=3),
        searched(1, search_seconds=5, layout="none"),
        searched(1, search_seconds=5, budget="100%"),  # the baseline is within it
        searched(1, is_seeded=True, search_seconds=5),
    ):
        assert unchanged[0] == unchanged[1]


def test_a_plan_of_a_large_graph_that_needs_the_room_for_gaps_counts_as_within_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = solve(json.dumps(chain(6)).encode(), parse_request({"iterations": 1, "budget": "100%"})).source
    monkeypatch.setattr(search_watch, "MIN_GAPS_TASKS", 1)
    monkeypatch.setattr(search_watch, "GAPS_PART", 0.1)
    found: list[float | None] = []

    def search(problem: Problem, goal: Goal, planner: str, monitor: Monitor, seeds: Any) -> Candidate:
        order = np.asarray(base_order(problem))
        peak = liveness.peak(problem, order)
        assert goal.budget_bytes is not None and peak - goal.budget_bytes > 0
        monitor.on_progress(order, Score(peak - goal.budget_bytes, 1, peak))  # type: ignore[misc]
        return Candidate(order, "as_given")

    monkeypatch.setattr(solve_stages.lexicographic, "search", search)
    stages = SolveStages(lambda event: found.append(event.incumbent_overhead), threading.Event())
    formulation = stages.formulate(source, parse_request({"budget": "100%", "search_seconds": 5}))
    peak, score = formulation.baseline.score.peak_bytes, formulation.baseline.score
    missing = replace(formulation.baseline, score=score._replace(peak_bytes=peak + 1))  # nothing is within the budget
    stages.start_clock(formulation)
    stages.search(replace(formulation, baseline=missing, goal=replace(formulation.goal, budget_bytes=peak)), "auto")
    assert found[-1] is not None and len(stages.incumbents) == 1


def test_a_bound_whose_time_is_over_keeps_what_it_has() -> None:
    request = parse_request({"budget": "60%", "search_seconds": 1e-3})
    stages = SolveStages(None, threading.Event())
    source = solve(json.dumps(chain(6)).encode(), parse_request({"iterations": 1, "budget": "60%"})).source
    formulation = stages.formulate(source, request)
    stages.clock.until = time.monotonic() - 1
    assert stages.bounded(formulation) is formulation
    assert stages.with_tight_bound(formulation, formulation.baseline) is formulation
