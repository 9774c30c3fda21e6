"""What holds for every planner in the table."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from planner.algorithms import BY_CLOCK, PLANNERS, planner_named
from planner.bounds import largest_task
from planner.errors import BadRequest
from planner.problem import RESIDENT, Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order, Plan
from planner.problem.recompute import can_recompute, is_first_run
from planner.search.scores import goal_score
from planner.verify.checker import check
from tests.planner.drawn import drawn, problem_of
from tests.planner.random_problems import random_problem, training_problem

EVERY = pytest.mark.parametrize("name", (*PLANNERS, *BY_CLOCK))


def planned(name: str, problem: Problem, goal: Goal) -> Plan:
    """The planner's plan, accepted by the checker."""
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=goal.iterations or 50)
    order = planner_named(name)(problem, goal, monitor)
    assert can_recompute(problem)[order[~is_first_run(problem, order)]].all()
    lives = liveness.lifetimes(problem, order)
    score = liveness.score(problem, order, goal.budget_bytes or 0)
    plan = Plan(order, lives, liveness.profile(problem, order, lives), score, name, goal.seed)
    check(problem, goal, plan)
    return plan


def goals(problem: Problem, rng: random.Random) -> list[Goal]:
    """A budget at the peak, one byte over and under, in the middle, the lowest, and an overhead."""
    peak = liveness.peak(problem, given(problem))
    given_order = rng.random() < 0.5
    budgets = [Goal(b, order_is_given=given_order) for b in (peak, peak + 1, max(0, peak - 1), peak // 2, 0)]
    return [*budgets, Goal(max_overhead=0.3, order_is_given=given_order), Goal()]


def given(problem: Problem) -> Order:
    return np.flatnonzero(~problem.optional)


@EVERY
@pytest.mark.parametrize("count", [12, pytest.param(40, marks=pytest.mark.heavy)])
def test_plans_of_problems_with_everything_are_legal(name, count):
    rng = random.Random(11)
    tried = 0
    while tried < count:
        problem = random_problem(rng)
        if is_runnable(problem):
            tried += 1
            for goal in goals(problem, rng):
                planned(name, problem, goal)


@EVERY
@pytest.mark.parametrize("depths", [(1, 4), pytest.param((1, 4, 8), marks=pytest.mark.heavy)], ids=str)
def test_plans_of_training_steps_are_legal(name, depths):
    rng = random.Random(12)
    for layers in depths:
        problem = training_problem(rng, layers)
        for goal in goals(problem, rng):
            planned(name, problem, goal)


@EVERY
@pytest.mark.parametrize("count", [1, pytest.param(5, marks=pytest.mark.heavy)])
def test_an_overhead_goal_is_kept_or_nothing_is_recomputed(name, count):
    if name in ("mirror", "segments"):
        return  # these know no limit on time; the portfolio ranks what is too slow last
    rng = random.Random(13)
    for _ in range(count):
        problem = training_problem(rng, 8)
        plan = planned(name, problem, Goal(max_overhead=0.2))
        assert plan.score.cost <= problem.cost.sum() * 1.2


@EVERY
@pytest.mark.parametrize(
    "make",
    [
        lambda: problem_of([], []),
        lambda: problem_of([], [], 1, size=[7], hold=[RESIDENT]),
        lambda: drawn("a"),
        lambda: drawn("a>b", backward="b"),
    ],
)
def test_tiny_problems_have_plans(name: str, make: Callable[[], Problem]):
    problem = make()
    assert set(planned(name, problem, Goal(0)).order.tolist()) == set(range(problem.tasks))


@pytest.mark.parametrize("name", PLANNERS)
def test_the_same_question_gives_the_same_plan(name):
    problem = training_problem(random.Random(14), 7)
    goal = Goal(liveness.peak(problem, given(problem)) * 6 // 10, iterations=40)
    assert planned(name, problem, goal).order.tolist() == planned(name, problem, goal).order.tolist()


@EVERY
@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.heavy)])
def test_no_plan_peaks_below_the_largest_task(name, count):
    rng = random.Random(15)
    for _ in range(count):
        problem = training_problem(rng, rng.randint(1, 6))
        assert planned(name, problem, Goal(0)).score.peak_bytes >= largest_task.bound(problem).bytes


@EVERY
def test_a_stopped_planner_gives_a_legal_plan(name):
    problem = training_problem(random.Random(16), 6)
    goal = Goal(0)
    monitor = Monitor(lambda order: goal_score(problem, goal, order))
    monitor.cancel()
    order = planner_named(name)(problem, goal, monitor)
    lives = liveness.lifetimes(problem, order)
    score = liveness.score(problem, order, 0)
    check(problem, goal, Plan(order, lives, liveness.profile(problem, order, lives), score, name, 0))


def test_an_unknown_planner_is_refused_with_the_names_there_are():
    with pytest.raises(BadRequest, match="segments"):
        planner_named("sqrt")


def is_runnable(problem: Problem) -> bool:
    """Whether the document's order is legal, which every planner may assume."""
    order = given(problem)
    try:
        goal = Goal()
        lives = liveness.lifetimes(problem, order)
        score = liveness.score(problem, order, 0)
        check(problem, goal, Plan(order, lives, liveness.profile(problem, order, lives), score, "", 0))
    except Exception:
        return False
    return True
