"""A sequence walked step by step: which copy of which buffer lives when, and the bytes of each step.

The part of the independent checker that stands against `liveness.py`, of which it shares no code.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.problem import DEVICE, HANDED_OUT, RESIDENT, TO_THE_END, Problem


@dataclass(eq=False, slots=True)
class Copy:
    """One content of one buffer, from the step that writes it to the last that needs it."""

    buffer: int
    written: int  # step, or -1 for what is there from the start
    last_read: int  # step; `written` when nobody reads it
    held: bool = False  # to the end
    took: Copy | None = None  # whose storage it lies in


@dataclass(eq=False, slots=True)
class Walk:
    """A legal order walked once: all copies, and the bytes of each step."""

    problem: Problem
    order: list[int]
    copies: list[Copy] = field(default_factory=list)
    inputs: list[list[Copy]] = field(default_factory=list)
    outputs: list[list[Copy]] = field(default_factory=list)
    step_bytes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._make_copies()
        self._count()

    def _make_copies(self) -> None:
        problem, hold = self.problem, self.problem.hold.tolist()
        reads, writes = problem.reads.lists(), problem.writes.lists()
        written = {buffer for row in writes for buffer in row}
        now: dict[int, Copy] = {}
        for buffer in range(problem.buffers):
            if buffer not in written or hold[buffer] == RESIDENT:
                now[buffer] = Copy(buffer, -1, -1)
        self.copies = list(now.values())
        hand_outs = self._hand_outs()
        for buffer in hand_outs.get(0, []):
            if buffer in now:
                now[buffer].held = True
        for step, task in enumerate(self.order):
            self.inputs.append([now[buffer] for buffer in reads[task]])
            for copy in self.inputs[-1]:
                copy.last_read = step
            self.outputs.append([Copy(buffer, step, step) for buffer in writes[task]])
            now.update((copy.buffer, copy) for copy in self.outputs[-1])
            self.copies += self.outputs[-1]
            for buffer in hand_outs.get(step + 1, []):
                if buffer in now:
                    now[buffer].held = True
        for buffer, copy in now.items():
            copy.held |= hold[buffer] == TO_THE_END
        for copy in self.copies:
            copy.held |= hold[copy.buffer] == RESIDENT

    def _hand_outs(self) -> dict[int, list[int]]:
        """Step at whose beginning a phase has ended -> buffers that it hands out."""
        problem = self.problem
        end = [0, 0, 0]
        seen: set[int] = set()
        for step, task in enumerate(self.order):
            if task not in seen:
                end[problem.phase[task]] = step + 1
            seen.add(task)
        phase_of: dict[int, int] = {}
        for task, row in enumerate(problem.writes.lists()):
            for buffer in row:
                phase_of.setdefault(buffer, int(problem.phase[task]))
        result: dict[int, list[int]] = {}
        for buffer in range(problem.buffers):
            if problem.hold[buffer] == HANDED_OUT:
                result.setdefault(end[phase_of.get(buffer, 0)], []).append(buffer)
        return result

    def _count(self) -> None:
        problem = self.problem
        hold, workspace, wanted = problem.hold.tolist(), problem.workspace.tolist(), problem.takeover.lists()
        device = [s if p == DEVICE else 0 for s, p in zip(problem.size.tolist(), problem.space.tolist(), strict=True)]
        # What is retained: residents, and what lies there from the start and is read or held.
        live = sum(
            device[c.buffer] for c in self.copies if c.written < 0 and (c.held or c.last_read >= 0)
        )  # fmt: skip
        for step, task in enumerate(self.order):
            fresh = [c for c in self.outputs[step] if hold[c.buffer] != RESIDENT]
            free = {c.buffer: c for c in self.inputs[step] if self._dies(c, step)}
            for copy in fresh:
                copy.took = self._source(copy, wanted[copy.buffer], free)
            added = sum(device[c.buffer] for c in fresh)
            taken = sum(device[c.buffer] for c in fresh if c.took is not None)
            self.step_bytes.append(live + added - taken + workspace[task])
            gone = [c for c in self.inputs[step] + fresh if c.last_read == step and not c.held]
            live += added - sum(device[c.buffer] for c in gone)

    def _dies(self, copy: Copy, step: int) -> bool:
        return copy.last_read == step and not copy.held and self.problem.hold[copy.buffer] != RESIDENT

    def _source(self, copy: Copy, wanted: list[int], free: dict[int, Copy]) -> Copy | None:
        """The first wanted input that dies here and is large enough; taken out of `free`."""
        size, space = self.problem.size, self.problem.space
        for buffer in wanted:
            fits = 0 < size[copy.buffer] <= size[buffer] and space[copy.buffer] == space[buffer]
            if buffer in free and fits:
                return free.pop(buffer)
        return None

    def rows(self) -> list[Copy]:
        """The copies in the order of `Lifetimes`: by buffer, then by the step that writes them."""
        return sorted(self.copies, key=lambda copy: (copy.buffer, copy.written))

    def span(self, copy: Copy) -> tuple[int, int]:
        """Half-open steps during which the copy has bytes of its own or taken over."""
        if self.problem.hold[copy.buffer] == RESIDENT:
            return (0, len(self.order)) if copy.written < 0 else (0, 0)
        start = max(copy.written, 0)
        return start, len(self.order) if copy.held else copy.last_read + 1
