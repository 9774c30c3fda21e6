"""Local search over orders with copies: slide, insert and remove copies and recomputations, trade one for the other.

Moves, one or some at once, are accepted if neither the bytes over the budget nor, within it, the makespan rises. Over
the budget any makespan is accepted: it may take a copy and a recomputation together to get there. After MAX_WANDER
such moves without fewer bytes the search returns to its best order, since orders grow on such walks. So it does with
collectives beside compute, where some slower orders are accepted. It ends where the makespan is the bound: the time of
one run of each task, or that of `bounds/makespan.py`. All instances of a buffer hold the same content, so a move may
bind a read to another instance; only a read before the first write is illegal. Optional tasks are added and removed
where `TaskPlaces` allows it, and with collectives beside compute all tasks slide there. One iteration is one set of
moves; the same seed gives the same moves.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from planner.algorithms.offload.placing import Gap, gaps
from planner.algorithms.offload.task_places import TaskPlaces
from planner.bounds import makespan
from planner.errors import IllegalPlan
from planner.problem import schedule
from planner.problem.columns import COMMUNICATION
from planner.problem.copies import CopyProblem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import can_recompute

#: Farthest slide of a copy, steps, as a power of two.
MAX_SLIDE_POWER = 6
#: Slides of runs among the moves, with collectives beside compute.
SLIDES = 4
#: Probability of one move more at once.
AGAIN = 0.3
#: Probability that a run that slides is one of a collective.
COLLECTIVE = 0.5
#: Probability of accepting a slower order, with collectives beside compute.
SLOWER = 0.1
#: Probability of recomputing what a recomputation between copies reads, too.
LONGER = 0.5
#: Accepted moves in a row that lower no bytes over the budget, after which the search returns to its best order.
MAX_WANDER = 50
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
        size = copies.original.size[copies.buffer].tolist()
        self.number_of = {t: i for i, t in enumerate(self.producer) if size[i]}  # a task's last copied output
        self.number_of_buffer = {b: i for i, b in enumerate(copies.buffer.tolist()) if size[i]}
        self.places = TaskPlaces(copies.original, goal)
        self.producer_of, self.reads = copies.original.producer().tolist(), copies.original.reads.lists()
        self.may_repeat = can_recompute(copies.original)
        self.later = copies.original.after_every.lists()
        self.gaps: list[Gap] = []
        self.uses: list[Gap] = []  # gaps, and pairs of uses without a step between them
        self.accepted = GAPS_EVERY

    def run(self, monitor: Monitor) -> Order:
        moves: tuple[Callable[[Order], Order | None], ...] = (
            self._slide,
            self._slide,
            self._insert_pair,
            self._insert_pair_and_recomputations,
            self._remove_pair,
            self._fetch_instead,
            self._recompute_instead,
            self._insert_recomputation,
            self._remove_recomputation,
            *((self._insert_recomputation_from_host,) if self.count else ()),
            *((self._insert_optional, self._remove_optional, self._other_writer) if self.places.optional else ()),
            *((self._slide_run,) * SLIDES if self.copies.overlaps else ()),
        )
        best = now = schedule.score(self.copies.problem, self.goal, self.order)[:2]
        result, wander, least = self.order, 0, (0, makespan.bound_with_copies(self.copies))
        has_moves = self.count or self.places.optional or self.copies.overlaps
        while has_moves and best > least and not monitor.should_stop():
            if self.accepted >= GAPS_EVERY:
                self.uses, self.accepted = gaps(self.copies, self.order, least_steps=0), 0
                self.gaps = [gap for gap in self.uses if gap.before > gap.after + 1]
            found = self.random.choice(moves)(self.order)
            while found is not None and self.random.random() < AGAIN:
                found = self.random.choice(moves)(found)
            if found is None:
                continue
            found = self._without_unread_offloads(found)
            try:
                score = schedule.score(self.copies.problem, self.goal, found)[:2]
            except IllegalPlan:
                continue
            if score <= now or score[0] == now[0] > 0 or self._accepts_slower(score):
                self.order, now = found, score
                self.accepted += 1
                wander = wander + 1 if now[0] or self.copies.overlaps else 0
            if score <= best:
                wander = wander if score[0] == best[0] else 0
                result, best = found, score
            elif wander >= MAX_WANDER:
                self.order, now, wander, self.accepted = result, best, 0, GAPS_EVERY
        return result

    def _accepts_slower(self, score: tuple[int, int]) -> bool:
        """Whether an order within the budget is accepted whatever its makespan: runs may have to slide together."""
        return self.copies.overlaps and not score[0] and self.random.random() < SLOWER

    def _without_unread_offloads(self, order: Order) -> Order:
        """The order without offloads that no fetch reads."""
        fetched, gone = set[int](), []
        for step in np.flatnonzero(order >= self.tasks)[::-1].tolist():
            number = int(order[step]) - self.tasks
            if number >= self.count:
                fetched.add(number - self.count)
            elif number in fetched:
                fetched.remove(number)
            else:
                gone.append(step)
        return np.delete(order, gone) if gone else order

    def _slide(self, order: Order) -> Order | None:
        """A copy some steps earlier or later."""
        step = self._one(order >= self.tasks)
        if step is None:
            return None
        rest = np.delete(order, step)
        return np.insert(rest, self._near(step, len(rest)), order[step])

    def _slide_run(self, order: Order) -> Order | None:
        """A run of a collective, or of any task, some steps earlier or later."""
        of_tasks = order < self.tasks
        if self.random.random() < COLLECTIVE:
            of_tasks &= self.copies.problem.engine[order] == COMMUNICATION
        step = self._one(of_tasks)
        if step is None:
            return None
        task, rest = int(order[step]), np.delete(order, step)
        place = self._near(step, len(rest))
        if (order[:step] == task).any():
            may = self.places.may_repeat(rest, task, place)
        else:
            may = not (rest[:place] == task).any() and self.places.may_begin(rest, task, place)
        return np.insert(rest, place, task) if may else None

    def _near(self, step: int, last: int) -> int:
        """A place some steps earlier or later, from 0 to `last`."""
        distance = self.random.choice((-1, 1)) * self.random.randint(1, 1 << self.random.randint(0, MAX_SLIDE_POWER))
        return min(max(step + distance, 0), last)

    def _insert_pair(self, order: Order) -> Order | None:
        """Copies of a buffer in one of its gaps."""
        if not self.gaps:
            return None
        steps = self._steps_in(self.random.choice(self.gaps), len(order))
        return None if steps is None else self._with_pair(order, *steps)

    def _insert_pair_and_recomputations(self, order: Order) -> Order | None:
        """Copies of a buffer between two uses, and between them a task that ran before, with what it reads.

        Neither may be of use alone: the bytes that the copy frees are those that the recomputation needs.
        """
        if not self.uses:
            return None
        steps = self._steps_in(self.random.choice(self.uses), len(order))
        if steps is None or not steps[1]:
            return None
        number, out, back = steps
        task = int(order[self.random.randrange(out)])
        if task >= self.tasks or not self.may_repeat[task]:
            return None
        chain = [task]
        while self.random.random() < LONGER:
            read = {self.producer_of[b] for t in chain for b in self.reads[t]}
            more = {t for t in read if t >= 0 and self.may_repeat[t]}.difference(chain)
            if not more:
                break
            chain = [*sorted(more), *chain]
        place = self.random.randint(out, back)
        if any(np.isin(order[:place], self.later[t]).any() for t in chain):
            return None
        return self._with_pair(np.insert(order, place, chain), number, out, back + len(chain))

    def _steps_in(self, gap: Gap, length: int) -> tuple[int, int, int] | None:
        """(number of the buffer, step of its offload, step of its fetch) at random in a gap; None if they cross."""
        first = min(gap.after + 1, length)
        last = min(max(first, gap.before), length)
        room = last - first
        out = first + self.random.randint(0, min(room, 1 << self.random.randint(0, MAX_SLIDE_POWER)))
        back = last - self.random.randint(0, min(room, 1 << self.random.randint(0, MAX_SLIDE_POWER)))
        return None if back < out else (gap.number, out, back)

    def _with_pair(self, order: Order, number: int, out: int, back: int) -> Order:
        return np.insert(order, [out, back], [self.tasks + number, self.tasks + self.count + number])

    def _remove_pair(self, order: Order) -> Order | None:
        """The order without one fetch, and without its offload if no other fetch needs it."""
        step = self._one(order >= self.tasks + self.count)
        return None if step is None else self._without_fetch(order, step)

    def _without_fetch(self, order: Order, step: int) -> Order:
        fetch = order[step]
        gone = [step]
        if np.count_nonzero(order == fetch) == 1:
            gone += np.flatnonzero(order == fetch - self.count).tolist()
        return np.delete(order, gone)

    def _fetch_instead(self, order: Order) -> Order | None:
        """A fetch in the place of a recomputation, with an offload after an earlier run if there is none yet."""
        step = self._one(self._is_repeat(order))
        if step is None or (number := self.number_of.get(int(order[step]))) is None:
            return None
        found = order.copy()
        found[step] = self.tasks + self.count + number
        before = np.flatnonzero(order[:step] == order[step])
        if (order[:step] == self.tasks + number).any():
            return found
        distance = self.random.randint(1, 1 << self.random.randint(0, MAX_SLIDE_POWER))
        return np.insert(found, min(int(before[0]) + distance, step), self.tasks + number)

    def _recompute_instead(self, order: Order) -> Order | None:
        """A recomputation in the place of a fetch."""
        step = self._one(order >= self.tasks + self.count)
        if step is None:
            return None
        task = self.producer[int(order[step]) - self.tasks - self.count]
        if not self.may_repeat[task] or np.isin(order[:step], self.later[task]).any():
            return None
        found = order.copy()
        found[step] = task
        if np.count_nonzero(order == order[step]) == 1:
            found = found[found != order[step] - self.count]
        return found

    def _insert_recomputation(self, order: Order) -> Order | None:
        """One more run of a task, after its first."""
        step = self.random.randrange(len(order))
        task = int(order[step])
        if task >= self.tasks or not self.may_repeat[task]:
            return None
        place = self.random.randint(step + 1, len(order))
        if np.isin(order[:place], self.later[task]).any():
            return None
        return np.insert(order, place, task)

    def _insert_recomputation_from_host(self, order: Order) -> Order | None:
        """One more run of a task, after a fetch of a buffer that it reads, with an offload if there is none yet.

        Neither may be of use alone: the copies need a later use, which would hold the buffer on the device until then.
        """
        step = self.random.randrange(len(order))
        task = int(order[step])
        if task >= self.tasks or not self.may_repeat[task]:
            return None
        numbers = [self.number_of_buffer[b] for b in self.reads[task] if b in self.number_of_buffer]
        place = self.random.randint(step + 1, len(order))
        if not numbers or np.isin(order[:place], self.later[task]).any():
            return None
        number = self.random.choice(numbers)
        written = np.flatnonzero(order[:step] == self.producer[number])
        if not len(written):
            return None
        found = np.insert(order, place, [self.tasks + self.count + number, task])
        if (order[:place] == self.tasks + number).any():
            return found
        return np.insert(found, self.random.randint(int(written[0]) + 1, step + 1), self.tasks + number)

    def _remove_recomputation(self, order: Order) -> Order | None:
        step = self._one(self._is_repeat(order))
        return None if step is None else np.delete(order, step)

    def _insert_optional(self, order: Order) -> Order | None:
        """An optional task that the order lacks."""
        absent = [t for t in self.places.optional if not (order == t).any()]
        if not absent:
            return None
        task, place = self.random.choice(absent), self.random.randint(0, len(order))
        return np.insert(order, place, task) if self.places.may_begin(order, task, place) else None

    def _remove_optional(self, order: Order) -> Order | None:
        """The order without an optional task."""
        step = self._one(np.isin(order, self.places.optional))
        if step is None or not self.places.may_leave(order, int(order[step])):
            return None
        return np.delete(order, np.flatnonzero(order == order[step]))

    def _other_writer(self, order: Order) -> Order | None:
        """Another task that writes the same buffer, in the place of a recomputation or of an optional task's only run.

        Without one of them some read may have no earlier write, and both together take longer than either.
        """
        step = self._one(self._is_repeat(order) | np.isin(order, self.places.optional))
        if step is None:
            return None
        task, rest = int(order[step]), np.delete(order, step)
        others = self.places.other_writers(task)
        is_only = not (rest == task).any()
        if not others or not (self.places.may_leave(order, task) if is_only else (order[:step] == task).any()):
            return None
        other = self.random.choice(others)
        if (order[:step] == other).any():
            may = self.may_repeat[other] and not np.isin(order[:step], self.later[other]).any()
        else:
            may = not (order == other).any() and self.places.may_begin(rest, other, step)
        return np.insert(rest, step, other) if may else None

    def _is_repeat(self, order: Order) -> np.ndarray:
        """bool[steps]: runs of tasks of the original problem that are not the first."""
        _, first = np.unique(order, return_index=True)
        repeat = order < self.tasks
        repeat[first] = False
        return repeat

    def _one(self, where: np.ndarray) -> int | None:
        """One of the steps at random."""
        steps = np.flatnonzero(where)
        return int(steps[self.random.randrange(len(steps))]) if len(steps) else None
