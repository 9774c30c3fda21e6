"""Two walks side by side: what comes out does not depend on the threads, and neither way of moving is lost."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.algorithms.annealing.parallel import FIRST_RUN_PERCENT, WORKERS, _ParallelAnnealing, anneal_in_parallel
from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order
from planner.search.portfolio import goal_score
from tests.planner.drawn import drawn
from tests.planner.random_problems import training_problem


def problem_and_goal(part: float, given: bool, iterations: int) -> tuple[Problem, Goal]:
    problem = training_problem(random.Random(2), 12)
    peak = liveness.peak(problem, base_order(problem))
    return problem, Goal(int(peak * part), order_is_given=given, iterations=iterations)


def monitor_of(problem: Problem, goal: Goal) -> Monitor:
    return Monitor(lambda order: goal_score(problem, goal, order), iterations=goal.iterations)


def annealed(problem: Problem, goal: Goal) -> Order:
    return anneal_in_parallel(problem, goal, monitor_of(problem, goal), base_order(problem))


@pytest.mark.parametrize("given", [True, False])
def test_iterations_and_seed_alone_decide_what_two_threads_find(given: bool):
    problem, goal = problem_and_goal(0.85, given, 200)
    first, second = annealed(problem, goal), annealed(problem, goal)
    assert first.tolist() == second.tolist()
    assert goal_score(problem, goal, first).bytes_over_budget == 0 < goal_score(problem, goal, base_order(problem))[0]


def test_both_walks_keep_to_the_iteration_limit():
    problem, goal = problem_and_goal(0.85, False, 100)
    monitor = monitor_of(problem, goal)
    anneal_in_parallel(problem, goal, monitor, base_order(problem))
    assert monitor.calls <= 100 + 3 * WORKERS + 3  # each arm's last question is answered with no


def test_both_arms_go_on_in_the_better_way_from_the_second_round_on():
    problem, goal = problem_and_goal(0.85, False, 100)
    walks = _ParallelAnnealing(problem, goal, monitor_of(problem, goal), base_order(problem))
    assert walks.first_runs == [FIRST_RUN_PERCENT, 0]
    worse, better = (
        base_order(problem),
        anneal_in_parallel(problem, goal, monitor_of(problem, goal), base_order(problem)),
    )
    walks.exchange([worse, better], [])
    assert walks.first_runs == [FIRST_RUN_PERCENT, 0] and walks.best is better
    walks.exchange([worse, better], [])
    assert walks.first_runs == [0, 0]


def test_a_proven_plan_ends_the_search():
    #   a ── b ── c      nothing costs less than everything once
    problem = drawn("a>b b>c")
    goal = Goal(liveness.peak(problem, np.arange(3)), iterations=1000)
    monitor = monitor_of(problem, goal)
    anneal_in_parallel(problem, goal, monitor, np.arange(3))
    assert monitor.calls == 0
