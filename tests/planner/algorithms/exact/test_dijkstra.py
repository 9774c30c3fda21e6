"""All orders of a small problem are looked through; where there are too many, that is said and nothing is proven."""

from __future__ import annotations

import random

import pytest

from planner.algorithms.exact import dijkstra
from planner.problem import HANDED_OUT, TO_THE_END, Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from tests.planner.drawn import drawn, letters_of
from tests.planner.random_problems import training_problem


def planned(problem: Problem, goal: Goal, iterations: int = 1000) -> tuple[Order, Monitor]:
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=iterations)
    return dijkstra.plan(problem, goal, monitor), monitor


def test_a_task_runs_three_times_where_that_is_cheapest():
    #   a is large and cheap, and wanted after c and after e, which need much workspace
    arcs = "a>b b>c a>d c>d d>e a>f e>f"
    problem = drawn(arcs, size={"a": 9}, workspace={"c": 8, "e": 8}, cost=dict.fromkeys("bcdef", 9))
    order, monitor = planned(problem, Goal(11, order_is_given=True))
    assert letters_of(order) == "abcadeaf" and monitor.is_optimal


def test_of_two_orders_the_one_that_needs_no_repeat_is_found():
    #   both chains end large to small; one after the other they fit
    problem = drawn("a>c b>d c>e d>e", size={"a": 9, "b": 9, "c": 1, "d": 1, "e": 0})
    assert goal_score(problem, Goal(11), planned(problem, Goal(11))[0]) == (0, 5, 11)
    given = Goal(11, order_is_given=True)
    assert goal_score(problem, given, planned(problem, given)[0]).cost > 5


def test_what_is_held_may_be_taken_over_first_and_made_again_at_the_end():
    problem = drawn("a>b", size={"a": 5, "b": 3}, hold={"a": TO_THE_END}, workspace={"b": 5}, takeover="a>b")
    assert letters_of(planned(problem, Goal(10, order_is_given=True))[0]) == "aba"


def test_what_is_handed_out_is_made_again_before_its_phase_ends():
    #   a is wanted by nobody and held across b, which needs workspace, unless it is made again before c
    problem = drawn("a b>c c>d", size={"a": 5}, workspace={"b": 5}, hold={"a": HANDED_OUT}, backward="d")
    assert letters_of(planned(problem, Goal(7, order_is_given=True))[0]) == "abacd"
    assert goal_score(problem, Goal(7), planned(problem, Goal(7))[0]).cost == 4
    #   with c on the way back the phase ends with b: what is handed out is held across it
    late = drawn("a b>c c>d", size={"a": 5}, workspace={"b": 5}, hold={"a": HANDED_OUT}, backward="cd")
    assert goal_score(late, Goal(0), planned(late, Goal(0, order_is_given=True))[0]).peak_bytes == 11


def test_the_lowest_peak_is_found_with_the_least_time_at_it():
    #   a is held across c, d and e; a costs a quarter of all
    problem = drawn("a>b b>c c>d d>e a>e", size={"a": 9, "b": 1, "c": 9, "d": 1, "e": 1}, cost={"a": 2})
    for goal, letters in ((Goal(0), "abcdae"), (Goal(max_overhead=0.2), "abcde"), (Goal(max_overhead=0.4), "abcdae")):
        order, monitor = planned(problem, goal)
        assert letters_of(order) == letters and monitor.is_optimal


def test_a_budget_nothing_reaches_gives_the_lowest_peak():
    problem = drawn("a>b b>c a>c", size={"a": 4, "b": 4, "c": 4})
    order, monitor = planned(problem, Goal(5))
    assert goal_score(problem, Goal(5), order) == (7, 3, 12) and monitor.is_optimal


@pytest.mark.parametrize("most", ["MAX_TASKS", "MAX_STATES"])
def test_a_problem_too_large_comes_back_as_it_is_known_with_a_note(monkeypatch, most: str):
    problem = training_problem(random.Random(1), 4)
    monkeypatch.setattr(dijkstra, most, 3)
    goal = Goal(liveness.peak(problem, base_order(problem)) // 2)
    _, monitor = planned(problem, goal)
    assert not monitor.is_optimal and any(note.startswith("exact: ") for note in monitor.notes)


def test_a_quota_ends_the_search():
    problem = training_problem(random.Random(1), 9)
    goal = Goal(liveness.peak(problem, base_order(problem)) * 2 // 3)
    _, monitor = planned(problem, goal, 3)
    assert not monitor.is_optimal
