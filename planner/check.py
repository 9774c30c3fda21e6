"""The independent checker: walks a plan step by step in plain Python and believes nothing.

Shares no code with `liveness.py`. Raises IllegalPlan at the first thing that is not as the fixed
semantics say; returns nothing when the plan holds. O(k log k) time for k reads and writes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from planner.errors import IllegalPlan
from planner.plan import Goal, Plan
from planner.problem import DEVICE, FORBID, HANDED_OUT, NEVER, RESIDENT, TO_LAST_READ, TO_THE_END, Problem

Name = Callable[[int], str]


def check(problem: Problem, goal: Goal, plan: Plan, alignment: int = 1, names: Names | None = None) -> None:
    """Accept the plan or raise IllegalPlan: order, lifetimes, bytes, cost, score and layout."""
    names = names or Names()
    order = [int(task) for task in plan.order]
    check_order(problem, goal, order, names)
    walk = Walk(problem, order)
    check_bytes(problem, goal, plan, walk)
    check_lifetimes(plan, walk, names)
    if plan.offsets is None:
        return
    if plan.arena_bytes is None:
        raise IllegalPlan("offsets come without the size of their arena; say arena_bytes")
    check_layout(problem, walk, plan.offsets.tolist(), plan.arena_bytes, alignment, names)


@dataclass(frozen=True, slots=True)
class Names:
    """How messages call tasks and buffers; numbers when nobody knows better."""

    task: Name = lambda task: f"task {task}"
    buffer: Name = lambda buffer: f"buffer {buffer}"


# ---- the order


def check_order(problem: Problem, goal: Goal, order: list[int], names: Names | None = None) -> None:
    """Accept a sequence that may run, or raise IllegalPlan with the step that may not."""
    names = names or Names()
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, task in enumerate(order):
        if not 0 <= task < problem.tasks:
            raise IllegalPlan(f"step {step}: task {task} does not exist; tasks are 0 to {problem.tasks - 1}")
        if task in first and (problem.repeat[task] == NEVER or problem.recompute[task] == FORBID):
            raise IllegalPlan(
                f"step {step}: {names.task(task)} runs again and may run once only; it ran at step {first[task]}"
            )
        first.setdefault(task, step)
        last[task] = step
    for task in range(problem.tasks):
        if task not in first and not problem.optional[task]:
            raise IllegalPlan(f"step {len(order)}: the order ends and {names.task(task)} has not run; run it once")
    _check_reads(problem, order, names)
    _check_producers(problem, order, names)
    _check_after(problem, first, last, names)
    if goal.strict_phases:
        _check_phases(problem, order, first, names)
    if goal.order_is_given:
        _check_given(order, first, names)


def _check_reads(problem: Problem, order: list[int], names: Names) -> None:
    reads, shape_reads, writes = problem.reads.lists(), problem.shape_reads.lists(), problem.writes.lists()
    written = {buffer for row in writes for buffer in row}
    there = {b for b in range(problem.buffers) if b not in written or problem.hold[b] == RESIDENT}
    for step, task in enumerate(order):
        for buffer in reads[task] + shape_reads[task]:
            if buffer not in there:
                writer = next(t for t in range(problem.tasks) if buffer in writes[t])
                raise IllegalPlan(
                    f"step {step}: {names.task(task)} reads {names.buffer(buffer)}, which does not exist yet; "
                    f"run {names.task(writer)} first"
                )
        there.update(writes[task])


def _check_producers(problem: Problem, order: list[int], names: Names) -> None:
    """The first writer of a buffer by number is its producer and runs before the others do."""
    producer: dict[int, int] = {}
    writes = problem.writes.lists()
    for task, row in enumerate(writes):
        for buffer in row:
            producer.setdefault(buffer, task)
    ran: set[int] = set()
    for step, task in enumerate(order):
        for buffer in writes[task]:
            if task != producer[buffer] and producer[buffer] not in ran:
                raise IllegalPlan(
                    f"step {step}: {names.task(task)} writes {names.buffer(buffer)} before its producer "
                    f"{names.task(producer[buffer])} ran; run that first"
                )
        ran.add(task)


def _check_after(problem: Problem, first: dict[int, int], last: dict[int, int], names: Names) -> None:
    for a, row in enumerate(problem.after_every.lists()):
        for b in row:
            if a in last and b in first and last[a] >= first[b]:
                raise IllegalPlan(
                    f"step {last[a]}: {names.task(a)} runs after {names.task(b)} did at step {first[b]}; every run "
                    f"of the one comes before every run of the other"
                )
    for a, row in enumerate(problem.after_first.lists()):
        for b in row:
            if a in first and b in first and first[a] >= first[b]:
                raise IllegalPlan(
                    f"step {first[b]}: {names.task(b)} runs first before {names.task(a)} does at step {first[a]}; "
                    f"swap their first runs"
                )


def _check_phases(problem: Problem, order: list[int], first: dict[int, int], names: Names) -> None:
    phase = problem.phase.tolist()
    open_runs = [0, 0, 0]
    for task in first:
        open_runs[phase[task]] += 1
    for step, task in enumerate(order):
        if first[task] == step:
            open_runs[phase[task]] -= 1
        if any(open_runs[: phase[task]]):
            raise IllegalPlan(
                f"step {step}: {names.task(task)} of phase {phase[task]} runs while an earlier phase still has "
                f"tasks to run for the first time; finish that phase first"
            )


def _check_given(order: list[int], first: dict[int, int], names: Names) -> None:
    highest = -1
    for step, task in enumerate(order):
        if first[task] != step:
            continue
        if task < highest:
            raise IllegalPlan(
                f"step {step}: {names.task(task)} runs first after {names.task(highest)} did, and the given order "
                f"puts it before; swap their first runs"
            )
        highest = task


# ---- what is live


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


def check_bytes(problem: Problem, goal: Goal, plan: Plan, walk: Walk) -> None:
    """Accept the claimed step bytes, peak, cost and bytes over budget (0 where the goal has none)."""
    claimed = [int(b) for b in plan.step_bytes]
    if len(claimed) != len(walk.step_bytes):
        raise IllegalPlan(f"{len(claimed)} step bytes are claimed for {len(walk.step_bytes)} steps; give one a step")
    for step, (says, found) in enumerate(zip(claimed, walk.step_bytes, strict=True)):
        if says != found:
            raise IllegalPlan(f"step {step}: task {walk.order[step]} holds {found} bytes where the plan says {says}")
    device = (problem.space == DEVICE) & (problem.hold == RESIDENT)
    peak = max(walk.step_bytes, default=sum(problem.size[device].tolist()))
    if plan.score.peak_bytes != peak:
        raise IllegalPlan(f"the peak is {peak} bytes where the plan says {plan.score.peak_bytes}")
    cost = sum(int(problem.cost[task]) for task in walk.order)
    if plan.score.cost != cost:
        raise IllegalPlan(f"the cost is {cost} ticks where the plan says {plan.score.cost}")
    over = max(0, peak - (goal.budget_bytes or 0))
    if plan.score.bytes_over_budget != over:
        raise IllegalPlan(f"the plan is {over} bytes over budget where it says {plan.score.bytes_over_budget}")


# ---- the instances and where they lie


def _rows(walk: Walk) -> list[Copy]:
    """The copies in the order of `Lifetimes`: by buffer, then by the step that writes them."""
    return sorted(walk.copies, key=lambda copy: (copy.buffer, copy.written))


def _span(walk: Walk, copy: Copy) -> tuple[int, int]:
    """Half-open steps during which the copy has bytes of its own or taken over."""
    if walk.problem.hold[copy.buffer] == RESIDENT:
        return (0, len(walk.order)) if copy.written < 0 else (0, 0)
    start = max(copy.written, 0)
    return start, len(walk.order) if copy.held else copy.last_read + 1


def check_lifetimes(plan: Plan, walk: Walk, names: Names) -> None:
    """Accept the claimed instances, or raise at the first that differs."""
    rows = _rows(walk)
    number = {id(copy): row for row, copy in enumerate(rows)}
    lives = plan.lifetimes
    columns = (lives.buffer, lives.writer_step, lives.start, lives.stop, lives.taken_from)
    claimed = list(zip(*(column.tolist() for column in columns), strict=True))
    if len(claimed) != len(rows):
        raise IllegalPlan(f"{len(claimed)} instances are claimed where the order makes {len(rows)}")
    for row, (copy, says) in enumerate(zip(rows, claimed, strict=True)):
        found = (copy.buffer, copy.written, *_span(walk, copy), -1 if copy.took is None else number[id(copy.took)])
        if found != says:
            raise IllegalPlan(
                f"step {copy.written}: instance {row} of {names.buffer(copy.buffer)} is (buffer, written, start, stop, "
                f"taken from) {found} where the plan says {says}"
            )
    for step in range(len(walk.order)):
        for what, csr, copies in (
            ("reads", lives.read_instance, walk.inputs[step]),
            ("writes", lives.written_instance, walk.outputs[step]),
        ):
            if csr[step].tolist() != [number[id(copy)] for copy in copies]:
                raise IllegalPlan(f"step {step}: task {walk.order[step]} {what} other instances than the plan says")


def check_layout(
    problem: Problem, walk: Walk, offsets: list[int], arena_bytes: int, alignment: int, names: Names
) -> None:
    """Accept offsets under which no two live things share a byte, save along a takeover."""
    rows, steps = _rows(walk), len(walk.order)
    if len(offsets) != len(rows) + steps:
        raise IllegalPlan(f"{len(offsets)} offsets for {len(rows)} instances and {steps} workspaces; give one each")
    number = {id(copy): row for row, copy in enumerate(rows)}
    begin: list[list[int]] = [[] for _ in range(steps + 1)]
    end: list[list[int]] = [[] for _ in range(steps + 1)]
    size = [int(problem.size[c.buffer]) if problem.space[c.buffer] == DEVICE else 0 for c in rows]
    for row, copy in enumerate(rows):
        start, stop = _span(walk, copy)
        if copy.took is not None and size[row]:
            if offsets[row] != offsets[number[id(copy.took)]]:
                raise IllegalPlan(
                    f"step {start}: {names.buffer(copy.buffer)} takes {names.buffer(copy.took.buffer)} over and lies "
                    f"at {offsets[row]}, not at {offsets[number[id(copy.took)]]}"
                )
            start += 1  # in the step that writes it, its source still holds the bytes
        if size[row] and start < stop:
            begin[start].append(row)
            end[stop].append(row)
    arena = _Arena(arena_bytes, alignment)
    for step, task in enumerate(walk.order):
        for row in end[step]:
            arena.free(row)
        for row in begin[step]:
            arena.place(row, offsets[row], size[row], f"step {step}: {names.buffer(rows[row].buffer)}")
        extra = int(problem.workspace[task])
        if extra:
            arena.place(-1, offsets[len(rows) + step], extra, f"step {step}: the workspace of {names.task(task)}")
            arena.free(-1)


class _Arena:
    """Byte ranges in use, kept sorted."""

    def __init__(self, size: int, alignment: int) -> None:
        self.size, self.alignment = size, alignment
        self.used: list[tuple[int, int]] = []
        self.at: dict[int, tuple[int, int]] = {}

    def place(self, key: int, offset: int, size: int, what: str) -> None:
        if offset < 0 or offset + size > self.size:
            raise IllegalPlan(f"{what} lies at [{offset}, {offset + size}), outside the arena of {self.size} bytes")
        if offset % self.alignment:
            raise IllegalPlan(f"{what} lies at {offset}, which is no multiple of {self.alignment}")
        at = bisect_left(self.used, (offset, offset + size))
        for low, high in self.used[max(0, at - 1) : at + 1]:
            if low < offset + size and offset < high:
                raise IllegalPlan(f"{what} at [{offset}, {offset + size}) overlaps live bytes at [{low}, {high})")
        self.at[key] = (offset, offset + size)
        insort(self.used, self.at[key])

    def free(self, key: int) -> None:
        span = self.at.pop(key)
        del self.used[bisect_left(self.used, span)]
