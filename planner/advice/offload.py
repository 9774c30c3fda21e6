"""Offload: copies to the host and back as optional tasks, and orders with as few copies as the budget needs.

    a ── u ──▶ b ── ... ── c        u is unused between b and c:
    a  b  offload u  ...  fetch u  c        offload reads u and writes its host buffer; fetch writes u

A copy is a step like any other and does not overlap with computation, so the time of such a plan is an upper bound for
a device with copy engines. Copies are chosen greedily by (bytes × steps over the budget freed) per second.
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
from planner.problem.columns import frozen
from planner.problem.plan import Order
from planner.problem.recompute import base_order

#: Buffers with copies, the largest bytes × unused steps first.
MAX_COPIES = 2000
#: Longest copy, ticks (about sixteen training steps); keeps sums of ticks exact.
MAX_COPY_TICKS = 2**48


@dataclass(frozen=True, eq=False, slots=True)
class OffloadProblem:
    """A problem with an offload and a fetch task for each of c buffers; other tasks and buffers keep their order."""

    problem: Problem
    original: Problem  # without the copies
    base: Order  # of `original`: every task once
    task: np.ndarray  # int64[n]: task of `original` -> task of `problem`
    buffer: np.ndarray  # int64[c]: copied buffer
    after: np.ndarray  # int64[c]: step of `base` after which the offload runs
    before: np.ndarray  # int64[c]: step of `base` before which the fetch runs
    offload: np.ndarray  # int64[c]: tasks
    fetch: np.ndarray  # int64[c]

    def name_of(self, task: int, name_of_task: Callable[[int], str], name_of_buffer: Callable[[int], str]) -> str:
        """Name of a task: `offload:BUFFER`, `fetch:BUFFER`, or its name in `original`."""
        for word, tasks in (("offload", self.offload), ("fetch", self.fetch)):
            for place in np.flatnonzero(tasks == task).tolist():
                return f"{word}:{name_of_buffer(int(self.buffer[place]))}"
        return name_of_task(int(np.flatnonzero(self.task == task)[0]))


@dataclass(frozen=True, eq=False, slots=True)
class _Numbering:
    """Task numbers of the extended problem, in base order: fetches before their reader, offloads after the last use."""

    task: np.ndarray  # int64[n]: task of the original problem -> task
    offload: np.ndarray  # int64[c]
    fetch: np.ndarray  # int64[c]

    @classmethod
    def of(cls, base: Order, after: np.ndarray, before: np.ndarray) -> _Numbering:
        n, count = len(base), len(after)
        kind = np.repeat([1, 0, 2], [n, count, count])
        step = np.concatenate([np.arange(n), before, after])
        rank = np.empty(n + 2 * count, np.int64)
        rank[np.lexsort((kind, step))] = np.arange(n + 2 * count)
        task = np.empty(n, np.int64)
        task[base] = rank[:n]
        return cls(task, rank[n + count :], rank[n : n + count])

    def column(self, given: np.ndarray, for_offload: object, for_fetch: object) -> np.ndarray:
        """Read-only column of all tasks: `given` for the original tasks, and values for the copies."""
        result = np.empty(len(self.task) + 2 * len(self.fetch), given.dtype)
        result[self.task], result[self.offload], result[self.fetch] = given, for_offload, for_fetch
        return frozen(result)

    def rows(self, given: Csr, for_offload: list[list[int]], for_fetch: list[list[int]]) -> Csr:
        """Rows of all tasks: `given` for the original tasks, and rows for the copies."""
        result: list[list[int]] = [[]] * (len(self.task) + 2 * len(self.fetch))
        for tasks, lists in ((self.task, given.lists()), (self.offload, for_offload), (self.fetch, for_fetch)):
            for t, row in zip(tasks.tolist(), lists, strict=True):
                result[t] = row
        return Csr.of(result)

    def task_rows(self, given: Csr) -> Csr:
        """Rows of all tasks with renumbered tasks as entries; empty for the copies."""
        none: list[list[int]] = [[]] * len(self.fetch)
        return self.rows(Csr(given.pointer, self.task[given.index]), none, none)


def with_offload_tasks(
    problem: Problem, bytes_per_second: float, launch_seconds: float, strict_phases: bool
) -> OffloadProblem:
    """Add copies for the longest unused interval of each buffer; both directions at the same bandwidth."""
    base = base_order(problem, strict_phases)
    buffer, after, before = _gaps(problem, base)
    ticks = np.rint((problem.size[buffer] / bytes_per_second + launch_seconds) / problem.tick)
    quick = ticks <= MAX_COPY_TICKS
    buffer, after, before = buffer[quick], after[quick], before[quick]
    cost = np.maximum(1, ticks[quick]).astype(np.int64)
    count = len(buffer)
    tasks = _Numbering.of(base, after, before)
    device_rows, host_rows = [[b] for b in buffer.tolist()], [[problem.buffers + i] for i in range(count)]
    none: list[list[int]] = [[]] * count
    copied = Problem(
        cost=tasks.column(problem.cost, cost, cost),
        workspace=tasks.column(problem.workspace, 0, 0),
        phase=tasks.column(problem.phase, problem.phase[base[after]], problem.phase[base[before]]),
        engine=tasks.column(problem.engine, TO_HOST, FROM_HOST),
        repeat=tasks.column(problem.repeat, FREE, FREE),
        optional=tasks.column(problem.optional, True, True),
        heavy=tasks.column(problem.heavy, True, True),
        recompute=tasks.column(problem.recompute, ALLOW, ALLOW),
        size=_joined(problem.size, problem.size[buffer]),
        space=_joined(problem.space, np.full(count, HOST, np.int8)),
        hold=_joined(problem.hold, np.full(count, TO_LAST_READ, np.int8)),
        checkpoint=_joined(problem.checkpoint, np.zeros(count, bool)),
        reads=tasks.rows(problem.reads, device_rows, host_rows),
        shape_reads=tasks.rows(problem.shape_reads, none, none),
        writes=tasks.rows(problem.writes, host_rows, device_rows),
        takeover=Csr.of([*problem.takeover.lists(), *none]),
        after_every=tasks.task_rows(problem.after_every),
        after_first=tasks.task_rows(problem.after_first),
        tick=problem.tick,
        choices=NO_CHOICES,
    )
    return OffloadProblem(copied, problem, base, tasks.task, buffer, after, before, tasks.offload, tasks.fetch)


def order_within(copies: OffloadProblem, limit_bytes: int, should_stop: Callable[[], bool]) -> Order:
    """The base order with greedily chosen copies, until the peak is within `limit_bytes` or no copy helps."""
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
    """The base order with the chosen copies, in task numbers of `copies.problem`, which ascend along it."""
    return np.sort(np.concatenate([copies.task[copies.base], copies.offload[chosen], copies.fetch[chosen]]))


def _gaps(problem: Problem, base: Order) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(buffers, last step before, first step after) of the longest unused interval of each buffer in the order."""
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
    return frozen(np.concatenate([first, second.astype(first.dtype)]))
