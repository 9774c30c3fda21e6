"""Replay of an order step by step: the live range of every copy of a buffer, and the bytes of each step.

The independent counterpart of `liveness.py`; shares no code with it. A copy is one content of one
buffer, from the step that writes it to the last step that needs it. Copies are numbered by buffer, then by
the step that writes them, like the instances of `Lifetimes`.
"""

from __future__ import annotations

from itertools import accumulate

from planner.problem import DEVICE, HANDED_OUT, RESIDENT, TO_THE_END, Problem
from planner.verify.order_rules import COPY_ENGINES


class Replay:
    """Columns over the copies of a legal order, and the bytes of each step."""

    def __init__(self, problem: Problem, order: list[int]) -> None:
        self.problem, self.order = problem, order
        self.hold = problem.hold.tolist()
        self.reads, self.writes = problem.reads.lists(), problem.writes.lists()
        self.inputs: list[list[int]] = []  # copies that each step reads
        self.outputs: list[list[int]] = []  # copies that each step writes
        self.step_bytes: list[int] = []
        written = {buffer for row in self.writes for buffer in row}
        buffers = range(problem.buffers)
        self.initial = [b for b in buffers if b not in written or self.hold[b] == RESIDENT]  # exist from the start
        first, self.buffer = self._numbered()
        self.written = [-1] * len(self.buffer)  # step; -1: exists from the start
        self.last_read = [-1] * len(self.buffer)  # step; `written` if there is no read
        self.held = [False] * len(self.buffer)  # to the end
        self.taken_from = [-1] * len(self.buffer)  # the copy whose storage it reuses; -1: none
        self._walk(first)
        self.start, self.stop = self._spans()
        self._count()
        self.workspace_stop = list(range(1, len(order) + 1))  # first step without each step's workspace
        ticks = problem.cost.tolist()
        self.cost = sum([ticks[task] for task in order])
        self.bytes_over_host = 0  # on one engine there are no copies to the host to limit

    def _numbered(self) -> tuple[list[int], list[int]]:
        """The number of each buffer's first copy, and the buffer of each copy."""
        writes, count = self.writes, [0] * self.problem.buffers
        for buffer in self.initial:
            count[buffer] = 1
        for task in self.order:
            for buffer in writes[task]:
                count[buffer] += 1
        return [0, *accumulate(count)], [buffer for buffer, copies in enumerate(count) for _ in range(copies)]

    def _walk(self, first: list[int]) -> None:
        """Fill the columns except `start` and `stop`; `first` is the number of each buffer's first copy."""
        reads, writes, written, last_read = self.reads, self.writes, self.written, self.last_read
        now = {buffer: first[buffer] for buffer in self.initial}
        upcoming = first.copy()
        for buffer in self.initial:
            upcoming[buffer] += 1
        hand_outs = self._hand_outs()
        self._hand_out(hand_outs.get(0, []), now)
        for step, task in enumerate(self.order):
            inputs = [now[buffer] for buffer in reads[task]]
            for copy in inputs:
                last_read[copy] = step
            outputs = []
            for buffer in writes[task]:
                copy = upcoming[buffer]
                upcoming[buffer] = copy + 1
                now[buffer] = copy
                written[copy] = last_read[copy] = step
                outputs.append(copy)
            self.inputs.append(inputs)
            self.outputs.append(outputs)
            if step + 1 in hand_outs:
                self._hand_out(hand_outs[step + 1], now)
        self._hand_out([b for b, hold in enumerate(self.hold) if hold == TO_THE_END], now)
        for copy, buffer in enumerate(self.buffer):
            if self.hold[buffer] == RESIDENT:
                self.held[copy] = True

    def _hand_out(self, buffers: list[int], now: dict[int, int]) -> None:
        """Hold the current copies of the buffers to the end."""
        for buffer in buffers:
            if buffer in now:
                self.held[now[buffer]] = True

    def _hand_outs(self) -> dict[int, list[int]]:
        """Step after the end of a phase -> buffers that the phase hands out."""
        if HANDED_OUT not in self.hold:
            return {}
        phase, engine = self.problem.phase.tolist(), self.problem.engine.tolist()
        end = [0, 0, 0]
        seen: set[int] = set()
        for step, task in enumerate(self.order):
            if task not in seen and engine[task] not in COPY_ENGINES:
                end[phase[task]] = step + 1
                seen.add(task)
        phase_of: dict[int, int] = {}
        for task, row in enumerate(self.writes):
            for buffer in row:
                phase_of.setdefault(buffer, phase[task])
        result: dict[int, list[int]] = {}
        for buffer, hold in enumerate(self.hold):
            if hold == HANDED_OUT:
                result.setdefault(end[phase_of.get(buffer, 0)], []).append(buffer)
        return result

    def _spans(self) -> tuple[list[int], list[int]]:
        """Half-open live range of each copy, in steps."""
        steps = len(self.order)
        start = [max(step, 0) for step in self.written]
        stop = [steps if held else last + 1 for held, last in zip(self.held, self.last_read, strict=True)]
        for copy, buffer in enumerate(self.buffer):
            if self.hold[buffer] == RESIDENT:  # one storage, however often it is written
                start[copy], stop[copy] = 0, steps if self.written[copy] < 0 else 0
        return start, stop

    def _count(self) -> None:
        """Fill `step_bytes` and `taken_from`."""
        problem, device = self.problem, self._device_bytes()
        workspace, size = problem.workspace.tolist(), problem.size.tolist()
        dies = self._last_steps()
        wanted = {buffer: row for buffer, row in enumerate(problem.takeover.lists()) if row}
        takers = {task for task, row in enumerate(self.writes) if not wanted.keys().isdisjoint(row)}
        live = sum([device[copy] for copy in self._live_at_start()])
        for step, (task, inputs, outputs) in enumerate(zip(self.order, self.inputs, self.outputs, strict=True)):
            dying = [copy for copy in inputs if dies[copy] == step]
            taken = 0
            for copy in outputs:
                live += device[copy]
            if dying and task in takers:
                self._take_over(outputs, dying, wanted, size)
                taken = sum([device[copy] for copy in outputs if self.taken_from[copy] >= 0])
            self.step_bytes.append(live - taken + workspace[task])
            for copy in dying:
                live -= device[copy]
            for copy in outputs:
                if dies[copy] == step:
                    live -= device[copy]

    def _last_steps(self) -> list[int]:
        """The step with which each copy ends; -1: held to the end."""
        return [-1 if held else last for held, last in zip(self.held, self.last_read, strict=True)]

    def _live_at_start(self) -> list[int]:
        """Residents, and initial copies that are read or held."""
        initial = [copy for copy, written in enumerate(self.written) if written < 0]
        return [copy for copy in initial if self.held[copy] or self.last_read[copy] >= 0]

    def _device_bytes(self) -> list[int]:
        """Bytes of each copy in device memory; a resident counts once, at the start."""
        size, on_device = self.problem.size.tolist(), (self.problem.space == DEVICE).tolist()
        counted = [on_device[b] and self.hold[b] != RESIDENT for b in range(len(size))]
        return [
            size[b] if counted[b] or (on_device[b] and written < 0) else 0
            for b, written in zip(self.buffer, self.written, strict=True)
        ]

    def _take_over(self, outputs: list[int], dying: list[int], wanted: dict[int, list[int]], size: list[int]) -> None:
        """Let each output reuse the first listed input that dies here and is large enough, each input once."""
        space = self.problem.space
        free = {self.buffer[copy]: copy for copy in dying}
        for copy in outputs:
            buffer = self.buffer[copy]
            if self.hold[buffer] == RESIDENT:
                continue
            for source in wanted.get(buffer, []):
                if source in free and 0 < size[buffer] <= size[source] and space[buffer] == space[source]:
                    self.taken_from[copy] = free.pop(source)
                    break
