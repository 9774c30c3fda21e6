"""A walk beside the improvers gives them its better orders, and ends with them."""

from __future__ import annotations

import json
import threading
from functools import partial

import numpy as np
import pytest

from bench.generators import layered
from graph.formats.readers import load
from planner.formulation.formulate import formulate
from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.request.plan_request import parse_request
from planner.search import portfolio
from planner.search.portfolio import goal_score
from planner.search.time_slices import TimeSlices
from planner.search.walk_beside import WalkBeside


def asked() -> tuple[Problem, Goal, Order]:
    """(problem, goal, order of greedy within the budget)."""
    formulation = formulate(load(json.dumps(layered(150, seed=4)).encode()), parse_request({"budget": "70%"}))
    return formulation.lowered.problem, formulation.goal, formulation.search("greedy", formulation.monitor()).order


def monitor_of(problem: Problem, goal: Goal, seconds: float = 600.0, idle_cores: int = 0) -> Monitor:
    return Monitor(partial(goal_score, problem, goal), seconds, idle_cores=idle_cores)


def walks() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "remat-walk"]


def test_a_walk_reports_better_orders_until_it_is_ended() -> None:
    problem, goal, start = asked()
    found, is_better = list[Score](), threading.Event()

    def better(_: Order, score: Score) -> None:
        found.append(score)
        is_better.set()

    walk = WalkBeside(problem, goal, monitor_of(problem, goal), start, better)
    assert is_better.wait(60)
    walk.end()
    assert not walks() and walk.monitor.best is not None and walk.monitor.best_score is not None
    assert found[-1] == walk.monitor.best_score == goal_score(problem, goal, walk.monitor.best)
    assert found == sorted(found, reverse=True) and found[-1] < goal_score(problem, goal, start)


def test_a_cancelled_search_ends_the_walk() -> None:
    problem, goal, start = asked()
    monitor = monitor_of(problem, goal)
    walk = WalkBeside(problem, goal, monitor, start, lambda *_: None)
    monitor.cancel()
    walk._thread.join(60)
    assert not walks()
    walk.end()


def test_the_improvers_continue_from_the_order_of_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal, start = asked()
    begun, is_better = list[Score](), threading.Event()

    def improver(name: str, _: Problem, __: Goal, part: Monitor) -> Order:
        assert part.best is not None and part.best_score is not None
        if name == "moment":
            assert is_better.wait(60)
        begun.append(part.best_score)
        assert (name == "anneal") == (not walks())
        return part.best

    monkeypatch.setattr(portfolio, "planner_named", lambda name: partial(improver, name))
    monitor = monitor_of(problem, goal, idle_cores=1)
    monitor.on_progress = lambda _, score: is_better.set() if score < goal_score(problem, goal, start) else None
    found = portfolio.improve(problem, goal, Candidate(start, "greedy"), TimeSlices(monitor))
    assert begun[0] == goal_score(problem, goal, start) > begun[1] >= begun[2]
    assert found.planner == "anneal" and goal_score(problem, goal, found.order) == begun[2]


def test_no_walk_runs_without_an_idle_core_or_under_an_iteration_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal, start = asked()
    monkeypatch.setattr(portfolio, "WalkBeside", None)  # a walk would fail
    monkeypatch.setattr(portfolio, "planner_named", lambda name: lambda problem, goal, part: part.best)
    for monitor in (monitor_of(problem, goal), Monitor(partial(goal_score, problem, goal), iterations=5)):
        found = portfolio.improve(problem, goal, Candidate(start, "greedy"), TimeSlices(monitor))
        assert np.array_equal(found.order, start)
