"""Several moments prove no more than the optimum, and more than one of them where runs at each are needed."""

from __future__ import annotations

import random

import pytest

from planner.bounds import claims, multi_step_lp, step_cut
from planner.bounds.step_network import StepModel
from planner.problem import Problem, liveness
from planner.problem.plan import Goal
from planner.problem.recompute import base_order
from tests.contracts.test_every_planner import is_runnable
from tests.planner.bounds.test_step_cut import suited, there_and_back
from tests.planner.drawn import drawn
from tests.planner.optimum import least_cost
from tests.planner.random_problems import random_problem

MODES = [Goal(order_is_given=given, strict_phases=strict) for given in (False, True) for strict in (False, True)]


def all_windows(end: int) -> list[tuple[int, int]]:
    return [(j, k) for j in range(end) for k in range(j + 1, end + 1)]


def strongest(problem: Problem, goal: Goal, budget: int, rng: random.Random) -> tuple[int, int]:
    """(ticks that every task once takes, the most that moments of random tasks and all their windows prove)."""
    moments, once = StepModel(problem, goal, budget), int(problem.cost[~problem.optional].sum())
    chain = multi_step_lp.choose_steps(moments, [rng.choice(moments.order.tolist())], rng.randint(1, 6))
    claim = multi_step_lp.prove_bound(moments, chain, all_windows(len(chain)))
    assert claim is None or claims.rejection_reason(problem, [claim]) == ""
    return once, once if claim is None else claim["value"]


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.heavy)])
def test_no_moments_prove_more_than_the_optimum(count: int):
    rng = random.Random(count)
    asked = met = 0
    for i in range(count):
        problem, goal = suited(rng, 6) if i % 2 else there_and_back(rng), rng.choice(MODES)
        peak = liveness.peak(problem, base_order(problem, goal.strict_phases))
        for budget in (max(0, peak - 1), peak * 3 // 4):
            least = least_cost(problem, goal, budget)
            once, proven = strongest(problem, goal, budget, rng)
            assert least is None or proven <= least
            asked += least is not None and least > once
            met += least is not None and once < proven
    assert met > asked // 3 > 0


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.heavy)])
def test_with_everything_a_problem_can_have_the_verifier_accepts_what_is_claimed(count: int):
    rng = random.Random(count)
    claimed = 0
    while claimed < count:
        problem, goal = random_problem(rng, 10), rng.choice(MODES)
        if is_runnable(problem) and not problem.optional.all():
            budget = liveness.peak(problem, base_order(problem, goal.strict_phases)) * 3 // 4
            strongest(problem, goal, budget, rng)  # asserts it
            claimed += 1


def test_two_moments_ask_for_two_repeats_where_each_asks_for_one():
    #   a ── b ── c ── d ── e ── f ── g ── h      a is held across b and c, then e across f and g: with room for
    #    ╰─────────────╯    ╰─────────────╯       two large values and a small one, both are made again
    sizes = dict.fromkeys("abcefg", 4) | dict.fromkeys("dh", 1)
    problem, budget = drawn("a>b b>c c>d a>d d>e e>f f>g g>h e>h", size=sizes), 9
    goal = Goal(budget, order_is_given=True)
    one = step_cut.bound(problem, goal, budget)
    both = multi_step_lp.bound(problem, goal, budget, one.task)
    least = least_cost(problem, goal, budget)
    assert both is not None and least is not None
    assert (one.ticks, both["value"], least) == (1, problem.cost.sum() + 2, problem.cost.sum() + 2)


def test_the_same_question_has_the_same_claim():
    problem = drawn("a>b b>c c>d a>d d>e e>f f>g g>h e>h", size=dict.fromkeys("abcefg", 4) | dict.fromkeys("dh", 1))
    first, second = (multi_step_lp.bound(problem, Goal(9), 9, 2) for _ in range(2))
    assert first is not None and first == second
