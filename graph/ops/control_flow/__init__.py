"""If, Loop, Scan and Call: nodes with nested graphs, what their bodies are given and what comes of them."""

from __future__ import annotations

from graph.ops.control_flow.execution import RunBody, run
from graph.ops.control_flow.interface import CALL, CONTROL_FLOW, LoopInterface, trip_count, with_else_branch
from graph.ops.control_flow.snapshot_scan import SNAPSHOT_GRAD, SNAPSHOT_SCAN, SnapshotGrad
from graph.ops.control_flow.tail_scan import TAIL_GRAD, TAIL_SCAN, TailGrad

#: Ops whose bodies are run here: those of documents, and those that plans make of them.
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
