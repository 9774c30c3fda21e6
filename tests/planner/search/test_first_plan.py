"""The first plan of a large graph: within the budget, found by few orders, kept by what follows."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from bench.generators import layered, transformer
from graph.formats.readers import load
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.pipeline.progress import Progress
from planner.pipeline.solve import solve
from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.problem.recompute import base_order
from planner.request.plan_request import parse_request
from planner.search import first_plan, improvers, portfolio
from planner.search.scores import goal_score

DOCUMENT = json.dumps(transformer(400)).encode()
BY_CLOCK = {"budget": "50%", "search_seconds": 60, "execute": "no"}


def asked(document: bytes = DOCUMENT, **fields: object) -> Formulation:
    return formulate(load(document), parse_request({**BY_CLOCK, **fields})).in_arena_bytes()


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_plan, "MIN_TASKS", 1)


@pytest.mark.usefixtures("every_size")
def test_the_first_order_within_the_budget_ends_the_search_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    formulation, judged = asked(), list[Score]()
    genuine = goal_score

    def counted(problem: Problem, goal: Goal, order: Order, *choices: tuple[int, ...]) -> Score:
        judged.append(genuine(problem, goal, order, *choices))
        return judged[-1]

    monitor = formulation.monitor()
    monitor.judge = lambda order: counted(formulation.lowered.problem, formulation.goal, order)
    found = first_plan.first_within(formulation.lowered.problem, formulation.goal, monitor)
    assert found is not None and found.planner == first_plan.PLANNER
    assert not genuine(formulation.lowered.problem, formulation.goal, found.order).bytes_over_budget
    assert sum(not score.bytes_over_budget for score in judged) == 1
    assert monitor.best is None


@pytest.mark.usefixtures("every_size")
def test_there_is_none_under_an_iteration_limit_or_without_an_order_within_the_budget() -> None:
    by_iterations = asked(iterations=5, search_seconds=10)
    for formulation in (by_iterations, asked(budget=1), asked(budget=0), asked(json.dumps(layered(60)).encode())):
        monitor = formulation.monitor()
        assert first_plan.first_within(formulation.lowered.problem, formulation.goal, monitor) is None


def test_small_graphs_have_none() -> None:
    formulation = asked()
    assert len(formulation.lowered.task_node) < first_plan.MIN_TASKS
    assert first_plan.first_within(formulation.lowered.problem, formulation.goal, formulation.monitor()) is None


def ended_after_the_first_plan(monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    """Let the time of a search be over once it has its first plan."""
    genuine = first_plan.first_within

    def ended(problem: Problem, goal: Goal, monitor: Monitor) -> Candidate | None:
        found = genuine(problem, goal, monitor)
        monitor.seconds = 0.0
        return found if keeps else None

    monkeypatch.setattr(first_plan, "first_within", ended)


@pytest.mark.usefixtures("every_size", "quick_bounds")
def test_a_search_that_ends_before_greedy_has_the_first_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        ended_after_the_first_plan(patch, keeps=True)
        plan = solve(DOCUMENT, parse_request(BY_CLOCK)).report["plan"]
    assert plan["within_budget"] and plan["planner"] == first_plan.PLANNER
    ended_after_the_first_plan(monkeypatch, keeps=False)
    assert not solve(DOCUMENT, parse_request(BY_CLOCK)).report["plan"]["within_budget"]


@pytest.mark.usefixtures("every_size")
def test_progress_begins_with_the_first_plan_and_only_improves(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, stop = list[float | None](), threading.Event()

    def event(progress: Progress) -> None:
        if progress.incumbent_peak_bytes is not None:
            seen.append(progress.incumbent_overhead)
            if len(seen) > 1:
                stop.set()

    monkeypatch.setattr(portfolio, "QUICK_BY_CLOCK", ("as_given", "greedy"))
    plan = solve(DOCUMENT, parse_request(BY_CLOCK), on_progress=event, cancel=stop).report["plan"]
    overheads = [overhead for overhead in seen if overhead is not None]
    assert len(overheads) == len(seen) >= 2 and overheads == sorted(overheads, reverse=True)
    assert overheads[0] > plan["overhead"]


def test_no_quick_planner_begins_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    formulation, ran = asked(), list[str]()
    genuine = portfolio.planner_named

    def named(name: str) -> Any:
        def planned(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
            ran.append(name)
            if name == "greedy":
                monitor.seconds = 0.0
            return genuine(name)(problem, goal, monitor)

        return planned

    monkeypatch.setattr(portfolio, "planner_named", named)
    monkeypatch.setattr(improvers, "improve", lambda problem, goal, found, *_: found)
    portfolio.search(formulation.lowered.problem, formulation.goal, "auto", formulation.monitor())
    assert ran == ["as_given", "evict", "greedy"]


def test_a_slice_ends_with_a_search_that_its_report_shortens() -> None:
    formulation = asked()
    monitor = formulation.monitor()

    def shorten(order: Order, score: Score) -> None:
        monitor.seconds = 1.0

    part = monitor.child(monitor.judge, 0.5)
    part.on_progress = portfolio._ending_with(part, monitor, shorten)
    part.offer(base_order(formulation.lowered.problem))
    assert part.seconds <= 1.0 < 0.4 * formulation.goal.seconds
