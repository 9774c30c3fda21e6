"""The lowest peak is searched for by lowering quick orders at one price for all runs, and within falling budgets."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.generators import layered
from planner import warm
from planner.algorithms.greedy import planner as greedy
from planner.formulation.formulate import formulate
from planner.formulation.training_graph import load_model, training_graph
from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.problem.recompute import base_order
from planner.request.plan_request import parse_request
from planner.search import improvers, peak_descent, portfolio
from planner.search.peak_descent import lowest_peak
from planner.search.scores import goal_score, peak_floor
from planner.search.time_slices import TimeSlices
from tests.planner.random_problems import training_problem

#: Seconds of a search with improvers, which take them all, and limit of one without, which ends in a tenth of one.
SECONDS, AMPLE = 2.0, 60.0

Asked = list[tuple[int, Monitor]]


def monitor_of(problem: Problem, goal: Goal, seconds: float = AMPLE) -> Monitor:
    return Monitor(lambda order: goal_score(problem, goal, order), seconds)


def problem_of(document: dict[str, Any]) -> Problem:
    request = parse_request({"budget": 0, "execute": "no", "layout": "none"})
    model = json.dumps(document).encode()
    return formulate(training_graph(model, load_model(model, request), request)[0], request).lowered.problem


def peak_of(
    problem: Problem, goal: Goal, seconds: float = AMPLE, seeds: Sequence[Candidate] = (), least_bytes: int = 0
) -> Score:
    found = lowest_peak(problem, goal, monitor_of(problem, goal, seconds), seeds, least_bytes)
    return goal_score(problem, goal, found.order, found.choices)


def sunk(problem: Problem, cost: np.ndarray) -> Order:
    """The order given with gaps closed at these ticks of each task."""
    monitor = Monitor(lambda order: liveness.score(problem, order, 0), iterations=10_000)
    return greedy.sunk(replace(problem, cost=cost), base_order(problem, True), 0, monitor, None)


@pytest.fixture(autouse=True, scope="module")
def compiled_kernels() -> None:
    """As for every search: interpreted ones would need its time."""
    warm.ready(lambda: None)


@pytest.fixture
def no_improvers(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Leave out the improvers; lists the budgets and the monitors they are asked with."""
    asked: Asked = []

    def improve(problem: Problem, goal: Goal, found: Candidate, slices: TimeSlices) -> Candidate:
        asked.append((goal.budget_bytes or 0, slices.monitor))
        return found

    monkeypatch.setattr(improvers, "improve", improve)
    return asked


def test_orders_are_lowered_at_one_price_for_all_runs(no_improvers: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(layered(60, seed=3))
    by_ticks = liveness.peak(problem, sunk(problem, problem.cost))
    at_one_price = liveness.peak(problem, sunk(problem, np.zeros_like(problem.cost)))
    assert at_one_price < by_ticks
    monkeypatch.setattr(peak_descent, "STARTS", ())
    assert peak_of(problem, Goal(0)).peak_bytes <= at_one_price


def test_the_order_of_each_quick_planner_is_lowered(no_improvers: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, lowered = problem_of(layered(60, seed=3)), list[bytes]()
    genuine = greedy.sunk

    def sunk(problem: Problem, order: Order, *rest: object) -> Order:
        lowered.append(order.tobytes())
        return genuine(problem, order, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(greedy, "sunk", sunk)
    found = Goal(peak_floor(problem))
    orders = [
        portfolio.search(problem, found, name, monitor_of(problem, found)).order for name, _ in peak_descent.STARTS
    ]
    peak_of(problem, Goal(0))
    assert all(order.tobytes() in lowered for order in orders)


def test_budgets_fall_from_the_best_peak_and_rise_towards_it_when_missed(no_improvers: Asked) -> None:
    problem = problem_of(layered(60, seed=3))
    best = peak_of(problem, Goal(0)).peak_bytes
    budgets = [budget for budget, _ in no_improvers]
    steps = [peak_descent.FIRST_STEP * peak_descent.MISSED**k for k in range(len(budgets))]
    assert budgets == [int(best * (1 - step)) for step in steps]
    assert steps[-1] * peak_descent.MISSED < peak_descent.MIN_STEP <= steps[-1]


def test_an_order_within_such_a_budget_ends_a_search_whatever_it_costs(no_improvers: Asked) -> None:
    problem = problem_of(layered(60, seed=3))
    peak_of(problem, Goal(0))
    budget, monitor = no_improvers[0]
    assert not monitor.should_stop()
    monitor.record_best(base_order(problem, True), Score(0, 10 * int(problem.cost.sum()), budget))
    assert monitor.should_stop()


def test_the_descent_ends_at_the_bytes_that_suffice(no_improvers: Asked) -> None:
    problem = problem_of(layered(60, seed=3))
    peak_of(problem, Goal(0), least_bytes=liveness.peak(problem, base_order(problem, True)))
    assert not no_improvers


@pytest.mark.parametrize("seed", range(3))
def test_the_lowest_peak_within_an_overhead_keeps_to_it_and_is_no_higher_than_that_of_a_seed(seed: int) -> None:
    problem = training_problem(random.Random(seed), 40)
    goal = Goal(max_overhead=0.2)
    first = portfolio.search(problem, goal, "greedy", monitor_of(problem, goal, SECONDS))
    found = peak_of(problem, goal, SECONDS, [first])
    assert found.cost <= goal.cost_limit(problem)
    assert found <= goal_score(problem, goal, first.order)


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_no_higher_peak_than_the_portfolio_does_for_the_budget_0(seed: int) -> None:
    problem, goal = training_problem(random.Random(seed), 40), Goal(0)
    known = portfolio.search(problem, goal, "auto", monitor_of(problem, goal, SECONDS / 4))
    assert peak_of(problem, goal, SECONDS).peak_bytes <= liveness.peak(problem, known.order)
