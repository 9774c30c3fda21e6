"""Memory planning and rematerialization for neural networks.

import remat

report = remat.plan("model.onnx", budget="8GiB", batch=16)
print(report.peak_bytes, report.overhead, report.executed["status"])
report.save("plan.json")
points = remat.curve("model.onnx", ["90%", "70%", "50%"], batch=16)["points"]
rows = remat.batch("models/", ["70%", "50%"], planners=["greedy"])
largest = remat.fit("model.onnx", "80GiB", max_overhead="10%")["size"]

with remat.Client("https://remat.example") as client:  # the same on a service
    report = client.plan("model.onnx", budget="8GiB", batch=16)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.client.blocking import AsyncClient, Client
    from graph.errors import BadGraph, Finding
    from graph.ir import Graph
    from planner.errors import BadRequest
    from remat.errors import BadInput, Stopped
    from remat.facade import batch, curve, fit, plan, verify
    from remat.report import Report

    __version__: str

# Imports inside functions: public names are imported at first use.

__all__ = [
    "AsyncClient",
    "BadGraph",
    "BadInput",
    "BadRequest",
    "Client",
    "Finding",
    "Graph",
    "Report",
    "Stopped",
    "batch",
    "curve",
    "fit",
    "plan",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Public names, imported at first use: `remat --help` needs no numpy, planning on this machine no HTTP."""
    if name == "__version__":
        import importlib.metadata

        found: Any = importlib.metadata.version("remat")
    elif name in ("AsyncClient", "Client"):
        from app.client import blocking

        found = getattr(blocking, name)
    elif name in __all__:
        from remat import facade

        found = getattr(facade, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
