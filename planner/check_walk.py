"""A sequence walked step by step: which copy of which buffer lives when, and the bytes of each step.

The part of the independent checker that stands against `liveness.py`, of which it shares no code.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from planner.problem import DEVICE, HANDED_OUT, RESIDENT, TO_THE_END, Problem


@dataclass(eq=False, slots=True)
class Copy:
    """One content of one buffer, from the step that writes it to the last that needs it."""

    buffer: int
    written: int  # step, or -1 for what is there from the start
    last_read: int  # step; `written` when nobody reads it
    held: bool = False  # to the end
    took: Copy | None = None  # whose storage it lies in
    row: int = -1  # its place among all copies, by buffer, then by the step that writes it


class Walk:
    """A legal order walked once: all copies in the order of `Lifetimes`, and the bytes of each step."""

    def __init__(self, problem: Problem, order: list[int]) -> None:
        self.problem, self.order = problem, order
        self.hold = problem.hold.tolist()
        self.reads, self.writes = problem.reads.lists(), problem.writes.lists()
        self.copies: list[Copy] = []
        self.inputs: list[list[Copy]] = []  # per step
        self.outputs: list[list[Copy]] = []  # per step
        self.step_bytes: list[int] = []
        self._make_copies()
        self._count()
        self.copies.sort(key=attrgetter("buffer", "written"))
        for row, copy in enumerate(self.copies):
            copy.row = row

    def _make_copies(self) -> None:
        hold = self.hold
        written = {buffer for row in self.writes for buffer in row}
        now: dict[int, Copy] = {}
        for buffer in range(self.problem.buffers):
            if buffer not in written or hold[buffer] == RESIDENT:
                now[buffer] = Copy(buffer, -1, -1)
        self.copies = list(now.values())
        hand_outs = self._hand_outs()
        for buffer in hand_outs.get(0, []):
            if buffer in now:
                now[buffer].held = True
        for step, task in enumerate(self.order):
            inputs = [now[buffer] for buffer in self.reads[task]]
            for copy in inputs:
                copy.last_read = step
            outputs = [Copy(buffer, step, step) for buffer in self.writes[task]]
            for copy in outputs:
                now[copy.buffer] = copy
            self.inputs.append(inputs)
            self.outputs.append(outputs)
            self.copies += outputs
            for buffer in hand_outs.get(step + 1, []):
                if buffer in now:
                    now[buffer].held = True
        for buffer, copy in now.items():
            copy.held |= hold[buffer] == TO_THE_END
        for copy in self.copies:
            copy.held |= hold[copy.buffer] == RESIDENT

    def _hand_outs(self) -> dict[int, list[int]]:
        """Step at whose beginning a phase has ended -> buffers that it hands out."""
        phase = self.problem.phase.tolist()
        end = [0, 0, 0]
        seen: set[int] = set()
        for step, task in enumerate(self.order):
            if task not in seen:
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

    def _count(self) -> None:
        problem, hold = self.problem, self.hold
        workspace, wanted = problem.workspace.tolist(), problem.takeover.lists()
        device = [s if p == DEVICE else 0 for s, p in zip(problem.size.tolist(), problem.space.tolist(), strict=True)]
        # What is retained: residents, and what lies there from the start and is read or held.
        live = sum([device[c.buffer] for c in self.copies if c.written < 0 and (c.held or c.last_read >= 0)])
        for step, task in enumerate(self.order):
            dying = [c for c in self.inputs[step] if c.last_read == step and not c.held]
            fresh = [c for c in self.outputs[step] if hold[c.buffer] != RESIDENT]
            free = {c.buffer: c for c in dying}
            taken = 0
            for copy in fresh:
                live += device[copy.buffer]
                copy.took = self._source(copy, wanted[copy.buffer], free)
                if copy.took is not None:
                    taken += device[copy.buffer]
            self.step_bytes.append(live - taken + workspace[task])
            for copy in dying:
                live -= device[copy.buffer]
            for copy in fresh:
                if copy.last_read == step and not copy.held:
                    live -= device[copy.buffer]

    def _source(self, copy: Copy, wanted: list[int], free: dict[int, Copy]) -> Copy | None:
        """The first wanted input that dies here and is large enough; taken out of `free`."""
        size, space = self.problem.size, self.problem.space
        for buffer in wanted:
            fits = 0 < size[copy.buffer] <= size[buffer] and space[copy.buffer] == space[buffer]
            if buffer in free and fits:
                return free.pop(buffer)
        return None

    def span(self, copy: Copy) -> tuple[int, int]:
        """Half-open steps during which the copy has bytes of its own or taken over."""
        if self.hold[copy.buffer] == RESIDENT:
            return (0, len(self.order)) if copy.written < 0 else (0, 0)
        start = max(copy.written, 0)
        return start, len(self.order) if copy.held else copy.last_read + 1
