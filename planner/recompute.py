"""From the buffers that stay to the order that runs everything else again, just in time.

forward  a ── b ── c ── d            keep {a, d}
backward C reads c, B reads b        a b c d  D  b c C  B     b is there for B since it was needed for c
"""

from __future__ import annotations

import numpy as np

from planner import liveness
from planner.plan import Order
from planner.problem import FORWARD, TO_LAST_READ, Problem


def base_order(problem: Problem, strict_phases: bool = True) -> Order:
    """Every task that has to run, once, in the document's order; phase after phase when they are strict."""
    order = np.flatnonzero(~problem.optional)
    if strict_phases:
        order = order[np.argsort(problem.phase[order], kind="stable")]
    return order


def may_repeat(problem: Problem) -> np.ndarray:
    """bool[n]: a second run gives the same again: allowed, and the task does not overwrite what it reads."""
    task, read = problem.reads.row_of_entry(), problem.reads.index
    shared = np.bincount(problem.writes.index, minlength=problem.buffers) > 1
    own = problem.producer()[read] == task
    # Only where a buffer has several writers, all pairs of task and written buffer are looked through.
    pair = problem.writes.row_of_entry() * problem.buffers + problem.writes.index
    own[shared[read]] = np.isin((task * problem.buffers + read)[shared[read]], pair)
    result = problem.repeatable()
    result[task[own]] = False
    return result


def last_repeat(problem: Problem, order: Order) -> np.ndarray:
    """int64[n]: the step of `order` before which each task may run again at the latest, by `after_every`."""
    first = np.full(problem.tasks, len(order), np.int64)
    first[order[::-1]] = np.arange(len(order))[::-1]
    latest = np.full(problem.tasks, len(order), np.int64)
    np.minimum.at(latest, problem.after_every.row_of_entry(), first[problem.after_every.index])
    return latest


def turning_point(problem: Problem, order: Order) -> int:
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
    turn = turning_point(problem, order)
    producer = problem.producer()
    early = np.zeros(problem.tasks + 1, bool)  # the last entry stands for "nobody", which is number -1
    early[order[:turn]] = may_repeat(problem)[order[:turn]]
    gone = early[producer] & (problem.hold == TO_LAST_READ)
    gone[keep] = False
    latest = last_repeat(problem, order).tolist()
    reads, writes, producer = problem.reads.lists(), problem.writes.lists(), producer.tolist()
    missing = gone.tolist()  # dropped, and not yet made again
    steps = order[:turn].tolist()
    for step, task in enumerate(order[turn:].tolist(), start=turn):
        waiting = [producer[b] for b in reads[task] if missing[b]]
        while waiting:
            copy = waiting[-1]
            if latest[copy] < step or not any(missing[b] for b in writes[copy]):
                waiting.pop()
                continue
            first = [p for p in (producer[b] for b in reads[copy] if missing[b]) if latest[p] >= step]
            if first:
                waiting += first
                continue
            steps.append(waiting.pop())
            for b in writes[copy]:
                missing[b] = False
        steps.append(task)
        for b in writes[task]:
            missing[b] = False
    return np.array(steps, np.int64)
