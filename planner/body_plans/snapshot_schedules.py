"""Snapshot schedules of a recurrence: Revolve schedules for every useful number of snapshot rows.

Source: Griewank, Walther, "Algorithm 799: Revolve", ACM TOMS 26(1), 2000; `algorithms/checkpointing/revolve.py`
computes the schedules. The forward pass runs every iteration once and stores the snapshots that Revolve stores before
its first backward action; the backward pass performs the rest of the schedule. It runs at most a few iterations more
than Revolve: those from the last snapshot to the last iteration, whose state Revolve still has.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from graph.ops.control_flow.checkpointed_scan import ADVANCE, BACKWARD, RESTORE, STORE
from planner.algorithms.checkpointing.revolve import ActionKind, forward_steps, schedule

#: Iterations with schedules; numbers of rows offered; least slowdown from one number of rows to the next.
MAX_TRIPS, MAX_ROW_COUNTS, MIN_SLOWDOWN = 10_000, 128, 1.015
MAX_SLOWDOWN = 6.0  # forward iterations in total, as a multiple of the iterations of the loop


def row_counts(trips: int) -> Iterator[int]:
    """Numbers of snapshot rows to offer, falling; each runs at least MIN_SLOWDOWN times the iterations of the last."""
    if not 3 <= trips <= MAX_TRIPS:
        return
    rows = trips - 1
    for _ in range(MAX_ROW_COUNTS):
        yield rows
        limit = MIN_SLOWDOWN * forward_trips(trips, rows)
        low, high = 1, rows  # most rows with at least `limit` forward iterations
        while low < high:
            middle = (low + high + 1) // 2
            if forward_trips(trips, middle) >= limit:
                low = middle
            else:
                high = middle - 1
        if low == rows or low < 2 or forward_trips(trips, low) > MAX_SLOWDOWN * trips:
            return
        rows = low


def forward_trips(trips: int, rows: int) -> int:
    """Forward iterations in total: those of the forward pass, and the advances of the backward pass."""
    return forward_steps(trips, rows) + 1


def backward_schedule(trips: int, rows: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """(iterations before which the forward pass stores a snapshot, by row; rows; schedule of the backward pass)."""
    kept: list[int] = []
    row_of: dict[int, int] = {}
    free = list(range(rows))
    flat: list[int] = []
    is_reversed = False
    for kind, begin, end in schedule(trips, rows):
        if kind is ActionKind.BACKWARD and not is_reversed:
            is_reversed = True
            last = kept[-1]
            flat += [RESTORE, last, row_of[last]]
            if last < begin:
                flat += [ADVANCE, last, begin]
        if kind is ActionKind.STORE:
            row_of[begin] = heapq.heappop(free)
            if is_reversed:
                flat += [STORE, begin, row_of[begin]]
            else:
                kept.append(begin)
        elif kind is ActionKind.FREE:
            heapq.heappush(free, row_of.pop(begin))
        elif is_reversed:
            flat += _action(kind, begin, end, row_of)
    return tuple(kept), rows, tuple(flat)


def _action(kind: ActionKind, begin: int, end: int, row_of: dict[int, int]) -> tuple[int, int, int]:
    if kind is ActionKind.RESTORE:
        return RESTORE, begin, row_of[begin]
    return (BACKWARD, begin, begin) if kind is ActionKind.BACKWARD else (ADVANCE, begin, end)
