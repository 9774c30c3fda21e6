"""Local search over orders with copies: move, insert and remove copies, and trade them for recomputations.

A move is accepted if neither the bytes over the budget nor, for equal bytes, the makespan rises. All instances of a
buffer hold the same content, so a move may bind a read to another instance; only a read before the first write is
illegal. One iteration is one move; the same seed gives the same moves.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from planner.algorithms.offload.placing import Gap, gaps
from planner.errors import IllegalPlan
from planner.problem import schedule
from planner.problem.copies import CopyProblem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import can_recompute

#: Farthest slide of a copy, steps, as a power of two.
MAX_SLIDE_POWER = 6
#: Accepted moves after which the gaps of the order are listed anew.
GAPS_EVERY = 10


def improved(copies: CopyProblem, goal: Goal, order: Order, monitor: Monitor) -> Order:
    """The best order that the moves find from `order`, until the monitor stops."""
    return _Moves(copies, goal, order).run(monitor)


class _Moves:
    def __init__(self, copies: CopyProblem, goal: Goal, order: Order):
        self.copies, self.goal, self.order = copies, goal, order
        self.random = random.Random(goal.seed)
        self.tasks, self.count = copies.original.tasks, len(copies.buffer)
        self.producer = copies.original.producer()[copies.buffer].tolist()
        self.number_of = dict(zip(self.producer, range(self.count), strict=True))  # a task's last copied output
        self.may_repeat = can_recompute(copies.original)
        self.later = copies.original.after_every.lists()
        self.gaps: list[Gap] = []
        self.accepted = GAPS_EVERY

    def run(self, monitor: Monitor) -> Order:
        moves: tuple[Callable[[], Order | None], ...] = (
            self._slide,
            self._slide,
            self._insert_pair,
            self._remove_pair,
            self._fetch_instead,
            self._recompute_instead,
            self._remove_recomputation,
        )
        best = schedule.score(self.copies.problem, self.goal, self.order)[:2]
        while self.count and not monitor.should_stop():
            if self.accepted >= GAPS_EVERY:
                self.gaps, self.accepted = gaps(self.copies, self.order), 0
            found = self.random.choice(moves)()
            if found is None:
                continue
            try:
                score = schedule.score(self.copies.problem, self.goal, found)[:2]
            except IllegalPlan:
                continue
            if score <= best:
                self.order, best = found, score
                self.accepted += 1
        return self.order

    def _slide(self) -> Order | None:
        """A copy some steps earlier or later."""
        step = self._one(self.order >= self.tasks)
        if step is None:
            return None
        distance = self.random.choice((-1, 1)) * self.random.randint(1, 1 << self.random.randint(0, MAX_SLIDE_POWER))
        rest = np.delete(self.order, step)
        return np.insert(rest, min(max(step + distance, 0), len(rest)), self.order[step])

    def _insert_pair(self) -> Order | None:
        """Copies of a buffer in one of its gaps."""
        if not self.gaps:
            return None
        gap = self.random.choice(self.gaps)
        first = min(gap.after + 1, len(self.order))
        last = min(max(first, gap.before), len(self.order))
        room = last - first
        out = first + self.random.randint(0, min(room, 1 << self.random.randint(0, MAX_SLIDE_POWER)))
        back = last - self.random.randint(0, min(room, 1 << self.random.randint(0, MAX_SLIDE_POWER)))
        if back < out:
            return None
        return np.insert(self.order, [out, back], [self.tasks + gap.number, self.tasks + self.count + gap.number])

    def _remove_pair(self) -> Order | None:
        """The order without one fetch, and without its offload if no other fetch needs it."""
        step = self._one(self.order >= self.tasks + self.count)
        return None if step is None else self._without_fetch(step)

    def _without_fetch(self, step: int) -> Order:
        fetch = self.order[step]
        gone = [step]
        if np.count_nonzero(self.order == fetch) == 1:
            gone += np.flatnonzero(self.order == fetch - self.count).tolist()
        return np.delete(self.order, gone)

    def _fetch_instead(self) -> Order | None:
        """A fetch in the place of a recomputation, with an offload after an earlier run if there is none yet."""
        step = self._one(self._is_repeat())
        if step is None or (number := self.number_of.get(int(self.order[step]))) is None:
            return None
        found = self.order.copy()
        found[step] = self.tasks + self.count + number
        before = np.flatnonzero(self.order[:step] == self.order[step])
        if (self.order[:step] == self.tasks + number).any():
            return found
        distance = self.random.randint(1, 1 << self.random.randint(0, MAX_SLIDE_POWER))
        return np.insert(found, min(int(before[0]) + distance, step), self.tasks + number)

    def _recompute_instead(self) -> Order | None:
        """A recomputation in the place of a fetch."""
        step = self._one(self.order >= self.tasks + self.count)
        if step is None:
            return None
        task = self.producer[int(self.order[step]) - self.tasks - self.count]
        if not self.may_repeat[task] or np.isin(self.order[:step], self.later[task]).any():
            return None
        found = self.order.copy()
        found[step] = task
        if np.count_nonzero(self.order == self.order[step]) == 1:
            found = found[found != self.order[step] - self.count]
        return found

    def _remove_recomputation(self) -> Order | None:
        step = self._one(self._is_repeat())
        return None if step is None else np.delete(self.order, step)

    def _is_repeat(self) -> np.ndarray:
        """bool[steps]: runs of tasks of the original problem that are not the first."""
        _, first = np.unique(self.order, return_index=True)
        repeat = self.order < self.tasks
        repeat[first] = False
        return repeat

    def _one(self, where: np.ndarray) -> int | None:
        """One of the steps at random."""
        steps = np.flatnonzero(where)
        return int(steps[self.random.randrange(len(steps))]) if len(steps) else None
