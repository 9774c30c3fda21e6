"""Control flow: If, Loop, Scan, Call and planned scans; their interfaces, types and execution.

May import ir, ops.registry and errors. Start at `interface.py`, then `execution.py`.
"""

from __future__ import annotations

from graph.ops.control_flow.execution import RunBody, run
from graph.ops.control_flow.interface import CALL, CONTROL_FLOW, LoopInterface, trip_count, with_else_branch
from graph.ops.control_flow.snapshot_scan import SNAPSHOT_GRAD, SNAPSHOT_SCAN, SnapshotGrad
from graph.ops.control_flow.tail_scan import TAIL_GRAD, TAIL_SCAN, TailGrad

#: Ops with bodies: those of documents, and the planned scans that replace them.
OPS_WITH_BODIES = CONTROL_FLOW | {SNAPSHOT_SCAN, SNAPSHOT_GRAD, TAIL_SCAN, TAIL_GRAD}

__all__ = [
    "CALL",
    "CONTROL_FLOW",
    "OPS_WITH_BODIES",
    "SNAPSHOT_GRAD",
    "SNAPSHOT_SCAN",
    "TAIL_GRAD",
    "TAIL_SCAN",
    "LoopInterface",
    "RunBody",
    "SnapshotGrad",
    "TailGrad",
    "run",
    "trip_count",
    "with_else_branch",
]
