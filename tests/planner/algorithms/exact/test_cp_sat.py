"""CP-SAT finds the optimum of small problems in both modes."""

from __future__ import annotations

import random

import pytest

from planner.algorithms.exact import cp_sat
from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order, Score
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from planner.verify.order_rules import check_order
from tests.planner.bounds.test_step_cut import suited, there_and_back
from tests.planner.drawn import drawn, letters_of
from tests.planner.optimum import least_cost
from tests.planner.random_problems import training_problem


def planned(problem: Problem, goal: Goal) -> tuple[Order, Score, list[str]]:
    monitor = Monitor(lambda order: goal_score(problem, goal, order), seconds=60)
    order = cp_sat.plan(problem, goal, monitor)
    return order, goal_score(problem, goal, order), monitor.notes


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.heavy)])
def test_no_sequence_is_cheaper(count: int, given: bool):
    rng = random.Random(count)
    asked = 0
    for _ in range(count):
        for problem in (suited(rng, 5), there_and_back(rng)):
            peak = liveness.peak(problem, base_order(problem))
            for budget in {peak, peak - 1, peak * 3 // 4}:
                goal = Goal(budget, order_is_given=given)
                least = least_cost(problem, goal, budget)
                if least is None:
                    continue
                order, score, _ = planned(problem, goal)
                check_order(problem, goal, order.tolist())
                assert score.bytes_over_budget == 0
                assert score.cost <= least
                asked += least > problem.cost.sum()
    assert asked >= count


def test_a_task_runs_three_times_where_that_is_cheapest():
    #   a is large and cheap, and wanted after c and after e, which need much workspace
    arcs = "a>b b>c a>d c>d d>e a>f e>f"
    problem = drawn(arcs, size={"a": 9}, workspace={"c": 8, "e": 8}, cost=dict.fromkeys("bcdef", 9))
    assert letters_of(planned(problem, Goal(11, order_is_given=True))[0]) == "abcadeaf"


def test_of_two_orders_the_one_that_needs_no_repeat_is_found():
    #   both chains end large to small; one after the other they fit
    problem = drawn("a>c b>d c>e d>e", size={"a": 9, "b": 9, "c": 1, "d": 1, "e": 0})
    assert planned(problem, Goal(11, order_is_given=False))[1] == (0, 5, 11)
    assert planned(problem, Goal(11, order_is_given=True))[1].cost > 5


def test_without_a_budget_the_lowest_peak_within_the_overhead_is_found():
    problem = drawn("a>b b>c c>d d>e a>e", size={"a": 9, "b": 1, "c": 9, "d": 1, "e": 1}, cost={"a": 2})
    assert letters_of(planned(problem, Goal(max_overhead=0.2))[0]) == "abcde"
    assert letters_of(planned(problem, Goal(max_overhead=0.4))[0]) == "abcdae"


def test_a_problem_too_large_comes_back_as_greedy_plans_it_with_a_note(monkeypatch):
    problem = training_problem(random.Random(1), 8)
    monkeypatch.setattr(cp_sat, "MAX_TASKS", 10)
    assert "more than 10 tasks" in planned(problem, Goal(0))[2][0]


def test_a_stop_while_the_model_is_built_ends_with_what_is_known(monkeypatch):
    problem = training_problem(random.Random(1), 6)
    goal = Goal(liveness.peak(problem, base_order(problem)) * 9 // 10)
    monitor = Monitor(lambda order: goal_score(problem, goal, order), seconds=60)

    class Stopped(cp_sat.CheckmateModel):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            monitor.cancel()

    monkeypatch.setattr(cp_sat, "CheckmateModel", Stopped)
    monkeypatch.setattr(cp_sat, "interruptible", None)  # nothing is solved
    order = cp_sat.plan(problem, goal, monitor)
    assert monitor.cancelled and order.tolist() == monitor.best.tolist()
