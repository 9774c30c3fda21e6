"""The best sequences of a small problem, by Dijkstra over what has run and what is live.

Slow and obvious: any copy may be dropped at any time, any task run whose inputs are there. Shares no code with the
planners; the alternatives of a choice are resolved by the checker's own function.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator

from planner.check import chosen
from planner.plan import Goal
from planner.problem import DEVICE, FORBID, HANDED_OUT, NEVER, RESIDENT, SAME_ORDER, TO_LAST_READ, Problem

#: Tasks that ran; buffers whose newest copy is there; those handed out that were written again since.
State = tuple[frozenset[int], frozenset[int], frozenset[int]]


def least_cost(problem: Problem, goal: Goal, budget: int) -> int | None:
    """Ticks of the cheapest legal sequence with a peak of at most `budget`; None when there is none."""
    found = [best for plain, tasks in variants(problem) if (best := Walks(plain, goal, tasks).best(budget))]
    return min(found)[0] if found else None


def front(problem: Problem, goal: Goal) -> list[tuple[int, int]]:
    """(ticks, peak) of all legal sequences that no other beats in both, the cheapest first."""
    found = []
    for plain, tasks in variants(problem):
        walks, budget = Walks(plain, goal, tasks), math.inf
        while best := walks.best(budget):
            found.append(best)
            budget = best[1] - 1
    result: list[tuple[int, int]] = []
    for ticks, peak in sorted(found):
        if not result or peak < result[-1][1]:
            result.append((ticks, peak))
    return result


def variants(problem: Problem) -> Iterator[tuple[Problem, frozenset[int]]]:
    """The problem under each vector of choices, with each set of optional tasks that run."""
    must = [t for t in range(problem.tasks) if not problem.optional[t]]
    may = [t for t in range(problem.tasks) if problem.optional[t]]
    for vector in itertools.product(*(range(count) for count in problem.choices.counts().tolist())):
        plain = chosen(problem, vector)
        for count in range(len(may) + 1):
            for more in itertools.combinations(may, count):
                yield plain, frozenset([*must, *more])


class Walks:
    """The legal sequences of plain columns that run `tasks`, each at least once."""

    def __init__(self, problem: Problem, goal: Goal, tasks: frozenset[int]):
        self.problem, self.tasks = problem, tasks
        n, m = problem.tasks, problem.buffers
        self.hold = problem.hold.tolist()
        resident = {b for b in range(m) if self.hold[b] == RESIDENT}
        self.reads = [frozenset(row) - resident for row in problem.reads.lists()]
        self.writes = [[b for b in row if b not in resident] for row in problem.writes.lists()]
        device = (problem.space == DEVICE).tolist()
        self.size = [size if on else 0 for size, on in zip(problem.size.tolist(), device, strict=True)]
        self.always = sum(self.size[b] for b in resident)
        producer = [min((t for t in range(n) if b in problem.writes[t]), default=None) for b in range(m)]
        self.start = frozenset(b for b in range(m) if producer[b] is None) - resident
        made = self.start | {b for b in range(m) if producer[b] in tasks}
        self.held = frozenset(b for b in made if self.hold[b] not in (TO_LAST_READ, RESIDENT))
        phase = problem.phase.tolist()
        self.handed_by = {b: 0 if producer[b] is None else phase[producer[b]] for b in self.held
                          if self.hold[b] == HANDED_OUT}  # fmt: skip
        self.handed = functools.cache(self._handed)
        self.late = [frozenset(row) for row in problem.after_every.lists()]  # ran: the task may not any more
        self.cost, self.takeover = problem.cost.tolist(), problem.takeover.lists()
        self.phases = [frozenset(t for t in tasks if phase[t] == p) for p in range(3)]
        self.needs: list[set[int | None]] = [set() for _ in range(n)]  # tasks that ran before
        for t in tasks:
            shapes = [b for b in problem.shape_reads[t].tolist() if b not in resident]
            self.needs[t] |= {producer[b] for b in [*shapes, *problem.writes[t].tolist()] if b not in self.start}
            for later in [*problem.after_first[t].tolist(), *problem.after_every[t].tolist()]:
                self.needs[later].add(t)
            self.needs[t] |= {other for other in tasks if goal.strict_phases and phase[other] < phase[t]}
            self.needs[t] |= {other for other in tasks if goal.order_is_given and other < t}
        self.once = [
            problem.repeat[t] in (NEVER, SAME_ORDER) or problem.recompute[t] == FORBID
            or not set(problem.reads[t].tolist()).isdisjoint(problem.writes[t].tolist())
            for t in range(n)
        ]  # fmt: skip

    def best(self, budget: float) -> tuple[int, int] | None:
        """(ticks, peak) of the cheapest within the budget, of those the lowest."""
        if not self.tasks:
            return (0, self.always) if self.always <= budget else None
        once = sum(self.cost[t] for t in self.tasks)
        nothing: frozenset[int] = frozenset()
        count = itertools.count()
        queue: list[tuple[int, int, int, State]] = []
        read = frozenset(b for t in self.tasks for b in self.reads[t]) | self.held
        heapq.heappush(queue, (0, 0, next(count), (nothing, self.start & read, nothing)))
        seen: set[State] = set()
        while queue:
            again, peak, _, state = heapq.heappop(queue)
            if state in seen:
                continue
            seen.add(state)
            ran, live, past = state
            if ran == self.tasks and self.held - past <= live:
                return once + again, peak
            for b in live - (self.handed(ran) - past):
                heapq.heappush(queue, (again, peak, -next(count), (ran, live - {b}, past)))
            for t in self.tasks:
                if not self.may_run(t, state):
                    continue
                for held, behind in self.runs(t, state):
                    if held <= budget:
                        ticks = again + (self.cost[t] if t in ran else 0)
                        heapq.heappush(queue, (ticks, max(peak, held), -next(count), behind))
        return None

    def _handed(self, ran: frozenset[int]) -> frozenset[int]:
        """Buffers handed out by then."""
        return frozenset(b for b, p in self.handed_by.items() if self.phases[p] <= ran)

    def may_run(self, t: int, state: State) -> bool:
        ran, live, _ = state
        again = t in ran and self.once[t]
        return not again and self.reads[t] <= live and self.needs[t] <= ran | {t} and self.late[t].isdisjoint(ran)

    def runs(self, t: int, state: State) -> Iterator[tuple[int, State]]:
        """(bytes, state behind) of a run of the task, for every set of its inputs that goes with it."""
        ran, live, past = state
        after, made = ran | {t}, frozenset(self.writes[t])
        lasting = (self.handed(ran) - past) & live  # handed-out copies that are the newest
        old = frozenset(b for b in live if b not in made or b in self.reads[t] or b in lasting)
        held = self.always + int(self.problem.workspace[t])
        held += sum(self.size[b] for b in [*old, *made, *past])
        past |= made & lasting
        rewritten = self.reads[t] & made - lasting
        wanted = {s for b in made for s in self.takeover[b]}
        inputs = sorted((self.reads[t] & wanted) - made - lasting)
        for k in range(len(inputs) + 1):
            for gone in itertools.combinations(inputs, k):
                there = (live | made) - set(gone)
                if self.handed(after) - past <= there:
                    yield held - self.credit(t, rewritten | set(gone)), (after, there, past)

    def credit(self, t: int, free: frozenset[int]) -> int:
        """Bytes of outputs in the storage of inputs that end here: each takes the first that fits, each once."""
        problem, total = self.problem, 0
        for b in self.writes[t]:
            for s in self.takeover[b]:
                if s in free and problem.size[s] >= problem.size[b] > 0 and problem.space[s] == problem.space[b]:
                    free, total = free - {s}, total + self.size[b]
                    break
        return total
