"""On small problems with everything a problem can have `auto` is optimal, and every bound valid, at all budgets."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.errors import IllegalPlan
from planner.problem import RESIDENT, liveness
from planner.problem.plan import Goal
from planner.verify.checker import check_order
from tests.contracts.test_every_planner import is_runnable
from tests.planner.drawn import drawn, problem_of
from tests.planner.optimum import front
from tests.planner.random_problems import random_problem
from tests.planner.small_problems import modes, small_problem, wrong

#: 200 problems in parts that processes can share.
MANY = [pytest.param(range(first, first + 25), marks=pytest.mark.heavy) for first in range(0, 200, 25)]


@pytest.mark.parametrize("numbers", [range(4), *MANY], ids=lambda numbers: f"{numbers.start} to {numbers[-1]}")
def test_auto_is_optimal_and_no_bound_above_the_optimum(numbers: range):
    repeats = 0
    for number in numbers:
        rng = random.Random(f"200/{number}")
        problem = small_problem(rng)
        for mode in modes(rng):
            best = front(problem, mode)
            assert list(wrong(problem, mode, best)) == [], number
            repeats += len(best) > 1
    assert repeats > len(numbers) // 2


def test_the_oracle_knows_the_best_of_all_sequences_of_few_steps():
    """Every sequence of up to n + 1 steps is tried: none is legal and better than the oracle's best."""
    rng, compared = random.Random(5), 0
    while compared < 12:
        problem = random_problem(rng, 4)
        if not is_runnable(problem) or problem.tasks < 3:
            continue
        compared += 1
        goal = Goal(order_is_given=compared % 2 == 0, strict_phases=compared % 3 > 0)
        best = front(problem, goal)
        for steps in range(problem.tasks + 2):
            for number in range(problem.tasks**steps):
                order = [number // problem.tasks**i % problem.tasks for i in range(steps)]
                try:
                    check_order(problem, goal, order)
                except IllegalPlan:
                    continue
                found = int(problem.cost[order].sum()), liveness.peak(problem, np.array(order, np.int64))
                assert any(ticks <= found[0] and peak <= found[1] for ticks, peak in best), (order, found, best)


def test_the_oracle_lets_a_resident_be_read_before_anybody_writes_it():
    #   b is resident: a reads what is there, b writes it anew
    problem = problem_of([[1], []], [[0], [1]], size=[2, 3], hold=[0, RESIDENT])
    assert front(problem, Goal()) == [(2, 5)]
    assert front(drawn("a>b b>c a>c"), Goal()) == [(3, 3)]
