"""A walk that moves first runs goes over the limit, ever less, until it may not; one that leaves them never may."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from planner.algorithms.annealing import move_kernels
from planner.algorithms.annealing import timeline_kernels as on
from planner.algorithms.annealing.move_kernels import FACTORS, PENALTY, PER_TICK, SLACK, TEMPERATURE
from planner.algorithms.annealing.search import FIRST_RUNS_ALONE, STACK, TIGHT_SHARE, Annealing, bytes_near
from planner.problem import RESIDENT, TO_LAST_READ, Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from tests.planner.drawn import drawn, problem_of
from tests.planner.random_problems import training_problem


def annealing(problem: Problem, first_runs: int, iterations: int = 200) -> Annealing:
    goal = Goal(liveness.peak(problem, base_order(problem)) * 7 // 10)
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=iterations)
    return Annealing(problem, goal, monitor, first_runs)


#: Of the walks from these some end within the limit.
SEEDS = range(12)


@cache
def within_limit(seed: int) -> tuple[Problem, int, np.ndarray]:
    """(problem, limit, order of a walk that leaves first runs, which may miss the limit)."""
    problem = training_problem(random.Random(seed), 14)
    walk = annealing(problem, 0, 60)
    limit = walk.goal.budget_bytes or 0
    return problem, limit, walk.within(base_order(problem), limit, 1.0, 0.1, 0)


@pytest.mark.parametrize("first_runs", [0, 60, FIRST_RUNS_ALONE])
def test_what_may_lie_over_the_limit_falls_to_nothing_where_first_runs_move(first_runs: int):
    problem = training_problem(random.Random(2), 12)
    walk = annealing(problem, first_runs)
    told: list[np.ndarray] = []

    def recorded(*args: np.ndarray) -> None:
        told.append(args[3].copy())  # the factors

    walk.kernels = {**walk.kernels, "anneal": recorded}
    limit = walk.goal.budget_bytes
    t = walk.timeline(base_order(problem), limit, first_runs)
    walk.cool(t, np.zeros(1, np.int64), limit, 1.0, 0.3, 0, first_runs, patience=100)
    slack = [float(factors[SLACK]) for factors in told]
    assert len(slack) > 20
    if first_runs != 60:
        assert not any(slack)
        return
    tight = int(TIGHT_SHARE * len(slack))
    assert slack[0] > 0 and slack[tight - 2] > 0 and not any(slack[tight + 2 :])
    assert slack == sorted(slack, reverse=True)


@pytest.mark.parametrize("slack", [0.0, 1e18])
def test_the_penalty_grows_only_with_more_over_the_limit_than_may_be(slack: float):
    problem = training_problem(random.Random(2), 12)
    walk = annealing(problem, 60)
    t = walk.timeline(base_order(problem), 1, 60)  # nothing fits
    factors = walk.factors()
    assert len(factors) == FACTORS and factors[PER_TICK] > 0
    factors[TEMPERATURE], factors[SLACK], before = 0.01, slack, float(factors[PENALTY])
    move_kernels.anneal(t, 2000, 60, factors, np.zeros(STACK, np.int64), np.zeros(len(t.slot_run) + 1, np.int64))
    assert t.counters[on.OVER] > 0
    assert (factors[PENALTY] < before) == (slack > 0)


def test_a_penalty_that_nothing_calls_for_stays_within_reach():
    problem = training_problem(random.Random(2), 12)
    walk = annealing(problem, 60)
    least: list[float] = []

    def falling(*args: np.ndarray) -> None:
        if args[3][SLACK]:
            least.append(float(args[3][PENALTY]))
        args[3][PENALTY] = 0.0

    walk.kernels = {**walk.kernels, "anneal": falling}
    limit = walk.goal.budget_bytes
    walk.cool(
        walk.timeline(base_order(problem), limit, 60), np.zeros(1, np.int64), limit, 1.0, 0.3, 0, 60, patience=100
    )
    assert len(least) > 20 and min(least) > 0


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_other_recomputation_holds_less_near_the_limit(share: float):
    before, after = [], []
    for seed in SEEDS:
        problem, limit, order = within_limit(seed)
        if liveness.peak(problem, order) > limit:
            continue
        walk = annealing(problem, 0, 200)
        near = bytes_near(problem, order, limit)
        found = walk.flat_within(order, limit, 1.0, int(share * near))
        if found is not order:
            before.append(near)
            after.append(bytes_near(problem, found, limit))
            assert liveness.peak(problem, found) <= limit
            first = found[np.sort(np.unique(found, return_index=True)[1])]
            assert np.array_equal(first, base_order(problem))
    assert len(after) >= 3 and sum(after) <= 1.5 * share * sum(before)


def test_an_order_that_holds_little_near_the_limit_gives_way_to_cheaper_ones_only():
    cheaper = 0
    for seed in SEEDS:
        problem, limit, order = within_limit(seed)
        flat = annealing(problem, 0, 200).flat_within(order, limit, 1.0, 0)
        if liveness.peak(problem, order) > limit or flat is order:
            continue
        found = flat
        for _ in range(3):
            before = found
            most = max(bytes_near(problem, each, limit) for each in (order, before))
            found = annealing(problem, 0, 200).flat_within(before, limit, 1.0, most)
            assert found is before or liveness.cost(problem, found) < liveness.cost(problem, before)
        cheaper += found is not flat
    assert cheaper >= 3


def test_bytes_near_a_limit_are_those_above_nine_tenths_of_what_it_leaves_beside_residents():
    #   a ── b ── c      steps hold 40, 40 + 70 and 70 + 10 bytes, and all of them 100 bytes of residents
    problem = drawn("a>b b>c", size={"a": 40, "b": 70, "c": 10})
    held = problem_of([[], [0, 3], [1]], [[0], [1], [2]], size=[40, 70, 10, 100], hold=[TO_LAST_READ] * 3 + [RESIDENT])
    for each, limit in ((problem, 100), (held, 200)):
        assert bytes_near(each, np.arange(3), limit) == 110 - 90
        assert bytes_near(each, np.arange(3), limit - 20) == 110 - 72 + 80 - 72
    assert bytes_near(problem, np.arange(3), 1000) == 0
