"""Copies to the host and back as optional tasks of a problem, and orders that use as few of them as the budget needs.

    a ── u ──▶ b ── ... ── c        u is not looked at between b and c:
    a  b  offload u  ...  fetch u  c        offload reads u and writes its host buffer, fetch writes u again

A copy is a step like any other: nothing is copied while something is computed, so the time of such a plan is one that
copy engines can only shorten. The best price goes first: bytes × steps over the budget that a pair frees, a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.problem import (
    ALLOW,
    DEVICE,
    FREE,
    FROM_HOST,
    HOST,
    NO_CHOICES,
    TO_HOST,
    TO_LAST_READ,
    Csr,
    Problem,
    liveness,
)
from planner.problem.plan import Order
from planner.problem.recompute import base_order

#: Buffers that get copies, the largest × longest first.
MAX_COPIES = 2000
#: Copies that take longer, some sixteen steps, are left out: sums of ticks stay exact.
MAX_COPY_TICKS = 2**48


@dataclass(frozen=True, eq=False, slots=True)
class OffloadProblem:
    """A problem with an offload and a fetch for each of c buffers; other tasks and buffers keep their order."""

    problem: Problem
    original: Problem  # without them
    base: Order  # of `plain`: what runs once
    task: np.ndarray  # int64[n]: number of each task of `plain`
    buffer: np.ndarray  # int64[c]: what is copied
    after: np.ndarray  # int64[c]: step of `base` behind which it is copied out
    before: np.ndarray  # int64[c]: step of `base` before which it is copied back
    offload: np.ndarray  # int64[c]: tasks
    fetch: np.ndarray  # int64[c]

    def name_of(self, task: int, name_of_task: Callable[[int], str], name_of_buffer: Callable[[int], str]) -> str:
        """The task as a plan calls it, by the names of `plain`."""
        for word, tasks in (("offload", self.offload), ("fetch", self.fetch)):
            for place in np.flatnonzero(tasks == task).tolist():
                return f"{word}:{name_of_buffer(int(self.buffer[place]))}"
        return name_of_task(int(np.flatnonzero(self.task == task)[0]))


def with_offload_tasks(
    problem: Problem, bytes_per_second: float, launch_seconds: float, strict_phases: bool
) -> OffloadProblem:
    """The problem with copies of what is not looked at for the longest time; both ways at the same bandwidth."""
    base = base_order(problem, strict_phases)
    buffer, after, before = _gaps(problem, base)
    ticks = np.rint((problem.size[buffer] / bytes_per_second + launch_seconds) / problem.tick)
    quick = ticks <= MAX_COPY_TICKS
    buffer, after, before = buffer[quick], after[quick], before[quick]
    cost = np.maximum(1, ticks[quick]).astype(np.int64)
    count, n, m = len(buffer), problem.tasks, problem.buffers
    # Numbers follow the base order, a fetch in front of its reader and an offload behind the last task that looked.
    kind = np.repeat([1, 0, 2], [n, count, count])
    step = np.concatenate([np.arange(n), before, after])
    rank = np.empty(n + 2 * count, np.int64)
    rank[np.lexsort((kind, step))] = np.arange(n + 2 * count)
    task, fetch, offload = np.empty(n, np.int64), rank[n : n + count], rank[n + count :]
    task[base] = rank[:n]

    def column(given: np.ndarray, out: object, back: object) -> np.ndarray:
        made = np.empty(n + 2 * count, given.dtype)
        made[task], made[offload], made[fetch] = given, out, back
        made.flags.writeable = False
        return made

    none: list[list[int]] = [[]] * count

    def rows(given: Csr, out: list[list[int]], back: list[list[int]]) -> Csr:
        made: list[list[int]] = [[]] * (n + 2 * count)
        for tasks, lists in ((task, given.lists()), (offload, out), (fetch, back)):
            for t, row in zip(tasks.tolist(), lists, strict=True):
                made[t] = row
        return Csr.of(made)

    def moved(given: Csr) -> Csr:
        return rows(Csr(given.pointer, task[given.index]), none, none)

    here, there = [[b] for b in buffer.tolist()], [[m + i] for i in range(count)]
    copied = Problem(
        cost=column(problem.cost, cost, cost),
        workspace=column(problem.workspace, 0, 0),
        phase=column(problem.phase, problem.phase[base[after]], problem.phase[base[before]]),
        engine=column(problem.engine, TO_HOST, FROM_HOST),
        repeat=column(problem.repeat, FREE, FREE),
        optional=column(problem.optional, True, True),
        heavy=column(problem.heavy, True, True),
        recompute=column(problem.recompute, ALLOW, ALLOW),
        size=_joined(problem.size, problem.size[buffer]),
        space=_joined(problem.space, np.full(count, HOST, np.int8)),
        hold=_joined(problem.hold, np.full(count, TO_LAST_READ, np.int8)),
        checkpoint=_joined(problem.checkpoint, np.zeros(count, bool)),
        reads=rows(problem.reads, here, there),
        shape_reads=rows(problem.shape_reads, none, none),
        writes=rows(problem.writes, there, here),
        takeover=Csr.of([*problem.takeover.lists(), *none]),
        after_every=moved(problem.after_every),
        after_first=moved(problem.after_first),
        tick=problem.tick,
        choices=NO_CHOICES,
    )
    return OffloadProblem(copied, problem, base, task, buffer, after, before, offload, fetch)


def order_within(copies: OffloadProblem, limit_bytes: int, should_stop: Callable[[], bool]) -> Order:
    """The base order with the copies that bring it within the limit, or nearest to it, the best price first."""
    plain, buffer = copies.original, copies.buffer
    over = liveness.profile(plain, copies.base) - limit_bytes
    size, cost = plain.size[buffer], 2 * copies.problem.cost[copies.offload]
    left = np.ones(len(buffer), bool)
    while left.any() and (over > 0).any() and not should_stop():
        covered = np.concatenate([[0], np.cumsum(over > 0)])
        price = left * size * (covered[copies.before] - covered[copies.after + 1]) / cost
        best = int(np.argmax(price))
        if price[best] <= 0:
            break
        left[best] = False
        over[copies.after[best] + 1 : copies.before[best]] -= size[best]
    return _with(copies, np.flatnonzero(~left))


def _with(copies: OffloadProblem, chosen: np.ndarray) -> Order:
    """The base order with the chosen copies, in the numbers of `copies.problem`: numbers ascend along it."""
    return np.sort(np.concatenate([copies.task[copies.base], copies.offload[chosen], copies.fetch[chosen]]))


def _gaps(problem: Problem, base: Order) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(buffer, step, step): between which steps of the order each buffer is not looked at for longest."""
    write_step, written = problem.writes.entries(base)
    read_step, read = problem.reads.entries(base)
    step, buffer = np.concatenate([write_step, read_step]), np.concatenate([written, read])
    by = np.lexsort((step, buffer))
    step, buffer = step[by], buffer[by]
    same = np.flatnonzero(buffer[1:] == buffer[:-1])
    gap = step[same + 1] - step[same] - 1
    once = np.bincount(problem.writes.index, minlength=problem.buffers) == 1
    may = once & (problem.hold == TO_LAST_READ) & (problem.space == DEVICE) & (problem.size > 0)
    fits = may[buffer[same]] & (gap > 0)
    same, gap = same[fits], gap[fits]
    longest = np.lexsort((same, -gap, buffer[same]))
    first = np.append(True, np.diff(buffer[same[longest]]) > 0)[: len(longest)]
    same, gap = same[longest][first], gap[longest][first]
    kept = np.sort(np.argsort(-gap * problem.size[buffer[same]], kind="stable")[:MAX_COPIES])
    same = same[kept]
    return buffer[same], step[same], step[same + 1]


def _joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    made = np.concatenate([first, second.astype(first.dtype)])
    made.flags.writeable = False
    return made
