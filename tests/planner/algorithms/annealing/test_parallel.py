"""Two walks side by side: what comes out does not depend on the threads, and neither way of moving is lost."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from bench.generators import layered, transformer
from graph.formats.readers import load
from planner.algorithms.annealing.parallel import (
    FIRST_RUN_PERCENT,
    FREE_ROUND_ENDS,
    WORKERS,
    _ParallelAnnealing,
    anneal_alone,
    anneal_in_parallel,
    is_order_free,
)
from planner.formulation.formulate import formulate
from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order
from planner.request.plan_request import parse_request
from planner.search.scores import goal_score
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


def of_document(document: dict, budget: str) -> tuple[Problem, Goal]:
    formulation = formulate(load(json.dumps(document).encode()), parse_request({"budget": budget}))
    return formulation.lowered.problem, formulation.goal


def test_the_order_of_random_graphs_is_free_and_that_of_training_graphs_is_not() -> None:
    problem, goal = of_document(layered(150, seed=4), "70%")
    monitor = Monitor(lambda order: goal_score(problem, goal, order), seconds=60.0)
    assert is_order_free(problem, goal, monitor) and monitor.best is not None
    assert not is_order_free(problem, replace(goal, order_is_given=True), monitor)
    assert not is_order_free(problem, replace(goal, budget_bytes=None), monitor)
    assert not is_order_free(problem, goal, replace(monitor, iterations=100))
    training, goal = of_document(transformer(200), "70%")
    assert not is_order_free(training, goal, Monitor(lambda order: goal_score(training, goal, order), seconds=60.0))


def test_walks_with_a_free_order_move_first_runs_in_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, goal = problem_and_goal(0.85, False, 100)
    started = list[int]()

    def run_round(walks: _ParallelAnnealing, walk: int, part: Monitor) -> Order:
        assert walks.first_runs == [FIRST_RUN_PERCENT, FIRST_RUN_PERCENT]
        assert walks.round_share() == pytest.approx(FREE_ROUND_ENDS[0] if not started else 1.0, abs=0.05)
        started.append(walk)
        part.calls = 25 if len(started) == 1 else 1000
        return walks.best

    monkeypatch.setattr(_ParallelAnnealing, "run_round", run_round)
    anneal_alone(problem, goal, monitor_of(problem, goal), base_order(problem), is_free=True)
    assert started == [0, 0]
