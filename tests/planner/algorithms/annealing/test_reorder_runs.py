"""Flat orders: the same runs in an order that holds less near the budget."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from bench.generators import layered
from graph.formats.readers import load
from planner.algorithms.annealing.reorder_runs import flatten_runs, same_runs
from planner.algorithms.annealing.search import FLAT_SHARE
from planner.formulation.formulate import formulate
from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order
from planner.request.plan_request import parse_request
from planner.search.scores import goal_score
from planner.verify.checker import check_order
from tests.contracts.test_every_planner import is_runnable
from tests.planner.random_problems import random_problem, returning_problem


def flattened(problem: Problem, goal: Goal, order: Order) -> Order:
    return flatten_runs(problem, goal, order, Monitor(lambda o: goal_score(problem, goal, o), iterations=60))


def near(problem: Problem, order: Order, budget: int) -> int:
    """Bytes above the flat share of the budget, summed over the steps."""
    return int(np.maximum(liveness.profile(problem, order) - int(FLAT_SHARE * budget), 0).sum())


@pytest.mark.parametrize("seed", range(16))
def test_a_flat_order_has_the_same_runs_is_legal_and_keeps_the_budget(seed: int):
    rng = random.Random(seed)
    draw = random_problem if seed % 2 else returning_problem
    problem = draw(rng, 8)
    while not is_runnable(problem):
        problem = draw(rng, 8)
    goal = Goal(strict_phases=seed % 3 > 0)
    order = base_order(problem, goal.strict_phases)
    goal = replace(goal, budget_bytes=liveness.peak(problem, order))
    found = flattened(problem, goal, order)
    check_order(problem, goal, found.tolist())
    assert same_runs(problem, order, found)
    assert liveness.peak(problem, found) <= (goal.budget_bytes or 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_flat_order_holds_less_near_the_budget(seed: int):
    document = json.dumps(layered(60, seed=seed)).encode()
    problem = formulate(load(document), parse_request({"budget": "90%"})).lowered.problem
    order = base_order(problem, True)
    goal = Goal(liveness.peak(problem, order))
    found = flattened(problem, goal, order)
    assert near(problem, found, goal.budget_bytes or 0) < near(problem, order, goal.budget_bytes or 0) * 3 / 4
    assert flattened(problem, replace(goal, order_is_given=True), order) is order
    assert flattened(problem, replace(goal, budget_bytes=None), order) is order
