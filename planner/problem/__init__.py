"""What a planner sees: the columns of a problem, goals, plans, and the one evaluator of an order.

May import numpy, numba (through `jit`) and `graph.cancellation` only. Start at `columns.py`, then `liveness.py`.
"""

from __future__ import annotations

from planner.problem.columns import (
    ALLOW,
    BACKWARD,
    COMMUNICATION,
    COMPUTE,
    DEVICE,
    FORBID,
    FORWARD,
    FREE,
    FROM_HOST,
    HANDED_OUT,
    HOST,
    NEVER,
    NO_CHOICES,
    PREFER,
    RESIDENT,
    SAME_ORDER,
    TO_HOST,
    TO_LAST_READ,
    TO_THE_END,
    UPDATE,
    Choices,
    Csr,
    Problem,
    same_dataflow,
)

__all__ = [
    "ALLOW",
    "BACKWARD",
    "COMMUNICATION",
    "COMPUTE",
    "DEVICE",
    "FORBID",
    "FORWARD",
    "FREE",
    "FROM_HOST",
    "HANDED_OUT",
    "HOST",
    "NEVER",
    "NO_CHOICES",
    "PREFER",
    "RESIDENT",
    "SAME_ORDER",
    "TO_HOST",
    "TO_LAST_READ",
    "TO_THE_END",
    "UPDATE",
    "Choices",
    "Csr",
    "Problem",
    "same_dataflow",
]
