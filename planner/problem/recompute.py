"""From a set of kept buffers to the order that recomputes all others just in time.

forward  a ── b ── c ── d            keep {a, d}
backward C reads c, B reads b        a b c d  D  b c C  B     b was recomputed for c and is still live for B
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from planner.problem import liveness
from planner.problem.columns import FORWARD, TO_LAST_READ, Problem
from planner.problem.jit import Column, Kernels, Row
from planner.problem.plan import Order

#: Above so many tasks, compiled kernels that are on disk are worth loading.
MAX_INTERPRETED = 2000


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


def order_keeping_live(problem: Problem, order: Order, task: int, live: Sequence[int]) -> Order:
    """The order that recomputes, after the first run of `task`, all buffers but its inputs and the `live` ones."""
    turn = int(first_run_step(problem, order)[task])
    evicted = droppable_before(problem, order, turn)
    evicted[problem.reads[task]] = False
    evicted[list(live)] = False
    return order_evicting(problem, order, turn, evicted)


def droppable_before(problem: Problem, order: Order, turn: int) -> np.ndarray:
    """bool[m]: buffers held to their last read whose producer runs before step `turn` and can be recomputed."""
    early = np.zeros(problem.tasks + 1, bool)  # the last entry is for "no producer", number -1
    early[order[:turn]] = can_recompute(problem)[order[:turn]]
    return np.asarray(early[problem.producer()] & (problem.hold == TO_LAST_READ))


def order_evicting(
    problem: Problem, order: Order, turn: int, evicted: np.ndarray, check: Callable[[], None] = lambda: None
) -> Order:
    """The order with the buffers `evicted` (bool[m]) dropped at step `turn`, and recomputed where they are read.

    `check` is called before and after and may raise to cancel. Each task is recomputed once at most.
    """
    check()
    reads, writes = problem.reads, problem.writes
    is_fast = KERNELS.is_compiled() or (problem.tasks > MAX_INTERPRETED and KERNELS.is_on_disk())
    kernels = KERNELS.compiled() if is_fast else KERNELS.interpreted()

    def row(column: np.ndarray) -> Any:
        return np.ascontiguousarray(column) if is_fast else column.tolist()

    # Each expanded task leaves its reads on the stack, beside those of the task that waits for it.
    waiting = row(np.zeros(2 * len(reads.index) + 1, np.int64))
    steps = row(np.concatenate([order[:turn], np.zeros(len(order) - turn + problem.tasks, np.int64)]))
    count = kernels["append_with_recomputations"](
        row(np.asarray(order, np.int64)),
        turn,
        row((~evicted).astype(np.int64)),
        row(last_recompute_step(problem, order)),
        row(problem.producer()),
        row(reads.pointer),
        row(reads.index),
        row(writes.pointer),
        row(writes.index),
        waiting,
        steps,
    )
    check()
    return np.array(steps[:count], np.int64)


def append_with_recomputations(
    order: Row,
    turn: int,
    there: Row,
    latest: Row,
    producer: Row,
    read_pointer: Column,
    reads: Column,
    write_pointer: Column,
    writes: Column,
    waiting: Row,
    steps: Row,
) -> int:
    """Number of steps once those of `order` from `turn` on are in `steps`, after the recomputations they need.

    `there` (int64[m]) is 1 for buffers that need no recomputation before the next read, `latest` as of
    `last_recompute_step`; `waiting` is space for a stack of tasks. The steps are those of `RecomputeBuilder`.
    """
    count = turn
    for step in range(turn, len(order)):
        task = order[step]
        top = push_missing(task, step, 0, there, latest, producer, read_pointer, reads, waiting)
        while top > 0:
            copy, below = waiting[top - 1], top
            if not is_there(copy, there, write_pointer, writes):
                top = push_missing(copy, step, top, there, latest, producer, read_pointer, reads, waiting)
                if top > below:
                    continue
                steps[count] = copy
                count += 1
                mark_written(copy, there, write_pointer, writes)
            top -= 1
        steps[count] = task
        count += 1
        mark_written(task, there, write_pointer, writes)
    return count


def push_missing(
    task: int, step: int, top: int, there: Row, latest: Row, producer: Row, pointer: Column, reads: Column, waiting: Row
) -> int:
    """Top of the stack `waiting` with the tasks on it that remake reads of `task` and may run at `step`."""
    for entry in range(pointer[task], pointer[task + 1]):
        b = reads[entry]
        if there[b] == 0 and latest[producer[b]] >= step:
            waiting[top] = producer[b]
            top += 1
    return top


def is_there(task: int, there: Row, pointer: Column, writes: Column) -> bool:
    """Whether all buffers that the task writes need no recomputation."""
    missing = 0
    for entry in range(pointer[task], pointer[task + 1]):
        missing += there[writes[entry]] == 0
    return missing == 0


def mark_written(task: int, there: Row, pointer: Column, writes: Column) -> None:
    """Mark the buffers that the task writes as there."""
    for entry in range(pointer[task], pointer[task + 1]):
        there[writes[entry]] = 1


KERNELS = Kernels((append_with_recomputations,))


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
