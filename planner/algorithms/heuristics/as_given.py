"""As given: every task once, in the document's order. O(n) time.

The baseline: no recomputation, so no plan is faster; every other plan is shown beside it.
"""

from __future__ import annotations

from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """Every task that has to run, once, in the document's order."""
    return base_order(problem, goal.strict_phases)
