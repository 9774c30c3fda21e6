"""Memory planning and rematerialization for neural networks.

import remat

report = remat.plan("model.onnx", budget="8GiB", batch=16)
print(report["plan"]["overhead"], report["executed"]["status"])
report.save("plan.json")
"""

from __future__ import annotations

from graph.errors import BadGraph, Finding
from planner.errors import BadRequest
from remat.facade import BadInput, Report, Stopped, plan, verify

__all__ = ["BadGraph", "BadInput", "BadRequest", "Finding", "Report", "Stopped", "plan", "verify"]
