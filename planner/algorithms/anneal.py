"""Joint annealing of order and recomputation; with a given order, of recomputation alone. See `annealing.py`."""

from __future__ import annotations

from planner.annealing import Annealing
from planner.monitor import Monitor
from planner.plan import Goal, Order
from planner.problem import Problem

# Chance in 100 that a move is one of a first run, where those are free.
FIRST_RUNS = 60


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The cheapest order found within the budget, or the lowest within the overhead."""
    return Annealing(problem, goal, monitor, 0 if goal.order_is_given else FIRST_RUNS).search()
