"""Eviction: run the order within the budget; evict what is cheap to recompute, large and needed late.

`runs.py` says how. A few weightings of ticks, bytes and steps are tried, and the cheapest order is taken.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from planner.algorithms.eviction.runs import EvictionRuns, Weights
from planner.bounds import largest_task
from planner.problem import Problem
from planner.problem.best_order import BestOrder
from planner.problem.monitor import Monitor, SearchCancelled
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order

#: Exponents of ticks, bytes and steps, in the order in which they are tried.
EXPONENTS = ((1, 1, 1), (1, 1, 0.5), (1, 1, 0.25), (0.5, 1, 0.5), (0.5, 0.5, 1))
#: Runs with the same weights within the budget; they end once so small a share of the budget is left.
FILLS, LEFT = 3, 0.004
#: Steps of the bisection of the limit, if no run fits the budget or the goal is a time limit.
TRIES = 8
#: All runs together look at so many times what one may; they end after so many that have reached that limit.
RUNS_LOOKED, MAX_AT_LIMIT = 8, 2


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The cheapest order of all weights within the budget, or that of their lowest peak within the time limit."""
    base = base_order(problem, goal.strict_phases)
    best = BestOrder.offered(monitor, base)
    if not best.score.bytes_over_budget:
        return base
    runs = EvictionRuns(problem, base, monitor)
    with suppress(SearchCancelled):
        if goal.budget_bytes:
            trials(runs, goal.budget_bytes, best)
        if best.score.bytes_over_budget:
            _lower(runs, best)
    return best.order


def weights_of(runs: EvictionRuns) -> list[Weights]:
    """The weights to try, in that order."""
    size = np.maximum(runs.problem.planned_size(), 1.0)[runs.buffer_of_use]
    steps = np.maximum(np.arange(len(runs.base) + 1), 1.0)
    root = np.sqrt(steps)
    of_steps = {1: steps, 0.5: root, 0.25: np.sqrt(root)}
    return [
        Weights(ticks < 1, size if of_bytes == 1 else np.sqrt(size), of_steps[exponent])
        for ticks, of_bytes, exponent in EXPONENTS
    ]


def trials(runs: EvictionRuns, budget: int, best: BestOrder) -> list[tuple[int, Weights, int]]:
    """Offer the orders of all weights within the budget; (ticks, weights, limit of the run) of each.

    A run gets what the last one has left of the budget.
    """
    tried: list[tuple[int, Weights, int]] = []
    for weights in weights_of(runs):
        room = budget
        for _ in range(FILLS):
            if _is_over(runs):
                return tried
            if (order := runs.run(room, weights)) is None:
                break
            found = runs.evaluated(order)
            score = best.offer(runs.trimmed(found, budget))
            if not score.bytes_over_budget:
                tried.append((score.cost, weights, room))
            left = budget - found.peak
            if left <= LEFT * budget:
                break
            room += left
    return tried


def _lower(runs: EvictionRuns, best: BestOrder) -> None:
    """Offer orders within lower and lower limits, with each of the weights from the lowest peak so far on."""
    least = largest_task.bound(runs.problem).bytes
    for weights in weights_of(runs):
        low, high = least, best.score.peak_bytes
        for _ in range(TRIES):
            if low >= high or _is_over(runs):
                break
            room = (low + high) // 2
            if (order := runs.run(room, weights)) is None:
                low = room + 1
                continue
            found = runs.evaluated(order)
            score = best.offer(runs.trimmed(found, found.peak))
            if score > best.score:  # as where it exceeds the time limit
                low = room + 1
            else:
                high = min(room, score.peak_bytes)


def _is_over(runs: EvictionRuns) -> bool:
    is_spent = runs.looked > RUNS_LOOKED * runs.max_looked or runs.ended_at_limit >= MAX_AT_LIMIT
    return is_spent or runs.monitor.should_stop()
