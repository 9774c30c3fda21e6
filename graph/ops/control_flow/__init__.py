"""Control flow: If, Loop, Scan, Call and checkpointed scans; their interfaces, types and execution.

May import ir, ops.registry and errors. Start at `interface.py`, then `execution.py`.
"""

from __future__ import annotations

from graph.ops.control_flow.checkpointed_scan import CHECKPOINTED_SCANS, SNAPSHOT_GRAD, TAIL_GRAD, CheckpointedGrad
from graph.ops.control_flow.execution import RunBody, run
from graph.ops.control_flow.interface import (
    CALL,
    CONTROL_FLOW,
    SNAPSHOT_SCAN,
    TAIL_SCAN,
    LoopInterface,
    trip_count,
    with_else_branch,
)

#: Ops with bodies: those of documents, and the checkpointed scans that replace them.
OPS_WITH_BODIES = CONTROL_FLOW | CHECKPOINTED_SCANS

__all__ = [
    "CALL",
    "CHECKPOINTED_SCANS",
    "CONTROL_FLOW",
    "OPS_WITH_BODIES",
    "SNAPSHOT_GRAD",
    "SNAPSHOT_SCAN",
    "TAIL_GRAD",
    "TAIL_SCAN",
    "CheckpointedGrad",
    "LoopInterface",
    "RunBody",
    "run",
    "trip_count",
    "with_else_branch",
]
