"""Exact: the best of all sequences of a small problem, by Dijkstra over what has run and what is there.

First runs cost what they cost in any sequence, so that only repeats count: states that need no more of them come
first, of those the ones that are further. Which states there are, and why not all have to be looked at, says
`states.py`. The lowest peak is found by halving the bytes between what no order goes below and what is known.

O(sets of tasks that may have run, times sets of copies worth having) time: a dozen tasks in any order, more in a
given one. Where the states do not end within their number, what is known comes back, and nothing is proven.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from planner.algorithms.exact.states import ExecutionState, StateSpace
from planner.algorithms.greedy import planner
from planner.bounds import held_at_end, largest_task
from planner.bounds.solvers.checkmate_model import MAX_TICKS
from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order

#: Tasks, and tasks that may be left out, up to which anything is searched.
MAX_TASKS, MAX_OPTIONAL = 30, 5
#: States that are looked at for one plan at most, and those for one iteration of the quota.
MAX_STATES, STATES = 60_000, 500


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The best order there is, which the monitor is told; or the best known with a note, where states do not end."""
    best = planner.initial_order(problem, goal, monitor)
    if problem.tasks > MAX_TASKS or int(problem.optional.sum()) > MAX_OPTIONAL:
        monitor.note(f"exact: more than {MAX_TASKS} tasks, or {MAX_OPTIONAL} of them optional: nothing is searched")
        return best
    search = _DijkstraSearch(problem, goal, monitor, best)
    search.run()
    monitor.is_optimal = search.ended
    if not search.ended:
        monitor.note("exact: not all states were looked at, so that there may be a better order")
    return search.best


class _DijkstraSearch:
    """One problem, and the best order so far by the monitor's score."""

    def __init__(self, problem: Problem, goal: Goal, monitor: Monitor, best: Order):
        self.problem, self.goal, self.monitor = problem, goal, monitor
        self.best, self.score = best, monitor.judge(best)
        must, may = np.flatnonzero(~problem.optional).tolist(), np.flatnonzero(problem.optional).tolist()
        some = [[*must, *more] for k in range(len(may) + 1) for more in combinations(may, k)]
        self.states = [StateSpace(problem, goal, sorted(tasks)) for tasks in some]
        self.looked_at, self.ended = 0, True

    def run(self) -> None:
        budget = self.goal.budget_bytes
        if budget:
            fits = self.score.bytes_over_budget == 0
            if not self.within(budget, self.score.cost if fits else MAX_TICKS) and not fits:
                self.lowest(MAX_TICKS)
            return
        extra = 0.1 if self.goal.max_overhead is None else self.goal.max_overhead
        limit = MAX_TICKS if budget == 0 else int(self.problem.cost.sum() * (1 + extra)) + 1
        if self.score.cost >= limit:
            self.offer(base_order(self.problem, self.goal.strict_phases))
        self.lowest(limit)

    def lowest(self, most_ticks: int) -> None:
        """The lowest peak of the orders that take less than `most_ticks`, and the least time at it."""
        unit = math.gcd(*self.problem.size.tolist(), *self.problem.workspace.tolist()) or 1
        low = -(-max(largest_task.bound(self.problem).bytes, held_at_end.bound(self.problem)) // unit)
        high = self.score.peak_bytes // unit
        while self.ended and low < high:
            middle = (low + high) // 2
            if self.within(middle * unit, most_ticks):
                high = min(middle, self.score.peak_bytes // unit)
            else:
                low = middle + 1
        self.within(self.score.peak_bytes, self.score.cost)

    def within(self, budget: int, most_ticks: int) -> bool:
        """Whether an order was found within the budget that takes less than `most_ticks`; the cheapest is offered."""
        found = False
        for states in self.states:
            order = self._cheapest(states, budget, most_ticks - states.once())
            if order is not None:
                most_ticks, found = int(self.problem.cost[order].sum()), True
                self.offer(order)
        return found

    def _cheapest(self, states: StateSpace, budget: int, most_ticks: int) -> Order | None:
        """The order whose repeats take least, and less than `most_ticks`; None where there is none, or no end."""
        if most_ticks <= 0 or (not states.chosen and states.always > budget):
            return None
        begin = states.begin()
        queue, rows, seen = [(0, 0, 0)], [(begin, -1, -1)], _VisitedStates()
        while queue and self.ended:
            ticks, _, number = heapq.heappop(queue)
            state, number = rows[-number][0], -number
            if not seen.add(state):
                continue
            if states.is_final(state):
                return np.array(list(_back(rows, number))[::-1], np.int64)
            for task, behind in states.moves(state, budget):
                if not self._goes_on():
                    return None
                after = ticks + (states.cost[task] if state.ran >> task & 1 else 0)
                if after < most_ticks and not seen.covers(behind):
                    heapq.heappush(queue, (after, -behind.ran.bit_count(), -len(rows)))
                    rows.append((behind, number, task))
        return None

    def _goes_on(self) -> bool:
        """Whether one more state may be looked at."""
        self.looked_at += 1
        if self.looked_at > MAX_STATES or (self.looked_at % STATES == 0 and self.monitor.should_stop()):
            self.ended = False
        return self.ended

    def offer(self, order: Order) -> None:
        score = self.monitor.offer(order)
        if score < self.score:
            self.best, self.score = order, score


class _VisitedStates:
    """States that were looked at."""

    def __init__(self) -> None:
        self.live: dict[tuple[int, int], list[int]] = {}

    def covers(self, state: ExecutionState) -> bool:
        """Whether one of them has run the same and has all copies that this one has."""
        return any(state.live & ~more == 0 for more in self.live.get((state.ran, state.past), ()))

    def add(self, state: ExecutionState) -> bool:
        """Whether it was not covered; then it is one of them."""
        if self.covers(state):
            return False
        self.live.setdefault((state.ran, state.past), []).append(state.live)
        return True


def _back(rows: list[tuple[ExecutionState, int, int]], number: int) -> Iterator[int]:
    """The tasks that led to a state, the last one first."""
    while number > 0:
        _, number, task = rows[number]
        yield task
