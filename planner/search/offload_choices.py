"""Copies beside alternatives: a search with copies under each of a few choice vectors, the most promising first.

An alternative that stores less and takes longer competes with copies of what the faster one stores: the best vector
with copies is often between that of the plan without copies and the fastest one.

    vectors   plan without copies ── some groups of it at the fastest ── all groups at the fastest
    each      CopySearch.prepare ──▶ best score ──▶ order of the rest of the search; half of the time left for each

All vectors are searched if there are at most MAX_ALL.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.bounds import makespan
from planner.problem import schedule
from planner.problem.copies import CopyProblem
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Score
from planner.search.alternative_search import ChoiceVector
from planner.search.offload import PREPARE_SHARE, CopySearch

#: Vectors up to which all are searched; of more, the parts of the groups that are at the fastest alternative.
MAX_ALL, FASTEST_PARTS = 16, (0.0, 0.5, 1.0)
#: Planner of a plan with copies, as reported.
PLANNER = "offload"


def best_candidate(copies: CopyProblem, goal: Goal, seeds: Sequence[Candidate], monitor: Monitor) -> Candidate:
    """The best order with copies by `schedule.score`; no worse than any of the seeds, candidates without copies."""
    assert goal.budget_bytes
    search, part = CopyChoiceSearch(copies, goal, seeds), monitor.child(monitor.judge, PREPARE_SHARE)
    search.prepare(part)
    monitor.absorb(part)
    return search.within(goal.budget_bytes, monitor)


class CopyChoiceSearch:
    """`CopySearch` over choice vectors; without alternatives, one search under the empty vector."""

    def __init__(self, copies: CopyProblem, goal: Goal, seeds: Sequence[Candidate]):
        """`goal` has the largest budget of interest; `seeds` are candidates without copies."""
        self.copies, self.goal, self.seeds = copies, goal, seeds
        self.searches = {
            vector: CopySearch(copies.under(vector), goal) for vector in _vectors(copies, [s.choices for s in seeds])
        }

    def prepare(self, monitor: Monitor) -> None:
        """Find orders without copies to place copies beside, in equal shares for all vectors.

        A seed serves its own vector: another one may read what the order has not written.
        """
        first: ChoiceVector = (0,) * len(self.copies.original.choices)
        for left, (vector, search) in zip(range(len(self.searches), 0, -1), self.searches.items(), strict=False):
            part = monitor.child(monitor.judge, 1 / left)
            search.prepare([seed.order for seed in self.seeds if (seed.choices or first) == vector], part)
            monitor.absorb(part)

    @property
    def gains(self) -> bool:
        """Whether an order with copies is better than all known ones without."""
        plain = min(search.best_without_copies for search in self.searches.values())
        return min(search.best for search in self.searches.values()) < plain

    def within(self, budget_bytes: int, monitor: Monitor) -> Candidate:
        """The best candidate found within the budget, or that exceeds it least; moves take the time of the monitor."""
        best: tuple[Score, Candidate] | None = None
        promising = sorted(self.searches.items(), key=lambda item: (item[1].best, item[0]))
        for k, (vector, search) in enumerate(promising):
            least = makespan.bound_with_copies(search.copies)
            if best is not None and (monitor.should_stop() or best[0][:2] <= (0, least)):
                continue
            part = monitor.child(monitor.judge, 1.0 if k == len(promising) - 1 else 0.5)
            order = search.within(budget_bytes, part)
            monitor.absorb(part)
            score = schedule.score(search.copies.problem, replace(self.goal, budget_bytes=budget_bytes), order)
            if best is None or score < best[0]:
                best = score, Candidate(order, PLANNER, vector)
        assert best is not None  # there is at least one vector
        return best[1]


def _vectors(copies: CopyProblem, known: Sequence[ChoiceVector]) -> list[ChoiceVector]:
    """Vectors to search, without duplicates: all if there are few, else between the known ones and the fastest."""
    table = copies.original.choices
    counts = table.counts().tolist()
    if math.prod(counts) <= MAX_ALL:
        return list(itertools.product(*map(range, counts)))
    fastest = _fastest(copies)
    result = []
    for vector in [known_one or (0,) * len(counts) for known_one in known or [()]]:
        slower = [group for group, (own, best) in enumerate(zip(vector, fastest, strict=True)) if own != best]
        for part in FASTEST_PARTS:
            moved = {slower[int(k / part)] for k in range(int(part * len(slower)))} if part else set()
            result.append(tuple(fastest[group] if group in moved else own for group, own in enumerate(vector)))
    return list(dict.fromkeys(result))


def _fastest(copies: CopyProblem) -> ChoiceVector:
    """The vector under which one run of each task takes the least time; the lowest numbers of equals."""
    problem, table = copies.original, copies.original.choices
    extra = np.zeros(len(table.group), np.int64)
    np.add.at(extra, table.tasks.row_of_entry(), table.cost - problem.cost[table.tasks.index])
    groups = np.split(extra, np.cumsum(table.counts())[:-1])
    return tuple(int(np.argmin(ticks)) for ticks in groups)
