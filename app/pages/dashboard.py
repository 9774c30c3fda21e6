"""`/`: what plans save. The query is the whole state of the page, so an address shares what is seen."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from app.api.auth.tenant_view import plan_scope
from app.api.routes.dependencies import ServiceDep
from app.pages.fit_query import largest_batches
from app.pages.frame import PageRoute, render_page
from app.pages.savings_query import COLUMNS, MAX_CSV_ROWS, OUTCOMES, SORTS, SavingsFilter, SavingsQuery
from app.render.csv_table import as_csv, table_as_csv

router = APIRouter(include_in_schema=False, route_class=PageRoute)

ROWS_PER_PAGE = 100
MAX_SHOWN = 3  # models, of those that fits were asked about
Text = Annotated[str, Query(max_length=200)]
Day = date | Literal[""]


async def parse_query(
    model: Text = "",
    goal: Text = "",
    planner: Text = "",
    device: Text = "",
    runtime: Text = "",
    outcome: Annotated[str, Query(pattern=f"^({'|'.join(OUTCOMES)})?$")] = "",
    since: Annotated[Day, Query(alias="from")] = "",  # UTC
    until: Annotated[Day, Query(alias="to")] = "",
    sort: Annotated[str, Query(pattern=f"^({'|'.join(SORTS)})$")] = "created_at",
    direction: Literal["asc", "desc"] = "desc",
    page: Annotated[int, Query(ge=1, le=10_000)] = 1,
) -> SavingsFilter:
    """What the address says."""
    return SavingsFilter(
        model.strip(), goal, planner, device, runtime, outcome, str(since), str(until), sort, direction, page
    )


QueryParameters = Annotated[SavingsFilter, Depends(parse_query)]


@router.get("/")
async def dashboard(request: Request, service: ServiceDep, asked: QueryParameters) -> Response:
    """The dashboard."""

    def found() -> dict[str, Any]:
        owned = plan_scope(service)
        board, fits = SavingsQuery(service.store, owned), largest_batches(service.store, owned, asked)
        shown, sums = board.shown(asked, ROWS_PER_PAGE, ROWS_PER_PAGE * (asked.page - 1))
        said = {
            "sums": sums,
            "rows": fits.with_largest_batch(shown),
            "choices": board.choices(),
            "pages": -(-sums["rows"] // ROWS_PER_PAGE),
        }
        return said | {"fits": fits.largest()}

    def address(path: str = "/", **other: Any) -> str:
        query = urlencode(asked.query(**other))
        return f"{path}?{query}" if query else path

    def sorted_by(name: str) -> str:
        other = "asc" if asked.direction == "desc" else "desc"
        return address(sort=name, direction=other if name == asked.sort else SORTS[name], page=1)

    said = await anyio.to_thread.run_sync(found)
    return render_page(
        request,
        "dashboard.html",
        title="Savings",
        here="/",
        asked=asked,
        address=address,
        sorted_by=sorted_by,
        MOST_SHOWN=MAX_SHOWN,
        **said,
    )


@router.get("/savings.csv")
async def savings_csv(service: ServiceDep, asked: QueryParameters) -> Response:
    """Every row of the dashboard, bytes and seconds unrounded."""

    def found() -> str:
        owned = plan_scope(service)
        rows = SavingsQuery(service.store, owned).table(asked, COLUMNS, MAX_CSV_ROWS)
        fits = largest_batches(service.store, owned, asked)
        if not fits.largest():
            return table_as_csv(COLUMNS, rows)
        return as_csv(COLUMNS, fits.with_largest_batch(row._asdict() for row in rows))

    text = await anyio.to_thread.run_sync(found)
    headers = {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="savings.csv"'}
    return Response(text, 200, headers, "text/csv")


@router.get("/trends.json")
async def trends(service: ServiceDep, asked: QueryParameters) -> Response:
    """Columns by day, for the charts."""
    days = await anyio.to_thread.run_sync(lambda: SavingsQuery(service.store, plan_scope(service)).by_day(asked))
    names = ("day", "plans", "over_budget", "saved_bytes", "saved", "overhead")
    body = {name: [day[name] for day in days] for name in names}
    return Response(msgspec.json.encode(body), 200, {"Cache-Control": "no-store"}, "application/json")
