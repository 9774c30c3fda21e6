"""Bytes held at the end: after the last step all residents, handed-out buffers and outputs are live.

Holds for every order with any number of recomputations. An order without steps has residents only.
"""

from __future__ import annotations

import numpy as np

from planner.bounds.claims import ANY_ORDER, Claim, peak_claim
from planner.problem import DEVICE, RESIDENT, TO_LAST_READ, Problem


def bound(problem: Problem) -> int:
    """Lower bound on the peak: bytes live when the last step ends. O(m)."""
    producer = problem.producer()
    held = problem.hold == RESIDENT
    if not problem.optional.all():
        held |= (problem.hold != TO_LAST_READ) & ~((producer >= 0) & problem.optional[np.maximum(producer, 0)])
    return int(problem.size[held & (problem.space == DEVICE)].sum())


def claim(found: int) -> Claim:
    """The claim of the bound; its proof needs the columns only."""
    return peak_claim(ANY_ORDER, found, "held-at-end", [], {})
