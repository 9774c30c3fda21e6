"""A moment in branches is bounded by whole choices, and no higher than the optimum."""

from __future__ import annotations

import random
from typing import Any

import pytest

from planner.bounds import claims, peak_cut, step_branch_and_bound, step_cut
from planner.bounds.step_network import StepModel
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


def test_a_byte_too_many_costs_a_whole_repeat(monkeypatch: pytest.MonkeyPatch):
    #   a and b are both held across c and d; one byte too many makes the cheaper of them run twice, not a quarter of it
    problem = drawn("a>c b>c c>d d>e e>f a>f b>f", size={**dict.fromkeys("abcde", 4), "f": 1}, cost={"a": 9, "b": 7})
    budget = liveness.peak(problem, base_order(problem)) - 1
    monkeypatch.setattr(step_branch_and_bound, "likely_grains", lambda model, count: [])
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
    assert "is claimed" in claims.rejection_reason(problem, [{**claim, "proof": {**claim["proof"], "grain": 8}}])


def test_a_larger_grain_rounds_the_budget_down_where_few_bytes_are_lost():
    #   a budget between two multiples of 4 bytes is worth the lower one, though f takes a single byte
    problem = drawn("a>c b>c c>d d>e e>f a>f b>f", size={**dict.fromkeys("abcde", 400), "f": 1}, cost={"a": 9, "b": 7})
    budget = liveness.peak(problem, base_order(problem)) - 1
    model = StepModel(problem, Goal(budget), budget)
    task = step_cut.bound(problem, Goal(budget), budget).task
    assert step_branch_and_bound.likely_grains(model, 9) == [400]
    root = step_branch_and_bound.make_tree(model, task)
    assert root is not None
    claim = step_branch_and_bound.tree_claim(model, root)
    assert claim is not None
    assert (root.grain, root.below, claim["proof"]["grain"]) == (400, None, 400)
    assert claim["value"] == problem.cost.sum() + 7 == least_cost(problem, Goal(budget), budget)
    assert claims.rejection_reason(problem, [claim]) == ""


def test_a_tree_ends_once_it_proves_enough_or_meets_a_choice_that_costs_no_more(monkeypatch: pytest.MonkeyPatch):
    #   a ── b ── c ── d      three leaves
    #   g ── f ── e ───╯
    size, cost = (dict(zip("abcdefg", map(int, row), strict=True)) for row in ("4936821", "8594489"))
    problem = drawn("a>b b>c c>d c>e d>e b>f e>f a>g f>g", size=size, cost=cost)
    budget = liveness.peak(problem, base_order(problem)) * 3 // 5
    model = StepModel(problem, Goal(budget), budget)
    task = step_cut.bound(problem, Goal(budget), budget).task
    monkeypatch.setattr(step_branch_and_bound, "FEW_LEAVES", 1)

    def leaves(beyond: float) -> int:
        root = step_branch_and_bound.make_tree(model, task, beyond=lambda: beyond)
        assert root is not None
        few = sum(node.below is None for node in step_branch_and_bound.nodes_of(root))
        step_branch_and_bound.grow_further(model, root)
        assert step_branch_and_bound.proven_ticks(root) == full
        return few

    whole = step_branch_and_bound.make_tree(model, task)
    assert whole is not None
    full = step_branch_and_bound.proven_ticks(whole)
    all_leaves = sum(node.below is None for node in step_branch_and_bound.nodes_of(whole))
    assert leaves(0) == leaves(full + 1) == 1 < all_leaves


def test_a_grain_that_rounds_off_more_bytes_than_a_larger_one_is_not_tried():
    #   grains of 6 bytes round off parts of b and c, as many bytes as grains of 800 do of a
    model = StepModel(drawn("a>b b>c c>d", size={"a": 6, "b": 800, "c": 1600, "d": 2400}), Goal(9), 9)
    assert step_branch_and_bound.likely_grains(model, 9) == [800]
    assert step_branch_and_bound.likely_grains(model, 0) == []


@pytest.mark.parametrize("grain", [0, -4, 4.0, "4", True])
def test_a_grain_that_is_no_number_of_bytes_is_refused(grain: Any):
    problem = drawn("a>c b>c c>d d>e e>f a>f b>f", size={**dict.fromkeys("abcde", 4), "f": 0}, cost={"a": 9, "b": 7})
    budget = liveness.peak(problem, base_order(problem)) - 1
    claim = step_branch_and_bound.bound(
        problem, Goal(budget), budget, step_cut.bound(problem, Goal(budget), budget).task
    )
    assert claim is not None
    assert claims.rejection_reason(problem, [{**claim, "proof": {**claim["proof"], "grain": grain}}])


def test_a_claim_on_the_peak_counts_no_grains():
    problem = drawn("a>c b>c c>d d>e e>f a>f b>f", size=dict.fromkeys("abcdef", 4))
    claim = peak_cut.bound(problem, Goal()).claim
    assert claim is not None and claims.rejection_reason(problem, [claim]) == ""
    for more in ({"grain": 4}, {"rounded": [{"price": [9], "grain": 1}]}):
        assert "counts bytes" in claims.rejection_reason(problem, [{**claim, "proof": {**claim["proof"], **more}}])


def test_further_prices_of_a_proof_are_one_for_each_step():
    problem = drawn("a>c b>c c>d d>e e>f a>f b>f", size={**dict.fromkeys("abcde", 4), "f": 0}, cost={"a": 9, "b": 7})
    budget = liveness.peak(problem, base_order(problem)) - 1
    task = step_cut.bound(problem, Goal(budget), budget).task
    claim = step_branch_and_bound.bound(problem, Goal(budget), budget, task)
    assert claim is not None
    proof = {**claim["proof"], "price": [0]}
    for prices, reason in (([8], ""), ([8, 8], "one price per step"), ([6], "is claimed")):
        rows = [{"price": prices, "grain": claim["proof"]["grain"]}]
        found = claims.rejection_reason(problem, [{**claim, "proof": {**proof, "rounded": rows}}])
        assert reason in found and bool(reason) == bool(found)
