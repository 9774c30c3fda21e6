"""Dynamic tensor rematerialization (DTR): under memory pressure, evict tensors that are cheap, large and stale.

Source: Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen, Tatlock, "Dynamic Tensor Rematerialization", ICLR
2021, section 4: the heuristic h = c(e) / (m · s) with c the cost of the tensor and of its evicted neighbourhood,
m its bytes and s the time since its last use. Here the same policy is simulated offline over the known order:

    for each task: recompute its evicted inputs, then evict the buffers with the least h until its bytes fit

The policy uses no knowledge of later steps, except that dead buffers are freed. O(steps · live buffers) time.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from planner.algorithms.greedy.gap_closing import without_unread_repeats
from planner.problem import TO_LAST_READ, Problem
from planner.problem.best_order import BestOrder
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order, can_recompute, last_recompute_step

#: Maximum tasks of a simulation.
MAX_TASKS = 5_000
#: A simulation ends after this many runs per task: it is thrashing.
MAX_RUNS = 4
#: Bisection steps of the simulated budget, if the goal is a time limit or DTR exceeds the budget.
TRIES = 10


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The order that DTR runs within the budget, or within the lowest budget it meets or the overhead allows."""
    base = base_order(problem, goal.strict_phases)
    if problem.tasks > MAX_TASKS:
        monitor.note(f"dtr: more than {MAX_TASKS} tasks, so nothing is evicted")
        return base
    best, budget = BestOrder.offered(monitor, base), goal.budget_bytes
    if budget is not None and best.score.bytes_over_budget == 0:
        return base
    low, high = (budget or 0), best.score.peak_bytes
    tried = low if budget else (low + high) // 2
    for _ in range(TRIES):
        if monitor.should_stop():
            break
        order = _Simulation(problem, base, tried, monitor).order()
        if order is None:
            low = tried + 1
        else:
            found = best.offer(without_unread_repeats(problem, order).order)
            if found.bytes_over_budget == 0 and budget is not None:
                break
            if budget is None and found.bytes_over_budget > best.score.bytes_over_budget:
                low = tried + 1
            else:
                high = tried
        if low >= high:
            break
        tried = (low + high) // 2
    return best.order


