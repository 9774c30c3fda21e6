"""Decomposition of the forward pass into a chain of segments, between cuts that few droppable buffers cross.

forward    a ── b ─┬─ c ─┬─ d ── e         cuts after a, b, d: states 1, 2, 3 are {a}, {b}, {d}
                   ╰─────╯                 after c both b and c cross, so c and d are one segment
segments   0    1    2     2    3         segment k leads from state k to k + 1; state 0 exists from the start

Cuts lie where at most one buffer crosses, if there are at least two such places. Otherwise, as in a recurrence
of several states, cuts lie at local minima of the crossing bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.problem import Problem
from planner.problem.columns import sum_over_intervals
from planner.problem.plan import Order
from planner.problem.recompute import backward_start, base_order, droppable_before

#: Maximum buffers that cross a cut.
MAX_CROSSING = 16
#: A task that reads at least this many droppable buffers collects the outputs of a whole chain; its result is kept.
COLLECTOR_READS = 6


@dataclass(frozen=True, eq=False, slots=True)
class SegmentChain:
    """k segments of the forward pass of n tasks and m buffers."""

    order: Order  # the base order
    turn: int  # the step at which the backward pass begins
    states: tuple[tuple[int, ...], ...]  # k: droppable buffers that lead into each segment
    segment: np.ndarray  # int64[m]  segment that writes each droppable buffer; -1: kept, or not written forward

    @property
    def segments(self) -> int:
        return len(self.states)

    def coarser(self, every: int) -> SegmentChain:
        """The chain that merges every `every` segments; the first one may be shorter."""
        start = (self.segments - 1) % every + 1
        return self._of(np.append(0, np.arange(start, self.segments, every)))

    def with_tail(self, segments: int) -> SegmentChain:
        """The chain that merges the last `segments` segments."""
        return self._of(np.arange(self.segments - segments + 1))

    def _of(self, begins: np.ndarray) -> SegmentChain:
        """The chain whose segments begin at the given segments."""
        place = np.searchsorted(begins, self.segment, side="right") - 1
        states = tuple(self.states[k] for k in begins.tolist())
        return SegmentChain(self.order, self.turn, states, np.where(self.segment < 0, -1, place))


def chain_of(problem: Problem, strict_phases: bool) -> SegmentChain:
    """The finest chain of the forward pass; a single segment if there is no cut. O(n + m + reads)."""
    order = base_order(problem, strict_phases)
    turn = backward_start(problem, order)
    forward = order[:turn]
    droppable = droppable_before(problem, order, turn)
    collectors = _collectors(problem, forward, droppable)
    droppable[problem.writes.gather(collectors)] = False
    first, last = np.full(problem.buffers, turn, np.int64), np.full(problem.buffers, -1, np.int64)
    step, written = problem.writes.entries(forward)
    np.minimum.at(first, written, step)
    step, read = problem.reads.entries(forward)
    goes_on = ~np.isin(forward[step], collectors)
    np.maximum.at(last, read[goes_on], step[goes_on])
    crossing = np.flatnonzero(droppable & (first < last))
    cuts = _cuts(problem, crossing, first, last, turn)
    states = _states(crossing, first, last, cuts)
    new = [k for k, state in enumerate(states) if k == 0 or not state or state != states[k - 1]]
    cuts = cuts[new]
    made = np.searchsorted(np.append(0, cuts + 1), first, side="right") - 1
    segment = np.where(droppable & (first < turn), made, -1)
    return SegmentChain(order, turn, ((), *(states[k] for k in new)), segment)


def _collectors(problem: Problem, forward: np.ndarray, droppable: np.ndarray) -> np.ndarray:
    """Forward tasks that read many droppable buffers."""
    step, read = problem.reads.entries(forward)
    count = np.bincount(step[droppable[read]], minlength=len(forward))
    return forward[count >= COLLECTOR_READS]


def _cuts(problem: Problem, crossing: np.ndarray, first: np.ndarray, last: np.ndarray, turn: int) -> np.ndarray:
    """Steps of the forward pass after which a cut lies, ascending."""
    count, size = (
        sum_over_intervals(first[crossing], last[crossing], each, turn)[: max(0, turn - 1)]
        for each in (1, problem.size[crossing])
    )
    single = np.flatnonzero(count <= 1)
    if len(single) >= 2 or not len(size):
        return single
    before, behind = np.append(size[0] + 1, size[:-1]), np.append(size[1:], size[-1])
    return np.flatnonzero((count <= MAX_CROSSING) & (size < before) & (size <= behind))


def _states(crossing: np.ndarray, first: np.ndarray, last: np.ndarray, cuts: np.ndarray) -> list[tuple[int, ...]]:
    """Per cut the buffers that cross it, ascending."""
    states: list[list[int]] = [[] for _ in range(len(cuts))]
    begin, end = np.searchsorted(cuts, first[crossing]), np.searchsorted(cuts, last[crossing])
    for buffer, a, b in zip(crossing.tolist(), begin.tolist(), end.tolist(), strict=True):
        for k in range(a, b):
            states[k].append(buffer)
    return [tuple(state) for state in states]
