"""Keep, recompute or copy to the host: the least makespan within the budget that the searches below find.

budget ──▶ looser budgets ──▶ order of each ──▶ copies beside it ──▶ best ──▶ moves
                              greedy            placing.py                    moves.py
seed   ──▶ fewer recomputations ────────────────▶

A looser budget takes less recomputation and leaves more bytes to copies. Beyond the bytes that the link can move in the
time of the step, copies are waited for. The best of the budgets is therefore where both meet: it is searched on a
ladder, then halfway to its neighbours, and there with the whole portfolio. An order for a looser budget may need too
many bytes at one step where no copy helps; a seed within the budget does not, and loses recomputations instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from planner.algorithms.offload.moves import improved
from planner.algorithms.offload.placing import with_copies_placed
from planner.problem import liveness, schedule
from planner.problem.copies import CopyProblem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order, Score
from planner.problem.recompute import base_order
from planner.search import portfolio

#: Budgets of the ladder, and rounds halfway to the neighbours of the best one; rounds for fewer recomputations too.
LADDER, HALVINGS = 8, 3
#: Orders with fewer recomputations, per seed.
THINNINGS = 8
#: Shares of the search: the ladder, and the portfolio at the best budget; the rest is for moves.
LADDER_SHARE, PORTFOLIO_SHARE = 0.4, 0.3
#: Planner of the ladder.
QUICK = "greedy"


def search(copies: CopyProblem, goal: Goal, seeds: Sequence[Order], monitor: Monitor) -> Order:
    """The best order with copies by `schedule.score`; no worse than any of the seeds, orders without copies."""
    return _Search(copies, goal, monitor).run(seeds)


class _Search:
    def __init__(self, copies: CopyProblem, goal: Goal, monitor: Monitor):
        assert goal.budget_bytes
        self.copies, self.goal, self.monitor, self.budget = copies, goal, monitor, goal.budget_bytes
        self.best: tuple[Score, Order] | None = None

    def run(self, seeds: Sequence[Order]) -> Order:
        base = base_order(self.copies.original, self.goal.strict_phases)
        for order in (base, *seeds):
            self._offer(order)
            self._thin(order)
        peak = liveness.peak(self.copies.original, base)
        if peak > self.budget:
            self._improve(self._ladder(peak), seeds)
        assert self.best is not None
        return self.best[1]

    def _offer(self, order: Order) -> Score:
        score = schedule.score(self.copies.problem, self.goal, order)
        if self.best is None or score < self.best[0]:
            self.best = score, order
        return score

    def _with_copies(self, order: Order) -> Order:
        return with_copies_placed(self.copies, order, self.budget, self.goal.host_bytes, lambda: self.monitor.cancelled)

    def _thin(self, order: Order) -> None:
        """Offer the order with copies instead of its costliest recomputations, from none to all of them."""
        _, first = np.unique(order, return_index=True)
        repeats = np.delete(np.arange(len(order)), first)
        costliest = repeats[np.argsort(-self.copies.original.cost[order[repeats]], kind="stable")]
        tried: dict[int, Score] = {}

        def attempt(count: int) -> None:
            if not self.monitor.should_stop():
                tried[count] = self._offer(self._with_copies(np.delete(order, costliest[:count])))

        for count in np.unique(np.linspace(0, len(repeats), THINNINGS + 1).astype(int)).tolist():
            attempt(count)
        for _ in range(HALVINGS):
            for middle in _beside_best(tried):
                attempt(middle)

    def _ladder(self, peak: int) -> int:
        """The budget without copies that leads to the best order with copies, of those tried."""
        part = self.monitor.child(self.monitor.judge, LADDER_SHARE)
        tried = {self.budget: self._try(self.budget, QUICK, part, 1 / LADDER), peak: self._try(peak, QUICK, part, 0.0)}
        rungs = [int(budget) for budget in np.linspace(self.budget, peak, LADDER + 2)[1:-1]]
        for left, budget in zip(range(LADDER, 0, -1), rungs, strict=True):
            tried[budget] = self._try(budget, QUICK, part, 1 / (left + 2 * HALVINGS))
        for left in range(HALVINGS, 0, -1):
            for middle in _beside_best(tried):
                if not part.should_stop():
                    tried[middle] = self._try(middle, QUICK, part, 1 / (2 * left))
        self.monitor.absorb(part)
        return min(tried, key=lambda budget: (tried[budget], budget))

    def _try(self, budget: int, planner: str, monitor: Monitor, share: float) -> Score:
        """Score with copies of the order that a planner finds within a looser budget; it is offered."""
        looser, problem = replace(self.goal, budget_bytes=budget), self.copies.original
        part = monitor.child(lambda order: portfolio.goal_score(problem, looser, order), share)
        found = portfolio.search(problem, looser, planner, part)
        monitor.absorb(part)
        return self._offer(self._with_copies(found.order))

    def _improve(self, budget: int, seeds: Sequence[Order]) -> None:
        share = PORTFOLIO_SHARE / (1 - LADDER_SHARE)
        self._try(budget, "auto", self.monitor, share)
        assert self.best is not None
        part = self.monitor.child(self.monitor.judge)
        self._offer(improved(self.copies, self.goal, self.best[1], part))
        self.monitor.absorb(part)


def _beside_best(tried: Mapping[int, Score]) -> list[int]:
    """Untried numbers halfway between the one with the best score and its neighbours, ascending."""
    if not tried:
        return []
    known = sorted(tried)
    at = known.index(min(tried, key=lambda number: (tried[number], number)))
    near = known[max(0, at - 1) : at + 2]
    return [middle for middle in ((a + b) // 2 for a, b in pairwise(near)) if middle not in tried]
