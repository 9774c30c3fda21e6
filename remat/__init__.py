"""Memory planning and rematerialization for neural networks.

import remat

report = remat.plan("model.onnx", budget="8GiB", batch=16)
print(report["plan"]["overhead"], report["executed"]["status"])
report.save("plan.json")
points = remat.curve("model.onnx", ["90%", "70%", "50%"], batch=16)["points"]
rows = remat.batch("models/", ["70%", "50%"], planners=["greedy"])
largest = remat.fit("model.onnx", "80GiB", max_overhead="10%")["size"]

with remat.Client("https://remat.example") as client:  # the same of a service
    report = client.plan("model.onnx", budget="8GiB", batch=16)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graph.errors import BadGraph, Finding
from planner.errors import BadRequest
from remat.facade import BadInput, Report, Stopped, batch, curve, fit, plan, verify

if TYPE_CHECKING:
    from app.client.blocking import AsyncClient, Client

# Imports inside functions: the clients are loaded when first used: planning in this process needs no HTTP.

__all__ = [
    "AsyncClient", "BadGraph", "BadInput", "BadRequest", "Client", "Finding", "Report", "Stopped", "batch",
    "curve", "fit", "plan", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The clients, imported when asked for: who plans at home needs no HTTP."""
    if name in ("AsyncClient", "Client"):
        from app.client import blocking

        return getattr(blocking, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
