"""Template data of results other than plans: curve, largest size that fits, layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from app.jobs.interface import Operation
from app.render import svg
from app.render.plan.svg import inline_svg
from app.store import records
from app.store.store import Store


class LayoutResult(msgspec.Struct):
    """Fields of a layout document that pages show."""

    offsets: list[int]
    arena_bytes: int
    bound_bytes: int
    status: str


def result_view(store: Store, operation: Operation) -> dict[str, Any] | None:
    """Result of a finished curve, fit or layout, with its `kind`; None if there is none. Raises NotFound."""
    if operation.found is None or operation.kind not in RESULT_VIEWS:
        return None
    document = records.result_of(store, operation.kind, operation.found)
    return {"kind": operation.kind} | RESULT_VIEWS[operation.kind](document)


def _curve(document: bytes) -> dict[str, Any]:
    """Charts for wide and narrow screens, and one row per budget."""
    result = msgspec.json.decode(document)
    rows = [{**point, "page": _plan_page(point)} for point in result["points"]]
    charts = {"chart": svg.WIDE, "narrow_chart": svg.NARROW}
    drawn = {place: inline_svg(svg.curve(result, size)) for place, size in charts.items()}
    has_copies = any(row.get("copied") for row in rows)
    return drawn | {"rows": rows, "baseline": result["baseline"], "has_copies": has_copies}


def _fit(document: bytes) -> dict[str, Any]:
    """Largest size that fits, the first that does not, and all sizes tried."""
    result = msgspec.json.decode(document)
    names = ("grow", "dimension", "size", "budget_bytes", "max_overhead", "next", "tried", "stopped")
    return {name: result[name] for name in names} | {"page": _plan_page(result)}


def _layout(document: bytes) -> dict[str, Any]:
    """Arena size, its lower bound, number of buffers."""
    result = msgspec.json.decode(document, type=LayoutResult)
    figures = {"arena_bytes": result.arena_bytes, "bound_bytes": result.bound_bytes, "status": result.status}
    return figures | {"buffers": len(result.offsets)}


def _plan_page(document: Mapping[str, Any]) -> str | None:
    """Page of the plan that a document refers to."""
    path = document.get("plan")
    return None if path is None else f"/plans/{path.rpartition('/')[2]}"


RESULT_VIEWS: dict[str, Callable[[bytes], dict[str, Any]]] = {"curve": _curve, "fit": _fit, "layout": _layout}
