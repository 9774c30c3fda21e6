"""An improver on another core gives its better orders to those of the first, and ends with them."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from bench.generators import layered
from graph.formats.readers import load
from planner.algorithms import planner_named
from planner.formulation.formulate import formulate
from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.request.plan_request import parse_request
from planner.search import improver_beside, improvers, portfolio
from planner.search.improver_beside import ImproverBeside
from planner.search.scores import goal_score
from planner.search.short_turns import TURN_SECONDS
from planner.search.time_slices import TimeSlices


def asked() -> tuple[Problem, Goal, Order]:
    """(problem, goal, order of greedy within the budget)."""
    formulation = formulate(load(json.dumps(layered(150, seed=4)).encode()), parse_request({"budget": "70%"}))
    return formulation.lowered.problem, formulation.goal, formulation.search("greedy", formulation.monitor()).order


def monitor_of(problem: Problem, goal: Goal, seconds: float = 600.0, idle_cores: int = 0) -> Monitor:
    return Monitor(partial(goal_score, problem, goal), seconds, idle_cores=idle_cores)


def of_moment(problem: Problem, goal: Goal) -> Order:
    """A better order than that of greedy."""
    return planner_named("moment")(problem, goal, Monitor(partial(goal_score, problem, goal), 600.0, iterations=60))


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "remat-improver"]


def beside(
    monitor: Monitor, on_progress: Callable[[Order, Score], None], latest: Order | None = None
) -> ImproverBeside:
    problem, goal, start = asked()
    monitor.record_best(start, goal_score(problem, goal, start))
    return ImproverBeside(problem, goal, monitor, lambda: latest, on_progress)


def test_better_orders_are_reported_until_the_end() -> None:
    problem, goal, start = asked()
    found, is_better = list[Score](), threading.Event()

    def better(_: Order, score: Score) -> None:
        found.append(score)
        is_better.set()

    improver = beside(monitor_of(problem, goal), better)
    assert is_better.wait(60)
    improver.end()
    order, score, planner = improver.found
    assert not threads() and found[-1] == score == goal_score(problem, goal, order) and planner in ("blocks", "anneal")
    assert found == sorted(found, reverse=True) and found[-1] < goal_score(problem, goal, start)


def test_a_cancelled_search_ends_the_thread() -> None:
    problem, goal, _ = asked()
    monitor = monitor_of(problem, goal)
    improver = beside(monitor, lambda *_: None)
    monitor.cancel()
    improver._thread.join(60)
    assert not threads()
    improver.end()


def test_the_planner_of_an_order_is_the_one_that_found_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal, start = asked()
    better = of_moment(problem, goal)
    assert goal_score(problem, goal, better) < goal_score(problem, goal, start)
    monkeypatch.setattr(improver_beside, "planner_named", lambda _: lambda *_: better)
    monkeypatch.setattr(improver_beside, "anneal_alone", lambda *_: None)
    improver = beside(monitor_of(problem, goal), lambda *_: None)
    improver.end()
    assert improver.found[2] == "blocks" and np.array_equal(improver.found[0], better)


def test_what_ends_the_thread_is_raised_where_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal, _ = asked()

    def fails(*_: object) -> Order:
        raise MemoryError("no memory")

    monkeypatch.setattr(improver_beside, "planner_named", lambda _: fails)
    improver = beside(monitor_of(problem, goal), lambda *_: None)
    with pytest.raises(MemoryError, match="no memory"):
        improver.end()


def test_the_walk_begins_at_the_best_order_of_both_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal, _ = asked()
    better, begun = threading.Event(), list[Order]()
    first = beside(monitor_of(problem, goal), lambda *_: better.set())
    assert better.wait(60)
    first.end()
    latest = first.found[0]
    monkeypatch.setattr(improver_beside, "anneal_alone", lambda _, __, ___, order, ____: begun.append(order))
    beside(monitor_of(problem, goal), lambda *_: None, latest)._thread.join(60)
    assert np.array_equal(begun[0], latest)


def test_a_walk_that_has_not_begun_at_its_end_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal, start = asked()
    goes_on = threading.Event()

    def blocks(_: Problem, __: Goal, part: Monitor) -> Order:
        assert goes_on.wait(60) and not part.cancelled
        return start

    monkeypatch.setattr(improver_beside, "planner_named", lambda _: blocks)
    reported = list[Score]()
    improver = beside(monitor_of(problem, goal), lambda _, score: reported.append(score))
    improver.end_walk()  # does not wait
    goes_on.set()
    improver._thread.join(60)
    assert not threads() and not reported


def test_the_improvers_continue_from_the_order_of_the_other_core(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal, start = asked()
    begun, is_better = list[Score](), threading.Event()

    def improver(name: str, _: Problem, __: Goal, part: Monitor) -> Order:
        assert part.best is not None and part.best_score is not None
        if name == "moment":
            assert is_better.wait(60)
        begun.append(part.best_score)
        assert (name == "anneal") == (not threads())
        return part.best

    monkeypatch.setattr(improvers, "planner_named", lambda name: partial(improver, name))
    monkeypatch.setattr(improvers, "is_order_free", lambda *_: False)
    monitor = monitor_of(problem, goal, idle_cores=1)
    monitor.on_progress = lambda _, score: is_better.set() if score < goal_score(problem, goal, start) else None
    found = improvers.improve(problem, goal, Candidate(start, "greedy"), TimeSlices(monitor))
    assert begun[0] == goal_score(problem, goal, start) > begun[1]
    assert found.planner == "anneal" and goal_score(problem, goal, found.order) == begun[1]


def test_an_order_that_the_other_core_proves_cheapest_ends_the_improver(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal, better = asked()
    start = np.insert(better, 1, better[0])  # the first task twice
    assert goal_score(problem, goal, better) < goal_score(problem, goal, start)
    monkeypatch.setattr(improvers, "is_order_free", lambda *_: False)
    monitor, ended, begun = monitor_of(problem, goal, idle_cores=1), list[bool](), threading.Event()

    def improver(_: Problem, __: Goal, part: Monitor) -> Order:
        begun.set()
        ended.append(part.cancel_event.wait(60))
        return start

    def blocks(_: Problem, __: Goal, part: Monitor) -> Order:
        assert begun.wait(60)
        return better

    monkeypatch.setattr(improvers, "planner_named", lambda name: improver)
    monkeypatch.setattr(improver_beside, "planner_named", lambda name: blocks)
    monitor.cost_bound.ticks = goal_score(problem, goal, better).cost
    improvers.improve(problem, goal, Candidate(start, "greedy"), TimeSlices(monitor))
    assert ended == [True]


def test_no_other_core_is_used_without_an_idle_one_or_under_an_iteration_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal, start = asked()
    monkeypatch.setattr(improvers, "is_order_free", lambda *_: False)
    monkeypatch.setattr(improvers, "ImproverBeside", None)  # one would fail
    monkeypatch.setattr(improvers, "planner_named", lambda name: lambda problem, goal, part: part.best)
    for monitor in (monitor_of(problem, goal), Monitor(partial(goal_score, problem, goal), iterations=5)):
        found = improvers.improve(problem, goal, Candidate(start, "greedy"), TimeSlices(monitor))
        assert np.array_equal(found.order, start)


def test_a_walk_with_a_free_order_begins_at_once_and_goes_on_beside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal, start = asked()
    walks, both = list[int](), threading.Barrier(2)

    def walk(_: Problem, under: Goal, __: Monitor, order: Order, is_free: bool) -> Order:
        walks.append(under.seed - goal.seed)
        assert under.seed == goal.seed or sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
        both.wait(60)  # neither ends before the other has begun
        assert is_free
        return order

    def improver(name: str, _: Problem, __: Goal, part: Monitor) -> Order:
        assert name == "moment" and part.best is not None
        return part.best

    for module in (improvers, improver_beside):
        monkeypatch.setattr(module, "anneal_alone", walk)
        monkeypatch.setattr(module, "planner_named", lambda name: partial(improver, name))
    monkeypatch.setattr(improvers, "is_order_free", lambda *_: True)
    improvers.improve(problem, goal, Candidate(start, "greedy"), TimeSlices(monitor_of(problem, goal, idle_cores=1)))
    assert sorted(walks) == [0, improver_beside.NEXT_SEED]


@pytest.mark.parametrize("idle_cores", [0, 1])
def test_some_quick_planners_follow_the_first_improver_if_a_core_is_idle(
    idle_cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, goal, start = asked()
    ran = list[str]()

    def planner(name: str, _: Problem, __: Goal, part: Monitor) -> Order:
        ran.append(name)
        return start

    for module in (portfolio, improvers):
        monkeypatch.setattr(module, "planner_named", lambda name: partial(planner, name))
    monkeypatch.setattr(improver_beside, "planner_named", lambda name: lambda *_: start)
    monkeypatch.setattr(improvers, "is_order_free", lambda *_: False)
    portfolio.search(problem, goal, "auto", monitor_of(problem, goal, idle_cores=idle_cores))
    assert set(portfolio.LATER_BESIDE) <= set(ran)
    for name in portfolio.LATER_BESIDE:
        assert ran.count(name) == 1 and (ran.index(name) > ran.index("moment")) == bool(idle_cores)
    assert ran[-1] == "anneal"


@pytest.mark.parametrize("idle_cores", [0, 1])
@pytest.mark.parametrize(("decides", "share", "runs"), [(False, 1.0, True), (True, 1.0, False), (False, 0.5, False)])
def test_recomputations_alone_are_improved_where_an_order_fits_and_order_decides_little(
    decides: bool, share: float, runs: bool, idle_cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, goal, start = asked()
    goal = replace(goal, budget_bytes=int(share * (goal.budget_bytes or 0)))
    ran = list[str]()

    def planner(name: str, _: Problem, __: Goal, part: Monitor) -> Order:
        ran.append(name)
        return start

    for name in ("anneal_alone", "anneal_in_parallel"):
        monkeypatch.setattr(improvers, name, lambda *_: start)
    monkeypatch.setattr(improvers, "planner_named", lambda name: partial(planner, name))
    monkeypatch.setattr(improver_beside, "planner_named", lambda name: lambda *_: start)
    monkeypatch.setattr(improver_beside, "anneal_alone", lambda *_: start)
    monkeypatch.setattr(improvers, "is_order_free", lambda *_: decides)
    slices = TimeSlices(monitor_of(problem, goal, idle_cores=idle_cores))
    improvers.improve(problem, goal, Candidate(start, "greedy"), slices)
    assert ("neighbourhood" in ran) == runs


def test_all_quick_planners_run_before_improvers_while_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal, start = asked()
    ran, over = list[str](), np.arange(problem.tasks)
    assert goal_score(problem, goal, over).bytes_over_budget

    def planner(name: str, _: Problem, __: Goal, part: Monitor) -> Order:
        ran.append(name)
        return over if name in ("as_given", "evict", "segments", "greedy") else start

    for module in (portfolio, improvers):
        monkeypatch.setattr(module, "planner_named", lambda name: partial(planner, name))
    monkeypatch.setattr(improver_beside, "planner_named", lambda name: lambda *_: start)
    monkeypatch.setattr(improvers, "is_order_free", lambda *_: False)
    portfolio.search(problem, goal, "auto", monitor_of(problem, goal, idle_cores=1))
    for name in portfolio.LATER_BESIDE:
        assert ran.count(name) == 1 and ran.index(name) < ran.index("moment")


def test_planners_that_follow_the_first_improver_do_not_go_on_beyond_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, goal, start = asked()
    better = of_moment(problem, goal)
    seconds = dict[str, float]()

    def planner(name: str, _: Problem, __: Goal, part: Monitor) -> Order:
        given = part.seconds
        if name == "min_cut":
            part.offer(better)
        seconds[name] = part.seconds / given
        return start

    monkeypatch.setattr(improvers, "planner_named", lambda name: partial(planner, name))
    monkeypatch.setattr(improver_beside, "planner_named", lambda name: lambda *_: start)
    monkeypatch.setattr(improvers, "is_order_free", lambda *_: False)
    improvers.improve(
        problem, goal, Candidate(start, "greedy"), TimeSlices(monitor_of(problem, goal, idle_cores=1)), ["min_cut"]
    )
    assert seconds["min_cut"] == 1.0


def test_an_order_without_recomputation_that_the_look_finds_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    formulation = formulate(load(json.dumps(layered(150, seed=4)).encode()), parse_request({"budget": "90%"}))
    problem, goal = formulation.lowered.problem, formulation.goal
    start = formulation.search("greedy", formulation.monitor()).order
    assert goal_score(problem, goal, start).cost > problem.single_run_ticks()
    monkeypatch.setattr(improvers, "planner_named", None)  # one would fail
    found = improvers.improve(problem, goal, Candidate(start, "greedy"), TimeSlices(monitor_of(problem, goal)))
    assert goal_score(problem, goal, found.order).cost == problem.single_run_ticks()


def test_nobody_looks_at_the_order_of_a_proven_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal, start = asked()
    monkeypatch.setattr(improvers, "is_order_free", None)  # a look would fail
    monitor = monitor_of(problem, goal)
    monitor.cost_bound.ticks = goal_score(problem, goal, start).cost
    found = improvers.improve(problem, goal, Candidate(start, "greedy"), TimeSlices(monitor))
    assert np.array_equal(found.order, start)
