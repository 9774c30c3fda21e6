"""First plan: an order within the budget that is found at once, before planners that find cheaper ones.

The first of `segments` that fits ends the search for it. On large graphs `greedy` takes seconds, and a search that ends
before would have no plan.
"""

from __future__ import annotations

from planner.algorithms import planner_named
from planner.problem import Problem
from planner.problem.monitor import CostBound, Monitor
from planner.problem.plan import Candidate, Goal
from planner.search.scores import is_infeasible

#: Fewest tasks of a graph whose search begins with such an order, and share of the search for it.
MIN_TASKS, SHARE = 4_000, 0.1
#: The planner with the quickest orders within a budget.
PLANNER = "segments"
#: More ticks than any order takes, so that the first order within the budget ends the search.
ANY_COST = 2**63 - 1


def first_within(problem: Problem, goal: Goal, monitor: Monitor) -> Candidate | None:
    """An order within the budget; None if the graph is small, or none is found in a small share of the search.

    Only with a time limit. The search uses time of the monitor, to which the order is not reported.
    """
    if monitor.iterations is not None or problem.tasks < MIN_TASKS or not goal.budget_bytes or len(problem.choices):
        return None
    if is_infeasible(problem, goal, monitor.peak_bound):
        return None
    part = monitor.child(monitor.judge, SHARE)
    part.cost_bound = CostBound(ANY_COST)
    planner_named(PLANNER)(problem, goal, part)
    if part.best is None or part.best_score is None or part.best_score.bytes_over_budget:
        return None
    return Candidate(part.best, PLANNER)
