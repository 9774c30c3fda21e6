"""Checkmate's relaxation is never above the least cost, whatever prices it is made of."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.bounds.solvers.checkmate_model import CheckmateModel
from planner.problem import liveness
from planner.problem.plan import Goal
from planner.problem.recompute import base_order
from tests.planner.bounds import checkmate_lp
from tests.planner.bounds.test_step_cut import suited, there_and_back
from tests.planner.drawn import drawn
from tests.planner.optimum import least_cost
from tests.planner.small_problems import small_problem


@pytest.mark.parametrize("count", [15, pytest.param(150, marks=pytest.mark.heavy)])
def test_no_bound_is_above_the_optimum_of_the_given_order(count: int):
    rng = random.Random(count)
    asked = met = 0
    for _ in range(count):
        for problem in (suited(rng, 6), there_and_back(rng)):
            whole, peak = int(problem.cost.sum()), liveness.peak(problem, base_order(problem))
            for budget in {peak, peak - 1, peak * 3 // 4, peak * 6 // 10}:
                least = least_cost(problem, Goal(budget, order_is_given=True), budget)
                if least is None:
                    continue
                found = checkmate_lp.bound(problem, budget, True)
                assert whole + found <= least
                assert whole + checkmate_lp.bound(problem, budget, True, least - whole + 1) <= least
                asked += least > whole
                met += least == whole + found > whole
    assert met > asked // 6 > 0


def test_any_prices_give_a_bound():
    problem = drawn("a>c b>c c>d d>e e>f a>f b>f", size={**dict.fromkeys("abcde", 4), "f": 0}, cost={"a": 9, "b": 2})
    order = base_order(problem)
    budget = liveness.peak(problem, order) - 4
    least = least_cost(problem, Goal(budget, order_is_given=True), budget)
    rows = CheckmateModel(problem, order, budget).build()
    chance = np.random.default_rng(1)
    for scale in (0.01, 0.1, 1.0, 10.0):
        assert checkmate_lp.certified_ticks(rows, scale * chance.random(len(rows.least))) <= least - problem.cost.sum()
    assert checkmate_lp.bound(problem, budget, True) == 2


def test_nothing_is_said_where_nothing_has_to_repeat():
    problem = drawn("a>b b>c")
    assert checkmate_lp.bound(problem, 9, True) == 0


def test_a_repeat_that_shares_a_buffer_with_the_first_run_before_it_counts():
    problem = small_problem(random.Random("77/33"))
    least = least_cost(problem, Goal(22, order_is_given=True), 22)
    assert least == 54
    assert problem.cost.sum() + checkmate_lp.bound(problem, 22, True) <= least
