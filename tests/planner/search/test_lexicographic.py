"""Of the plans with the lowest peak the one that takes least time is looked for."""

from __future__ import annotations

import random

import numpy as np

from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Score
from planner.search import lexicographic, portfolio
from planner.search.scores import goal_score
from tests.planner.random_problems import training_problem

ITERATIONS = 80


def score(search, problem: Problem, goal: Goal, planner: str = "anneal") -> Score:
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=ITERATIONS)
    found = search(problem, goal, planner, monitor)
    return goal_score(problem, goal, found.order, found.choices)


def test_the_lowest_peak_is_had_for_less_time_than_the_search_for_it_took():
    better = 0
    for seed in (0, 2, 4):
        problem = training_problem(random.Random(seed), 7)
        goal = Goal(0, iterations=ITERATIONS)
        first = score(portfolio.search, problem, goal)
        then = score(lexicographic.search, problem, goal)
        assert then <= first
        better += then.cost < first.cost
    assert better > 0


def test_a_planner_that_heeds_no_limit_on_time_does_not_break_it():
    problem = training_problem(random.Random(0), 7)
    goal = Goal(max_overhead=0.0, iterations=ITERATIONS)
    assert score(portfolio.search, problem, goal, "mirror").cost > problem.cost.sum()
    assert score(lexicographic.search, problem, goal, "mirror").cost == problem.cost.sum()
    loose = Goal(max_overhead=10.0, iterations=ITERATIONS)
    assert score(lexicographic.search, problem, loose, "mirror").cost > problem.cost.sum()


def test_so_is_the_lowest_peak_within_an_overhead():
    problem = training_problem(random.Random(5), 10)
    goal = Goal(max_overhead=0.3, iterations=ITERATIONS)
    found = score(lexicographic.search, problem, goal, "auto")
    assert found.cost <= 1.3 * problem.cost.sum()
    assert found <= score(portfolio.search, problem, goal, "auto")


def test_a_budget_is_left_to_the_planners():
    problem = training_problem(random.Random(3), 10)
    goal = Goal(liveness.peak(problem, np.arange(problem.tasks)) * 9 // 10, iterations=ITERATIONS)
    assert score(lexicographic.search, problem, goal) == score(portfolio.search, problem, goal)
