"""Searches that continue from a known order."""

from __future__ import annotations

import random

from planner.problem import liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal
from planner.problem.recompute import base_order
from planner.search import improvers
from planner.search.continuation import walk_on
from planner.search.scores import goal_score
from tests.planner.optimum import least_cost
from tests.planner.random_problems import training_problem


def test_a_walk_by_the_clock_in_a_tiny_problem_ends_with_its_optimum() -> None:
    problem = training_problem(random.Random(1), 3)
    assert problem.tasks <= improvers.TINY_TASKS
    start = base_order(problem)
    goal = Goal(liveness.peak(problem, start) * 9 // 10)
    monitor = Monitor(lambda order: goal_score(problem, goal, order), seconds=600.0)
    found = walk_on(problem, goal, Candidate(start, "anneal"), monitor).order
    least = least_cost(problem, goal, goal.budget_bytes or 0)
    assert monitor.is_optimal and liveness.peak(problem, found) <= (goal.budget_bytes or 0)
    assert least == liveness.cost(problem, found) > liveness.cost(problem, start)
