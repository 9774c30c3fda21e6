"""The shared evaluator: from an order of tasks to a plan with lifetimes, bytes per step and score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.problem import liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.columns import Problem
from planner.problem.plan import Goal, Order, Plan, Score


def evaluate(problem: Problem, goal: Goal, order: Order, planner: str, choices: Sequence[int] = ()) -> Plan:
    """The plan of `order` (task numbers) under a choice vector; `planner` is recorded in it. Raises IllegalPlan."""
    problem, order = resolve_choices(problem, choices), np.asarray(order, np.int64)
    lifetimes = liveness.lifetimes(problem, order)
    step_bytes = liveness.profile(problem, order, lifetimes)
    peak = int(step_bytes.max()) if len(order) else problem.resident_bytes()
    score = Score(max(0, peak - (goal.budget_bytes or 0)), liveness.cost(problem, order), peak)
    return Plan(order, lifetimes, step_bytes, score, planner, goal.seed, choices=tuple(choices) if any(choices) else ())
