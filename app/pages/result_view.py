"""What a job has found that is no plan: a curve, the largest size that fits, or where buffers lie."""

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
    """What a page says of a layout."""

    offsets: list[int]
    arena_bytes: int
    bound_bytes: int
    status: str


def result_view(store: Store, operation: Operation) -> dict[str, Any] | None:
    """What the page of the job shows, by its `kind`; None where nothing of the sort was found. Raises NotFound."""
    if operation.found is None or operation.kind not in RESULT_VIEWS:
        return None
    document = records.result_of(store, operation.kind, operation.found)
    return {"kind": operation.kind} | RESULT_VIEWS[operation.kind](document)


def _curve(document: bytes) -> dict[str, Any]:
    """The picture, and a row a budget."""
    said = msgspec.json.decode(document)
    rows = [{**point, "page": _page_of(point)} for point in said["points"]]
    return {"picture": inline_svg(svg.curve(said)), "rows": rows, "baseline": said["baseline"]}


def _fit(document: bytes) -> dict[str, Any]:
    """The size, the first that does not fit, and whatever was tried."""
    said = msgspec.json.decode(document)
    names = ("grow", "dimension", "size", "budget_bytes", "max_overhead", "next", "tried", "stopped")
    return {name: said[name] for name in names} | {"page": _page_of(said)}


def _layout(document: bytes) -> dict[str, Any]:
    said = msgspec.json.decode(document, type=LayoutResult)
    figures = {"arena_bytes": said.arena_bytes, "bound_bytes": said.bound_bytes, "status": said.status}
    return figures | {"buffers": len(said.offsets)}


def _page_of(said: Mapping[str, Any]) -> str | None:
    """The page of the plan that a document names."""
    path = said.get("plan")
    return None if path is None else f"/plans/{path.rpartition('/')[2]}"


RESULT_VIEWS: dict[str, Callable[[bytes], dict[str, Any]]] = {"curve": _curve, "fit": _fit, "layout": _layout}
