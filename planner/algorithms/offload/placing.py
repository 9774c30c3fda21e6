"""Place copies beside an order: those that fit on the idle link and free most of what exceeds the budget.

    order     a ─── b ─── c ─── d ─── e         u is unused from the end of a to the start of e
    to host         out ──                      the first free time of the link after a
    from host                   back ──         the last free time of the link before e
                          ╰────╯                steps in which u is not on the device

Gaps are taken by (bytes × steps over the budget freed) per tick of copying, until the order fits or no gap is left
whose value fits in the host memory from its offload to its last fetch.
Prices only fall while copies are placed, so that the best gap is found by evaluating the top of a heap once more.
Times are those of the order without copies, on its engines; what the order does with the copies is for `schedule.py`
to say.
O(g log g) evaluations for g gaps in practice.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.algorithms.offload.link_slots import LinkSlots
from planner.problem import liveness, schedule
from planner.problem.copies import CopyProblem
from planner.problem.plan import Goal, Order
from planner.problem.schedule import NO_LIMIT


@dataclass(frozen=True, slots=True)
class Gap:
    """Steps of an order between two uses of one instance."""

    number: int  # of the copied buffer in `CopyProblem.buffer`
    instance: int
    after: int  # step of the use before
    before: int  # step of the use after


@dataclass(frozen=True, slots=True)
class _Placed:
    """Slots of a pair of copies: ticks at which they begin, and the steps that they free."""

    out: int  # -1: an earlier offload of the instance serves
    back: int
    first_step: int
    last_step: int  # half-open
    host_from: int  # steps from which on, and before which, the host buffer is held; half-open
    host_to: int


def gaps(copies: CopyProblem, order: Order, least_steps: int = 1) -> list[Gap]:
    """Gaps of the instances of copied buffers in an order, with at least so many steps between both uses."""
    lives = liveness.bound_instances(copies.problem, order)[0]
    number = np.full(copies.problem.buffers, -1, np.int64)
    number[copies.buffer] = np.where(copies.problem.size[copies.buffer] > 0, np.arange(len(copies.buffer)), -1)
    step = np.concatenate([lives.writer_step, lives.read_instance.row_of_entry()])
    instance = np.concatenate([np.arange(len(lives.buffer)), lives.read_instance.index])
    by = np.lexsort((step, instance))
    step, instance = step[by], instance[by]
    after = np.flatnonzero(
        (instance[1:] == instance[:-1])
        & (step[:-1] >= 0)
        & (step[1:] > step[:-1] + least_steps)
        & (number[lives.buffer[instance[:-1]]] >= 0)
    )
    return [
        Gap(int(number[lives.buffer[instance[i]]]), int(instance[i]), int(step[i]), int(step[i + 1]))
        for i in after.tolist()
    ]


def with_copies_placed(
    copies: CopyProblem, order: Order, budget_bytes: int, host_bytes: int | None, should_stop: Callable[[], bool]
) -> Order:
    """`order` (of the original problem) with copies that bring it towards the budget without adding time."""
    return _Placing(copies, order, budget_bytes, host_bytes).run(should_stop)


class _Placing:
    def __init__(self, copies: CopyProblem, order: Order, budget_bytes: int, host_bytes: int | None):
        self.copies, self.order = copies, order
        problem = copies.problem
        self.over = liveness.profile(copies.original, order) - budget_bytes
        times = schedule.evaluate(problem, Goal(), order, "").schedule
        assert times is not None
        self.start, self.end = times.start.tolist(), times.end.tolist()
        self.host_is_limited = host_bytes is not None
        self.out_ticks = problem.cost[copies.offload].tolist()
        self.back_ticks = problem.cost[copies.fetch].tolist()
        self.size = problem.size[copies.buffer].tolist()
        self.to_host, self.from_host = LinkSlots(), LinkSlots()
        if len(copies.buffer) and problem.engine[copies.fetch[0]] == problem.engine[copies.offload[0]]:
            self.from_host = self.to_host
        self.offloaded: dict[int, int] = {}  # instance -> end of its offload, ticks
        self.on_host_to: dict[int, int] = {}  # instance -> step before which its host buffer is held
        self.room = np.full(len(order), NO_LIMIT if host_bytes is None else host_bytes)  # host bytes left, per step
        self.placed: list[tuple[int, int]] = []  # (begin in ticks, task)
        self._count_covered()

    def run(self, should_stop: Callable[[], bool]) -> Order:
        candidates = gaps(self.copies, self.order)
        heap = [(-price, i) for i, gap in enumerate(candidates) if (price := self._price(gap)[0]) > 0]
        heapq.heapify(heap)
        while heap and self.covered[-1] and not should_stop():
            _, i = heapq.heappop(heap)
            price, slots = self._price(candidates[i])
            if price <= 0 or slots is None:
                continue
            if heap and price < -heap[0][0]:
                heapq.heappush(heap, (-price, i))
                continue
            self._place(candidates[i], slots)
        return self._merged()

    def _count_covered(self) -> None:
        """Steps over the budget before each step."""
        self.covered = np.concatenate([[0], np.cumsum(self.over > 0)])

    def _price(self, gap: Gap) -> tuple[float, _Placed | None]:
        """(bytes × steps over the budget freed per tick, slots of the copies)."""
        if self.covered[gap.before] == self.covered[gap.after + 1]:
            return 0.0, None
        out, back = self.out_ticks[gap.number], self.back_ticks[gap.number]
        end, begin = self.offloaded.get(gap.instance, -1), -1
        window = self.end[gap.after]
        ticks = back
        if end < 0 or end > window:
            begin = self.to_host.earliest(window, out)
            end, ticks = begin + out, out + back
        fetch = self.from_host.latest(self.start[gap.before], back)
        if fetch < end:
            return 0.0, None
        first, last = bisect_left(self.start, end), bisect_left(self.start, fetch) - 1
        if last <= first:
            return 0.0, None
        host_from = self.on_host_to[gap.instance] if begin < 0 else bisect_right(self.start, begin) - 1
        host_to = bisect_left(self.start, fetch + back)
        if self.host_is_limited and self.room[host_from:host_to].min(initial=NO_LIMIT) < self.size[gap.number]:
            return 0.0, None
        freed = int(self.covered[last] - self.covered[first])
        return self.size[gap.number] * freed / ticks, _Placed(begin, fetch, first, last, host_from, host_to)

    def _place(self, gap: Gap, slots: _Placed) -> None:
        i, copies = gap.number, self.copies
        if slots.out >= 0:
            self.to_host.take(slots.out, self.out_ticks[i])
            self.offloaded[gap.instance] = slots.out + self.out_ticks[i]
            self.placed.append((slots.out, int(copies.offload[i])))
        self.from_host.take(slots.back, self.back_ticks[i])
        self.placed.append((slots.back, int(copies.fetch[i])))
        self.room[slots.host_from : slots.host_to] -= self.size[i]
        self.on_host_to[gap.instance] = max(slots.host_to, self.on_host_to.get(gap.instance, 0))
        self.over[slots.first_step : slots.last_step] -= self.size[i]
        self._count_covered()

    def _merged(self) -> Order:
        """The order with each copy before the first step that starts when the copy begins, or later."""
        begin = np.array([begin for begin, _ in self.placed], np.int64)
        task = np.array([task for _, task in self.placed], np.int64)
        by = np.argsort(begin, kind="stable")
        return np.insert(self.order, np.searchsorted(self.start, begin[by]), task[by])
