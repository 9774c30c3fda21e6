"""Revolve: binomial checkpointing of a chain of equal steps, with the fewest forward runs for its number of snapshots.

Source: Griewank, Walther, "Algorithm 799: Revolve", ACM TOMS 26(1), 2000, sections 2 and 3.

    state    0 ──▶ 1 ──▶ 2 ──▶ 3 ──▶ 4         2 slots: 0 and 2 are stored in the forward pass; steps 3 and 2
    slots    ■           ■                      are reversed from 2, then 2 is freed and 1 stored from 0

With s slots and no step run forward more than r times, a chain of C(s + r, s) steps can be reversed.
As a planner: the steps are segments of the forward pass (`decomposition.py`). The most slots that fit the budget are
taken; if all fit, the longest tail of the chain that is kept in full; for the chain itself and for coarser ones.
O(log(steps)²) schedules of O(n + runs) time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from math import comb
from typing import NamedTuple

import numpy as np

from planner.algorithms.checkpointing.decomposition import SegmentChain, chain_of
from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import RecomputeBuilder

#: A schedule that runs more tasks than this is not tried.
MAX_RUNS = 2_000_000
#: Limit on the tasks of all orders tried (one order of this size takes seconds), and minimum number of orders.
TASKS_TRIED, MIN_TRIES = 1_000_000, 4


class ActionKind(StrEnum):
    """Kind of an action; `begin` and `end` are states, and step k leads from state k to state k + 1."""

    ADVANCE = "advance"  # run steps begin .. end - 1 from state `begin`, keeping only state `end`
    STORE = "store"  # store the current state, `begin`, in a slot
    RESTORE = "restore"  # take state `begin` from its slot
    BACKWARD = "backward"  # rerun step `begin`, keeping its intermediates, and reverse it
    FREE = "free"  # empty the slot of state `begin`
    KEEP = "keep"  # keep the intermediates of step `begin` until it is reversed


class Action(NamedTuple):
    """One action of a schedule."""

    kind: ActionKind
    begin: int
    end: int


def schedule(steps: int, slots: int) -> list[Action]:
    """Actions that reverse steps `steps` - 1 .. 0, each with its intermediates recomputed, from state 0 at hand.

    State 0 takes one of the slots. Advances run `forward_steps(steps, slots)` steps in total, the minimum;
    the run within each BACKWARD is extra. Raises ValueError without steps or slots.
    """
    _check(steps, slots)
    actions = [_at(ActionKind.STORE, 0)]
    at_hand = 0  # -1: none
    # Intervals of steps to reverse, the last one on top; 0 slots: empty the slot of `begin`.
    stretches = [(0, 0, 0), (0, steps, slots)]
    while stretches:
        begin, end, free = stretches.pop()
        if free == 0:
            actions.append(_at(ActionKind.FREE, begin))
            continue
        if at_hand != begin:
            actions.append(_at(ActionKind.RESTORE, begin))
        if end - begin == 1:
            actions.append(_at(ActionKind.BACKWARD, begin))
            at_hand = -1
            continue
        middle = begin + _first_advance(end - begin, free)
        actions.append(Action(ActionKind.ADVANCE, begin, middle))
        if free == 1:  # no free slot: reverse one step, then restart from `begin`
            actions.append(_at(ActionKind.BACKWARD, middle))
            at_hand = -1
            stretches.append((begin, middle, 1))
            continue
        actions.append(_at(ActionKind.STORE, middle))
        at_hand = middle
        stretches += [(begin, middle, free), (middle, middle, 0), (middle, end, free - 1)]
    return actions


def forward_steps(steps: int, slots: int) -> int:
    """The minimum of steps that advances run: r·l − C(s + r, s + 1), with r as in `repetitions`; proposition 1."""
    most = repetitions(steps, slots)
    return most * steps - comb(slots + most, slots + 1)


def repetitions(steps: int, slots: int) -> int:
    """The least r with C(s + r, s) ≥ `steps`: the maximum runs of one step by advances. By bisection."""
    _check(steps, slots)
    low, high = 0, 1
    while comb(slots + high, slots) < steps:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if comb(slots + middle, slots) < steps:
            low = middle + 1
        else:
            high = middle
    return low


def slots_within(steps: int, most_forward_steps: int) -> int:
    """The fewest slots with which advances run at most so many steps; all `steps` if no number suffices."""
    low, high = 1, steps
    while low < high:
        middle = (low + high) // 2
        if forward_steps(steps, middle) <= most_forward_steps:
            high = middle
        else:
            low = middle + 1
    return low


def _first_advance(steps: int, slots: int) -> int:
    """Steps to advance before the next snapshot: the left part may repeat r - 1 times, the right one r times.

    The largest length that keeps both parts within the optimal lengths: at most C(s + r − 1, s) on the left, at least
    C(s + r − 2, s − 1) on the right.
    """
    if slots == 1:
        return steps - 1
    most = repetitions(steps, slots)
    left, right = comb(slots + most - 1, slots), comb(slots + most - 2, slots - 1)
    return max(1, min(left, steps - right))


def _at(kind: ActionKind, state: int) -> Action:
    return Action(kind, state, state)


def _check(steps: int, slots: int) -> None:
    if steps < 1 or slots < 1:
        raise ValueError(f"{steps} steps with {slots} slots; both must be at least 1")


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The order of the best schedule found; the base order, and a note, if the forward pass is not a chain."""
    chain = chain_of(problem, goal.strict_phases)
    monitor.offer(chain.order)
    if chain.segments < 3:
        monitor.note(NO_CHAIN)
    every, left = 1, [max(MIN_TRIES, TASKS_TRIED // max(1, len(chain.order)))]
    while chain.segments // every >= 3 and left[0] > 0 and not monitor.should_stop():
        _search(problem, goal, monitor, chain.coarser(every), left)
        every *= 2
    assert monitor.best is not None
    return monitor.best


NO_CHAIN = (
    "revolve: the forward pass is not a chain (fewer than two cuts that few buffers cross, all recomputable), "
    "so nothing is recomputed"
)


def _search(problem: Problem, goal: Goal, monitor: Monitor, chain: SegmentChain, left: list[int]) -> None:
    """Offer orders of one chain while searching for the most slots, or the longest tail, that the goal allows.

    `left[0]` is the number of orders that may still be tried.
    """

    def more_memory(order: Order) -> bool:
        """Whether the goal allows, or needs, more bytes than this order takes."""
        left[0] -= 1
        return goal.has_room(problem, monitor.offer(order))

    if more_memory(order_from_slots(problem, chain, chain.segments)):
        tail = chain.segments - 1
        _bisect(
            1, tail, lambda k: more_memory(order_from_slots(problem, chain.with_tail(k), tail - k + 1)), monitor, left
        )
        return
    tasks = chain.turn / chain.segments
    low = slots_within(chain.segments, max(chain.segments, int(MAX_RUNS / tasks)))
    _bisect(low, chain.segments - 1, lambda slots: more_memory(order_from_slots(problem, chain, slots)), monitor, left)


def _bisect(low: int, high: int, more: Callable[[int], bool], monitor: Monitor, left: list[int]) -> None:
    """Bisect for the largest of low .. high for which `more` holds."""
    while low <= high and left[0] > 0 and not monitor.should_stop():
        middle = (low + high) // 2
        if more(middle):
            low = middle + 1
        else:
            high = middle - 1


def order_from_slots(problem: Problem, chain: SegmentChain, slots: int) -> Order:
    """The order that reverses the chain's segments with so many slots; state 0 takes no bytes and no slot."""
    return order_from_actions(problem, chain, schedule(chain.segments, slots + 1))


def order_from_actions(problem: Problem, chain: SegmentChain, actions: Iterable[Action]) -> Order:
    """The order that reverses the chain's segments by these actions."""
    return _ScheduleExecutor(problem, chain, actions).order()


class _ScheduleExecutor:
    """Runs the backward pass, taking actions on demand when a task reads a segment."""

    def __init__(self, problem: Problem, chain: SegmentChain, actions: Iterable[Action]):
        self.chain, self.actions = chain, iter(actions)
        self.builder = RecomputeBuilder(problem, chain.order, chain.turn)
        self.states, self.segment = chain.states, chain.segment.tolist()
        self.stored: set[int] = set()
        self.whole: set[int] = set()  # segments kept whole
        self.reversing = chain.segments  # the segment being reversed; none yet
        self.live = np.flatnonzero(chain.segment >= 0).tolist()  # live droppable buffers
        self._reverse_next(0)

    def order(self) -> Order:
        turn = self.chain.turn
        for step, task in enumerate(self.chain.order[turn:].tolist(), start=turn):
            wanted = max((self.segment[b] for b in self.builder.reads[task]), default=-1)
            while 0 <= wanted < self.reversing:
                self._reverse_next(step)
            self.builder.run(task, step)
        return np.array(self.builder.steps, np.int64)

    def _reverse_next(self, step: int) -> None:
        """Take actions up to the next segment to reverse; states are recomputed only to be stored."""
        is_forward = self.reversing == self.chain.segments
        for kind, begin, _ in self.actions:
            if kind is ActionKind.BACKWARD:
                self.reversing = begin
                self._settle(begin if is_forward else -1)
                self.whole.discard(begin)
                return
            if kind is ActionKind.KEEP:
                self.whole.add(begin)
            if kind is ActionKind.FREE:
                self.stored.discard(begin)
            elif kind is ActionKind.STORE:
                self.stored.add(begin)
                if not is_forward:
                    self.builder.make(self.states[begin], step)
                    self._settle()

    def _settle(self, segment: int = -1) -> None:
        """Evict all droppable buffers except stored states, those around the current segment, and whole segments.

        Whole are `segment` and those with a KEEP action.
        """
        around = range(self.reversing, min(self.reversing + 2, self.chain.segments))
        kept = {b for k in (*self.stored, *around) for b in self.states[k]}
        self.live += self.builder.made
        self.builder.made.clear()
        kept_segments = {-1, segment, *self.whole}
        evicted = [b for b in self.live if b not in kept and self.segment[b] not in kept_segments]
        self.builder.evict(evicted)
        self.live = [b for b in self.live if self.builder.there[b]]
