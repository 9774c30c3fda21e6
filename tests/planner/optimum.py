"""The least cost of any sequence of a small problem within a budget, by Dijkstra over what has run and what is live."""

from __future__ import annotations

import heapq
from itertools import combinations

from planner.plan import Goal
from planner.problem import FORBID, NEVER, RESIDENT, SAME_ORDER, TO_LAST_READ, Problem


def least_cost(problem: Problem, goal: Goal, budget: int) -> int | None:
    """Ticks of the cheapest legal sequence with a peak of at most `budget`; None when there is none.

    Of problems where every buffer has one writer, nothing is handed out before the end, and all is on the device.
    Takeover is credited as much as any rule could, which makes the answer a lower bound of the true optimum.
    """
    n, m = problem.tasks, problem.buffers
    reads = [frozenset(problem.reads[t].tolist()) for t in range(n)]
    writes = [frozenset(problem.writes[t].tolist()) for t in range(n)]
    size = problem.size.tolist()
    resident = frozenset(b for b in range(m) if problem.hold[b] == RESIDENT)
    always = sum(size[b] for b in resident)
    producer = problem.producer().tolist()
    start = frozenset(b for b in range(m) if producer[b] < 0) - resident
    held = frozenset(b for b in range(m) if problem.hold[b] not in (TO_LAST_READ, RESIDENT))
    everyone = frozenset(range(n))
    earlier = [set() for _ in range(n)]  # first runs before the task's own first run
    for t in range(n):
        earlier[t] |= {producer[b] for b in [*problem.reads[t], *problem.shape_reads[t]]} - {-1, t}
        for other in [*problem.after_first[t], *problem.after_every[t]]:
            earlier[other].add(t)
        for other in range(n):
            if goal.strict_phases and problem.phase[other] < problem.phase[t]:
                earlier[t].add(other)
            if goal.order_is_given and other < t:
                earlier[t].add(other)
    once = [problem.repeat[t] in (NEVER, SAME_ORDER) or problem.recompute[t] == FORBID or bool(reads[t] & writes[t])
            for t in range(n)]  # fmt: skip
    queue = [(0, 0, frozenset(), start)]
    seen, count = set(), 0
    while queue:
        cost, _, ran, live = heapq.heappop(queue)
        if (ran, live) in seen:
            continue
        seen.add((ran, live))
        if ran == everyone and held <= live:
            return cost
        for t in range(n):
            if (t in ran and once[t]) or not earlier[t] <= ran or not reads[t] - resident <= live:
                continue
            if t in ran and any(b in ran for b in problem.after_every[t].tolist()):
                continue
            made = writes[t] - resident
            there = live | made
            twice = sum(size[b] for b in live & reads[t] & made)
            need = always + sum(size[b] for b in there) + twice + int(problem.workspace[t])
            for after in subsets(there):
                if need - credit(problem, [b for b in reads[t] - resident if b not in after], made, size) <= budget:
                    count += 1
                    heapq.heappush(queue, (cost + int(problem.cost[t]), count, ran | {t}, after))
    return None


def subsets(of: frozenset[int]) -> list[frozenset[int]]:
    """What may be held on from here."""
    return [frozenset(chosen) for k in range(len(of) + 1) for chosen in combinations(of, k)]


def credit(problem: Problem, free: list[int], made: frozenset[int], size: list[int]) -> int:
    """The most bytes of the outputs `made` that can lie in the inputs `free`."""

    def most(outputs: list[int], left: list[int]) -> int:
        if not outputs:
            return 0
        first, rest = outputs[0], outputs[1:]
        fitting = [b for b in problem.takeover[first].tolist() if b in left and size[b] >= size[first]]
        return max(
            [most(rest, left)] + [size[first] + most(rest, [b for b in left if b != taken]) for taken in fitting]
        )

    return most(sorted(made), free)
