"""Execution states of a small problem: tasks that have run and live copies, and the transitions by one run.

A state is the set of tasks that have run, the buffers with a live copy, and the handed-out buffers of which a newer
copy was written. Copies are kept until memory is short: a state with more copies can do all that one with fewer can.
So a run is tried with the minimal sets of copies to drop for it, and of two states after the same runs one that has
all copies of the other dominates it. Sets are integers; bit i is set if i is in the set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.problem import DEVICE, HANDED_OUT, RESIDENT, TO_THE_END, Problem
from planner.problem.plan import Goal
from planner.problem.recompute import can_recompute


class ExecutionState(NamedTuple):
    """Sets as bit masks."""

    ran: int  # tasks
    live: int  # buffers whose newest copy is live
    past: int  # handed-out buffers with a newer copy; both copies are live


@dataclass(frozen=True, slots=True)
class _After:
    """Sets of buffers that depend only on the tasks that have run."""

    unread: int  # read by a task that has not run
    lost: int  # cannot be recomputed any more
    idle: int  # cannot be read any more
    handed: int  # handed out by now


class StateSpace:
    """The states of one problem in which exactly the tasks `chosen` run, each at least once."""

    def __init__(self, problem: Problem, goal: Goal, chosen: Sequence[int]):
        self.problem, self.chosen = problem, list(chosen)
        self.all = _set(self.chosen)
        self.size, self.bytes = problem.size.tolist(), np.where(problem.space == DEVICE, problem.size, 0).tolist()
        resident = _set_where(problem.hold == RESIDENT)
        self.always = self.bytes_of(resident)
        self.cost, self.workspace = problem.cost.tolist(), problem.workspace.tolist()
        self.repeatable = _set_where(can_recompute(problem)) & self.all
        self.reads = [_set(row) & ~resident for row in problem.reads.lists()]
        self.writes = [_set(row) & ~resident for row in problem.writes.lists()]
        producer = problem.producer()
        self.producer = producer.tolist()
        self.start = _set_where(producer < 0) & ~resident
        exists = self.start | _set_where(np.isin(producer, self.chosen))
        self.end = exists & _set_where(problem.hold == TO_THE_END)
        self.handed = exists & _set_where(problem.hold == HANDED_OUT)
        self.first = self._earlier(goal, resident)
        self.last = [_set(row) & self.all for row in problem.after_every.lists()]  # ran: the task may not any more
        self.readers, self.writers = self._transposed(self.reads), self._transposed(self.writes)
        self.takers = [self._takers(t) for t in range(problem.tasks)]
        self.phases = self._phases()
        self.after: dict[int, _After] = {}

    def _transposed(self, rows: list[int]) -> list[int]:
        """Buffer -> chosen tasks in whose row it is."""
        tasks = [0] * self.problem.buffers
        for t in self.chosen:
            for b in _members(rows[t]):
                tasks[b] |= 1 << t
        return tasks

    def _earlier(self, goal: Goal, resident: int) -> list[int]:
        """Tasks whose first run precedes that of each task."""
        problem, phase = self.problem, self.problem.phase.tolist()
        earlier = [0] * problem.tasks
        for t in self.chosen:
            shapes = _set(problem.shape_reads[t].tolist()) & ~resident
            buffers = [*_members(shapes | self.reads[t]), *problem.writes[t].tolist()]
            earlier[t] |= _set({self.producer[b] for b in buffers} - {-1})
            for later in (*problem.after_first[t].tolist(), *problem.after_every[t].tolist()):
                earlier[later] |= 1 << t
            if goal.strict_phases:
                earlier[t] |= _set(other for other in self.chosen if phase[other] < phase[t])
            if goal.order_is_given:
                earlier[t] |= _set(other for other in self.chosen if other < t)
        return [tasks & ~(1 << t) for t, tasks in enumerate(earlier)]

    def _takers(self, task: int) -> list[tuple[int, list[int]]]:
        """(output, inputs whose storage it may reuse, first fit), in the order of writing."""
        problem, size, space = self.problem, self.size, self.problem.space
        rows = []
        for out in problem.writes[task].tolist():
            fitting = [
                source
                for source in problem.takeover[out].tolist()
                if self.reads[task] >> source & 1 and size[source] >= size[out] > 0 and space[source] == space[out]
            ]
            if fitting and self.writes[task] >> out & 1:
                rows.append((out, fitting))
        return rows

    def _phases(self) -> list[tuple[int, int]]:
        """(tasks, buffers handed out once all of them have run) of each phase."""
        phase = self.problem.phase.tolist()
        of = [phase[task] if task >= 0 else 0 for task in self.producer]
        return [
            (
                _set(t for t in self.chosen if phase[t] == p),
                self.handed & _set(b for b in range(self.problem.buffers) if of[b] == p),
            )
            for p in range(3)
        ]

    def bytes_of(self, buffers: int) -> int:
        """Total bytes of a set of buffers."""
        return sum(self.bytes[b] for b in _members(buffers))

    def once(self) -> int:
        """Ticks of one run of each task."""
        return sum(self.cost[t] for t in self.chosen)

    def begin(self) -> ExecutionState:
        """The initial state."""
        return self._reached(0, self.start, 0)

    def is_final(self, state: ExecutionState) -> bool:
        """Whether all tasks have run and all outputs are live."""
        return state.ran == self.all and self.end & ~state.live == 0

    def moves(self, state: ExecutionState, budget: int) -> Iterator[tuple[int, ExecutionState]]:
        """(task, next state) of every run that fits the budget and may be useful."""
        ran, live, _ = state
        lasting = self._known(ran).handed & ~state.past  # copies that were handed out and are the newest
        for t in self.chosen:
            if ran >> t & 1:
                if not self.repeatable >> t & 1 or self.writes[t] & ~live == 0:
                    continue
            elif self.first[t] & ~ran:
                continue
            if self.reads[t] & ~live == 0 and not self.last[t] & ran:
                yield from ((t, behind) for behind in self._runs(state, t, lasting, budget))

    def _runs(self, state: ExecutionState, t: int, lasting: int, budget: int) -> Iterator[ExecutionState]:
        """The states after a run of the task, one per minimal set of copies to drop or to overwrite by takeover."""
        reads, writes, ran = self.reads[t], self.writes[t], state.ran | 1 << t
        past = state.past | (writes & lasting)
        known = self._known(ran)
        live = state.live | writes
        if known.handed & ~past & ~live:
            return  # what a phase that ends here hands out is not there
        others = state.live & ~reads & ~writes & ~lasting
        required = known.handed & ~past | self._needed(known, past)
        # A buffer that is written anew where its old copy is read, or was handed out, is there twice.
        held = self.bytes_of(state.past) + self.bytes_of(reads | lasting | others) + self.bytes_of(writes)
        need = self.always + held + self.workspace[t] - budget
        dying = reads & ~lasting & (writes | self._idle(known, past))
        sources = _set(s for _, row in self.takers[t] for s in row)
        given = _members(sources & ~dying & ~required & ~lasting)
        loose = [b for b in _members(others & ~required) if self.bytes[b]]
        fitting: list[int] = []
        for away in _subsets(given):
            if any(small & ~away == 0 for small in fitting):
                continue
            short = need - self._credit(t, dying | away)
            for drop in self._smallest(loose, short):
                if not drop:
                    fitting.append(away)
                yield self._reached(ran, live & ~drop & ~away, past)

    def _credit(self, task: int, dying: int) -> int:
        """Bytes of outputs that reuse the storage of dying inputs."""
        total = 0
        for out, sources in self.takers[task] if dying else ():
            taken = next((s for s in sources if dying >> s & 1), None)
            if taken is not None:
                dying &= ~(1 << taken)
                total += self.bytes[out]
        return total

    def _smallest(self, loose: list[int], short: int) -> Iterator[int]:
        """The minimal sets of these buffers with at least `short` bytes."""
        if short <= 0:
            yield 0
            return
        by_size = sorted(loose, key=lambda b: -self.bytes[b])  # the last one taken is the smallest: all are needed
        rest = [0] * (len(by_size) + 1)
        for i in reversed(range(len(by_size))):
            rest[i] = rest[i + 1] + self.bytes[by_size[i]]
        waiting = [(0, 0, short)]
        while waiting:
            i, taken, left = waiting.pop()
            if i == len(by_size) or rest[i] < left:
                continue
            b = by_size[i]
            waiting.append((i + 1, taken, left))
            if self.bytes[b] >= left:
                yield taken | 1 << b
            else:
                waiting.append((i + 1, taken | 1 << b, left - self.bytes[b]))

    def _reached(self, ran: int, live: int, past: int) -> ExecutionState:
        """The state without copies that are never read later."""
        return ExecutionState(ran, live & ~self._idle(self._known(ran), past), past)

    def _needed(self, known: _After, past: int) -> int:
        """Buffers that must stay live: they cannot be recomputed, and are read later or held at the end."""
        return known.lost & (known.unread | self.end | self.handed & ~past)

    def _idle(self, known: _After, past: int) -> int:
        """Buffers that are neither read later nor held at the end."""
        return known.idle & ~(self.end | self.handed & ~past)

    def _known(self, ran: int) -> _After:
        """The sets that depend on `ran` only, cached."""
        if ran not in self.after:
            can = self.all & ~ran | self.repeatable & _set(t for t in self.chosen if not self.last[t] & ran)
            buffers = range(self.problem.buffers)
            self.after[ran] = _After(
                _set(b for b in buffers if self.readers[b] & ~ran),
                _set(b for b in buffers if not self.writers[b] & can),
                _set(b for b in buffers if not self.readers[b] & can),
                _set(b for tasks, out in self.phases if not tasks & ~ran for b in _members(out)),
            )
        return self.after[ran]


def _set(members: Iterable[int]) -> int:
    """The bit mask of the members."""
    result = 0
    for member in members:
        result |= 1 << member
    return result


def _set_where(chosen: np.ndarray) -> int:
    """The bit mask of the true entries."""
    return _set(np.flatnonzero(chosen).tolist())


def _members(of: int) -> list[int]:
    """The members of a bit mask, ascending."""
    result = []
    while of:
        low = of & -of
        result.append(low.bit_length() - 1)
        of ^= low
    return result


def _subsets(members: list[int]) -> list[int]:
    """All subsets of the members, each after its own subsets."""
    sets = [0]
    for member in members:
        sets += [one | 1 << member for one in sets]
    return sorted(sets, key=int.bit_count)
