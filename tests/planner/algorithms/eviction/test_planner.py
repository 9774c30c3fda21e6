"""Eviction by the next uses: which buffer is evicted first, limits, and how near to optima it comes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from planner.algorithms.eviction import planner, runs, search
from planner.algorithms.eviction.kernels import RUNS
from planner.algorithms.eviction.planner import weights_of
from planner.algorithms.eviction.runs import EvictionRuns
from planner.problem import BACKWARD, FORWARD, FREE, HANDED_OUT, NEVER, TO_LAST_READ, Problem, liveness
from planner.problem.monitor import Monitor, SearchCancelled
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order, first_run_step
from planner.search.scores import goal_score
from tests.planner.drawn import drawn, letters_of, problem_of
from tests.planner.optimum import least_cost
from tests.planner.random_problems import returning_problem, training_problem
from tests.planner.stacks import stack


def monitor_of(problem: Problem, goal: Goal, iterations: int = 200) -> Monitor:
    return Monitor(lambda order: goal_score(problem, goal, order), iterations=iterations)


def planned(problem: Problem, under: int) -> str:
    """The plan with so many bytes less than the peak."""
    goal = Goal(liveness.peak(problem, base_order(problem)) - under)
    return letters_of(planner.plan(problem, goal, monitor_of(problem, goal)))


def runs_of(problem: Problem) -> EvictionRuns:
    return EvictionRuns(problem, base_order(problem), monitor_of(problem, Goal(1)))


def below_the_peak(problem: Problem, percent: int) -> Goal:
    return Goal(liveness.peak(problem, base_order(problem)) * percent // 100, order_is_given=True)


def varied_stack(rng: random.Random, layers: int) -> Problem:
    """A stack of layers whose values differ in bytes and ticks."""
    problem = stack(layers)
    size = problem.size * np.array([rng.randint(5, 15) for _ in range(problem.buffers)])
    return replace(problem, size=size, cost=problem.cost * np.array([rng.randint(5, 15) for _ in range(problem.tasks)]))


#: a is read at the end, b right before it; too many bytes are live while d runs
ARCS = "a>c b>c c>d d>e b>f e>f a>g f>g"


@pytest.mark.parametrize(
    ("size", "cost", "again"),
    [
        ({"a": 4, "b": 4}, {}, "abcdefag"),  # of equals the one read last
        ({"a": 4, "b": 4}, {"a": 9, "b": 1}, "abcdebfg"),  # the cheaper one
        ({"a": 4, "b": 9}, {}, "abcdebfg"),  # the larger one
    ],
)
def test_what_is_cheap_large_and_read_late_is_evicted_first(size, cost, again):
    assert planned(drawn(ARCS, size={**size, "c": 4, "d": 4, "e": 1}, cost=cost), 4) == again


def test_missing_inputs_count_as_ticks():
    #   b alone is cheap, but a is gone by then; d is dearer than b and made from c, which stays
    arcs = "a>b c>d b>e d>e e>f f>g b>h d>h c>h g>h"
    problem = drawn(arcs, size={"a": 9, "b": 4, "c": 0, "d": 4, "f": 6}, cost={"a": 9, "b": 1, "d": 2})
    assert planned(problem, 1) == "abcdefgdh"


def test_inputs_that_were_evicted_are_recomputed():
    #   a chain whose values are read in reverse: each of them is computed from the first task on
    problem = drawn("a>b b>c c>d d>e d>f e>f c>g f>g b>h g>h a>i h>i")
    assert planned(problem, 2) == "abcdefgabhi"
    assert planned(problem, 3) == "abcdefabcgabhai"


def test_runs_begin_anew_where_an_input_was_evicted_meanwhile():
    rng = random.Random(309)
    problem = rng.choice([training_problem, returning_problem, varied_stack])(rng, rng.randint(3, 6))
    room = below_the_peak(problem, 60).budget_bytes or 0
    for weights in weights_of(runs_of(problem)):
        order = runs_of(problem).run(room, weights)
        assert order is not None and len(order) > problem.tasks and liveness.peak(problem, order) <= room


def test_nothing_is_recomputed_after_an_update_of_its_inputs():
    #   d updates what a reads, and e reads the result of a again
    problem = drawn("a>b b>c a>e c>d d>e", after_every="a>d", size={"a": 4, "c": 4})
    peak = liveness.peak(problem, base_order(problem))
    for weights in weights_of(runs_of(problem)):
        assert runs_of(problem).run(peak, weights) is not None
        assert runs_of(problem).run(peak - 1, weights) is None
    free = drawn("a>b b>c a>e c>d d>e", size={"a": 4, "c": 4})
    assert planned(free, 1) == "abcdae"


def test_a_limit_of_the_peak_evicts_nothing():
    for problem in (drawn(ARCS), stack(5)):
        base = base_order(problem)
        for weights in weights_of(runs_of(problem)):
            order = runs_of(problem).run(liveness.peak(problem, base), weights)
            assert order is not None and order.tolist() == base.tolist()


def test_a_value_that_nothing_reads_is_freed_although_it_cannot_be_recomputed():
    #   the first task, which may not repeat, also writes ten bytes that nothing reads
    problem = problem_of(
        [[], [0], [2], [3], [4, 2]], [[0, 1], [2], [3], [4], [5]], size=[1, 10, 4, 4, 8, 1], repeat=[NEVER, *[FREE] * 4]
    )
    for budget in (13, 14, 15):
        goal = Goal(budget)
        order = planner.plan(problem, goal, monitor_of(problem, goal))
        assert problem.cost[order].sum() == least_cost(problem, goal, budget) == 6


def test_a_value_handed_out_counts_twice_where_its_task_runs_twice():
    problem = problem_of(
        [[], [0], [2], [3], [4], [5, 1]],
        [[0], [1, 2], [3], [4], [5], [6]],
        size=[1, 8, 10, 9, 6, 1, 1],
        hold=[TO_LAST_READ, TO_LAST_READ, HANDED_OUT, *[TO_LAST_READ] * 4],
        phase=[FORWARD] * 4 + [BACKWARD] * 2,
    )
    for room in range(20, 40):
        order = runs_of(problem).run(room, weights_of(runs_of(problem))[0])
        assert order is None or liveness.peak(problem, order) <= room


@pytest.mark.parametrize("percent", [40, 60, 80])
def test_runs_are_within_their_limit_and_keep_the_order_of_first_runs(percent: int) -> None:
    rng = random.Random(percent)
    made = 0
    for _ in range(60):
        problem = rng.choice([training_problem, returning_problem, varied_stack])(rng, rng.randint(3, 9))
        base = base_order(problem)
        found, room = runs_of(problem), below_the_peak(problem, percent).budget_bytes or 0
        for weights in weights_of(found):
            if (order := found.run(room, weights)) is not None:
                made += 1
                assert liveness.peak(problem, order) <= room
                assert all(a < b for a, b in pairwise(first_run_step(problem, order)[base].tolist()))
    assert made > 30


def test_interpreted_and_compiled_kernels_run_the_same() -> None:
    rng = random.Random(5)
    for _ in range(4):
        problem = varied_stack(rng, 6)
        room, found = below_the_peak(problem, 60).budget_bytes or 0, list[list[int] | None]()
        for fast in (False, True):
            for weights in weights_of(runs_of(problem)):
                each = runs_of(problem)
                each.fast = fast
                each.columns = runs._columns_of(problem, base_order(problem), each._column)
                order = each.run(room, weights)
                found.append(None if order is None else order.tolist())
        half = len(found) // 2
        assert found[:half] == found[half:]
        assert all(order is not None and len(order) > problem.tasks for order in found)


def test_a_run_that_thrashes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = stack(20)
    weights = weights_of(runs_of(problem))[0]
    room = below_the_peak(problem, 60).budget_bytes or 0
    found = runs_of(problem)
    order = found.run(room, weights)
    assert order is not None and len(order) > problem.tasks and found.looked > len(order)
    for name, value in (("LOOKED_AT_MOST", 1), ("MAX_RUNS", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(runs, name, value)
            assert runs_of(problem).run(room, weights) is None


def test_a_cancel_ends_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = stack(20)
    goal = below_the_peak(problem, 60)
    monitor = monitor_of(problem, goal)
    found, weights, room = EvictionRuns(problem, base_order(problem), monitor), weights_of(runs_of(problem))[0], 10**6
    assert found.run(room, weights) is not None
    ran: list[int] = []

    @contextmanager
    def cancelled(tasks: int, flags: Any, place: int, check: Callable[[], None]) -> Iterator[None]:
        flags[place] = 1  # as the thread does that sees the cancel
        yield
        ran.append(int(flags[RUNS]))
        monitor.cancel()

    with monkeypatch.context() as patch, pytest.raises(SearchCancelled):
        patch.setattr(runs, "flagged_when_cancelled", cancelled)
        found.run(room, weights)
    assert found.ended_at_limit == 0 and ran[0] < problem.tasks
    with pytest.raises(SearchCancelled):
        found.run(room, weights)
    for each in (planner, search):
        assert each.plan(problem, goal, monitor).tolist() == base_order(problem).tolist()


def test_runs_that_end_at_the_limit_end_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = stack(20)
    goal, ended = below_the_peak(problem, 60), list[int]()
    genuine = EvictionRuns.run

    def run(self: EvictionRuns, room: int, weights: runs.Weights) -> Order | None:
        order = genuine(self, room, weights)
        ended.append(self.ended_at_limit)
        return order

    monkeypatch.setattr(EvictionRuns, "run", run)
    monkeypatch.setattr(runs, "LOOKED_AT_MOST", 1)
    planner.plan(problem, goal, monitor_of(problem, goal))
    assert ended == [1, 2]


def test_most_budgets_that_can_be_met_are_met_at_little_more_than_the_least_time():
    rng = random.Random(3)
    extra: list[float] = []
    missed = 0
    for _ in range(120):
        problem = returning_problem(rng, 4)
        goal = below_the_peak(problem, rng.choice([60, 70, 80, 90]))
        least = least_cost(problem, goal, goal.budget_bytes or 0)
        if least is None or least == problem.single_run_ticks():
            continue
        score = goal_score(problem, goal, planner.plan(problem, goal, monitor_of(problem, goal)))
        if score.bytes_over_budget:
            missed += 1
        else:
            extra.append((score.cost - least) / problem.single_run_ticks())
    assert len(extra) >= 20 and missed <= len(extra) / 2 and sum(extra) <= 0.01 * len(extra)


def test_the_lowest_peak_is_that_of_a_run_within_less_than_it():
    problem = stack(12)
    for goal in (Goal(0), Goal(1), Goal(None, max_overhead=0.2)):
        order = planner.plan(problem, goal, monitor_of(problem, goal))
        assert liveness.peak(problem, order) < liveness.peak(problem, base_order(problem))
        if goal.max_overhead is not None:
            assert problem.cost[order].sum() <= 1.2 * problem.single_run_ticks()


def test_the_search_of_weights_begins_with_the_planner_and_ends_where_the_seed_says():
    better = other = 0
    for number in range(4):
        problem = varied_stack(random.Random(number), 12)
        goal = below_the_peak(problem, 50)

        def order(seed: int) -> Order:
            return search.plan(problem, replace(goal, seed=seed), monitor_of(problem, goal, 300))  # noqa: B023

        first, found = planner.plan(problem, goal, monitor_of(problem, goal)), order(0)
        assert order(0).tolist() == found.tolist()
        other += order(1).tolist() != found.tolist()
        assert not goal_score(problem, goal, first).bytes_over_budget
        assert goal_score(problem, goal, found) <= goal_score(problem, goal, first)
        better += problem.cost[found].sum() < problem.cost[first].sum()
    assert better >= 2 and other >= 2


def test_the_search_of_weights_without_a_budget_or_a_run_within_it_returns_the_order():
    problem = stack(2)
    for goal in (Goal(0), Goal(1), Goal(None, max_overhead=0.1)):
        assert search.plan(problem, goal, monitor_of(problem, goal)).tolist() == base_order(problem).tolist()
