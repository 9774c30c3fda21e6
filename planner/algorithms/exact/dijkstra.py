"""Exact: the optimal order of a small problem, by Dijkstra over execution states.

First runs cost the same in every order, so only recomputations count: states with less recomputation come first, ties
by progress. `states.py` defines the states and the dominance that prunes them. The lowest peak is found by bisection
between the lower bound and the best known peak.

O(sets of tasks that may have run · sets of copies worth keeping) time: a dozen tasks in free order, more in a
given one. If the state limit is reached, returns the best known order without a proof.
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
from planner.problem.best_order import BestOrder
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order

#: Maximum tasks and optional tasks.
MAX_TASKS, MAX_OPTIONAL = 30, 5
#: Maximum states visited for one plan, and states per iteration of the iteration limit.
MAX_STATES, STATES = 60_000, 500


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The optimal order, with `monitor.is_optimal` set; or the best known one, with a note, at the state limit."""
    best = planner.initial_order(problem, goal, monitor)
    if problem.tasks > MAX_TASKS or int(problem.optional.sum()) > MAX_OPTIONAL:
        monitor.note(f"exact: more than {MAX_TASKS} tasks, or {MAX_OPTIONAL} of them optional: nothing is searched")
        return best
    search = _DijkstraSearch(problem, goal, monitor, best)
    search.run()
    monitor.is_optimal = search.ended
    if not search.ended:
        monitor.note("exact: not all states were looked at, so that there may be a better order")
    return search.best.order


class _DijkstraSearch:
    """One problem, and the best order so far."""

    def __init__(self, problem: Problem, goal: Goal, monitor: Monitor, best: Order):
        self.problem, self.goal, self.monitor = problem, goal, monitor
        self.best = BestOrder(monitor, best, monitor.judge(best))
        must, may = np.flatnonzero(~problem.optional).tolist(), np.flatnonzero(problem.optional).tolist()
        some = [[*must, *more] for k in range(len(may) + 1) for more in combinations(may, k)]
        self.states = [StateSpace(problem, goal, sorted(tasks)) for tasks in some]
        self.looked_at, self.ended = 0, True

    def run(self) -> None:
        budget = self.goal.budget_bytes
        if budget:
            fits = self.best.score.bytes_over_budget == 0
            if not self.within(budget, self.best.score.cost if fits else MAX_TICKS) and not fits:
                self.lowest(MAX_TICKS)
            return
        limit = MAX_TICKS if budget == 0 else self.goal.cost_limit(self.problem) + 1
        if self.best.score.cost >= limit:
            self.best.offer(base_order(self.problem, self.goal.strict_phases))
        self.lowest(limit)

    def lowest(self, most_ticks: int) -> None:
        """Find the lowest peak of the orders below `most_ticks`, and the least time at it."""
        unit = math.gcd(*self.problem.size.tolist(), *self.problem.workspace.tolist()) or 1
        low = -(-max(largest_task.bound(self.problem).bytes, held_at_end.bound(self.problem)) // unit)
        high = self.best.score.peak_bytes // unit
        while self.ended and low < high:
            middle = (low + high) // 2
            if self.within(middle * unit, most_ticks):
                high = min(middle, self.best.score.peak_bytes // unit)
            else:
                low = middle + 1
        self.within(self.best.score.peak_bytes, self.best.score.cost)

    def within(self, budget: int, most_ticks: int) -> bool:
        """Whether an order within the budget and below `most_ticks` exists; the cheapest is offered."""
        found = False
        for states in self.states:
            order = self._cheapest(states, budget, most_ticks - states.once())
            if order is not None:
                most_ticks, found = int(self.problem.cost[order].sum()), True
                self.best.offer(order)
        return found

    def _cheapest(self, states: StateSpace, budget: int, most_ticks: int) -> Order | None:
        """The order with the least recomputation, below `most_ticks`; None: there is none, or too many states."""
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
        """Count a state; whether the limit allows it."""
        self.looked_at += 1
        if self.looked_at > MAX_STATES or (self.looked_at % STATES == 0 and self.monitor.should_stop()):
            self.ended = False
        return self.ended


class _VisitedStates:
    """Visited states, for dominance tests."""

    def __init__(self) -> None:
        self.live: dict[tuple[int, int], list[int]] = {}

    def covers(self, state: ExecutionState) -> bool:
        """Whether a visited state ran the same tasks and has all copies of this one."""
        return any(state.live & ~more == 0 for more in self.live.get((state.ran, state.past), ()))

    def add(self, state: ExecutionState) -> bool:
        """Add the state unless it is covered; returns whether it was added."""
        if self.covers(state):
            return False
        self.live.setdefault((state.ran, state.past), []).append(state.live)
        return True


def _back(rows: list[tuple[ExecutionState, int, int]], number: int) -> Iterator[int]:
    """The tasks that led to a state, last first."""
    while number > 0:
        _, number, task = rows[number]
        yield task
