"""Replay of an order on engines that work side by side: times, live ranges and bytes.

The independent counterpart of `planner/problem/schedule.py`, whose rules it follows; shares no code with it. Events
are the ends of steps. At each end the copies that no step uses from then on are released.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left

from planner.problem import DEVICE, HOST, RESIDENT, Problem
from planner.verify.replay import Replay


class TimedReplay:
    """The columns of `Replay` under a schedule, with start and end of each step, host bytes and the makespan."""

    def __init__(self, problem: Problem, order: list[int], budget_bytes: int | None, host_bytes: int | None) -> None:
        plain = Replay(problem, order)
        self.problem, self.order, self.plain = problem, order, plain
        self.buffer, self.written, self.inputs, self.outputs = plain.buffer, plain.written, plain.inputs, plain.outputs
        self.limits = {DEVICE: budget_bytes or None, HOST: host_bytes}
        self.taken_from = [-1] * len(plain.buffer)
        self.taker: dict[int, int] = {}  # copy -> the copy that takes its storage
        self.start_time: list[int] = []
        self.end_time: list[int] = []
        self.step_bytes: list[int] = []
        self.host_step_bytes: list[int] = []
        self._released: dict[int, int] = {}  # copy -> ticks
        self._size = problem.size.tolist()
        self._counted = [self._bytes(copy) for copy in range(len(self.buffer))]
        self._users = self._count_users()
        residents = (problem.hold == RESIDENT).nonzero()[0].tolist()
        self._live = {
            space: sum(self._size[b] for b in residents if problem.space[b] == space) for space in (DEVICE, HOST)
        }
        for copy, written in enumerate(plain.written):
            if written < 0 and plain.stop[copy] > 0:
                self._live[int(problem.space[self.buffer[copy]])] += self._counted[copy]
        self._running: list[tuple[int, int]] = []  # (end, step)
        self._simulate()
        self.cost = max(self.end_time, default=0)
        self.start = plain.start
        self.stop = [
            stop if copy not in self._released else max(stop, bisect_left(self.start_time, self._released[copy]))
            for copy, stop in enumerate(plain.stop)
        ]
        self.workspace_stop = [
            max(step + 1, bisect_left(self.start_time, end)) for step, end in enumerate(self.end_time)
        ]
        self.bytes_over_host = 0 if host_bytes is None else max(0, max(self.host_step_bytes, default=0) - host_bytes)

    def _bytes(self, copy: int) -> int:
        buffer = self.buffer[copy]
        return 0 if self.problem.hold[buffer] == RESIDENT else self._size[buffer]

    def _count_users(self) -> list[int]:
        """Steps that write or read each copy."""
        users = [0] * len(self.buffer)
        for inputs, outputs in zip(self.inputs, self.outputs, strict=True):
            for copy in [*inputs, *outputs]:
                users[copy] += 1
        return users

    def _simulate(self) -> None:
        cost, engine = self.problem.cost.tolist(), self.problem.engine.tolist()
        free: dict[int, int] = {}  # engine -> when it is free
        now = 0
        for step, task in enumerate(self.order):
            written = [self.end_time[self.written[copy]] for copy in self.inputs[step] if self.written[copy] >= 0]
            now = max([now, free.get(engine[task], 0), *written])
            self._end_steps(now)
            while not self._fits(step) and self._running:
                now = self._running[0][0]
                self._end_steps(now)
            self._start(step)
            free[engine[task]] = now + cost[task]
            self.start_time.append(now)
            self.end_time.append(now + cost[task])
            heapq.heappush(self._running, (now + cost[task], step))
        self._end_steps(max(self.end_time, default=0))

    def _end_steps(self, now: int) -> None:
        """End the running steps that are over by `now`, and release what no step uses from then on."""
        while self._running and self._running[0][0] <= now:
            ended, step = heapq.heappop(self._running)
            self._live[DEVICE] -= int(self.problem.workspace[self.order[step]])
            for copy in [*self.inputs[step], *self.outputs[step]]:
                self._users[copy] -= 1
                if self._users[copy] or self.plain.held[copy]:
                    continue
                self._released[copy] = ended
                left = self._counted[self.taker[copy]] if copy in self.taker else 0
                self._live[int(self.problem.space[self.buffer[copy]])] -= self._counted[copy] - left

    def _fits(self, step: int) -> bool:
        """Whether all that the step adds is within the limits; its takeovers are chosen here."""
        added = self._added(step, self._takeovers(step))
        return all(limit is None or self._live[space] + added[space] <= limit for space, limit in self.limits.items())

    def _start(self, step: int) -> None:
        takeovers = self._takeovers(step)
        for output, source in takeovers.items():
            self.taken_from[output], self.taker[source] = source, output
        for space, bytes in self._added(step, takeovers).items():
            self._live[space] += bytes
        self.step_bytes.append(self._live[DEVICE])
        self.host_step_bytes.append(self._live[HOST])

    def _added(self, step: int, takeovers: dict[int, int]) -> dict[int, int]:
        """Bytes that a step adds in each space when it starts."""
        added = {DEVICE: int(self.problem.workspace[self.order[step]]), HOST: 0}
        for copy in self.outputs[step]:
            if copy not in takeovers:
                added[int(self.problem.space[self.buffer[copy]])] += self._counted[copy]
        return added

    def _takeovers(self, step: int) -> dict[int, int]:
        """Output -> the input whose storage it reuses: the first listed one that only this step still uses."""
        problem, chosen = self.problem, dict[int, int]()
        alone = {self.buffer[copy]: copy for copy in self.inputs[step] if self._is_last_use(copy)}
        for copy in self.outputs[step]:
            for wanted in problem.takeover[self.buffer[copy]].tolist():
                source = alone.get(wanted)
                if source is None or source in chosen.values() or problem.space[wanted] != DEVICE:
                    continue
                if problem.space[self.buffer[copy]] == DEVICE and 0 < self._counted[copy] <= self._counted[source]:
                    chosen[copy] = source
                    break
        return chosen

    def _is_last_use(self, copy: int) -> bool:
        return self._users[copy] == 1 and not self.plain.held[copy]
