"""`/compare`: two to six plans side by side; of two also their differences, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response

from app.api.auth.tenant_view import plan_scope
from app.api.routes.dependencies import ServiceDep
from app.api.service.service import Service
from app.pages.plan.files import data_url
from app.pages.plan.page import Embed, embed_policy, headline
from app.pages.plan.stored import shapes_of_plans, summary_of
from app.pages.savings_query import SavingsFilter, SavingsQuery
from app.pages.shell import format_values, frame
from app.pages.shell.frame import PageRoute
from app.render import axes
from app.render.csv_table import as_csv
from app.render.differences import format_value, is_number
from app.store import records
from app.store.store import Store
from app.store.tables import plans
from planner.errors import BadRequest

router = APIRouter(include_in_schema=False, route_class=PageRoute)

MAX_SHOWN, MAX_CSV_ROWS = 200, 200_000  # differences
MAX_CELL_CHARS = 80
MAX_RECENT = 20  # plans to pick from
LETTERS = "ABCDEF"
MAX_PLANS = len(LETTERS)
PlanIdQuery = Annotated[str, Query(max_length=128, description="id of a plan")]
PlanIdsQuery = Annotated[list[PlanIdQuery], Query(max_length=MAX_PLANS, description="ids of plans; the first is A")]
Format = Callable[[float | None], str]
#: Label, path in the report, format.
FIGURES: tuple[tuple[str, tuple[str, str], Format], ...] = (
    ("Peak before", ("baseline", "peak_bytes"), format_values.format_bytes),
    ("Peak after", ("plan", "peak_bytes"), format_values.format_bytes),
    ("Arena", ("plan", "arena_bytes"), format_values.format_bytes),
    ("Budget", ("plan", "budget_bytes"), format_values.format_bytes),
    ("Memory saved", ("plan", "saved"), format_values.format_percent),
    ("Overhead", ("plan", "overhead"), format_values.format_percent),
    ("Time per step, predicted", ("plan", "seconds"), format_values.format_seconds),
    ("Gap to lower bound", ("plan", "gap"), format_values.format_percent),
    ("Recomputed nodes", ("plan", "recomputed_count"), format_values.format_count),
)

#: Formats of figures that are also compared in percent.
SIZES = (format_values.format_bytes, format_values.format_seconds)


@router.get("/compare")
async def compare_page(
    request: Request,
    service: ServiceDep,
    plan: PlanIdsQuery = [],  # noqa: B006, the framework copies it
    a: PlanIdQuery = "",
    b: PlanIdQuery = "",
    embed: Embed = False,
) -> Response:
    """Comparison of the plans `a`, `b` and each `plan` with the first of them; for less than two, the newest."""
    ids = [id for id in (a, b, *plan) if id]
    if len(ids) > MAX_PLANS:
        expected = f"at most {MAX_PLANS} plans"
        raise BadRequest.one("bad_parameter", "query.plan", f"{len(ids)} plans", expected, "leave some out")
    context: dict[str, Any] = {"ids": ids, "letters": LETTERS, "sides": [], "differences": None, "recent": []}
    if len(ids) < 2 and not embed:
        context |= await anyio.to_thread.run_sync(_recent, service.store, plan_scope(service))
    if len(ids) > 1:
        reports = [await anyio.to_thread.run_sync(summary_of, service.store, id) for id in ids]
        sides = [_side(letter, report) for letter, report in zip(LETTERS, reports, strict=False)]
        context |= {"sides": sides, "figures": _figure_rows(reports)}
    if len(ids) == 2:
        differences = await _differences(service, ids[0], ids[1], MAX_SHOWN)
        rows = [_difference_row(row) for row in differences["rows"]]
        context |= {"count": differences["count"], "differences": rows}
    headers = embed_policy(request, service, embed)
    return frame.render_page(
        request, "compare.html", title="Compare", here="/compare", embed=embed, headers=headers, **context
    )


@router.get("/compare.csv")
async def compare_csv(request: Request, service: ServiceDep, a: PlanIdQuery, b: PlanIdQuery) -> Response:
    """All differences, one per row."""
    differences = await _differences(service, a, b, MAX_CSV_ROWS)
    text = as_csv(("what", "where", "a", "b", "bytes", "node"), differences["rows"])
    headers = frame.HEADERS | {"Content-Disposition": 'attachment; filename="differences.csv"'}
    return Response(text, 200, headers, "text/csv; charset=utf-8")


def _recent(store: Store, tenant: str | None) -> dict[str, Any]:
    """Rows of the newest plans to pick from, and their batches and inputs by plan id."""
    rows = SavingsQuery(store, tenant).rows(SavingsFilter(), MAX_RECENT)
    return {"recent": rows, "shapes": shapes_of_plans(store, [row["plan_id"] for row in rows])}


async def _differences(service: Service, a: str, b: str, limit: int) -> dict[str, Any]:
    """{"count", "rows"} of the differences, computed in a child process. Raises NotFound."""
    rows = [await anyio.to_thread.run_sync(service.store.row, plans, id) for id in (a, b)]
    load = partial(_payload, service.store, rows, limit)
    differences: dict[str, Any] = await service.run_in_child("compare", load)
    return differences


def _payload(store: Store, rows: Sequence[Mapping[str, Any]], limit: int) -> dict[str, Any]:
    """Both reports, with their source graphs if the models differ."""
    optional = () if rows[0]["graph_id"] == rows[1]["graph_id"] else ("source",)
    return {"reports": [records.report_of(store, row["id"], optional) for row in rows], "most": limit}


def _difference_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Template variables of a difference, in words and units."""
    sides = {
        side: format_value(row["what"], row[side], MAX_CELL_CHARS, format_values.format_seconds) for side in ("a", "b")
    }
    words = row["what"].removesuffix("_bytes").replace("_", " ")
    return {**row, **sides, "what": "time" if words == "seconds" else words, "change": _row_change(row)}


