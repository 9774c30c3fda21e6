"""If, Loop, Scan and Call: nodes with nested graphs, what their bodies are given and what comes of them."""

from __future__ import annotations

from graph.control_flow.execution import RunBody, run
from graph.control_flow.interface import CALL, CONTROL_FLOW, Trips, both_branches, trips_of
from graph.control_flow.snapshots import SNAPSHOT_GRAD, SNAPSHOT_SCAN, SnapshotGrad

__all__ = [
    "CALL", "CONTROL_FLOW", "SNAPSHOT_GRAD", "SNAPSHOT_SCAN", "RunBody", "SnapshotGrad", "Trips", "both_branches",
    "run", "trips_of",
]  # fmt: skip
