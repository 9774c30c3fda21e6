"""Which algorithms to try, each fed to one monitor that keeps the best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner import liveness
from planner.algorithms import PLANNERS, planner_named
from planner.monitor import Monitor
from planner.plan import Goal, Order, Score
from planner.problem import Problem

#: Tried by `auto` in this order: the cheap ones first, so that a stop always has something.
AUTO = tuple(name for name in ("as_given", "mirror", "segments", "greedy") if name in PLANNERS)


@dataclass(frozen=True, slots=True)
class Found:
    order: Order
    planner: str


def judge(problem: Problem, goal: Goal, order: Order) -> Score:
    """The order's score under the goal; one that takes longer than `max_overhead` allows ranks last."""
    budget = goal.budget_bytes or 0
    score = liveness.score(problem, order, budget)
    if goal.max_overhead is None:
        return score
    limit = int(problem.cost.sum() * (1 + goal.max_overhead))
    behind = int(problem.size.sum() + problem.workspace.max(initial=0)) + 1
    return score._replace(bytes_over_budget=score.peak_bytes + (behind if score.cost > limit else 0))


def search(problem: Problem, goal: Goal, planner: str, monitor: Monitor) -> Found:
    """The best order `planner` finds, or for "auto" the best of all in the table.

    A stop gives the best so far, which is at least the document's order.
    """
    if planner != "auto":
        order = planner_named(planner)(problem, goal, monitor)
        score = monitor.offer(order)
        if monitor.best is not None and monitor.best_score is not None and monitor.best_score < score:
            order = monitor.best  # what the search offered on its way was better
        return Found(order, planner)
    best = Found(np.arange(problem.tasks), "as_given")
    for name in AUTO:
        if name != "as_given" and monitor.cancelled:
            break
        before = monitor.best_score
        monitor.offer(planner_named(name)(problem, goal, monitor))
        if monitor.best is not None and (before is None or monitor.best_score != before):
            best = Found(monitor.best, name)
    return best
