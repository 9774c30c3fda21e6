"""What `auto` promises: no worse than what it is given, at any budget."""

from __future__ import annotations

import random

import numpy as np

from planner import liveness
from planner.monitor import Monitor
from planner.plan import Goal
from planner.portfolio import Found, judge, search
from planner.problem import Problem
from tests.planner.random_problems import training_problem


def found(problem: Problem, goal: Goal, planner: str = "auto", iterations: int = 60, seeds=()) -> Found:
    monitor = Monitor(lambda order: judge(problem, goal, order), iterations=iterations)
    return search(problem, goal, planner, monitor, seeds)


def test_a_seed_is_kept_unless_something_better_is_found():
    problem = training_problem(random.Random(3), 12)
    peak = liveness.peak(problem, np.arange(problem.tasks))
    tight = Goal(peak * 85 // 100, iterations=400)
    seed = found(problem, tight, iterations=400)
    assert judge(problem, tight, seed.order).bytes_over_budget == 0
    loose = Goal(peak * 86 // 100, iterations=0)
    for planner in ("as_given", "auto"):
        assert judge(problem, loose, found(problem, loose, planner, 0).order).bytes_over_budget > 0
        kept = found(problem, loose, planner, 0, [seed])
        assert judge(problem, loose, kept.order) <= judge(problem, loose, seed.order)
