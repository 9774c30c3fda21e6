"""Rotor: the optimal persistent schedule for segments of different time and bytes, by dynamic programming.

Source: Herrmann, Beaumont, Eyraud-Dubois, Hermann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains:
how to train deep neural networks with limited memory", 2019, theorem 1 (rotor).

C(s, t, m), the least time to run segments s .. t forward and reverse them within m bytes, with the state before s
given:

    keep s whole        inside(s) ≤ m:  time(s) + C(s + 1, t, m − inside(s))
    store state j > s   state(j) ≤ m:   time(s .. j − 1) + C(j, t, m − state(j)) + C(s, j − 1, m)

As a planner: segments lie between cuts of the forward pass; the table is computed once, for many m, and the largest m
whose order meets the goal is taken. O(k³ · UNITS) time for k segments; neighbours are merged above MAX_SEGMENTS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from planner.algorithms.checkpointing.decomposition import SegmentChain, chain_of
from planner.algorithms.checkpointing.revolve import Action, ActionKind, order_from_actions
from planner.problem import DEVICE, Problem, liveness
from planner.problem.columns import sum_over_intervals
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import can_recompute

#: Memory units of the table, and maximum segments.
UNITS, MAX_SEGMENTS = 400, 80
#: Budgets of the table tried: evenly spaced ones, then bisection steps between two of them.
STEPS, TRIES = 12, 7
#: In the table: infeasible.
INFEASIBLE = 1 << 61
#: In the table of choices: keep the segment whole.
KEEP_WHOLE = -1


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The order of the best schedule found; the base order, and a note, if the forward pass is not a chain."""
    chain = chain_of(problem, goal.strict_phases)
    monitor.offer(chain.order)
    if chain.segments < 3:
        monitor.note("chain: the forward pass is not a chain of at least three segments, so nothing is recomputed")
    every = -(-chain.segments // MAX_SEGMENTS)
    while chain.segments // every >= 3 and not monitor.should_stop():
        for beside in (True, False):
            _search(problem, goal, monitor, chain.coarser(every), beside)
        every *= 2
    assert monitor.best is not None
    return monitor.best


def _search(problem: Problem, goal: Goal, monitor: Monitor, chain: SegmentChain, beside: bool) -> None:
    """Offer orders while searching for the most bytes that the goal allows.

    The table includes the bytes `beside` a segment, or only stored bytes; the latter finds tighter schedules.
    """
    costs = measure_segments(problem, chain)
    table = CostTable(costs if beside else costs._replace(forth=costs.forth * 0, back=costs.back * 0), monitor)

    def has_room(units: int) -> bool:
        """Whether the goal allows, or needs, more bytes than this many units."""
        return goal.has_room(problem, monitor.offer(order_from_actions(problem, chain, table.actions(units))))

    least = table.min_units
    low, high = -1, UNITS + 1
    for units in np.unique(np.linspace(least, UNITS, STEPS).astype(int)).tolist() if least <= UNITS else ():
        if monitor.should_stop():
            return
        if has_room(units):
            low, high = units, UNITS + 1
        elif high > UNITS:
            high = units
    for _ in range(TRIES if low >= 0 else 0):
        if high - low <= 1 or monitor.should_stop():
            return
        middle = (low + high) // 2
        low, high = (middle, high) if has_room(middle) else (low, middle)


class SegmentCosts(NamedTuple):
    """Columns over k segments."""

    ticks: np.ndarray  # int64[k]  to rerun it
    state: np.ndarray  # int64[k]  bytes of the state before it
    inside: np.ndarray  # int64[k]  bytes it writes that the backward pass reads
    forth: np.ndarray  # int64[k]  non-droppable bytes while it runs forward
    back: np.ndarray  # int64[k]  non-droppable bytes while it is reversed


def measure_segments(problem: Problem, chain: SegmentChain) -> SegmentCosts:
    """The costs of the segments, measured on the base order, in which all buffers are kept."""
    order, turn, k = chain.order, chain.turn, chain.segments
    size = np.where(problem.space == DEVICE, problem.size, 0)
    lifetimes = liveness.lifetimes(problem, order)
    profile = liveness.profile(problem, order, lifetimes)
    of = chain.segment[lifetimes.buffer]
    droppable = (of >= 0) & (lifetimes.stop > lifetimes.start)
    read_back = droppable & (lifetimes.stop > turn)
    inside = np.bincount(of[read_back], size[lifetimes.buffer[read_back]], k).astype(np.int64)
    state = np.array([int(size[list(buffers)].sum()) for buffers in chain.states], np.int64)
    start, stop = lifetimes.start[droppable], lifetimes.stop[droppable]
    rest = profile - sum_over_intervals(start, stop, size[lifetimes.buffer[droppable]], len(order))
    # The segment of a step: forward, the one whose buffers it writes; backward, the lowest one reached so far.
    step, written = problem.writes.entries(order)
    read_step, read = problem.reads.entries(order)
    at = np.full(len(order), -1, np.int64)
    np.maximum.at(at, step[step < turn], chain.segment[written[step < turn]])
    at[:turn] = np.maximum.accumulate(np.maximum(at[:turn], 0))
    wanted = np.full(len(order), -1, np.int64)
    np.maximum.at(wanted, read_step, chain.segment[read])
    back = np.where(wanted[turn:] >= 0, wanted[turn:], k - 1)
    at[turn:] = np.minimum.accumulate(back) if len(back) else back
    forth, beside = np.zeros(k, np.int64), np.zeros(k, np.int64)
    np.maximum.at(forth, at[:turn], rest[:turn])
    np.maximum.at(beside, at[turn:], rest[turn:])
    rerun_ticks = np.where(can_recompute(problem)[order[:turn]], problem.cost[order[:turn]], 0)
    ticks = np.bincount(at[:turn], rerun_ticks, k).astype(np.int64)
    return SegmentCosts(ticks, state, inside, forth, beside)


class CostTable:
    """C(s, t, m) for all segments s ≤ t and m = 0 .. UNITS units, with the choice that attains it."""

    def __init__(self, costs: SegmentCosts, monitor: Monitor):
        ticks, k = costs.ticks, len(costs.ticks)
        largest = int(costs.inside.sum() + costs.state.max() + max(costs.forth.max(), costs.back.max()))
        unit = max(1, -(-largest // UNITS))
        state, inside, forth, back = (-(-part // unit) for part in costs[1:])
        until = np.append(0, np.cumsum(ticks))
        room = np.arange(UNITS + 1)
        self.segments = k
        self.ticks = np.full((k, k, UNITS + 1), INFEASIBLE, np.int64)
        self.choice = np.full((k, k, UNITS + 1), KEEP_WHOLE, np.int16)
        following = np.append(state[1:], 0)
        for s in range(k - 1, -1, -1):
            fits = room >= np.maximum(inside[s] + back[s], state[s] + forth[s])
            self.ticks[s, s, fits] = ticks[s]
            if monitor.should_stop():
                break
            for t in range(s + 1, k):
                best = np.where(fits, ticks[s] + _shifted(self.ticks[s + 1, t], inside[s]), INFEASIBLE)
                for j in range(s + 1, t + 1):
                    moves = room >= state[s] + int((forth[s:j] + following[s:j]).max())
                    taken = until[j] - until[s] + _shifted(self.ticks[j, t], state[j]) + self.ticks[s, j - 1]
                    better = moves & (taken < best)
                    best[better] = taken[better]
                    self.choice[s, t, better] = j
                self.ticks[s, t] = np.minimum(best, INFEASIBLE)
        self.state, self.inside = state.tolist(), inside.tolist()

    @property
    def min_units(self) -> int:
        """The fewest units within which the whole chain can be reversed; UNITS + 1 if infeasible."""
        done = np.flatnonzero(self.ticks[0, self.segments - 1] < INFEASIBLE)
        return int(done[0]) if len(done) else UNITS + 1

    def actions(self, units: int) -> Iterator[Action]:
        """The actions of the schedule within so many units."""
        yield Action(ActionKind.STORE, 0, 0)
        waiting: list[Action | tuple[int, int, int]] = [(0, self.segments - 1, units)]
        while waiting:
            now = waiting.pop()
            if isinstance(now, Action):
                yield now
                continue
            s, t, m = now
            j = int(self.choice[s, t, m])
            if s == t:
                yield Action(ActionKind.BACKWARD, s, s)
            elif j == KEEP_WHOLE:
                yield Action(ActionKind.KEEP, s, s)
                waiting += [Action(ActionKind.BACKWARD, s, s), (s + 1, t, m - self.inside[s])]
            else:
                yield Action(ActionKind.STORE, j, j)
                waiting += [(s, j - 1, m), Action(ActionKind.FREE, j, j), (j, t, m - self.state[j])]


def _shifted(row: np.ndarray, units: int) -> np.ndarray:
    """The row for `units` less memory."""
    if units == 0:
        return row
    return np.asarray(
        np.concatenate([np.full(min(units, len(row)), INFEASIBLE, np.int64), row[: max(0, len(row) - units)]])
    )
