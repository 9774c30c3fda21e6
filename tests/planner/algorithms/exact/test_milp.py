"""Checkmate's programme is solved to the end on small problems, and stopped when asked."""

from __future__ import annotations

import random

import pytest

from planner.algorithms.exact import milp
from planner.problem import TO_THE_END, Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order, Score
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from tests.planner.bounds.test_step_cut import suited, there_and_back
from tests.planner.drawn import drawn, letters_of
from tests.planner.optimum import least_cost
from tests.planner.random_problems import training_problem


def planned(problem: Problem, goal: Goal) -> tuple[Order, Score, list[str]]:
    monitor = Monitor(lambda order: goal_score(problem, goal, order), seconds=60)
    order = milp.plan(problem, goal, monitor)
    return order, goal_score(problem, goal, order), monitor.notes


@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.heavy)])
def test_no_sequence_in_the_given_order_is_cheaper(count: int):
    rng = random.Random(count)
    asked = 0
    for _ in range(count):
        for problem in (suited(rng, 6), there_and_back(rng)):
            peak = liveness.peak(problem, base_order(problem))
            for budget in {peak, peak - 1, peak * 3 // 4, peak * 6 // 10}:
                goal = Goal(budget, order_is_given=True)
                least = least_cost(problem, goal, budget)
                if least is None:
                    continue
                score = planned(problem, goal)[1]
                assert score.bytes_over_budget == 0
                assert score.cost <= least
                asked += least > problem.cost.sum()
    assert asked > count


def test_what_is_held_to_the_end_is_made_again_there():
    problem = drawn("a b>c c>d", size={"a": 9, "b": 5, "c": 5}, hold={"a": TO_THE_END})
    assert letters_of(planned(problem, Goal(10, order_is_given=True))[0]) == "abcda"


def test_what_is_held_may_be_taken_over_first_and_made_again_at_the_end():
    problem = drawn("a>b", size={"a": 5, "b": 3}, hold={"a": TO_THE_END}, workspace={"b": 5}, takeover="a>b")
    assert letters_of(planned(problem, Goal(10, order_is_given=True))[0]) == "aba"


def test_without_a_budget_the_lowest_peak_within_the_overhead_is_found():
    #   a is held across c, d and e; a costs a quarter of all
    problem = drawn("a>b b>c c>d d>e a>e", size={"a": 9, "b": 1, "c": 9, "d": 1, "e": 1}, cost={"a": 2})
    assert letters_of(planned(problem, Goal(max_overhead=0.2))[0]) == "abcde"
    assert letters_of(planned(problem, Goal(max_overhead=0.4))[0]) == "abcdae"


def test_a_repeat_that_does_not_fit_where_it_runs_is_not_part_of_the_plan():
    #   a and b are wanted by the last task and both cheap; a's second run needs so much workspace that it peaks
    problem = drawn(
        "a>c b>c c>d d>e a>e b>e", size={**dict.fromkeys("abd", 4), "c": 6, "e": 0}, cost={"b": 3}, workspace={"a": 8}
    )
    budget = liveness.peak(problem, base_order(problem))
    assert budget == 18
    assert letters_of(planned(problem, Goal(14, order_is_given=True))[0]) == "abcdbe"


def test_a_problem_too_large_comes_back_as_greedy_plans_it_with_a_note(monkeypatch):
    problem = training_problem(random.Random(1), 8)
    monkeypatch.setattr(milp, "MAX_TASKS", 10)
    assert "more than 10 tasks" in planned(problem, Goal(0))[2][0]


def test_a_stop_while_the_model_is_built_ends_with_what_is_known(monkeypatch):
    problem = training_problem(random.Random(1), 6)
    goal = Goal(liveness.peak(problem, base_order(problem)) * 9 // 10)
    monitor = Monitor(lambda order: goal_score(problem, goal, order), seconds=60)

    class Stopped(milp.CheckmateModel):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            monitor.cancel()

    monkeypatch.setattr(milp, "CheckmateModel", Stopped)
    monkeypatch.setattr(milp, "solve_integer", None)  # nothing is solved
    order = milp.plan(problem, goal, monitor)
    assert monitor.cancelled and order.tolist() == monitor.best.tolist()
