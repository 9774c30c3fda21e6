"""Order without recomputation: longest path first, or depth first where that peaks lower.

O(n log n + reads). Meets a budget only where the order of the document wastes memory.
"""

from __future__ import annotations

import numpy as np

from planner.problem import Problem
from planner.problem.best_order import BestOrder
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order
from planner.problem.topological import depth_first, edges, longest_path_first


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The best of both topological orders and the order of the document; the latter if the order is given."""
    base = base_order(problem, goal.strict_phases)
    if goal.order_is_given:
        return base
    best, after = BestOrder.offered(monitor, base), edges(problem)
    for rank in (longest_path_first(after), depth_first(after)):
        if monitor.should_stop():
            break
        order = rank[~problem.optional[rank]]
        if goal.strict_phases:
            order = order[np.argsort(problem.phase[order], kind="stable")]
        best.offer(order)
    return best.order
