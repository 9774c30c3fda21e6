"""What is there when the last step ends bounds every peak."""

from __future__ import annotations

import random

import numpy as np

from planner.bounds import held_at_end
from planner.errors import IllegalPlan
from planner.problem import TO_THE_END, liveness
from planner.problem.plan import Goal
from planner.verify.checker import check_order
from tests.planner.drawn import drawn
from tests.planner.random_problems import random_order, random_problem


def test_no_random_order_peaks_below_the_bound() -> None:
    rng = random.Random(5)
    legal = 0
    for _ in range(3000):
        problem = random_problem(rng)
        order = random_order(rng, problem)
        try:
            check_order(problem, Goal(strict_phases=False), order)
        except IllegalPlan:
            continue
        legal += 1
        assert held_at_end.bound(problem) <= liveness.peak(problem, np.array(order, np.int64))
    assert legal > 100


def test_two_outputs_are_both_there() -> None:
    problem = drawn("a>b a>c", hold={"b": TO_THE_END, "c": TO_THE_END}, size={"b": 5, "c": 7})
    assert held_at_end.bound(problem) == 12
