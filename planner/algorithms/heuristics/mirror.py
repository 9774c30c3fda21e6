"""Mirroring (Echo): keep a group of cheap tasks if that frees as much as it allocates, else recompute it.

Source: Zheng, Vijaykumar, Pekhimenko, "Echo: Compiler-based GPU Memory Footprint Reduction for LSTM RNN
Training", ISCA 2020, as the backward mirroring of MXNet implements it. O(n log n) time. Ignores the goal:
the plan is the same for all budgets, and may peak above the baseline.

    heavy ──▶ v ──▶ add ──▶ tanh ──▶ heavy     the region between the heavy tasks is {add, tanh, add, tanh};
              ╰───▶ add ──▶ tanh ──▶ heavy     both adds read v, so they are judged as one group
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.algorithms.heuristics.mirror_regions import ForwardTasks, regions
from planner.problem import FORWARD, HANDED_OUT, RESIDENT, Csr, Problem
from planner.problem.monitor import Monitor, SearchCancelled
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order

KEPT, RECOMPUTED, UNDECIDED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class MirrorGroup:
    """Tasks judged together: the bytes that keeping them allocates against those it releases."""

    tasks: tuple[int, ...]
    allocated: tuple[int, ...]  # buffers: outputs with a reader, inputs with a reader outside the frontier
    released: tuple[int, ...]  # buffers: inputs all of whose readers are in the frontier
    allocated_bytes: int
    released_bytes: int

    @property
    def mirrored(self) -> bool:
        """Whether the group is recomputed: keeping it allocates more than it releases; ties keep."""
        return self.released_bytes < self.allocated_bytes


@dataclass(frozen=True, eq=False, slots=True)
class MirrorDecisions:
    """The decisions of the heuristic, and which recomputed copies are needed."""

    stage: np.ndarray  # int8[n]  KEPT or RECOMPUTED; KEPT outside the forward phase
    groups: tuple[MirrorGroup, ...]  # as decided, region by region; tasks behind a mirrored group are in none
    materialised: np.ndarray  # bool[n]  RECOMPUTED, and a later phase reads its copy or a copy that needs it


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The given order, with every needed recomputation as late as possible.

    The given order without a backward pass, or once the search is cancelled.
    """
    try:
        materialised = decide(problem, check=monitor.check).materialised
        monitor.check()
    except SearchCancelled:
        return base_order(problem, goal.strict_phases)
    return mirrored_order(problem, materialised, goal.strict_phases)


def decide(
    problem: Problem, inputs_releasable: bool = True, check: Callable[[], None] = lambda: None
) -> MirrorDecisions:
    """The forward tasks to recompute, decided region by region. O(n log n).

    The original counts graph inputs and parameters as releasable bytes, although they are never freed;
    `inputs_releasable=False` counts them as 0. `check` is called between groups and may raise to cancel.
    """
    size = problem.size.copy()
    if not inputs_releasable:
        size[(problem.producer() < 0) | (problem.hold == RESIDENT)] = 0
    check()
    forward = ForwardTasks.of(problem)
    check()
    readers = np.bincount(problem.reads.index, minlength=problem.buffers)
    frontier = _Frontier(forward, size.tolist(), readers.tolist())
    stage = [UNDECIDED if recomputable else KEPT for recomputable in forward.recomputable]
    groups: list[MirrorGroup] = []
    if (problem.phase != FORWARD).any():
        for region in regions(forward):
            groups += _decide_region(region, forward, frontier, stage, check)
    decided = np.array(stage, np.int8)
    decided[decided == UNDECIDED] = KEPT  # only without a backward part
    return MirrorDecisions(decided, tuple(groups), _materialised(problem, decided))


def _decide_region(
    region: list[int], forward: ForwardTasks, frontier: _Frontier, stage: list[int], check: Callable[[], None]
) -> list[MirrorGroup]:
    """Groups of one region: kept ones in the order found, then the remaining ones. Fills `stage` for the region.

    The frontier is every undecided task that depends on no undecided or recomputed task. Keeping a group
    advances the frontier, which may merge or re-price other groups.
    """
    undecided = [t for t in region if stage[t] == UNDECIDED]
    waits_for = {t: sum(stage[p] != KEPT for p in forward.before[t]) for t in undecided}
    ready = [t for t in undecided if waits_for[t] == 0]
    kept: list[MirrorGroup] = []
    while True:
        check()
        for t in sorted(ready):
            frontier.enter(t)
        first = frontier.first_to_keep()
        if first is None:
            break
        kept.append(frontier.leave(first))
        ready = []
        for t in kept[-1].tasks:
            stage[t] = KEPT
            ready += _no_longer_waiting(forward.behind[t], waits_for)
    for t in undecided:
        if stage[t] == UNDECIDED:
            stage[t] = RECOMPUTED
    return kept + frontier.leave_all()


def _no_longer_waiting(followers: list[int], waits_for: dict[int, int]) -> list[int]:
    """Count down the tasks that the followers wait for; those of them that wait for no task any more."""
    waiting = [t for t in followers if t in waits_for]
    for t in waiting:
        waits_for[t] -= 1
    return [t for t in waiting if waits_for[t] == 0]


def mirrored_order(problem: Problem, materialised: np.ndarray, strict_phases: bool = True) -> Order:
    """Every task once in the given order, and each task of `materialised` recomputed as late as possible.

    A recomputation runs right before the first task of a later phase that reads its copy, needs a copy that does, or
    overwrites an input of it. Unlike `order_keeping`, it also runs copies needed for control dependencies only, and
    recomputes buffers that are held to the end. O(n + reads).
    """
    order = base_order(problem, strict_phases)
    if not materialised.any():
        return order
    needs = _copies_needed(problem, materialised).lists()
    overwritten = problem.after_every.transposed(problem.tasks).lists()
    later = (problem.phase != FORWARD).tolist()
    missing = materialised.tolist()
    steps: list[int] = []
    for t in order.tolist():
        pending = needs[t] + overwritten[t] if later[t] else []
        while pending:
            copy = pending[-1]
            first = [before for before in needs[copy] if missing[before]] if missing[copy] else []
            if first:
                pending += first
                continue
            pending.pop()
            if missing[copy]:
                missing[copy] = False
                steps.append(copy)
        steps.append(t)
    return np.array(steps, np.int64)


