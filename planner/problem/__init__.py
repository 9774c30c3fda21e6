"""The planning problem as numpy columns, goals, plans, and the one evaluator of an order.

May import `planner.errors`, `graph.cancellation`, numpy and (through `jit`) numba.
Start reading at `columns.py`, then `plan.py` and `liveness.py`.
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
