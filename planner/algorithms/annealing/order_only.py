"""Order search without recomputation: annealing of first runs down to the budget, or to the lowest peak.

Each move changes the bytes within its own window only. See `search.py`.
"""

from __future__ import annotations

from planner.algorithms.annealing.search import Annealing
from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """Every task once, in the order with the lowest peak found, or the first order found within the budget."""
    order = base_order(problem, goal.strict_phases)
    monitor.offer(order)
    if goal.order_is_given:
        return order
    return Annealing(problem, goal, monitor, 100).lowered(order, goal.budget_bytes or 0, int(problem.cost.sum()))
