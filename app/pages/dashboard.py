"""`/`: savings of plans. The URL query is the whole state of the page, so a link reproduces the view."""

from __future__ import annotations

import functools
import zoneinfo
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from app.api.auth.tenant_view import plan_scope, tenant_of
from app.api.routes.dependencies import ServiceDep
from app.pages.fit_query import largest_batches
from app.pages.peak_growth import grown_peaks
from app.pages.plan.stored import shapes_of_plans
from app.pages.samples import SAMPLE
from app.pages.savings_query import COLUMNS, MAX_CSV_ROWS, OUTCOMES, SORTS, SavingsFilter, SavingsQuery
from app.pages.shell.frame import PageRoute, render_page
from app.render.csv_table import as_csv, table_as_csv
from app.store.tags_and_notes import annotations_of
from planner.errors import BadRequest

router = APIRouter(include_in_schema=False, route_class=PageRoute)

ROWS_PER_PAGE = 100
MAX_LARGEST_BATCHES = 3  # models on the card of the largest batch
MAX_GROWN = 3  # peaks that grew, before the list is folded
Text = Annotated[str, Query(max_length=200)]
Day = date | Literal[""]


async def parse_query(
    model: Text = "",
    goal: Text = "",
    planner: Text = "",
    device: Text = "",
    runtime: Text = "",
    outcome: Annotated[str, Query(pattern=f"^({'|'.join(OUTCOMES)})?$")] = "",
    since: Annotated[Day, Query(alias="from")] = "",
    until: Annotated[Day, Query(alias="to")] = "",
    zone: Annotated[str, Query(max_length=64)] = "",  # of the days; empty: UTC
    tag: Text = "",
    sort: Annotated[str, Query(pattern=f"^({'|'.join(SORTS)})$")] = "created_at",
    direction: Literal["asc", "desc"] = "desc",
    page: Annotated[int, Query(ge=1, le=10_000)] = 1,
) -> SavingsFilter:
    """Filters, sort order and page number of the URL query. Raises BadRequest for an unknown time zone."""
    if zone and zone not in time_zones():
        expected = "an IANA time zone such as Europe/Paris"
        raise BadRequest.one("bad_parameter", "query.zone", zone, expected, "leave it out for UTC")
    days = str(since), str(until), zone if since or until else ""
    return SavingsFilter(model.strip(), goal, planner, device, runtime, outcome, *days, tag, sort, direction, page)


@functools.cache
def time_zones() -> frozenset[str]:
    """Names of the time zones of this machine."""
    return frozenset(zoneinfo.available_timezones())


QueryParameters = Annotated[SavingsFilter, Depends(parse_query)]


@router.get("/")
async def dashboard(request: Request, service: ServiceDep, filters: QueryParameters) -> Response:
    """The dashboard, filtered and sorted by the URL query."""

    def load() -> dict[str, Any]:
        tenant = plan_scope(service)
        query = SavingsQuery(service.store, tenant, tenant_of(service))
        fits = largest_batches(service.store, tenant, filters)
        found, sums = query.rows_and_sums(filters, ROWS_PER_PAGE, ROWS_PER_PAGE * (filters.page - 1))
        rows, ids = fits.with_largest_batch(found), [row["plan_id"] for row in found]
        return {
            "sums": sums,
            "rows": rows,
            "shown": shown_columns(rows),
            "shapes": shapes_of_plans(service.store, ids),
            "annotations": annotations_of(service.store, ids, tenant_of(service)),
            "choices": query.choices(),
            "pages": -(-sums["rows"] // ROWS_PER_PAGE),
            "fits": fits.largest(),
            "grown": grown_peaks(service.store, tenant_of(service), filters),
        }

    def address(path: str = "/", **other: Any) -> str:
        query = urlencode(filters.query(**other))
        return f"{path}?{query}" if query else path

    def order_by(name: str) -> dict[str, str]:
        opposite = "asc" if filters.direction == "desc" else "desc"
        return {"sort": name, "direction": opposite if name == filters.sort else SORTS[name]}

    def sorted_by(name: str) -> str:
        return address(**order_by(name), page=1)

    context = await anyio.to_thread.run_sync(load)
    return render_page(
        request,
        "dashboard.html",
        title="Savings",
        here="/",
        filters=filters,
        address=address,
        order_by=order_by,
        sorted_by=sorted_by,
        max_largest_batches=MAX_LARGEST_BATCHES,
        max_grown=MAX_GROWN,
        sample=SAMPLE,
        **context,
    )


def shown_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Optional columns of the table, and whether they say anything: known in a row, or different between rows."""

    def is_known(name: str) -> bool:
        return any(row[name] is not None for row in rows)

    return {
        "planner": len({row["planner"] for row in rows}) > 1,
        "device": len({(row["device"], row["runtime"]) for row in rows}) > 1,
        "gap": is_known("gap"),
        "checkpointing": is_known("checkpointing_peak_bytes"),
        "measured": is_known("measured_peak_bytes"),
        "fit": is_known("fit"),
    }


@router.get("/savings.csv")
async def savings_csv(service: ServiceDep, filters: QueryParameters) -> Response:
    """All rows that match the filters, with unrounded bytes and seconds."""

    def load() -> str:
        tenant = plan_scope(service)
        rows = SavingsQuery(service.store, tenant, tenant_of(service)).table(filters, COLUMNS, MAX_CSV_ROWS)
        fits = largest_batches(service.store, tenant, filters)
        if not fits.largest():
            return table_as_csv(COLUMNS, rows)
        return as_csv(COLUMNS, fits.with_largest_batch(row._asdict() for row in rows))

    text = await anyio.to_thread.run_sync(load)
    headers = {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="savings.csv"'}
    return Response(text, 200, headers, "text/csv")


@router.get("/trends.json")
async def trends(service: ServiceDep, filters: QueryParameters) -> Response:
    """Columns of the charts by day."""
    query = SavingsQuery(service.store, plan_scope(service), tenant_of(service))
    days = await anyio.to_thread.run_sync(query.by_day, filters)
    names = ("day", "plans", "over_budget", "saved_bytes", "saved", "overhead")
    body = {name: [day[name] for day in days] for name in names}
    return Response(msgspec.json.encode(body), 200, {"Cache-Control": "no-store"}, "application/json")