def _materialised(problem: Problem, stage: np.ndarray) -> np.ndarray:
    """bool[n]: recomputed tasks whose copy a later phase needs."""
    needs = _copies_needed(problem, stage == RECOMPUTED).lists()
    found = np.zeros(problem.tasks, bool)
    pending = [copy for t in np.flatnonzero(problem.phase != FORWARD).tolist() for copy in needs[t]]
    while pending:
        copy = pending.pop()
        if not found[copy]:
            found[copy] = True
            pending += needs[copy]
    return found


def _copies_needed(problem: Problem, rerun: np.ndarray) -> Csr:
    """Task of a later phase, or recomputed task -> recomputed tasks whose copies run before it, or before its copy.

    A buffer handed out is read in place and needs no copy. Control dependencies hold between copies too.
    """
    producer = problem.producer()
    read = problem.reads.index
    reader = problem.reads.row_of_entry()
    gone = (producer[read] >= 0) & (problem.hold[read] != HANDED_OUT) & (problem.hold[read] != RESIDENT)
    waited = np.concatenate([problem.after_every.row_of_entry(), problem.after_first.row_of_entry()])
    waiting = np.concatenate([problem.after_every.index, problem.after_first.index])
    between = rerun[waiting]
    copy = np.concatenate([producer[read[gone]], waited[between]])
    user = np.concatenate([reader[gone], waiting[between]])
    wanted = rerun[copy] & (rerun[user] | (problem.phase[user] != FORWARD)) & (copy != user)
    return Csr.of_pairs(problem.tasks, user[wanted], copy[wanted])


class _Frontier:
    """The tasks to judge next, in groups that share inputs, each with its price.

    A group is named by one of its tasks. An input counts as allocated while a task outside the frontier
    reads it (a gradient, a later forward task, a decided task), else as released.
    """

    def __init__(self, forward: ForwardTasks, size: list[int], readers: list[int]):
        self.reads, self.writes, self.size = forward.reads, forward.writes, size
        self.readers = readers  # per buffer, of every phase
        self.outside = list(readers)  # per buffer: readers that are not in the frontier
        self.reader_here: dict[int, int] = {}  # buffer -> one of its readers in the frontier
        self.group_of: dict[int, int] = {}  # task -> its group
        self.tasks: dict[int, list[int]] = {}  # group -> its tasks
        self.lowest: dict[int, int] = {}  # group -> its lowest task
        self.cost: dict[int, int] = {}  # group -> bytes allocated less bytes released
        self.to_keep: list[tuple[int, int]] = []  # heap of (lowest task, group); stale entries are skipped

    def enter(self, t: int) -> None:
        """Add `t` to the frontier and merge it with every group that reads one of its inputs."""
        self.group_of[t], self.tasks[t], self.lowest[t] = t, [t], t
        self.cost[t] = sum(self.size[b] for b in self.writes[t] if self.readers[b])
        for b in self.reads[t]:
            self.outside[b] -= 1
            other = self.reader_here.setdefault(b, t)
            group = self._merged(self.group_of[t], self.group_of[other])
            if other == t:
                self.cost[group] += self.size[b]
            if self.outside[b] == 0:
                self.cost[group] -= 2 * self.size[b]
        group = self.group_of[t]
        if self.cost[group] <= 0:
            heapq.heappush(self.to_keep, (self.lowest[group], group))

    def first_to_keep(self) -> int | None:
        """The group with the lowest task among those that release at least as much as they allocate; None: none."""
        while self.to_keep:
            lowest, group = self.to_keep[0]
            if self.lowest.get(group) == lowest and self.cost[group] <= 0:
                return group
            heapq.heappop(self.to_keep)
        return None

    def leave(self, group: int) -> MirrorGroup:
        """Remove the group from the frontier; returns the record of its price."""
        tasks = sorted(self.tasks.pop(group))
        inputs = list(dict.fromkeys(b for t in tasks for b in self.reads[t]))
        released = [b for b in inputs if self.outside[b] == 0]
        allocated = [b for t in tasks for b in self.writes[t] if self.readers[b]]
        allocated += [b for b in inputs if self.outside[b]]
        for t in tasks:
            del self.group_of[t]
            for b in self.reads[t]:
                self.outside[b] += 1
                self.reader_here.pop(b, None)
        del self.cost[group], self.lowest[group]
        return MirrorGroup(
            tuple(tasks),
            tuple(allocated),
            tuple(released),
            sum(self.size[b] for b in allocated),
            sum(self.size[b] for b in released),
        )

    def leave_all(self) -> list[MirrorGroup]:
        """Empty the frontier; returns its groups by lowest task."""
        return [self.leave(group) for group in sorted(self.tasks, key=self.lowest.__getitem__)]

    def _merged(self, a: int, b: int) -> int:
        """The merged group of both; the smaller one is renamed."""
        if a == b:
            return a
        big, small = (a, b) if len(self.tasks[a]) >= len(self.tasks[b]) else (b, a)
        for t in self.tasks[small]:
            self.group_of[t] = big
        self.tasks[big] += self.tasks.pop(small)
        self.cost[big] += self.cost.pop(small)
        self.lowest[big] = min(self.lowest[big], self.lowest.pop(small))
        return big
