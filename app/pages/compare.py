"""`/compare`: two plans beside each other, and how they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Query, Request, Response

from app.api.routes.dependencies import ServiceDep
from app.api.service.service import Service
from app.pages import format_values, frame, plan
from app.pages.frame import PageRoute
from app.render import axes
from app.render.csv_table import as_csv
from app.store import records
from app.store.store import Store
from app.store.tables import plans

router = APIRouter(include_in_schema=False, route_class=PageRoute)

MAX_SHOWN, MAX_ROWS = 200, 200_000
MAX_CELL_CHARS = 80
PlanIdQuery = Annotated[str, Query(max_length=128, description="id of a plan")]
#: Figure of a report -> how it is written.
FIGURES = (
    ("Peak before", ("baseline", "peak_bytes"), format_values.format_bytes),
    ("Peak after", ("plan", "peak_bytes"), format_values.format_bytes),
    ("Arena", ("plan", "arena_bytes"), format_values.format_bytes),
    ("Budget", ("plan", "budget_bytes"), format_values.format_bytes),
    ("Saved", ("plan", "saved"), format_values.format_percent),
    ("Extra time", ("plan", "overhead"), format_values.format_percent),
    ("Time of a step, predicted", ("plan", "seconds"), format_values.format_seconds),
    ("Gap", ("plan", "gap"), format_values.format_percent),
    ("Nodes that run again", ("plan", "again"), format_values.format_count),
)


@router.get("/compare")
async def compare_page(
    request: Request, service: ServiceDep, a: PlanIdQuery = "", b: PlanIdQuery = "", embed: plan.Embed = False
) -> Response:
    """The page; without plans it asks for them."""
    said: dict[str, Any] = {"a": a, "b": b, "sides": []}
    if a and b:
        read = [await anyio.to_thread.run_sync(plan.summary_of, service.store, id) for id in (a, b)]
        found = await _differences(service, a, b, MAX_SHOWN)
        said |= {
            "sides": [_side(letter, report) for letter, report in zip("AB", read, strict=True)],
            "figures": [row for row in (_figure(*each, *read) for each in FIGURES) if row],
            "count": found["count"],
            "found": [row | {"a": _cell(row["a"]), "b": _cell(row["b"])} for row in found["rows"]],
        }
    headers = plan.embed_policy(request, service, embed)
    return frame.render_page(
        request, "compare.html", title="Compare", here="/compare", embed=embed, headers=headers, **said
    )


@router.get("/compare.csv")
async def compare_csv(request: Request, service: ServiceDep, a: PlanIdQuery, b: PlanIdQuery) -> Response:
    """Every difference as a row."""
    found = await _differences(service, a, b, MAX_ROWS)
    text = as_csv(("what", "where", "a", "b", "bytes", "node"), found["rows"])
    headers = frame.HEADERS | {"Content-Disposition": 'attachment; filename="differences.csv"'}
    return Response(text, 200, headers, "text/csv; charset=utf-8")


async def _differences(service: Service, a: str, b: str, most: int) -> dict[str, Any]:
    """{"count", "rows"} as a child finds them. Raises NotFound."""
    reports = await anyio.to_thread.run_sync(_reports, service.store, a, b)
    found: dict[str, Any] = await service.run_in_child("compare", {"reports": reports, "most": most})
    return found


def _reports(store: Store, a: str, b: str) -> list[bytes]:
    """Both reports, with their sources where they are of different models."""
    rows = [store.row(plans, id) for id in (a, b)]
    wanted = () if rows[0]["graph_id"] == rows[1]["graph_id"] else ("source",)
    return [records.report_of(store, row["id"], wanted) for row in rows]


def _side(letter: str, report: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "letter": letter,
        "name": axes.printable(report["model"].get("name") or "model", 80),
        "report": report,
        "verdict": plan.verdict(report),
        "again": report["plan"]["again"],
        "data": plan.data_url(report["id"]),
    }


def _figure(
    name: str, path: tuple[str, str], written: Any, a: Mapping[str, Any], b: Mapping[str, Any]
) -> dict[str, Any]:
    x, y = (report[path[0]].get(path[1]) for report in (a, b))
    if x is None and y is None:
        return {}
    absent = "none"
    change = "" if x is None or y is None else written(y - x) if x != y else "the same"
    return {
        "name": name,
        "a": absent if x is None else written(x),
        "b": absent if y is None else written(y),
        "change": change,
    }


def _cell(value: object) -> str:
    """A value of a difference, cut where it is long."""
    text = "absent" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_CELL_CHARS else text[: MAX_CELL_CHARS - 3] + "..."
