"""Independent checker: replays a plan step by step in plain Python and recomputes every claimed number.

Plans of large problems that the kernels of `acceptance.py` accept, a second independent replay, are not replayed again.

Shares no code with `liveness.py`. Raises IllegalPlan at the first violation of the fixed semantics;
returns nothing if the plan is correct. O(k log k) time for k reads and writes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain

import numpy as np

from planner.errors import IllegalPlan
from planner.problem import DEVICE, HOST, RESIDENT, Csr, Problem
from planner.problem.plan import Goal, Plan
from planner.verify import acceptance
from planner.verify.order_rules import DisplayNames, check_order
from planner.verify.replay import Replay
from planner.verify.timed_replay import TimedReplay

__all__ = ["DisplayNames", "check", "check_bytes", "check_layout", "check_lifetimes", "check_order"]


def check(problem: Problem, goal: Goal, plan: Plan, alignment: int = 1, names: DisplayNames | None = None) -> None:
    """Accept the plan or raise IllegalPlan: order, lifetimes, bytes, cost, score and layout."""
    names = names or DisplayNames()
    problem = apply_choices(problem, plan.choices)
    if acceptance.applies(problem) and acceptance.is_accepted(problem, goal, plan, alignment):
        return
    order = [int(task) for task in plan.order.tolist()]
    check_order(problem, goal, order, names)
    replay: Replay | TimedReplay = Replay(problem, order)
    if plan.schedule is not None:
        replay = TimedReplay(problem, order, goal.budget_bytes, goal.host_bytes)
        check_schedule(plan, replay)
    check_bytes(problem, goal, plan, replay)
    check_lifetimes(plan, replay, names)
    if plan.offsets is None:
        return
    if plan.arena_bytes is None:
        raise IllegalPlan("the plan has offsets but no arena size; set arena_bytes")
    check_layout(problem, replay, plan.offsets.tolist(), plan.arena_bytes, alignment, names)
    if plan.host_arena_bytes is not None:
        check_layout(problem, replay, plan.offsets.tolist(), plan.host_arena_bytes, alignment, names, HOST)


def apply_choices(problem: Problem, choices: Sequence[int]) -> Problem:
    """The problem under a choice vector, applied row by row. Raises IllegalPlan."""
    table = problem.choices
    if not len(choices):
        return problem
    if len(choices) != len(table):
        raise IllegalPlan(f"{len(choices)} choices for {len(table)} groups of alternatives; give one per group")
    cost, workspace, size = problem.cost.tolist(), problem.workspace.tolist(), problem.size.tolist()
    reads, new_reads, alternatives = problem.reads.lists(), table.reads.lists(), table.group.tolist()
    for group, choice in enumerate(choices):
        if not 0 <= choice < alternatives.count(group):
            raise IllegalPlan(f"group {group} has no alternative {choice}; use 0 to {alternatives.count(group) - 1}")
        row = alternatives.index(group) + choice
        for k in range(table.tasks.pointer[row], table.tasks.pointer[row + 1]):
            task = table.tasks.index[k]
            cost[task], workspace[task], reads[task] = table.cost[k], table.workspace[k], new_reads[k]
        for k in range(table.buffers.pointer[row], table.buffers.pointer[row + 1]):
            size[table.buffers.index[k]] = table.size[k]
    ticks, held, sizes = (np.array(column, np.int64) for column in (cost, workspace, size))
    return replace(problem, reads=Csr.of(reads), cost=ticks, workspace=held, size=sizes)


def check_bytes(problem: Problem, goal: Goal, plan: Plan, replay: Replay | TimedReplay) -> None:
    """Accept the claimed step bytes, peak, cost and bytes over budget (0 where the goal has none)."""
    claimed = plan.step_bytes.tolist()
    if len(claimed) != len(replay.step_bytes):
        raise IllegalPlan(f"{len(claimed)} step bytes for {len(replay.step_bytes)} steps; give one per step")
    for step, (stated, actual) in enumerate(zip(claimed, replay.step_bytes, strict=True)):
        if stated != actual:
            raise IllegalPlan(f"step {step}: task {replay.order[step]} holds {actual:,} bytes, the plan says {stated}")
    device = (problem.space == DEVICE) & (problem.hold == RESIDENT)
    peak = max(replay.step_bytes, default=sum(problem.size[device].tolist()))
    if plan.score.peak_bytes != peak:
        raise IllegalPlan(f"the peak is {peak:,} bytes, the plan says {plan.score.peak_bytes}")
    if plan.score.cost != replay.cost:
        raise IllegalPlan(f"the cost is {replay.cost} ticks, the plan says {plan.score.cost}")
    over = max(0, peak - (goal.budget_bytes or 0)) + replay.bytes_over_host
    if plan.score.bytes_over_budget != over:
        raise IllegalPlan(f"the plan is {over:,} bytes over budget, it says {plan.score.bytes_over_budget}")


def check_schedule(plan: Plan, replay: TimedReplay) -> None:
    """Accept the claimed times, host bytes and ranges of workspaces of engines side by side."""
    schedule, stops = plan.schedule, plan.lifetimes.workspace_stop
    assert schedule is not None
    columns = (
        ("starts at tick", schedule.start, replay.start_time),
        ("ends at tick", schedule.end, replay.end_time),
        ("has host bytes", schedule.host_bytes, replay.host_step_bytes),
        ("holds its workspace to step", np.zeros(0) if stops is None else stops, replay.workspace_stop),
    )
    for what, claimed, actual in columns:
        if len(claimed) != len(actual):
            raise IllegalPlan(f"the schedule has {len(claimed)} steps, the order has {len(actual)}; give one per step")
        for step, (stated, value) in enumerate(zip(claimed.tolist(), actual, strict=True)):
            if stated != value:
                raise IllegalPlan(f"step {step}: task {replay.order[step]} {what} {value}, the plan says {stated}")


def check_lifetimes(plan: Plan, replay: Replay | TimedReplay, names: DisplayNames) -> None:
    """Accept the claimed instances, or raise IllegalPlan at the first that differs."""
    lifetimes = plan.lifetimes
    columns = (lifetimes.buffer, lifetimes.writer_step, lifetimes.start, lifetimes.stop, lifetimes.taken_from)
    claimed = [column.tolist() for column in columns]
    actual = [replay.buffer, replay.written, replay.start, replay.stop, replay.taken_from]
    for column in claimed:
        if len(column) != len(replay.buffer):
            raise IllegalPlan(f"the plan has {len(column)} instances, the order has {len(replay.buffer)}")
    if claimed != actual:
        rows = zip(zip(*claimed, strict=True), zip(*actual, strict=True), strict=True)
        for row, (instance, copy) in enumerate(rows):
            if instance != copy:
                raise IllegalPlan(
                    f"step {copy[1]}: instance {row} of {names.buffer(copy[0])} is (buffer, written, start, stop, "
                    f"taken from) {copy}, the plan says {instance}"
                )
    for relation, csr, per_step in (
        ("reads", lifetimes.read_instance, replay.inputs),
        ("writes", lifetimes.written_instance, replay.outputs),
    ):
        if len(csr) != len(per_step):
            raise IllegalPlan(f"{len(csr)} rows of {relation} for {len(per_step)} steps; give one per step")
        pointer, index = [0, *accumulate(map(len, per_step))], list(chain.from_iterable(per_step))
        if csr.pointer.tolist() == pointer and csr.index.tolist() == index:
            continue
        for step, (stated, copies) in enumerate(zip(csr.lists(), per_step, strict=True)):
            if stated != copies:
                raise IllegalPlan(
                    f"step {step}: task {replay.order[step]} {relation} other instances than the plan says"
                )


def check_layout(
    problem: Problem,
    replay: Replay | TimedReplay,
    offsets: list[int],
    arena_bytes: int,
    alignment: int,
    names: DisplayNames,
    space: int = DEVICE,
) -> None:
    """Accept offsets under which no two live copies or workspaces share a byte, except along a takeover.

    Looks at one memory space; workspaces are on the device.
    """
    rows, steps = len(replay.buffer), len(replay.order)
    if len(offsets) != rows + steps:
        raise IllegalPlan(f"{len(offsets)} offsets for {rows} instances and {steps} workspaces; give one for each")
    begin: list[list[int]] = [[] for _ in range(steps + 1)]
    end: list[list[int]] = [[] for _ in range(steps + 1)]
    size = [int(problem.size[buffer]) if problem.space[buffer] == space else 0 for buffer in replay.buffer]
    workspace = problem.workspace.tolist() if space == DEVICE else [0] * problem.tasks
    for row in filter(size.__getitem__, range(rows)):
        start, stop, source = replay.start[row], replay.stop[row], replay.taken_from[row]
        if source >= 0:
            _check_takeover(replay, offsets, row, names)
            start = replay.stop[source]  # until then, the source holds the bytes
        if start < stop:
            begin[start].append(row)
            end[stop].append(row)
    arena = _Arena(arena_bytes)
    for step, stop in enumerate(replay.workspace_stop):
        if workspace[replay.order[step]]:
            end[stop].append(rows + step)
    for step, task in enumerate(replay.order):
        for row in end[step]:
            arena.free(row)
        for row in begin[step]:
            arena.place(row, offsets[row], size[row], alignment, f"step {step}: {names.buffer(replay.buffer[row])}")
        extra = workspace[task]
        if extra:
            label = f"step {step}: the workspace of {names.task(task)}"
            arena.place(rows + step, offsets[rows + step], extra, alignment, label)


def _check_takeover(replay: Replay | TimedReplay, offsets: list[int], row: int, names: DisplayNames) -> None:
    """Accept a copy that lies where the copy does whose storage it reuses."""
    source = replay.taken_from[row]
    if offsets[row] != offsets[source]:
        raise IllegalPlan(
            f"step {replay.start[row]}: {names.buffer(replay.buffer[row])} takes over the storage of "
            f"{names.buffer(replay.buffer[source])} but lies at {offsets[row]}, not at {offsets[source]}"
        )


def check_packing(
    lower: Sequence[int],
    upper: Sequence[int],
    size: Sequence[int],
    alignment: Sequence[int],
    offsets: Sequence[int],
    arena_bytes: int,
) -> None:
    """Accept offsets under which no two buffers live at once share a byte, else raise IllegalPlan.

    Buffer i is live during `lower[i]` to `upper[i]`, half-open.
    """
    arena = _Arena(arena_bytes)
    # At one point in time, buffers that end are freed first.
    rows = [row for row, bytes in enumerate(size) if bytes]
    events = [(upper[row], False, row) for row in rows] + [(lower[row], True, row) for row in rows]
    for point, begins, row in sorted(events):
        if begins:
            arena.place(row, offsets[row], size[row], alignment[row], f"at {point}: buffers[{row}]")
        else:
            arena.free(row)


class _Arena:
    """Sorted byte ranges in use."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used: list[tuple[int, int]] = []
        self.at: dict[int, tuple[int, int]] = {}

    def place(self, key: int, offset: int, size: int, alignment: int, label: str) -> None:
        if offset < 0 or offset + size > self.size:
            raise IllegalPlan(f"{label} lies at [{offset}, {offset + size}), outside the arena of {self.size:,} bytes")
        if offset % alignment:
            raise IllegalPlan(f"{label} lies at {offset}, which is not a multiple of {alignment}")
        at = bisect_left(self.used, (offset, offset + size))
        for low, high in self.used[max(0, at - 1) : at + 1]:
            if low < offset + size and offset < high:
                raise IllegalPlan(f"{label} at [{offset}, {offset + size}) overlaps live bytes at [{low}, {high})")
        self.at[key] = (offset, offset + size)
        insort(self.used, self.at[key])

    def free(self, key: int) -> None:
        span = self.at.pop(key)
        del self.used[bisect_left(self.used, span)]
