"""Evaluator, checker and step simulator say the same of every sequence."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from planner.errors import IllegalPlan
from planner.problem import DEVICE, HOST, Problem, liveness
from planner.problem.plan import Goal, Plan
from planner.verify.checker import check
from tests import oracles
from tests.planner.random_problems import random_order, random_problem


def plan_of(problem: Problem, goal: Goal, order: list[int]) -> Plan:
    """The plan that the evaluator makes of an order."""
    array = np.array(order, np.int64)
    lives = liveness.lifetimes(problem, array)
    score = liveness.score(problem, array, goal.budget_bytes or 0)
    return Plan(array, lives, liveness.profile(problem, array, lives), score, "test", 0)


def same_of_random_sequences(count: int, seed: int) -> tuple[int, int]:
    """(legal, illegal) sequences on which all three agree."""
    rng = random.Random(seed)
    seen = [0, 0]
    while sum(seen) < count:
        problem = random_problem(rng)
        for _ in range(8):
            goal = Goal(rng.choice([None, 0, 9, 30]), None, rng.random() < 0.3, rng.random() < 0.5)
            order = random_order(rng, problem)
            seen[not agrees(problem, goal, order)] += 1
    return seen[0], seen[1]


def agrees(problem: Problem, goal: Goal, order: list[int]) -> bool:
    """Whether the order is legal; fails when evaluator, checker and simulator differ."""
    try:
        plan = plan_of(problem, goal, order)
    except IllegalPlan:
        assert not oracles.legal(problem, goal, order)
        return False
    if oracles.legal(problem, goal, order):
        check(problem, goal, plan)
        assert oracles.step_bytes(problem, order) == plan.step_bytes.tolist()
        assert oracles.step_bytes(problem, order, HOST) == liveness.profile(problem, plan.order, space=HOST).tolist()
        return True
    with pytest.raises(IllegalPlan):
        check(problem, goal, plan)
    return False


def test_evaluator_checker_and_simulator_agree_on_random_sequences():
    legal, illegal = same_of_random_sequences(1500, seed=1)
    assert legal > 400 and illegal > 300


@pytest.mark.heavy
def test_evaluator_checker_and_simulator_agree_on_many_random_sequences():
    legal, illegal = same_of_random_sequences(25_000, seed=2)
    assert legal > 7_500 and illegal > 5_000


def test_an_evaluator_that_is_one_byte_off_is_noticed():
    rng = random.Random(3)
    noticed = 0
    while noticed < 50:
        problem, goal = random_problem(rng), Goal(0, strict_phases=False)
        order = random_order(rng, problem)
        if not oracles.legal(problem, goal, order) or not order:
            continue
        plan = plan_of(problem, goal, order)
        step = rng.randrange(len(order))
        wrong = plan.step_bytes.copy()
        wrong[step] += rng.choice([-1, 1])
        with pytest.raises(IllegalPlan, match=f"step {step}"):
            check(problem, goal, dataclasses.replace(plan, step_bytes=wrong))
        assert oracles.step_bytes(problem, order, DEVICE) != wrong.tolist()
        noticed += 1
