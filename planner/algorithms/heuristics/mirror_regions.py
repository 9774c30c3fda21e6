"""Regions: maximal connected parts of cheap forward tasks between heavy ones.

heavy ──▶ a ──▶ b ──▶ heavy          {a, b, c, d} is one region: b's chain reaches a, and c reads what a reads
  ╰─────▶ c ──▶ d ──▶ heavy
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.problem import FORWARD, PREFER, RESIDENT, TO_LAST_READ, Csr, Problem


@dataclass(frozen=True, eq=False, slots=True)
class ForwardTasks:
    """The forward part of a problem as lists, for walks that visit single tasks. Others have empty rows."""

    recomputable: list[bool]  # task: may be recomputed, and is cheap or preferred
    target: list[bool]  # task: writes what is held, or what no forward task reads
    reads: list[list[int]]  # task -> buffers
    writes: list[list[int]]  # task -> buffers
    readers: list[list[int]]  # buffer -> forward tasks
    before: list[list[int]]  # task -> forward tasks whose outputs it reads or that it waits for, once each
    behind: list[list[int]]  # the same the other way round

    @classmethod
    def of(cls, problem: Problem) -> ForwardTasks:
        """O(n + reads)."""
        forward = problem.phase == FORWARD
        before = _before(problem, forward)
        behind = before.transposed(problem.tasks)
        reads, writes = _rows_of(problem.reads, forward), _rows_of(problem.writes, forward)
        held = np.isin(problem.hold[writes.index], (TO_LAST_READ, RESIDENT), invert=True)
        target = forward & (np.diff(behind.pointer) == 0)
        target[writes.row_of_entry()[held]] = True
        return cls(
            (forward & mirror_recomputable(problem)).tolist(),
            target.tolist(),
            reads.lists(),
            writes.lists(),
            reads.transposed(problem.buffers).lists(),
            before.lists(),
            behind.lists(),
        )


def mirror_recomputable(problem: Problem) -> np.ndarray:
    """bool[n]: cheap or preferred, and allowed to be recomputed, even late.

    A forward task must stand before every run of the tasks in its row of `after_every`; when one of
    these is a forward task too, a run in the backward part would come too late.
    """
    early = np.zeros(problem.tasks, bool)
    early[problem.after_every.row_of_entry()[problem.phase[problem.after_every.index] == FORWARD]] = True
    return np.asarray(problem.repeatable() & (~problem.heavy | (problem.recompute == PREFER)) & ~early)


def regions(forward: ForwardTasks) -> Iterator[list[int]]:
    """Regions from the last target backwards, each as ascending tasks, no task in two.

    Every forward task is in one; what is heavy belongs to the region that feeds it, and is in it
    whenever it reads what a member reads. O(n log n + reads) for all together.
    """
    seen = [False] * len(forward.target)
    looked_at: set[int] = set()  # buffers whose readers were followed: all of them are in finished regions, or in this
    starts = deque(t for t in reversed(range(len(seen))) if forward.target[t])
    while starts:
        start = starts.popleft()
        if not seen[start]:
            members = _grown(forward, start, seen, looked_at, starts)
            yield sorted(members)


def _grown(forward: ForwardTasks, start: int, seen: list[bool], looked_at: set[int], starts: deque[int]) -> list[int]:
    """The region around `start`, closed under producers and under sharing an input; borders go to `starts`.

    A region is closed when it is finished, so growth that meets an earlier one has nothing to add. The same holds for
    readers of a buffer: each ends in a task of the region that looked at it first, which has all cheap tasks before it.
    """
    members: list[int] = []
    walked: set[int] = set()
    pending = [start]
    while pending:
        t = pending.pop()
        if seen[t]:
            continue
        seen[t] = True
        members.append(t)
        for p in forward.before[t]:
            (pending if forward.recomputable[p] else starts).append(p)
        for b in forward.reads[t]:
            if b not in looked_at:
                looked_at.add(b)
                for reader in forward.readers[b]:
                    if not seen[reader]:
                        pending += _ends(forward, reader, walked)
    return members


def _ends(forward: ForwardTasks, task: int, walked: set[int]) -> list[int]:
    """Targets and non-recomputable tasks at which forward walks from `task` stop. No task is walked twice."""
    found, pending = [], [task]
    while pending:
        t = pending.pop()
        if t in walked:
            continue
        walked.add(t)
        if forward.target[t] or not forward.recomputable[t]:
            found.append(t)
        else:
            pending += forward.behind[t]
    return found


def _before(problem: Problem, forward: np.ndarray) -> Csr:
    """Task -> forward tasks that it depends on."""
    producer = problem.producer()[problem.reads.index]
    earlier = np.concatenate([producer, problem.after_every.row_of_entry(), problem.after_first.row_of_entry()])
    later = np.concatenate([problem.reads.row_of_entry(), problem.after_every.index, problem.after_first.index])
    both = (earlier >= 0) & (earlier != later) & forward[earlier] & forward[later]
    pair = np.unique(later[both] * problem.tasks + earlier[both])
    return Csr.of_pairs(problem.tasks, pair // max(1, problem.tasks), pair % max(1, problem.tasks))


def _rows_of(relation: Csr, chosen: np.ndarray) -> Csr:
    """The relation with only the chosen rows."""
    row = relation.row_of_entry()
    return Csr.of_pairs(len(relation), row[chosen[row]], relation.index[chosen[row]])
