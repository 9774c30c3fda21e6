"""Eviction: run the order within the budget; evict what is cheap to make again, large and needed late.

`runs.py` says how. A few weightings of ticks, bytes and steps are tried, and the cheapest order is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
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
#: Runs with the same weights within the budget, while more than such a share of the budget is left.
FILLS, LEFT = 3, 0.004
#: Steps of the bisection of the limit, if no run fits the budget or the goal is a time limit.
TRIES = 8
#: All runs together look at so many times what one may.
MAX_RUNS_LOOKED = 8


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The cheapest order of all weights within the budget, or the lowest peak they reach or the overhead allows."""
    base = base_order(problem, goal.strict_phases)
    best = BestOrder.offered(monitor, base)
    if not best.score.bytes_over_budget:
        return base
    runs = EvictionRuns(problem, base, monitor)
    with suppress(SearchCancelled):
        if goal.budget_bytes:
            for _ in trials(runs, goal.budget_bytes, best):
                pass
        if best.score.bytes_over_budget:
            _lower(runs, best)
    return best.order


def weights_of(problem: Problem, base: Order) -> list[Weights]:
    """The weights to try, in that order."""
    size, steps = np.maximum(problem.planned_size(), 1.0), np.maximum(np.arange(len(base) + 1), 1.0)
    root = np.sqrt(steps)
    of_steps = {1: steps, 0.5: root, 0.25: np.sqrt(root)}
    return [
        Weights(ticks < 1, size if of_bytes == 1 else np.sqrt(size), of_steps[exponent])
        for ticks, of_bytes, exponent in EXPONENTS
    ]


def trials(runs: EvictionRuns, budget: int, best: BestOrder) -> Iterator[tuple[int, Weights, int]]:
    """Offer the orders of all weights within the budget; yields (ticks, weights, limit of the run) of each.

    A run gets what the one before has left of the budget.
    """
    for weights in weights_of(runs.problem, np.asarray(runs.columns.base)):
        room = budget
        for _ in range(FILLS):
            if _is_over(runs):
                return
            if (order := runs.run(room, weights)) is None:
                break
            found = runs.evaluated(order)
            score = best.offer(runs.trimmed(found, budget))
            if not score.bytes_over_budget:
                yield score.cost, weights, room
            if not LEFT * budget < budget - found.peak:
                break
            room += budget - found.peak


def _lower(runs: EvictionRuns, best: BestOrder) -> None:
    """Offer orders within lower and lower limits; each weights begin at the lowest peak of those before."""
    for weights in weights_of(runs.problem, np.asarray(runs.columns.base)):
        low, high = largest_task.bound(runs.problem).bytes, best.score.peak_bytes
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
    return runs.looked > MAX_RUNS_LOOKED * runs.most_looked or runs.monitor.should_stop()
