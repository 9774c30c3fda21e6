"""No bound lies above the least cost of any sequence, and none is called out of reach that is not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.bounds import step_cut, step_network
from planner.problem import DEVICE, HANDED_OUT, Problem, liveness
from planner.problem.plan import Goal
from planner.problem.recompute import base_order
from tests.contracts.test_every_planner import is_runnable
from tests.planner.drawn import drawn, problem_of
from tests.planner.optimum import least_cost
from tests.planner.random_problems import random_problem


def suited(rng: random.Random, tasks: int) -> Problem:
    """A random problem of the kind `least_cost` solves."""
    while True:
        problem = random_problem(rng, tasks)
        if (
            is_runnable(problem)
            and problem.buffers <= 8
            and not problem.optional.any()
            and (problem.space == DEVICE).all()
            and (problem.hold != HANDED_OUT).all()
            and (np.bincount(problem.writes.index, minlength=1) <= 1).all()
        ):
            return problem


def there_and_back(rng: random.Random) -> Problem:
    """A chain whose values are read again on the way back."""
    size = {letter: rng.randint(1, 9) for letter in "abcdefg"}
    cost = {letter: rng.randint(1, 9) for letter in "abcdefg"}
    return drawn("a>b b>c c>d d>e c>e e>f b>f f>g a>g", size=size, cost=cost)


def compare(problem: Problem) -> tuple[int, int]:
    """(budgets that ask for repeats, budgets where the bound is the optimum), in both modes and phases."""
    asked = met = 0
    whole = int(problem.cost.sum())
    for strict, given in ((True, True), (True, False), (False, True), (False, False)):
        peak = liveness.peak(problem, base_order(problem, strict))
        for budget in {peak, peak - 1, peak * 3 // 4, peak * 6 // 10}:
            goal = Goal(budget, order_is_given=given, strict_phases=strict)
            least, found = least_cost(problem, goal, budget), step_cut.bound(problem, goal, budget)
            if least is None:
                continue
            assert found.feasible
            assert whole + found.ticks <= least
            asked += least > whole
            met += least == whole + found.ticks > whole
    return asked, met


@pytest.mark.parametrize("count", [25, pytest.param(100, marks=pytest.mark.heavy)])
def test_no_bound_is_above_the_optimum(count: int):
    rng = random.Random(count)
    totals = np.zeros(2, np.int64)
    for _ in range(count):
        totals += compare(suited(rng, 6))
        totals += compare(there_and_back(rng))
    asked, met = totals
    assert met > asked // 4 > 0


def test_the_cheaper_of_two_held_buffers_is_made_again():
    #   a and b are both held across c and d; four bytes less than both need make the cheaper one run twice
    problem = drawn("a>c b>c c>d d>e e>f a>f b>f", size={**dict.fromkeys("abcde", 4), "f": 0}, cost={"a": 9, "b": 2})
    budget = liveness.peak(problem, base_order(problem)) - 4
    found = step_cut.bound(problem, Goal(budget), budget)
    assert found.ticks == 2 == least_cost(problem, Goal(budget), budget) - problem.cost.sum()


def test_the_moments_that_cost_most_are_looked_for_beyond_the_fullest(monkeypatch):
    rng = random.Random(4)
    better = 0
    for _ in range(20):
        problem = there_and_back(rng)
        budget = liveness.peak(problem, base_order(problem)) * 7 // 10
        cuts = step_cut.best_cuts(problem, Goal(budget), budget, 3)
        assert sorted(cuts, key=lambda cut: -cut.ticks) == cuts
        assert len({cut.task for cut in cuts}) == len(cuts) <= 3
        assert [cut.claim is not None for cut in cuts] == [True, False, False][: len(cuts)]
        with monkeypatch.context() as patched:
            patched.setattr(step_network, "MAX_CUTS", 1)
            first = step_cut.bound(problem, Goal(budget), budget)
            cuts = step_cut.best_cuts(problem, Goal(budget), budget, 1)
        if cuts:
            assert cuts[0].ticks >= first.ticks
            better += cuts[0].ticks > first.ticks
    assert better > 0


def test_what_one_task_needs_cannot_be_gone_below():
    problem = drawn("a>c b>c", size=dict.fromkeys("ab", 4))
    found = step_cut.bound(problem, Goal(7), 7)
    assert not found.feasible
    assert least_cost(problem, Goal(7), 7) is None


def test_nothing_to_run_takes_no_time():
    assert step_cut.bound(problem_of([], []), Goal(1), 1).ticks == 0
    assert step_cut.best_cuts(problem_of([], []), Goal(1), 1, 2) == []
