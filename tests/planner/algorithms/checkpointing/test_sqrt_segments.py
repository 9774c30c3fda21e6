"""Segments keep checkpoints, the user's or some of their own."""

from __future__ import annotations

import math

from planner.algorithms.checkpointing import sqrt_segments
from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from tests.planner.drawn import drawn, letters_of, problem_of


def plan(problem: Problem, goal: Goal) -> Order:
    return sqrt_segments.plan(problem, goal, Monitor(lambda order: goal_score(problem, goal, order), iterations=100))


def test_the_users_checkpoints_are_kept_and_the_rest_is_run_again():
    problem = drawn("a>b b>c c>d d>e e>f c>f f>g b>g g>h a>h", backward="fgh", checkpoint="ae")
    assert letters_of(plan(problem, Goal(0))) == "abcdebcfgh"


def test_a_chain_peaks_near_two_roots():
    n = 100
    reads = [[]] + [[i] for i in range(n - 1)] + [[n - 1 + i, n - 1 - i] for i in range(n)]
    reads[n] = [n - 1]
    problem = problem_of(reads, [[i] for i in range(2 * n)], phase=[0] * n + [1] * n)
    assert liveness.peak(problem, base_order(problem)) >= n
    assert liveness.peak(problem, plan(problem, Goal(0))) <= 2 * math.isqrt(n) + 4


def test_a_budget_that_is_met_already_costs_nothing():
    problem = drawn("a>b b>c a>c", backward="c")
    assert letters_of(plan(problem, Goal(99))) == "abc"
