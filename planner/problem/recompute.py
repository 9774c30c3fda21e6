"""From the buffers that stay to the order that runs everything else again, just in time.

forward  a ── b ── c ── d            keep {a, d}
backward C reads c, B reads b        a b c d  D  b c C  B     b is there for B since it was needed for c
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.problem import liveness
from planner.problem.columns import FORWARD, TO_LAST_READ, Problem
from planner.problem.plan import Order


def base_order(problem: Problem, strict_phases: bool = True) -> Order:
    """Every task that has to run, once, in the document's order; phase after phase when they are strict."""
    order = np.flatnonzero(~problem.optional)
    if strict_phases:
        order = order[np.argsort(problem.phase[order], kind="stable")]
    return order


def can_recompute(problem: Problem) -> np.ndarray:
    """bool[n]: a second run gives the same again: allowed, and the task does not overwrite what it reads."""
    task, read = problem.reads.row_of_entry(), problem.reads.index
    shared = np.bincount(problem.writes.index, minlength=problem.buffers) > 1
    own = problem.producer()[read] == task
    if shared.any():  # only where a buffer has several writers, all pairs of task and written buffer are looked through
        pair = problem.writes.row_of_entry() * problem.buffers + problem.writes.index
        own[shared[read]] = np.isin((task * problem.buffers + read)[shared[read]], pair)
    result = problem.repeatable()
    result[task[own]] = False
    return result


def first_run_step(problem: Problem, order: Order) -> np.ndarray:
    """int64[n]: the step of `order` that runs each task first; the number of steps when none does."""
    first = np.full(problem.tasks, len(order), np.int64)
    first[order[::-1]] = np.arange(len(order))[::-1]
    return first


def is_first_run(problem: Problem, order: Order) -> np.ndarray:
    """bool[steps]: no earlier step of `order` runs the same task."""
    return np.asarray(first_run_step(problem, order)[order] == np.arange(len(order)))


def last_recompute_step(problem: Problem, order: Order) -> np.ndarray:
    """int64[n]: the step of `order` before which each task may run again at the latest, by `after_every`."""
    first = first_run_step(problem, order)
    latest = np.full(problem.tasks, len(order), np.int64)
    np.minimum.at(latest, problem.after_every.row_of_entry(), first[problem.after_every.index])
    return latest


def backward_start(problem: Problem, order: Order) -> int:
    """The step of `order` at which the way back begins.

    That is the first task of a later phase; without phases, the step after the peak.
    """
    later = np.flatnonzero(problem.phase[order] != FORWARD)
    if len(later):
        return int(later[0])
    return int(np.argmax(liveness.profile(problem, order))) + 1 if len(order) else 0


def order_keeping(problem: Problem, keep: np.ndarray, strict_phases: bool = True) -> Order:
    """The order in which the buffers `keep` stay and what else the way out writes is run again on the way back.

    A dropped buffer lives to its last read on the way out. Its one copy is made right before the
    first task that needs it on the way back, with the copies it needs itself. What may not repeat,
    or not that late, stays as well. O(n + reads).
    """
    order = base_order(problem, strict_phases)
    turn = backward_start(problem, order)
    producer = problem.producer()
    early = np.zeros(problem.tasks + 1, bool)  # the last entry stands for "nobody", which is number -1
    early[order[:turn]] = can_recompute(problem)[order[:turn]]
    gone = early[producer] & (problem.hold == TO_LAST_READ)
    gone[keep] = False
    rerun = RecomputeBuilder(problem, order, turn)
    rerun.evict(np.flatnonzero(gone).tolist())
    for step, task in enumerate(order[turn:].tolist(), start=turn):
        rerun.run(task, step)
    return np.array(rerun.steps, np.int64)


class RecomputeBuilder:
    """A sequence under way: the way out as it is, then the way back with runs put in where they are needed.

    `there` says of each buffer whether its last copy is to be read, or another one made first.
    """

    def __init__(self, problem: Problem, order: Order, turn: int):
        self.steps: list[int] = order[:turn].tolist()
        self.there = [True] * problem.buffers
        self.made: list[int] = []  # buffers written behind the turning point, in order
        self.reads, self._writes = problem.reads.lists(), problem.writes.lists()
        self._producer = problem.producer().tolist()
        self._latest = last_recompute_step(problem, order).tolist()

    def run(self, task: int, step: int) -> None:
        """Add the task that stands at `step` of the base order, with the copies it needs in front."""
        self.make(self.reads[task], step)
        self._add(task)

    def make(self, buffers: Sequence[int], step: int) -> None:
        """Add the runs that make the buffers and what those need; what may not run behind `step` stays as it is."""
        there, latest, producer = self.there, self._latest, self._producer
        waiting = [producer[b] for b in buffers if not there[b]]
        while waiting:
            copy = waiting[-1]
            if latest[copy] < step or all(there[b] for b in self._writes[copy]):
                waiting.pop()
                continue
            first = [p for p in (producer[b] for b in self.reads[copy] if not there[b]) if latest[p] >= step]
            if first:
                waiting += first
            else:
                self._add(waiting.pop())

    def evict(self, buffers: Sequence[int]) -> None:
        """From here on the buffers are made again before they are read."""
        for b in buffers:
            self.there[b] = False

    def _add(self, task: int) -> None:
        self.steps.append(task)
        for b in self._writes[task]:
            self.there[b] = True
        self.made += self._writes[task]
