"""Joint annealing of order and recomputation by two parallel walks; of recomputation only if the order is given.

`search.py` defines a walk and `parallel.py` runs the two.
"""

from __future__ import annotations

from planner.algorithms.annealing.parallel import anneal_in_parallel
from planner.algorithms.greedy import planner
from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The best order found from the monitor's best, or from the result of `greedy` in a part of the time."""
    return anneal_in_parallel(problem, goal, monitor, planner.initial_order(problem, goal, monitor))