def _row_change(row: Mapping[str, Any]) -> str:
    """Difference of the numbers of a row, of other values that of their bytes; empty where there is none."""
    name, a, b = row["what"], row["a"], row["b"]
    if not (is_number(a) and is_number(b)):
        return format_values.format_bytes(row["bytes"]) if "bytes" in row else ""
    formats: dict[str, Format] = {
        "bytes": format_values.format_bytes,
        "seconds": format_values.format_seconds,
        "overhead": _points,
    }
    return _difference(a, b, formats.get(name.rpartition("_")[2], format_values.format_count))


def _side(letter: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """Template variables of one plan."""
    return {
        "letter": letter,
        "name": axes.printable(report["model"].get("name") or "model", 80),
        "report": report,
        "shape": format_values.format_shape(report["row"]),
        "headline": headline(report),
        "data": data_url(report["id"]),
    }


def _figure_rows(reports: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each figure of all plans with its difference to the first; without figures that no plan has."""
    rows = []
    for name, (section, field), formatted in FIGURES:
        values = [report[section].get(field) for report in reports]
        if any(value is not None for value in values):
            changes = ["", *(_change(values[0], value, formatted) for value in values[1:])]
            missing = "over budget" if field == "gap" else "none"
            shown = [missing if value is None else formatted(value) for value in values]
            rows.append({"name": name, "cells": list(zip(shown, changes, strict=True))})
    return rows


def _change(first: float | None, value: float | None, formatted: Format) -> str:
    """Difference with its sign, of sizes and times also in percent; empty if one is unknown."""
    if first is None or value is None:
        return ""
    if first == value:
        return "equal"
    share = f" ({_difference(1, value / first, format_values.format_percent)})" if first and formatted in SIZES else ""
    return _difference(first, value, _points if formatted is format_values.format_percent else formatted) + share


def _difference(first: float, value: float, formatted: Format) -> str:
    """`value` - `first` with its sign."""
    return ("+" if value > first else "−") + formatted(abs(value - first))


def _points(fraction: float | None) -> str:
    """A difference of two shares, in percentage points."""
    return f"{100 * (fraction or 0):.1f} points"
