"""Legality of an order: the part of the independent checker that needs the sequence of tasks only.

Plain Python, step by step; shares no code with `liveness.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.errors import IllegalPlan
from planner.problem import FORBID, FROM_HOST, NEVER, RESIDENT, TO_HOST, Csr, Problem
from planner.problem.plan import Goal

Name = Callable[[int], str]
#: Engines of copies to the host and back. Copies belong to no phase, and to no order of first runs.
COPY_ENGINES = (TO_HOST, FROM_HOST)


@dataclass(frozen=True, slots=True)
class DisplayNames:
    """Names of tasks and buffers in messages; numbers by default."""

    task: Name = lambda task: f"task {task}"
    buffer: Name = lambda buffer: f"buffer {buffer}"


def check_order(problem: Problem, goal: Goal, order: list[int], names: DisplayNames | None = None) -> None:
    """Accept a legal order, or raise IllegalPlan naming the first illegal step."""
    names = names or DisplayNames()
    first: dict[int, int] = {}
    tasks = problem.tasks
    for step, task in enumerate(order):
        if not 0 <= task < tasks:
            raise IllegalPlan(f"step {step}: task {task} does not exist; tasks are 0 to {tasks - 1}")
        if task not in first:
            first[task] = step
        elif problem.repeat[task] == NEVER or problem.recompute[task] == FORBID:
            raise IllegalPlan(
                f"step {step}: {names.task(task)} is recomputed and may run once only; it ran at step {first[task]}"
            )
    last = {task: step for step, task in enumerate(order)}
    for task, optional in enumerate(problem.optional.tolist()):
        if task not in first and not optional:
            raise IllegalPlan(f"step {len(order)}: the order ends and {names.task(task)} has not run; run it once")
    writes = problem.writes.lists()
    _check_reads(problem, order, writes, names)
    _check_producers(order, writes, names)
    _check_after(problem, first, last, names)
    if goal.strict_phases:
        _check_phases(problem, order, first, names)
    if goal.order_is_given:
        _check_given(problem, order, first, names)


def _check_reads(problem: Problem, order: list[int], writes: list[list[int]], names: DisplayNames) -> None:
    needs = problem.reads.lists()
    for task, buffer in _pairs(problem.shape_reads):
        needs[task].append(buffer)
    written = {buffer for row in writes for buffer in row}
    there = {b for b, hold in enumerate(problem.hold.tolist()) if b not in written or hold == RESIDENT}
    for step, task in enumerate(order):
        if not there.issuperset(needs[task]):
            buffer = next(b for b in needs[task] if b not in there)
            writer = next(t for t in range(problem.tasks) if buffer in writes[t])
            raise IllegalPlan(
                f"step {step}: {names.task(task)} reads {names.buffer(buffer)}, which does not exist yet; "
                f"run {names.task(writer)} first"
            )
        there.update(writes[task])


def _check_producers(order: list[int], writes: list[list[int]], names: DisplayNames) -> None:
    """Check that the producer of a buffer, its lowest writer, runs before the other writers."""
    producer: dict[int, int] = {}
    others: dict[int, list[int]] = {}  # task -> buffers that it writes and an earlier task produces
    for task, row in enumerate(writes):
        for buffer in row:
            if producer.setdefault(buffer, task) != task:
                others.setdefault(task, []).append(buffer)
    ran: set[int] = set()
    for step, task in enumerate(order):
        for buffer in others.get(task, ()):
            if producer[buffer] not in ran:
                raise IllegalPlan(
                    f"step {step}: {names.task(task)} writes {names.buffer(buffer)} before its producer "
                    f"{names.task(producer[buffer])} ran; run that first"
                )
        ran.add(task)


def _check_after(problem: Problem, first: dict[int, int], last: dict[int, int], names: DisplayNames) -> None:
    for a, b in _pairs(problem.after_every):
        if a in last and b in first and last[a] >= first[b]:
            raise IllegalPlan(
                f"step {last[a]}: {names.task(a)} runs after {names.task(b)}, which ran at step {first[b]}; every run "
                f"of the first must come before every run of the second"
            )
    for a, b in _pairs(problem.after_first):
        if a in first and b in first and first[a] >= first[b]:
            raise IllegalPlan(
                f"step {first[b]}: the first run of {names.task(b)} precedes that of {names.task(a)} at step "
                f"{first[a]}; swap their first runs"
            )


def _check_phases(problem: Problem, order: list[int], first: dict[int, int], names: DisplayNames) -> None:
    phase = problem.phase.tolist()
    engine = problem.engine.tolist()
    last_first = [-1, -1, -1]  # step of the last first run of each phase
    for task, step in first.items():
        if engine[task] in COPY_ENGINES:
            continue
        last_first[phase[task]] = max(last_first[phase[task]], step)
    begin = [-1, last_first[0], max(last_first[0], last_first[1])]  # the phase may run after this step
    for step, task in enumerate(order):
        if step < begin[phase[task]] and engine[task] not in COPY_ENGINES:
            raise IllegalPlan(
                f"step {step}: {names.task(task)} of phase {phase[task]} runs before all first runs of an earlier "
                f"phase; finish that phase first"
            )


def _pairs(rows: Csr) -> Iterator[tuple[int, int]]:
    """(row, entry) pairs in order."""
    for row, entries in enumerate(rows.lists()) if len(rows.index) else ():
        for entry in entries:
            yield row, entry


def _check_given(problem: Problem, order: list[int], first: dict[int, int], names: DisplayNames) -> None:
    highest, engine = -1, problem.engine.tolist()
    for step, task in enumerate(order):
        if first[task] != step or engine[task] in COPY_ENGINES:
            continue
        if task < highest:
            raise IllegalPlan(
                f"step {step}: the first run of {names.task(task)} follows that of {names.task(highest)}, against "
                f"the given order; swap their first runs"
            )
        highest = task
