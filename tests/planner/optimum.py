"""The best sequences of a small problem, by Dijkstra over what has run and what is live.

Slow and obvious: any copy may be dropped at any time, any task run whose inputs are there. Shares no code with the
planners; the alternatives of a choice are resolved by the checker's own function.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterable, Iterator

from planner.problem import DEVICE, FORBID, HANDED_OUT, NEVER, RESIDENT, SAME_ORDER, TO_LAST_READ, Problem
from planner.problem.plan import Goal
from planner.verify.checker import apply_choices

#: Tasks that ran; buffers whose newest copy is there; those handed out that were written again since. Sets are the
#: bits of a number: the members are those that are 1.
State = tuple[int, int, int]


def mask(members: Iterable[int]) -> int:
    """The set as a number."""
    return functools.reduce(int.__or__, (1 << member for member in members), 0)


def bits(members: int) -> Iterator[int]:
    """The members of a set that is a number."""
    while members:
        last = members.bit_length() - 1
        yield last
        members ^= 1 << last


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


def variants(problem: Problem) -> Iterator[tuple[Problem, int]]:
    """The problem under each vector of choices, with each set of optional tasks that run."""
    must = [t for t in range(problem.tasks) if not problem.optional[t]]
    may = [t for t in range(problem.tasks) if problem.optional[t]]
    for vector in itertools.product(*(range(count) for count in problem.choices.counts().tolist())):
        plain = apply_choices(problem, vector)
        for count in range(len(may) + 1):
            for more in itertools.combinations(may, count):
                yield plain, mask([*must, *more])


class Walks:
    """The legal sequences of plain columns that run `tasks`, each at least once."""

    def __init__(self, problem: Problem, goal: Goal, tasks: int):
        self.tasks = tasks
        n, m = problem.tasks, problem.buffers
        self.hold = problem.hold.tolist()
        resident = mask(b for b in range(m) if self.hold[b] == RESIDENT)
        self.reads = [mask(row) & ~resident for row in problem.reads.lists()]
        self.writes = [mask(row) & ~resident for row in problem.writes.lists()]
        self.outputs = [[b for b in row if self.hold[b] != RESIDENT] for row in problem.writes.lists()]
        self.size, self.space = problem.size.tolist(), problem.space.tolist()
        self.bytes = functools.cache(self._bytes)
        self.always = self.bytes(resident)
        producer = [min((t for t in range(n) if b in problem.writes[t]), default=None) for b in range(m)]
        self.start = mask(b for b in range(m) if producer[b] is None) & ~resident
        made = self.start | mask(b for b, t in enumerate(producer) if t is not None and tasks >> t & 1)
        self.held = mask(b for b in bits(made) if self.hold[b] not in (TO_LAST_READ, RESIDENT))
        phase = problem.phase.tolist()
        self.handed_by = {
            b: 0 if (t := producer[b]) is None else phase[t] for b in bits(self.held) if self.hold[b] == HANDED_OUT
        }
        self.handed = functools.cache(self._handed)
        self.late = [mask(row) for row in problem.after_every.lists()]  # ran: the task may not any more
        self.cost, self.workspace = problem.cost.tolist(), problem.workspace.tolist()
        self.takeover = problem.takeover.lists()
        self.giving = [mask(s for b in bits(row) for s in self.takeover[b]) for row in self.writes]
        self.phases = [mask(t for t in bits(tasks) if phase[t] == p) for p in range(3)]
        self.needs = [0] * n  # tasks that ran before
        for t in bits(tasks):
            shapes = mask(problem.shape_reads[t].tolist()) & ~resident
            known = (shapes | mask(problem.writes[t].tolist())) & ~self.start
            self.needs[t] |= mask(maker for b in bits(known) if (maker := producer[b]) is not None)
            for later in [*problem.after_first[t].tolist(), *problem.after_every[t].tolist()]:
                self.needs[later] |= 1 << t
            self.needs[t] |= mask(other for other in bits(tasks) if goal.strict_phases and phase[other] < phase[t])
            self.needs[t] |= mask(other for other in bits(tasks) if goal.order_is_given and other < t)
        self.once = [
            problem.repeat[t] in (NEVER, SAME_ORDER)
            or problem.recompute[t] == FORBID
            or not set(problem.reads[t].tolist()).isdisjoint(problem.writes[t].tolist())
            for t in range(n)
        ]

    def best(self, budget: float) -> tuple[int, int] | None:
        """(ticks, peak) of the cheapest within the budget, of those the lowest."""
        if not self.tasks:
            return (0, self.always) if self.always <= budget else None
        once = sum(self.cost[t] for t in bits(self.tasks))
        count = itertools.count()
        queue: list[tuple[int, int, int, State]] = []
        read = functools.reduce(int.__or__, (self.reads[t] for t in bits(self.tasks)), self.held)
        heapq.heappush(queue, (0, 0, next(count), (0, self.start & read, 0)))
        seen: set[State] = set()
        while queue:
            again, peak, _, state = heapq.heappop(queue)
            if state in seen:
                continue
            seen.add(state)
            ran, live, past = state
            if ran == self.tasks and not self.held & ~past & ~live:
                return once + again, peak
            for b in bits(live & ~(self.handed(ran) & ~past)):
                if (dropped := (ran, live ^ 1 << b, past)) not in seen:
                    heapq.heappush(queue, (again, peak, -next(count), dropped))
            for t in bits(self.tasks):
                if not self.may_run(t, state):
                    continue
                for held, behind in self.runs(t, state):
                    if held <= budget and behind not in seen:
                        ticks = again + (self.cost[t] if ran >> t & 1 else 0)
                        heapq.heappush(queue, (ticks, max(peak, held), -next(count), behind))
        return None

    def _bytes(self, buffers: int) -> int:
        """On the device."""
        return sum(self.size[b] for b in bits(buffers) if self.space[b] == DEVICE)

    def _handed(self, ran: int) -> int:
        """Buffers handed out by then."""
        return mask(b for b, p in self.handed_by.items() if not self.phases[p] & ~ran)

    def may_run(self, t: int, state: State) -> bool:
        ran, live, _ = state
        again = ran >> t & 1 and self.once[t]
        return not (again or self.reads[t] & ~live or self.needs[t] & ~(ran | 1 << t) or self.late[t] & ran)

    def runs(self, t: int, state: State) -> Iterator[tuple[int, State]]:
        """(bytes, state behind) of a run of the task, for every set of its inputs that goes with it."""
        ran, live, past = state
        after, made, reads = ran | 1 << t, self.writes[t], self.reads[t]
        lasting = self.handed(ran) & ~past & live  # handed-out copies that are the newest
        old = live & (~made | reads | lasting)
        held = self.always + self.workspace[t]
        held += self.bytes(old) + self.bytes(made) + self.bytes(past)
        past |= made & lasting
        rewritten = reads & made & ~lasting
        inputs = list(bits(reads & self.giving[t] & ~made & ~lasting))
        for k in range(len(inputs) + 1):
            for some in itertools.combinations(inputs, k):
                gone = mask(some)
                there = (live | made) & ~gone
                if not self.handed(after) & ~past & ~there:
                    yield held - self.credit(t, rewritten | gone), (after, there, past)

    def credit(self, t: int, free: int) -> int:
        """Bytes of outputs in the storage of inputs that end here: each takes the first that fits, each once."""
        size, space, total = self.size, self.space, 0
        for b in self.outputs[t]:
            for s in self.takeover[b]:
                if free >> s & 1 and size[s] >= size[b] > 0 and space[s] == space[b]:
                    free, total = free ^ 1 << s, total + (size[b] if space[b] == DEVICE else 0)
                    break
        return total
