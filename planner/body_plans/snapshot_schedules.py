"""Which states a recurrence keeps to go back with: schedules by Revolve for every useful number of rows.

Source: Griewank, Walther, "Algorithm 799: Revolve", ACM TOMS 26(1), 2000; `algorithms/revolve.py` makes the
schedules. The way out runs every trip once and stores what Revolve stores before it first turns round; the
way back does the rest. Altogether at most a few trips more than Revolve runs: those from the last state
stored to the last trip, which Revolve has at hand.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from planner.algorithms.checkpointing.revolve import ActionKind, forward_steps, schedule

#: Actions of the way back, as `graph.ops.control_flow.snapshot_scan` numbers them.
ADVANCE, STORE, RESTORE, BACKWARD = range(4)
#: Trips at most, and numbers of rows offered: each makes the whole that much slower than the one before.
MAX_TRIPS, MAX_ROW_COUNTS, MIN_SLOWDOWN = 10_000, 128, 1.015
MAX_SLOWDOWN = 6.0  # trips run altogether, in those of the way out


def row_counts(trips: int) -> Iterator[int]:
    """Numbers of rows worth offering, falling: each saves bytes for at least `MIN_SLOWDOWN` times the trips."""
    if not 3 <= trips <= MAX_TRIPS:
        return
    rows = trips - 1
    for _ in range(MAX_ROW_COUNTS):
        yield rows
        limit = MIN_SLOWDOWN * forward_trips(trips, rows)
        low, high = 1, rows  # the most rows that run at least `limit` trips
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
    """Trips run forward altogether: the way out and advances of the way back, where a trip back runs none itself."""
    return forward_steps(trips, rows) + 1


def backward_schedule(trips: int, rows: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """(trips before which the way out keeps its states, by row; rows used; schedule of the way back)."""
    kept: list[int] = []
    row_of: dict[int, int] = {}
    free = list(range(rows))
    flat: list[int] = []
    turned = False
    for kind, begin, end in schedule(trips, rows):
        if kind is ActionKind.BACKWARD and not turned:
            turned = True
            last = kept[-1]
            flat += [RESTORE, last, row_of[last]]
            if last < begin:
                flat += [ADVANCE, last, begin]
        if kind is ActionKind.STORE:
            row_of[begin] = heapq.heappop(free)
            if turned:
                flat += [STORE, begin, row_of[begin]]
            else:
                kept.append(begin)
        elif kind is ActionKind.FREE:
            heapq.heappush(free, row_of.pop(begin))
        elif turned:
            flat += _action(kind, begin, end, row_of)
    return tuple(kept), rows, tuple(flat)


def _action(kind: ActionKind, begin: int, end: int, row_of: dict[int, int]) -> tuple[int, int, int]:
    if kind is ActionKind.RESTORE:
        return RESTORE, begin, row_of[begin]
    return (BACKWARD, begin, begin) if kind is ActionKind.BACKWARD else (ADVANCE, begin, end)
