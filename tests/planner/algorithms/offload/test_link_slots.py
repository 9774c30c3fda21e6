"""Free ranges of a link are those of a table with a row for each tick."""

from __future__ import annotations

import random

from planner.algorithms.offload.link_slots import LinkSlots

TICKS = 60


def test_free_ranges_are_the_first_and_the_last_that_hold_a_copy() -> None:
    rng = random.Random(2)
    for _ in range(200):
        slots, busy = LinkSlots(), [False] * TICKS
        for _ in range(12):
            length, at = rng.randint(1, 6), rng.randint(0, TICKS // 2)
            free = [k for k in range(TICKS - length + 1) if not any(busy[k : k + length])]
            first = next((k for k in free if k >= at), None)
            if first is not None:  # else it lies past the table
                assert slots.earliest(at, length) == first
            last = max((k for k in free if k + length <= at), default=None)
            found = slots.latest(at, length)
            assert found == last if last is not None else found < 0
            begin = first if rng.random() < 0.5 else last
            if begin is not None:
                slots.take(begin, length)
                busy[begin : begin + length] = [True] * length
