"""A moment in branches is bounded by whole choices, and no higher than the optimum."""

from __future__ import annotations

import random

import pytest

from planner.bounds import claims, step_branch_and_bound, step_cut
from planner.problem import liveness
from planner.problem.plan import Goal
from planner.problem.recompute import base_order
from tests.planner.bounds.test_step_cut import suited, there_and_back
from tests.planner.drawn import drawn
from tests.planner.optimum import least_cost

MODES = [Goal(order_is_given=given, strict_phases=strict) for given in (False, True) for strict in (False, True)]


@pytest.mark.parametrize("count", [80, pytest.param(2000, marks=pytest.mark.heavy)])
def test_no_tree_proves_more_than_the_optimum_and_each_is_accepted(count: int):
    rng = random.Random(count)
    more = 0
    for i in range(count):
        problem, goal = suited(rng, 6) if i % 2 else there_and_back(rng), rng.choice(MODES)
        budget = liveness.peak(problem, base_order(problem, goal.strict_phases)) * rng.randint(12, 19) // 20
        one = step_cut.bound(problem, goal, budget)
        claim = step_branch_and_bound.bound(problem, goal, budget, one.task) if one.ticks else None
        if claim is None:
            continue
        least = least_cost(problem, goal, budget)
        assert claims.rejection_reason(problem, [claim]) == ""
        assert least is None or claim["value"] <= least
        more += claim["value"] > problem.cost.sum() + one.ticks
    assert more > count // 20


def test_a_byte_too_many_costs_a_whole_repeat():
    #   a and b are both held across c and d; one byte too many makes the cheaper of them run twice, not a quarter of it
    problem = drawn("a>c b>c c>d d>e e>f a>f b>f", size={**dict.fromkeys("abcde", 4), "f": 1}, cost={"a": 9, "b": 7})
    budget = liveness.peak(problem, base_order(problem)) - 1
    one = step_cut.bound(problem, Goal(budget), budget)
    claim = step_branch_and_bound.bound(problem, Goal(budget), budget, one.task)
    assert claim is not None
    assert one.ticks == 2
    assert claim["value"] == problem.cost.sum() + 7 == least_cost(problem, Goal(budget), budget)
    assert "branch" in claim["proof"]
    assert "is claimed" in claims.rejection_reason(problem, [{**claim, "value": claim["value"] + 1}])


def test_sizes_in_grains_are_counted_in_grains():
    #   all sizes are multiples of 4 bytes: a budget of one byte less is one of four bytes less
    problem = drawn("a>c b>c c>d d>e e>f a>f b>f", size={**dict.fromkeys("abcde", 4), "f": 0}, cost={"a": 9, "b": 7})
    budget = liveness.peak(problem, base_order(problem)) - 1
    claim = step_branch_and_bound.bound(
        problem, Goal(budget), budget, step_cut.bound(problem, Goal(budget), budget).task
    )
    assert claim is not None
    assert (claim["kind"], claim["proof"]["grain"]) == ("moment-cut", 4)
    assert claim["value"] == problem.cost.sum() + 7 == least_cost(problem, Goal(budget), budget)
    assert "no multiples of 8 bytes" in claims.rejection_reason(
        problem, [{**claim, "proof": {**claim["proof"], "grain": 8}}]
    )