class _Simulation:
    """One simulated run over the base order within a budget; time is counted in ticks."""

    def __init__(self, problem: Problem, base: Order, budget: int, monitor: Monitor):
        self.base, self.monitor = base, monitor
        self.room = budget - problem.resident_bytes()
        self.size = problem.planned_size().tolist()
        self.cost, self.workspace = problem.cost.tolist(), problem.workspace.tolist()
        self.reads = [[b for b in row if self.size[b]] for row in problem.reads.lists()]
        self.writes = [[b for b in row if self.size[b]] for row in problem.writes.lists()]
        self.readers = problem.reads.transposed(problem.buffers).lists()
        self.reading = [sum(1 << task for task in row) for row in self.readers]  # sets of tasks as bits
        self.producer = problem.producer().tolist()
        self._look_ahead(problem)
        self.live: dict[int, int] = {}  # live buffer -> ticks at its last use
        self.before = [0] * problem.tasks  # producers of the evicted inputs of each task
        self.behind = [0] * problem.tasks  # readers of the evicted outputs of each task
        self.wanted = 0  # tasks with an evicted output that will be read
        self.ran = [False] * problem.tasks
        self.bytes = self.ticks = 0
        self.steps: list[int] = []
        for b in np.flatnonzero(problem.producer() < 0).tolist():
            if self.size[b] and self.until[b] >= 0:
                self._add(b)

    def _look_ahead(self, problem: Problem) -> None:
        """Fill `evictable` and `until` (the step of the base order after which each buffer is freed).

        An evictable buffer is freed after its last reader, any other one after the last recomputation that may read it.
        """
        base = self.base.tolist()
        recomputable, latest = can_recompute(problem).tolist(), last_recompute_step(problem, self.base).tolist()
        alone = (~problem.has_several_writers()).tolist()
        held = (problem.hold != TO_LAST_READ).tolist()
        self.last_read = [len(base) if held[b] else -1 for b in range(problem.buffers)]
        need = self.last_read.copy()
        self.evictable = [False] * problem.buffers
        for step in range(len(base) - 1, -1, -1):
            task = base[step]
            until = step
            for b in self.writes[task]:
                if (
                    recomputable[task]
                    and alone[b]
                    and not held[b]
                    and self.producer[b] == task
                    and latest[task] >= need[b]
                ):
                    self.evictable[b] = True
                    until = max(until, need[b])
            for b in self.reads[task]:
                self.last_read[b] = max(self.last_read[b], step)
                need[b] = max(need[b], until)
        self.until = [self.last_read[b] if self.evictable[b] else need[b] for b in range(problem.buffers)]

    def order(self) -> Order | None:
        """The sequence of runs; None if a task does not fit even with all evictable buffers evicted."""
        for step, task in enumerate(self.base.tolist()):
            used = None if self.monitor.cancelled else self._run(task)
            if used is None:
                return None
            for b in used:
                if self.until[b] <= step:
                    self._remove(b)
        return np.array(self.steps, np.int64)

    def _run(self, task: int) -> set[int] | None:
        """Run the task after the recomputations it needs; returns all buffers touched, or None if out of memory."""
        waiting, pinned, used = [task], Counter(self.reads[task]), set[int]()
        while waiting:
            now = waiting[-1]
            missing = [b for b in self.reads[now] if b not in self.live]
            if missing:
                waiting.append(self.producer[missing[0]])
                pinned.update(self.reads[waiting[-1]])
            elif len(self.steps) > MAX_RUNS * len(self.base) or not self._make_room(now, pinned):
                return None
            else:
                waiting.pop()
                pinned.subtract(self.reads[now])
                self._finish(now)
                used.update(self.reads[now], self.writes[now])
        return used

    def _make_room(self, task: int, pinned: Counter[int]) -> bool:
        """Evict until the task fits; False if that is impossible."""
        need = sum(self.size[b] for b in self.writes[task] if b not in self.live) + self.workspace[task]
        while self.bytes + need > self.room:
            victims = [b for b in self.live if self.evictable[b] and pinned[b] <= 0]
            if not victims:
                return False
            self._remove(min(victims, key=lambda b: (self._price(b), b)))
        return True

    def _price(self, buffer: int) -> float:
        """h: ticks of the evicted neighbourhood per byte and tick since the last use."""
        return float(self._neighbourhood(buffer) / (self.size[buffer] * (self.ticks - self.live[buffer] + 1)))

    def _neighbourhood(self, buffer: int) -> int:
        """Ticks of the producer, of its evicted ancestors, and of evicted descendants that will be read."""
        found, waiting, ticks = 0, 1 << self.producer[buffer], 0
        while waiting:
            task = (waiting & -waiting).bit_length() - 1
            found |= 1 << task
            waiting = (waiting | self.before[task]) & ~found
            ticks += self.cost[task]
        behind, waiting = 0, self.reading[buffer] & self.wanted
        while waiting:
            task = (waiting & -waiting).bit_length() - 1
            behind |= 1 << task
            waiting = (waiting | self.behind[task] & self.wanted) & ~behind
            ticks += 0 if found >> task & 1 else self.cost[task]
        return ticks

    def _finish(self, task: int) -> None:
        """Append the task to the sequence and update clocks and live buffers."""
        self.steps.append(task)
        self.ran[task] = True
        self.ticks += self.cost[task]
        for b in self.reads[task]:
            self.live[b] = self.ticks
        for b in self.writes[task]:
            self._add(b)

    def _add(self, buffer: int) -> None:
        if buffer not in self.live:
            self.live[buffer] = self.ticks
            self.bytes += self.size[buffer]
            self._moved(buffer)
        self.live[buffer] = self.ticks

    def _remove(self, buffer: int) -> None:
        if self.live.pop(buffer, None) is not None:
            self.bytes -= self.size[buffer]
            self._moved(buffer)

    def _moved(self, buffer: int) -> None:
        """Update the neighbourhood sets after a buffer became live or was evicted."""
        for task in self.readers[buffer]:
            self.before[task] = 0
            for b in self.reads[task]:
                if b not in self.live and self.producer[b] >= 0:
                    self.before[task] |= 1 << self.producer[b]
        task = self.producer[buffer]
        if task >= 0:
            evicted = [b for b in self.writes[task] if b not in self.live and self.evictable[b]]
            self.behind[task] = 0
            for b in evicted:
                self.behind[task] |= self.reading[b]
            is_wanted = self.ran[task] and any(self.last_read[b] >= 0 for b in evicted)
            self.wanted = self.wanted | 1 << task if is_wanted else self.wanted & ~(1 << task)
