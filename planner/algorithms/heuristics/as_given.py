"""As given: all non-optional tasks once, in the order of the document. O(n) time.

The baseline: without recomputation no plan is faster; all other plans are compared with it.
"""

from __future__ import annotations

from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """All non-optional tasks once, in the order of the document."""
    return base_order(problem, goal.strict_phases)
