"""The least makespan of a small problem with copy engines, by Dijkstra over what has run, is live and is running.

Slow and obvious. For problems without choices, takeover, residents, buffers handed out, phases and after relations, in
which each task costs at least one tick; collectives run once. A copy of a buffer is given up at the start of one of its
users, guessed; a schedule that keeps a copy with no later read only waits longer. Shares no code with the planners and
the evaluator.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from planner.problem import COMPUTE, DEVICE, FREE, HOST, TO_LAST_READ, Problem
from planner.problem.plan import Goal


@dataclass(frozen=True)
class State:
    """Times are ticks from the start of the last task on."""

    ran: frozenset[int]
    live: tuple[tuple[int, int, int], ...]  # (buffer, until it is written, until its last use ends)
    leaving: tuple[tuple[int, int], ...]  # (until it goes, buffer or, below 0, -1 - task for a workspace)
    free: tuple[int, ...]  # per engine, until it is free


class Walks:
    """The legal sequences of a problem within a goal."""

    def __init__(self, problem: Problem, goal: Goal):
        self.goal = goal
        self.cost, self.engine = problem.cost.tolist(), problem.engine.tolist()
        self.workspace, self.size = problem.workspace.tolist(), problem.size.tolist()
        self.space = problem.space.tolist()
        self.reads, self.writes = problem.reads.lists(), problem.writes.lists()
        producer = problem.producer().tolist()
        self.needs = [{producer[b] for b in row} - {t} for t, row in enumerate(self.writes)]  # tasks that run before
        self.once = (problem.repeat != FREE).tolist()
        self.must = frozenset(t for t in range(problem.tasks) if not problem.optional[t])
        self.to_the_end = [bool(kind != TO_LAST_READ) for kind in problem.hold.tolist()]
        self.is_read = [any(b in row for row in self.reads) for b in range(problem.buffers)]

    def keeps_to_budget(self) -> bool:
        """Whether some sequence is within the goal's bytes, whatever its makespan.

        Tasks one after the other hold no more than the same sequence side by side, so times do not matter.
        """
        timed, self.cost = self.cost, [0] * len(self.cost)
        found = self.least(0)
        self.cost = timed
        return found is not None

    def least(self, limit: int) -> tuple[int, list[int]] | None:
        """(ticks, sequence) with the least makespan; None if none within the budget takes at most `limit` ticks."""
        begin = State(frozenset(), (), (), (0,) * (max(self.engine) + 1))
        count = itertools.count()
        none: tuple[int, ...] = ()
        queue = [(self.at_least(0, 0, begin), next(count), 0, 0, begin, none)]
        seen: set[tuple[int, State]] = set()
        while queue:
            ticks, _, now, end, state, sequence = heapq.heappop(queue)
            if (end - now, state) in seen:
                continue
            seen.add((end - now, state))
            if self.must <= state.ran:
                return ticks, list(sequence)
            for task in range(len(self.cost)):
                for start, after in self.runs(task, state):
                    then, last = now + start, max(end, now + start + self.cost[task])
                    bound = self.at_least(then, last, after)
                    if bound <= limit and (last - then, after) not in seen:
                        heapq.heappush(queue, (bound, next(count), then, last, after, (*sequence, task)))
        return None

    def at_least(self, now: int, end: int, state: State) -> int:
        left = sum(self.cost[t] for t in self.must - state.ran if self.engine[t] == COMPUTE)
        return max(end, now + state.free[COMPUTE] + left) if left else end

    def runs(self, task: int, state: State) -> Iterator[tuple[int, State]]:
        """(ticks until the start, state behind) for every set of buffers that the task is the last to use."""
        if (self.once[task] and task in state.ran) or not self.needs[task] <= state.ran:
            return
        live = {buffer: (written, used) for buffer, written, used in state.live}
        if not live.keys() >= set(self.reads[task]) or not live.keys().isdisjoint(self.writes[task]):
            return
        start = max([0, state.free[self.engine[task]], *(live[b][0] for b in self.reads[task])])
        added = [*self.writes[task], -1 - task]
        while not self.fits([*live, *(entry for until, entry in state.leaving if until > start), *added]):
            later = [until for until in (*state.free, *(u for u, _ in state.leaving)) if until > start]
            if not later:
                return
            start = min(later)
        end = start + self.cost[task]
        for buffer in self.reads[task]:
            live[buffer] = live[buffer][0], max(live[buffer][1], end)
        live |= dict.fromkeys(self.writes[task], (end, end))
        leaving = [
            *((u, e) for u, e in state.leaving if u > start),
            *([(end, -1 - task)] if self.workspace[task] else []),
        ]
        free = list(state.free)
        free[self.engine[task]] = end
        users = [b for b in {*self.reads[task], *self.writes[task]} if not self.to_the_end[b]]
        unread = {b for b in users if not self.is_read[b]}
        for gone in subsets([b for b in users if b not in unread]):
            gone |= unread
            yield (
                start,
                State(
                    state.ran | {task},
                    tuple(
                        sorted((b, max(0, w - start), max(0, u - start)) for b, (w, u) in live.items() if b not in gone)
                    ),
                    tuple(sorted((u - start, e) for u, e in [*leaving, *((live[b][1], b) for b in gone)])),
                    tuple(max(0, until - start) for until in free),
                ),
            )

    def fits(self, entries: list[int]) -> bool:
        device = sum(self.workspace[-1 - e] if e < 0 else self.size[e] * (self.space[e] == DEVICE) for e in entries)
        host = sum(self.size[e] for e in entries if e >= 0 and self.space[e] == HOST)
        budget, room = self.goal.budget_bytes, self.goal.host_bytes
        return (not budget or device <= budget) and (room is None or host <= room)


def subsets(members: list[int]) -> Iterator[set[int]]:
    for count in range(len(members) + 1):
        yield from map(set, itertools.combinations(members, count))
