"""From a set of kept buffers to the order that recomputes all others just in time.

forward  a ── b ── c ── d            keep {a, d}
backward C reads c, B reads b        a b c d  D  b c C  B     b was recomputed for c and is still live for B
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planner.problem import liveness
from planner.problem.columns import FORWARD, TO_LAST_READ, Problem
from planner.problem.plan import Order

#: Steps of an order between two checks for cancellation while it is built: about 10 ms.
STEPS_BETWEEN_CHECKS = 4096


def base_order(problem: Problem, strict_phases: bool = True) -> Order:
    """All non-optional tasks once, in the order of the document; phase by phase if phases are strict."""
    order = np.flatnonzero(~problem.optional)
    if strict_phases:
        order = order[np.argsort(problem.phase[order], kind="stable")]
    return order


def can_recompute(problem: Problem) -> np.ndarray:
    """bool[n]: recomputation is allowed and reproduces the result (the task does not overwrite its inputs)."""
    task, read = problem.reads.row_of_entry(), problem.reads.index
    shared = problem.has_several_writers()
    own = problem.producer()[read] == task
    if shared.any():  # the slower test over all (task, written buffer) pairs is for buffers with several writers
        pair = problem.writes.row_of_entry() * problem.buffers + problem.writes.index
        own[shared[read]] = np.isin((task * problem.buffers + read)[shared[read]], pair)
    result = problem.repeatable()
    result[task[own]] = False
    return result


def first_run_step(problem: Problem, order: Order) -> np.ndarray:
    """int64[n]: the step of each task's first run in `order`; the number of steps if it never runs."""
    first = np.full(problem.tasks, len(order), np.int64)
    first[order[::-1]] = np.arange(len(order))[::-1]
    return first


def is_first_run(problem: Problem, order: Order) -> np.ndarray:
    """bool[steps]: whether the step is the first run of its task."""
    return np.asarray(first_run_step(problem, order)[order] == np.arange(len(order)))


def last_recompute_step(problem: Problem, order: Order) -> np.ndarray:
    """int64[n]: the step of `order` before which the last recomputation of each task must be, by `after_every`."""
    first = first_run_step(problem, order)
    latest = np.full(problem.tasks, len(order), np.int64)
    np.minimum.at(latest, problem.after_every.row_of_entry(), first[problem.after_every.index])
    return latest


def backward_start(problem: Problem, order: Order) -> int:
    """The step of `order` at which the backward pass begins.

    The first task of a later phase; without phases, the step after the peak.
    """
    later = np.flatnonzero(problem.phase[order] != FORWARD)
    if len(later):
        return int(later[0])
    return int(np.argmax(liveness.profile(problem, order))) + 1 if len(order) else 0


def order_keeping(
    problem: Problem, keep: np.ndarray, strict_phases: bool = True, check: Callable[[], None] = lambda: None
) -> Order:
    """The order that keeps the buffers `keep` and recomputes the other forward buffers in the backward pass.

    An evicted buffer is live up to its last read in the forward pass. It is recomputed once, right before the
    first backward task that reads it, after the evicted buffers it depends on. Buffers whose task may not be
    recomputed, or not that late, are kept as well. `check` is called on the way and may raise to cancel. O(n + reads).
    """
    order = base_order(problem, strict_phases)
    turn = backward_start(problem, order)
    evicted = droppable_before(problem, order, turn)
    evicted[keep] = False
    return order_evicting(problem, order, turn, evicted, check)


def droppable_before(problem: Problem, order: Order, turn: int) -> np.ndarray:
    """bool[m]: buffers held to their last read whose producer runs before step `turn` and can be recomputed."""
    early = np.zeros(problem.tasks + 1, bool)  # the last entry is for "no producer", number -1
    early[order[:turn]] = can_recompute(problem)[order[:turn]]
    return np.asarray(early[problem.producer()] & (problem.hold == TO_LAST_READ))


def order_evicting(
    problem: Problem, order: Order, turn: int, evicted: np.ndarray, check: Callable[[], None] = lambda: None
) -> Order:
    """The order with the buffers `evicted` (bool[m]) dropped at step `turn`, and recomputed where they are read.

    `check` is called every STEPS_BETWEEN_CHECKS steps and may raise to cancel.
    """
    check()
    builder = RecomputeBuilder(problem, order, turn)
    builder.evict(np.flatnonzero(evicted).tolist())
    for step, task in enumerate(order[turn:].tolist(), start=turn):
        if step % STEPS_BETWEEN_CHECKS == 0:
            check()
        builder.run(task, step)
    return np.array(builder.steps, np.int64)


class RecomputeBuilder:
    """Builds an order: the forward pass as given, then the backward pass with recomputations inserted on demand.

    `there[b]`: buffer b is available; if not, its task is run before the next read. `made`: buffers written
    since `turn`, in order.
    """

    def __init__(self, problem: Problem, order: Order, turn: int):
        self.steps: list[int] = order[:turn].tolist()
        self.there = [True] * problem.buffers
        self.made: list[int] = []
        self.reads, self._writes = problem.reads.lists(), problem.writes.lists()
        self._producer = problem.producer().tolist()
        self._latest = last_recompute_step(problem, order).tolist()

    def run(self, task: int, step: int) -> None:
        """Append the task at `step` of the base order, preceded by the recomputations it needs."""
        self.make(self.reads[task], step)
        self._add(task)

    def make(self, buffers: Sequence[int], step: int) -> None:
        """Append the recomputations that the buffers need, transitively; skip tasks that may not run after `step`."""
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
        """Mark the buffers as evicted: they are recomputed before their next read."""
        for b in buffers:
            self.there[b] = False

    def _add(self, task: int) -> None:
        self.steps.append(task)
        for b in self._writes[task]:
            self.there[b] = True
        self.made += self._writes[task]
