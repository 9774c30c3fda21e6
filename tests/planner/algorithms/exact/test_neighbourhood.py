"""Integer programs around the best order lower its recomputations to the optimum of its first runs, or near it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.algorithms import planner_named
from planner.algorithms.exact import neighbourhood
from planner.bounds.solvers import linear
from planner.errors import BadRequest
from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order, Score
from planner.problem.recompute import base_order, is_first_run
from planner.request.plan_request import parse_request
from planner.search.scores import goal_score
from tests.contracts.test_every_planner import planned
from tests.planner.drawn import drawn, letters_of, problem_of


def there_and_back(rng: random.Random, depth: int) -> Problem:
    """A chain of `depth` tasks, each of whose results is read again on the way back."""
    forward: list[list[int]] = [[i - 1] if i else [] for i in range(depth)]
    back = [sorted({depth + i - 1, depth - 1 - i}) for i in range(depth)]
    return problem_of(
        [*forward, *back],
        [[i] for i in range(2 * depth)],
        size=[*(rng.randint(1, 9) for _ in range(depth)), *[1] * depth],
        cost=[rng.randint(1, 9) for _ in range(2 * depth)],
    )


def improved(name: str, problem: Problem, goal: Goal, start: Order | None = None) -> tuple[Order, Score]:
    """The order that a planner finds, from `start` if that is given."""
    monitor = Monitor(lambda order: goal_score(problem, goal, order), seconds=60)
    if start is not None:
        monitor.offer(start)
    order = planner_named(name)(problem, goal, monitor)
    return order, goal_score(problem, goal, order)


def test_most_orders_of_greedy_become_the_optimum_of_their_first_runs():
    met = worse = 0
    for seed in range(10):
        problem = there_and_back(random.Random(seed), 20)
        peak = liveness.peak(problem, base_order(problem))
        for goal in (Goal(peak // 2, order_is_given=True), Goal(peak * 7 // 10, order_is_given=True)):
            greedy, before = improved("greedy", problem, goal)
            order, score = improved("neighbourhood", problem, goal, greedy)
            optimum = improved("milp", problem, goal, greedy)[1]
            assert optimum.cost <= score.cost <= before.cost
            assert score.bytes_over_budget == 0
            assert (order[is_first_run(problem, order)] == base_order(problem)).all()
            worse += before.cost > optimum.cost
            met += before.cost > score.cost == optimum.cost
    assert met > worse // 2 > 0


def test_an_order_over_the_budget_is_brought_within_it():
    for seed in range(5):
        problem = there_and_back(random.Random(seed), 20)
        goal = Goal(liveness.peak(problem, base_order(problem)) // 2, order_is_given=True)
        assert improved("neighbourhood", problem, goal, base_order(problem))[1].bytes_over_budget == 0


def test_an_order_far_below_the_budget_recomputes_less():
    problem = there_and_back(random.Random(3), 20)
    peak = liveness.peak(problem, base_order(problem))
    low = improved("greedy", problem, Goal(peak // 2, order_is_given=True))[0]
    goal = Goal(peak * 9 // 10, order_is_given=True)
    assert improved("neighbourhood", problem, goal, low)[1].cost < goal_score(problem, goal, low).cost


def test_nothing_runs_again_behind_the_last_step_at_which_it_may():
    #   e reads a again; only b is recomputed to keep a within the budget, since a may not run behind c
    size = {"a": 4, "b": 4, "c": 1, "d": 4, "e": 1, "f": 1}
    problem = drawn("a>b b>c c>d d>e a>e b>f e>f", size=size, cost={"a": 1, "b": 5}, after_every="a>c")
    goal = Goal(liveness.peak(problem, base_order(problem)) - 4, order_is_given=True)
    order, score = improved("neighbourhood", problem, goal)
    assert score.bytes_over_budget == 0
    assert letters_of(order).count("a") == 1


def test_the_smallest_buffers_are_always_live():
    small = neighbourhood._small(np.array([500, 1, 700, 3, 2]), 5000)
    assert small.tolist() == [False, True, False, False, True]  # five bytes of 5000 at most


@pytest.mark.parametrize("goal", [Goal(), Goal(0), Goal(max_overhead=0.3), Goal(10**6)], ids=str)
def test_without_anything_to_gain_the_order_stays(goal: Goal):
    problem = there_and_back(random.Random(1), 6)
    assert improved("neighbourhood", problem, goal)[0].tolist() == base_order(problem).tolist()


def test_plans_of_no_tasks_and_of_one_are_legal():
    for problem in (problem_of([], []), problem_of([[]], [[0]])):
        for goal in (Goal(1), Goal(0), Goal()):
            planned("neighbourhood", problem, goal)


def test_it_cannot_be_requested():
    with pytest.raises(BadRequest, match="neighbourhood"):
        parse_request({"budget": "50%", "planner": "neighbourhood"})


def test_a_plan_that_is_proven_ends_the_solver(monkeypatch: pytest.MonkeyPatch):
    problem = there_and_back(random.Random(6), 20)
    goal = Goal(liveness.peak(problem, base_order(problem)) // 2, order_is_given=True)
    monitor = Monitor(lambda order: goal_score(problem, goal, order), seconds=600)
    greedy = improved("greedy", problem, goal)[0]
    solve, ends = linear._filled, []

    def filled(solver, rows, check):
        monitor.cost_bound.is_met = True  # by the thread of the bound, while the solver runs
        interrupt = solver.InterruptSolve
        monkeypatch.setattr(solver, "InterruptSolve", lambda: (ends.append(1), interrupt()), raising=False)
        monkeypatch.setattr(solver, "Solve", lambda: _until(ends), raising=False)
        return solve(solver, rows, check)

    def _until(ends: list[int]) -> int:
        while not ends:
            pass
        return 6  # not solved

    monkeypatch.setattr(linear, "_filled", filled)
    monitor.offer(greedy)
    neighbourhood.plan(problem, goal, monitor)
    assert ends
    assert monitor.best is not None and monitor.best.tolist() == greedy.tolist()
