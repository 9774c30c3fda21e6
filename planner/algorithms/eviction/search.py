"""Search of the weights of buffers in eviction: each choice gives an order within the budget, moves change some.

    weights ── run within the budget, trimmed ──▶ ticks ── no more than before? kept ──▶ some weights changed ...

A decoder of numbers that every move may change, as in random-key search (Bean, "Genetic algorithms and random keys for
sequencing and optimization", ORSA Journal on Computing 6, 1994). It finds plans where budgets are near the lowest peak
that can be reached: there most moves of a single recomputation do not fit, while every run does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from planner.algorithms.eviction.planner import trials
from planner.algorithms.eviction.runs import EvictionRuns, Weights
from planner.problem import Problem
from planner.problem.best_order import BestOrder
from planner.problem.monitor import Monitor, SearchCancelled
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order

#: Shares of the buffers whose weights a move changes, and the factors of one.
SHARES, FACTORS = (0.02, 0.05, 0.2), (0.25, 0.5, 0.7, 1.4, 2.0, 4.0)
#: A move changes the limit of the run in such a share of the cases, by up to so much of the budget.
ROOM_CHANCE, ROOM_CHANGE = 0.3, 0.005
#: The limit is at most so many times the budget; a run below the budget may have a higher limit, as it counts no
#: takeovers.
MAX_ROOM = 1.2
#: A run that takes more than so many times the ticks of the best one is not trimmed.
WORSE = 1.01


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The cheapest order found within the budget; the given order if no run fits it, or there is none."""
    base = base_order(problem, goal.strict_phases)
    best = BestOrder.offered(monitor, base)
    if goal.budget_bytes and best.score.bytes_over_budget:
        with suppress(SearchCancelled):
            _search(EvictionRuns(problem, base, monitor), goal, best)
    return best.order


def _search(runs: EvictionRuns, goal: Goal, best: BestOrder) -> None:
    """Offer the orders of changed weights until the search is over."""
    budget = goal.budget_bytes or 0
    begin = min(trials(runs, budget, best), key=lambda trial: trial[0], default=None)
    if begin is None:
        return
    least, weights, room = begin
    draw, buffers = random.Random(f"{goal.seed} evictions"), np.flatnonzero(np.asarray(runs.columns.evictable)).tolist()
    raw = None  # ticks before trimming
    while buffers and not runs.monitor.should_stop():
        tried, limit = _changed(draw, weights, buffers), room
        if draw.random() < ROOM_CHANCE:
            limit = min(int(MAX_ROOM * budget), room + int(draw.uniform(-ROOM_CHANGE, ROOM_CHANGE) * budget))
        order = runs.run(limit, tried)
        if order is None:
            continue
        ticks = int(runs.problem.cost[order].sum())
        if raw is not None and ticks > WORSE * raw:
            continue
        found = runs.evaluated(order)
        if found.peak > budget:
            continue
        score = best.offer(runs.trimmed(found, budget))
        if score.cost <= least:
            least, weights, room, raw = score.cost, tried, limit, ticks


def _changed(draw: random.Random, weights: Weights, buffers: Sequence[int]) -> Weights:
    """The weights with those of the bytes of some buffers changed."""
    of_bytes = weights.bytes.copy()
    for b in draw.sample(buffers, max(1, int(draw.choice(SHARES) * len(buffers)))):
        of_bytes[b] *= draw.choice(FACTORS)
    return weights._replace(bytes=of_bytes)
