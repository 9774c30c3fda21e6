"""Held at the end: after the last step everything that is resident, handed out or an output is there.

No order, and no number of repeats, changes that. The certificate is the list of those buffers.
"""

from __future__ import annotations

import numpy as np

from planner.problem import DEVICE, TO_LAST_READ, Problem


def bound(problem: Problem) -> int:
    """Bytes that are live when the last step ends. O(m)."""
    producer = problem.producer()
    optional = (producer >= 0) & problem.optional[np.maximum(producer, 0)] if problem.tasks else np.zeros(0, bool)
    held = (problem.hold != TO_LAST_READ) & (problem.space == DEVICE)
    return int(problem.size[held & ~optional].sum() if problem.tasks else problem.size[held].sum())
