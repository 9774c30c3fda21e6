"""Budget slider of a plan's page: stored plans of the graph as points, and the request for a budget without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

SEARCH_SECONDS = 5  # time limit of a plan that the slider requests
MAX_PLANNED = 8  # plans that one visit of the page requests
#: Fields of a request that say how much memory or time a plan may take; the slider sets the budget instead.
GOAL_FIELDS = {"budget", "max_overhead", "fits", "iterations", "return"}
SECTIONS = ("plan", "timeline", "layout", "explain", "source", "graph")
POINT_FIELDS = ("id", "budget_bytes", "peak_bytes", "overhead", "gap", "seconds", "status")


def points_of(plans: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The plans as the slider needs them, in their order."""
    return [{name: plan[name] for name in POINT_FIELDS} for plan in plans]


def slider(report: Mapping[str, Any], plans: Sequence[Mapping[str, Any]], max_seconds: float) -> dict[str, str | int]:
    """Template variables: bytes as integers, points and request as JSON."""
    base, plan = report["baseline"], report["plan"]
    fields = {name: value for name, value in report["request"].items() if name not in GOAL_FIELDS}
    fields |= {
        "graph_id": report["row"]["graph_id"],
        "search_seconds": min(SEARCH_SECONDS, max_seconds),
        "execute": "no",
        "return": SECTIONS,
    }
    return {
        "baseline": base["peak_bytes"],
        "minimum": min(plan["bound"]["peak_bytes"] or 0, plan["peak_bytes"]),
        "value": plan["budget_bytes"] or plan["peak_bytes"],
        "seconds": base["seconds"],
        "points": msgspec.json.encode(points_of(plans)).decode(),
        "request": msgspec.json.encode(fields).decode(),
        "max_planned": MAX_PLANNED,
    }
