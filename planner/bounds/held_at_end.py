"""Held at the end: after the last step everything that is resident, handed out or an output is there.

No order, and no number of repeats, changes that. A sequence of no steps has residents alone.
"""

from __future__ import annotations

import numpy as np

from planner.bounds.claims import ANY_ORDER, Claim, peak_claim
from planner.problem import DEVICE, RESIDENT, TO_LAST_READ, Problem


def bound(problem: Problem) -> int:
    """Bytes that are live when the last step ends. O(m)."""
    producer = problem.producer()
    held = problem.hold == RESIDENT
    if not problem.optional.all():
        held |= (problem.hold != TO_LAST_READ) & ~((producer >= 0) & problem.optional[np.maximum(producer, 0)])
    return int(problem.size[held & (problem.space == DEVICE)].sum())


def claim(found: int) -> Claim:
    """The bound with its certificate, which needs no more than the columns."""
    return peak_claim(ANY_ORDER, found, "held-at-end", [], {})
