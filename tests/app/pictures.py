"""Reports and curves that pictures are drawn of in tests; what a picture does not read is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def report(before: Sequence[int], after: Sequence[int], budget: int | None = None, name: str = "m") -> dict[str, Any]:
    return {
        "model": {"name": name},
        "plan": {"budget_bytes": budget},
        "timeline": {
            "baseline_step_bytes": list(before),
            "step_bytes": list(after),
            "baseline_holder": {"value": "h14", "bytes": 2**20},
            "holder": None,
        },
    }


def point(budget: int, overhead: float, bound: float, status: str = "found") -> dict[str, Any]:
    return {
        "budget": f"{budget}B",
        "budget_bytes": budget,
        "peak_bytes": budget,
        "overhead": overhead,
        "bound_overhead": bound,
        "status": status,
    }


def curve(*points: dict[str, Any], name: str = "m") -> dict[str, Any]:
    return {"model": {"name": name}, "points": list(points)}
