"""Joint annealing of order and recomputation, two walks side by side; with a given order, of recomputation alone.

See `annealing.py` for a walk and `race.py` for the two.
"""

from __future__ import annotations

from planner.algorithms import greedy
from planner.monitor import Monitor
from planner.plan import Goal, Order
from planner.problem import Problem
from planner.race import raced


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The best order found from the monitor's, or from what `greedy` finds in a part of the time."""
    return raced(problem, goal, monitor, greedy.started(problem, goal, monitor))
