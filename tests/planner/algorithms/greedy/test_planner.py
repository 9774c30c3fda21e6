"""Greedy closes the gaps that pay and nothing else."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.algorithms.greedy import gap_closing, planner
from planner.algorithms.greedy.gaps import evaluate_order
from planner.problem import TO_THE_END, Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from tests.planner.drawn import drawn, letters_of
from tests.planner.random_problems import training_problem


def plan(problem: Problem, goal: Goal) -> Order:
    return planner.plan(problem, goal, Monitor(lambda order: goal_score(problem, goal, order), iterations=200))


def test_a_budget_of_the_peak_changes_nothing():
    problem = training_problem(random.Random(1), 8)
    base = base_order(problem)
    assert plan(problem, Goal(liveness.peak(problem, base))).tolist() == base.tolist()


def test_the_cheap_gap_is_closed_before_the_dear_one():
    #   a and b are both held from the start to the end of a long middle part; b is cheaper to make again
    arcs = "a>c b>c c>d d>e e>f a>f b>f"
    problem = drawn(arcs, size={"a": 4, "b": 4, "c": 4, "d": 4, "e": 4}, cost={"a": 9, "b": 2})
    base = liveness.peak(problem, base_order(problem))
    assert letters_of(plan(problem, Goal(base - 1))) == "abcdebf"


def test_a_dead_input_is_made_again_when_holding_it_would_cost_more():
    #   c is wanted at the end; it needs b, which needs a; all of them are large
    problem = drawn("a>b b>c c>d d>e e>f f>g c>g", size={"a": 6, "b": 6, "c": 6, "d": 6, "e": 7, "f": 6})
    budget = liveness.peak(problem, base_order(problem)) - 1
    order = plan(problem, Goal(budget))
    assert liveness.peak(problem, order) <= budget
    assert letters_of(order) == "abcdefabcg"


def test_an_output_that_is_held_may_be_made_again_at_the_end():
    problem = drawn("a b>c c>d", size={"a": 9, "b": 5, "c": 5}, hold={"a": TO_THE_END})
    assert letters_of(plan(problem, Goal(10))) == "abcda"


def test_the_lowest_peak_of_a_chain_is_near_what_one_layer_needs():
    n = 24
    forward = [f"{chr(97 + i)}>{chr(98 + i)}" for i in range(n // 2 - 1)]
    back = [f"{chr(97 + n // 2 - 1 + i)}>{chr(98 + n // 2 - 1 + i)}" for i in range(n // 2)]
    skips = [f"{chr(97 + i)}>{chr(97 + n - 1 - i)}" for i in range(n // 2 - 1)]
    problem = drawn(" ".join(forward + back + skips))
    base = liveness.peak(problem, base_order(problem))
    assert base >= 12
    assert liveness.peak(problem, plan(problem, Goal(0))) <= 5


@pytest.mark.parametrize("seed", range(4))
def test_a_tighter_budget_never_costs_less_than_what_a_looser_one_needs(seed):
    problem = training_problem(random.Random(seed), 10)
    peak = liveness.peak(problem, base_order(problem))
    costs = [liveness.cost(problem, plan(problem, Goal(peak * part // 10))) for part in (10, 8, 6)]
    assert costs[0] == problem.cost.sum()
    assert costs[0] <= costs[1] and costs[0] <= costs[2]


def test_compiled_and_interpreted_kernels_give_the_same_plan(monkeypatch):
    for seed in range(3):
        problem = training_problem(random.Random(seed), 12)
        goal = Goal(liveness.peak(problem, base_order(problem)) * 6 // 10)
        orders = []
        for fast in (False, True):
            monkeypatch.setattr(gap_closing.GapCloser, "uses_compiled", lambda self, fast=fast: fast)
            orders.append(plan(problem, goal).tolist())
        assert orders[0] == orders[1]


def test_trimming_takes_out_what_the_limit_does_not_need():
    problem = training_problem(random.Random(3), 8)
    base = base_order(problem)
    step = gap_closing.GapCloser(problem)
    low, peak = step.reduce_to(base, liveness.peak(problem, base) * 7 // 10)
    assert peak == liveness.peak(problem, low)
    trimmed = step.trim_repeats(evaluate_order(problem, low), liveness.peak(problem, base))
    assert trimmed.order.tolist() == base.tolist()


def test_a_problem_whose_repeats_are_all_forbidden_comes_back_as_given():
    problem = drawn("a>b b>c c>d a>d", never="abcd")
    assert letters_of(plan(problem, Goal(0))) == "abcd"


def test_unread_repeats_are_removed():
    problem = drawn("a>b b>c")
    order = np.array([0, 1, 0, 0, 2])
    assert gap_closing.without_unread_repeats(problem, order).order.tolist() == [0, 1, 2]
