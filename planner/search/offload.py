"""Engines side by side: the least makespan within the budget that the searches below find.

Keep, recompute or copy to the host:

budget ──▶ looser budgets ──▶ order of each ──▶ copies beside it ──▶ best ──▶ moves
                              greedy            placing.py                    moves.py
seed   ──▶ fewer recomputations ────────────────▶

A looser budget takes less recomputation and leaves more bytes to copies. Beyond the bytes that the link can move in the
time of the step, copies are waited for. The best of the budgets is therefore where both meet: it is searched on a
ladder, then halfway to its neighbours, and there with the whole portfolio. An order for a looser budget may need too
many bytes at one step where no copy helps; a seed within the budget does not, and loses recomputations instead.

Collectives beside compute: each of these orders is also list-scheduled (`overlapping.py`) before copies are placed.
Without copies, the ladder is one of tighter budgets, since collectives that start early hold more bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from planner.algorithms.offload.moves import improved
from planner.algorithms.offload.overlapping import WINDOWS, ListScheduler
from planner.algorithms.offload.placing import with_copies_placed
from planner.problem import liveness, schedule
from planner.problem.copies import CopyProblem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order, Score
from planner.problem.recompute import base_order
from planner.search import portfolio
from planner.search.scores import judge_of

#: Budgets of the ladder, and rounds halfway to the neighbours of the best one; rounds for fewer recomputations too.
LADDER, HALVINGS = 8, 3
#: Orders with fewer recomputations, per seed.
THINNINGS = 8
#: Share of a search for finding orders to place copies beside; the rest is for copies.
PREPARE_SHARE = 0.5
#: Share of the preparation's time that is left for fewer recomputations, of each seed. Iterations are not divided, as
#: there are few of such orders.
THIN_SHARE = 0.2
#: Share of the preparation for the ladder; the rest is for the portfolio at the best budget.
LADDER_SHARE = 0.6
#: Share of a search within a tighter budget for placing copies beside the known orders; the rest is for moves.
PLACING_SHARE = 0.4
#: Budgets of the ladder without copies, as parts of the budget.
TIGHTER = (0.97, 0.93, 0.87, 0.8)
#: Planner of the ladder.
QUICK = "greedy"


class CopySearch:
    """A search for orders with copies; each `within` begins with all that the ones before have found."""

    def __init__(self, copies: CopyProblem, goal: Goal):
        """`goal` has the largest budget of interest."""
        assert goal.budget_bytes
        self.copies, self.goal, self.budget = copies, goal, goal.budget_bytes
        self.found: dict[bytes, tuple[Score, Order]] = {}  # orders with copies, and their scores within the goal
        self.plain: list[tuple[Score, Order]] = []  # orders without copies, and the scores with copies beside them
        self.rounds = 0
        self.monitor = Monitor(lambda order: schedule.score(copies.problem, goal, order))

    def prepare(self, seeds: Sequence[Order], monitor: Monitor) -> None:
        """Find orders without copies to place copies beside; `seeds` are such orders."""
        self.monitor = monitor
        base = base_order(self.copies.original, self.goal.strict_phases)
        for order in (base, *seeds):
            self._offer(order)
            if len(self.copies.buffer):
                self._thin(order)
            else:
                self._beside(order)
        peak = liveness.peak(self.copies.original, base)
        if not len(self.copies.buffer):
            for left, part in zip(range(len(TIGHTER), 0, -1), TIGHTER, strict=True):
                if not monitor.should_stop():
                    self._try(int(part * self.budget), QUICK, monitor, 1 / (left + 1))
        elif peak > self.budget:
            best = self._ladder(peak)
            if self.best < self.best_without_copies:
                self._try(best, "auto", monitor, 1.0)

    @property
    def best(self) -> Score:
        """The best score of the known orders within the goal."""
        return min(score for score, _ in self.found.values())

    @property
    def best_without_copies(self) -> Score:
        """The same of those without copies."""
        return min(s for s, order in self.found.values() if order.max(initial=0) < self.copies.original.tasks)

    def within(self, budget_bytes: int, monitor: Monitor) -> Order:
        """The best order found within the budget, or that exceeds it least; moves take the time of the monitor."""
        goal = replace(self.goal, budget_bytes=budget_bytes)
        if budget_bytes != self.budget:
            part = monitor.child(monitor.judge, PLACING_SHARE)
            for _, order in sorted(self.plain, key=lambda each: each[0]):
                if part.should_stop():
                    break
                self._offer(self._with_copies(order, budget_bytes))
            monitor.absorb(part)
        begin = min(
            (order for _, order in self.found.values()), key=lambda o: schedule.score(self.copies.problem, goal, o)
        )
        part, self.rounds = monitor.child(monitor.judge), self.rounds + 1
        order = improved(self.copies, replace(goal, seed=goal.seed + self.rounds), begin, part)
        monitor.absorb(part)
        self._offer(order)
        return order

    def _offer(self, order: Order) -> Score:
        score = schedule.score(self.copies.problem, self.goal, order)
        self.found[order.tobytes()] = score, order
        return score

    def _beside(self, order: Order) -> Score:
        """Score of an order in line, with collectives and copies placed beside it."""
        best = self._offer(self._with_copies(order, self.budget)), order
        for scheduled in self._overlapped(order):
            best = min(
                best, (self._offer(self._with_copies(scheduled, self.budget)), scheduled), key=lambda each: each[0]
            )
        self.plain.append(best)
        return best[0]

    def _overlapped(self, order: Order) -> Iterator[Order]:
        """List schedules of an order, if collectives run beside compute."""
        if not self.copies.overlaps:
            return
        scheduler = ListScheduler(self.copies.original, self.goal, order)
        for hoist, ahead, share in WINDOWS:
            found = scheduler.run(hoist, ahead, share * self.budget, self.monitor.should_stop)
            if found is None:
                return
            yield found

    def _with_copies(self, order: Order, budget_bytes: int) -> Order:
        if not len(self.copies.buffer):
            return order
        return with_copies_placed(
            self.copies, order, budget_bytes, self.goal.host_bytes, lambda: self.monitor.cancelled
        )

    def _thin(self, order: Order) -> None:
        """Offer the order with copies instead of its costliest recomputations, from none to all of them."""
        _, first = np.unique(order, return_index=True)
        repeats = np.delete(np.arange(len(order)), first)
        costliest = repeats[np.argsort(-self.copies.original.cost[order[repeats]], kind="stable")]
        tried: dict[int, Score] = {}
        part = self.monitor.child(self.monitor.judge)
        part.seconds *= THIN_SHARE

        def attempt(count: int) -> None:
            if not part.should_stop():
                tried[count] = self._beside(np.delete(order, costliest[:count]))

        for count in np.unique(np.linspace(0, len(repeats), THINNINGS + 1).astype(int)).tolist():
            attempt(count)
        for _ in range(HALVINGS):
            for middle in _beside_best(tried):
                attempt(middle)
        self.monitor.calls += part.calls  # the end of its share is not that of the search

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
        part = monitor.child(judge_of(problem, looser), share)
        found = portfolio.search(problem, looser, planner, part)
        monitor.absorb(part)
        return self._beside(found.order)


def _beside_best(tried: Mapping[int, Score]) -> list[int]:
    """Untried numbers halfway between the one with the best score and its neighbours, ascending."""
    if not tried:
        return []
    known = sorted(tried)
    at = known.index(min(tried, key=lambda number: (tried[number], number)))
    near = known[max(0, at - 1) : at + 2]
    return [middle for middle in ((a + b) // 2 for a, b in pairwise(near)) if middle not in tried]
