"""Search of weights in eviction: a run makes an order of the weights of all uses, and a move changes some of these.

    weights ── run, trimmed ──▶ ticks ── within the budget, no more than before? kept ──▶ some weights changed ...

A random-key search (Bean, "Genetic algorithms and random keys for sequencing and optimization", ORSA Journal on
Computing 6, 1994) with one solution. It finds plans where budgets are near the lowest peak that can be reached: most
moves of a single recomputation do not fit there, while most runs do.
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

#: Shares of the weights that a move changes, and the factors of one.
SHARES, FACTORS = (0.02, 0.05, 0.2), (0.25, 0.5, 0.7, 1.4, 2.0, 4.0)
#: In such a share of the cases a move changes the limit of the run, by up to so much of the budget. It may exceed the
#: budget: the peak is counted again without recomputations that nothing reads.
ROOM_CHANCE, ROOM_CHANGE = 0.3, 0.005
#: A run that takes more than so many times the ticks of the best one is not trimmed.
WORSE = 1.01


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The cheapest order found within the budget; the given order if no run fits it, or there is none."""
    base = base_order(problem, goal.strict_phases)
    best = BestOrder.offered(monitor, base)
    if goal.budget_bytes and best.score.bytes_over_budget:
        with suppress(SearchCancelled):
            _search(EvictionRuns(problem, base, monitor), goal.budget_bytes, goal.seed, best)
    return best.order


def _search(runs: EvictionRuns, budget: int, seed: int, best: BestOrder) -> None:
    """Offer the orders of changed weights until the search is over."""
    begin = min(trials(runs, budget, best), key=lambda trial: trial[0], default=None)
    uses = np.flatnonzero(np.asarray(runs.columns.evictable)[runs.buffer_of_use]).tolist()
    if begin is None or not uses:
        return
    least, weights, room = begin
    least_untrimmed, draw = None, random.Random(f"{seed} evictions")
    while not runs.monitor.should_stop():
        tried, limit = _changed(draw, weights, uses), room
        if draw.random() < ROOM_CHANCE:
            limit += int(draw.uniform(-ROOM_CHANGE, ROOM_CHANGE) * budget)
        if (order := runs.run(limit, tried)) is None:
            continue
        ticks = int(runs.problem.cost[order].sum())
        if least_untrimmed is not None and ticks > WORSE * least_untrimmed:
            continue
        found = runs.evaluated(order)
        if found.peak > budget:
            continue
        score = best.offer(runs.trimmed(found, budget))
        if score.cost <= least:
            least, weights, room, least_untrimmed = score.cost, tried, limit, ticks


def _changed(draw: random.Random, weights: Weights, uses: Sequence[int]) -> Weights:
    """The weights with those of some uses changed."""
    of_uses = weights.uses.copy()
    for use in draw.sample(uses, max(1, int(draw.choice(SHARES) * len(uses)))):
        of_uses[use] *= draw.choice(FACTORS)
    return weights._replace(uses=of_uses)
