"""Integer programs around the best order lower its recomputations to the optimum of its first runs, or near it."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest

from planner.algorithms import planner_named
from planner.algorithms.exact import neighbourhood
from planner.bounds.solvers import linear
from planner.bounds.step_network import StepModel
from planner.errors import BadRequest
from planner.problem import RESIDENT, SAME_ORDER, Problem, liveness
from planner.problem.monitor import Monitor, SearchCancelled
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


def test_an_order_far_below_the_budget_recomputes_less():
    problem = there_and_back(random.Random(3), 20)
    peak = liveness.peak(problem, base_order(problem))
    low = improved("greedy", problem, Goal(peak // 2, order_is_given=True))[0]
    goal = Goal(peak * 9 // 10, order_is_given=True)
    assert improved("neighbourhood", problem, goal, low)[1].cost < goal_score(problem, goal, low).cost


def around(problem: Problem, goal: Goal, best: Order) -> neighbourhood._Neighbourhood:
    """The neighbourhood of an order."""
    monitor = Monitor(lambda order: goal_score(problem, goal, order), seconds=60)
    monitor.offer(best)
    return neighbourhood._Neighbourhood(problem, goal, goal.budget_bytes or 0, monitor)


def test_nothing_is_recomputed_after_the_last_step_at_which_it_may():
    #   e reads a after c, which no run of a may follow
    for after_every, expected in (("", "abcdae"), ("a>c", "abcde")):
        problem = drawn("a>b b>c c>d d>e a>e", after_every=after_every)
        of = around(problem, Goal(10), base_order(problem))
        of.chain = [1]  # the step of b
        assert letters_of(of._order([("R", 0, 0)])) == expected


def test_recomputation_of_a_step_follows_its_task():
    problem = drawn("a>b b>c a>c c>d a>d")
    of = around(problem, Goal(10), base_order(problem))
    of.chain = [2]
    assert letters_of(of._order([("R", 0, 0)])) == "abcad"  # c reads a as well, which is live at its step
    assert letters_of(of._order([("R", -1, 0)])) == "aabcd"


def test_collectives_that_ranks_would_have_to_agree_on_run_once():
    for seed in range(6):
        drawn_once = there_and_back(random.Random(seed), 20)
        repeat = drawn_once.repeat.copy()
        repeat[[3, 6, 9, 12]] = SAME_ORDER
        problem = replace(drawn_once, repeat=repeat)
        goal = Goal(liveness.peak(problem, base_order(problem)) * 3 // 4, order_is_given=True)
        order = improved("neighbourhood", problem, goal, improved("greedy", problem, goal)[0])[0]
        assert not set(order[~is_first_run(problem, order)].tolist()) & {3, 6, 9, 12}


def test_what_the_best_order_and_the_relaxation_have_in_common_stays():
    problem = there_and_back(random.Random(6), 20)
    goal = Goal(liveness.peak(problem, base_order(problem)) // 2, order_is_given=True)
    of = around(problem, goal, improved("greedy", problem, goal)[0])
    assert of._join(of.best, 3) and of._is_relaxed()
    relaxed, live = of.relaxed, of._live_in_best()
    assert relaxed is not None
    fixed, open_ = of._fixed(relaxed), 0
    for name in relaxed.program.column:
        if name[0] == "L":
            value = relaxed.optimum.between.get(name, float(name in relaxed.optimum.ones))
            is_same = value == (name[2] in live[name[1]])
            assert (name in fixed) == is_same
            assert not is_same or fixed[name] == value
            open_ += not is_same
    assert 0 < open_ < len(fixed)
    model = relaxed.program.integer_model(fixed, 50.0)
    assert all(model.low[relaxed.program.column[name]] == value for name, value in fixed.items())
    assert sum(low != high for low, high in zip(model.low, model.high, strict=True)) > open_
    costs, factors = model.terms[-1]
    assert [model.ticks[c] for c in costs] == pytest.approx([-50 * factor for factor in factors])
    assert model.least[-1] == -1


def test_the_fullest_steps_join_one_of_each_run_of_full_steps():
    #       live bytes: a 9, b 9 + 1, c 1 + 1, d 1 + 9, e 9 + 1, f 1 + 1
    problem = drawn("a>b b>c c>d d>e e>f", size={"a": 9, "b": 1, "c": 1, "d": 9, "e": 1, "f": 1})
    of = around(problem, Goal(10), base_order(problem))
    assert of._join(of.best, 1) and of.chain == [1]
    assert of._join(of.best, 1) and of.chain == [1, 3]
    assert not of._join(of.best, 1)
    assert of.chain == [1, 3]


def test_where_no_further_step_can_join_the_last_linear_program_is_used(monkeypatch: pytest.MonkeyPatch):
    problem = there_and_back(random.Random(6), 20)
    goal = Goal(liveness.peak(problem, base_order(problem)) // 2, order_is_given=True)
    of = around(problem, goal, improved("greedy", problem, goal)[0])
    whole, chains = of._relaxation, list[int]()

    def first_only() -> neighbourhood._Relaxation | None:
        chains.append(len(of.chain))
        return whole() if len(chains) == 1 else None

    solved = list[int]()
    integer = of._improved
    monkeypatch.setattr(of, "_relaxation", first_only)
    monkeypatch.setattr(of, "_improved", lambda: (solved.append(len(of.chain)), integer())[1])
    of.search()
    assert chains[1] > chains[0]
    assert solved == [chains[0]]


def test_the_smallest_buffers_are_always_live():
    problem = problem_of([[], []], [[0, 1, 2], [3, 4]], 6, size=[500, 1, 700, 3, 2, 1], hold=[0, 0, 0, 0, 0, RESIDENT])
    small = neighbourhood._small(problem, 10_000)
    assert small.tolist() == [False, True, False, False, True, False]  # three bytes: with three more they are over 5
    model = StepModel(problem, Goal(10_000), 10_000, always_live=small)
    assert model.room == StepModel(problem, Goal(10_000), 10_000).room - 3
    assert not model.counted[small].any()
    assert not around(problem, Goal(10_000), base_order(problem)).model.counted[small].any()


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
    fill, ended = linear._filled, threading.Event()

    def filled(solver, rows, check):
        columns = fill(solver, rows, check)
        monitor.cost_bound.is_met = True  # by the thread of the bound, while the solver runs
        monkeypatch.setattr(solver, "InterruptSolve", ended.set, raising=False)
        monkeypatch.setattr(solver, "Solve", lambda: 6 if ended.wait(60) else 0, raising=False)  # 6: not solved
        return columns

    monkeypatch.setattr(linear, "_filled", filled)
    monitor.offer(greedy)
    neighbourhood.plan(problem, goal, monitor)
    assert ended.is_set()
    assert monitor.best is not None and monitor.best.tolist() == greedy.tolist()


def test_time_that_is_over_ends_the_filling_of_the_solver(monkeypatch: pytest.MonkeyPatch):
    problem = there_and_back(random.Random(6), 20)
    goal = Goal(liveness.peak(problem, base_order(problem)) // 2, order_is_given=True)
    of = around(problem, goal, improved("greedy", problem, goal)[0])
    assert of._join(of.best, 3) and of._is_relaxed()
    of.monitor.seconds = 0.0
    with pytest.raises(SearchCancelled):
        of._improved()
