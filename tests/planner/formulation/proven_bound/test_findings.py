"""A tree over several steps finds a plan beside its bound, which takes it only within the budget."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bench.catalogue import Instance
from graph.formats.readers import load
from planner.bounds import multi_step_tree, step_branch_and_bound
from planner.bounds.step_network import StepModel
from planner.formulation.formulate import formulate
from planner.formulation.proven_bound.findings import Findings
from planner.problem import liveness
from planner.problem.plan import Goal
from planner.problem.recompute import order_keeping_live
from planner.request.plan_request import parse_request
from tests.planner.bounds.test_multi_step_tree import two_repeats


def test_a_choice_that_is_whole_at_two_steps_makes_an_order_that_meets_the_bound():
    problem, goal = two_repeats(), Goal(9, order_is_given=True)
    model, once, met = StepModel(problem, goal, 9), int(problem.cost.sum()), set[tuple[int, int]]()
    root = step_branch_and_bound.make_tree(model, 2)
    assert root is not None

    def choose(steps: list[tuple[int, list[int]]]) -> None:
        order = model.order
        for task, live in steps:
            order = order_keeping_live(problem, order, task, live)
        met.add((int(problem.cost[order].sum()), liveness.peak(problem, order)))

    multi_step_tree.bound(model, root, [6], lambda: once + 3, choose=choose)
    assert (once + 2, 9) in met
    met.clear()
    multi_step_tree.bound(model, root, [6], lambda: once + 2, choose=choose)
    assert not met  # as cheap as the plan


def test_the_cheapest_order_within_the_budget_is_kept():
    formulation = formulate(load(Instance("chain40").bytes), parse_request({"budget": "70%"}))
    base, problem = formulation.baseline.order, formulation.lowered.problem
    peak = formulation.baseline.score.peak_bytes
    fits, misses = (replace(formulation, goal=replace(formulation.goal, budget_bytes=b)) for b in (peak, peak - 1))
    cost, findings = formulation.baseline.score.cost, Findings(takes_orders=True)
    for arena, needed in ((misses, cost + 1), (fits, cost)):
        findings.offer(arena, base, needed)
        assert findings.order is None
    findings.offer(fits, base, cost + 1)
    assert findings.order is base and findings.cost == cost == problem.cost[base].sum()
    findings.offer(fits, np.append(base, base[-1]), math.inf)  # dearer
    assert findings.order is base
    other = Findings()
    other.offer(fits, base, cost + 1)
    assert other.order is None
