"""`/`: what plans save. The query is the whole state of the page, so an address shares what is seen."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from app.api.auth.tenant_view import own_plans
from app.api.routes.dependencies import Serving
from app.pages.fit_query import fitted
from app.pages.frame import PageRoute, page
from app.pages.savings_query import COLUMNS, MOST_LINES, OUTCOMES, SORTS, Asked, Board
from app.render.csv_table import as_csv, table_as_csv

router = APIRouter(include_in_schema=False, route_class=PageRoute)

A_PAGE = 100
MOST_SHOWN = 3  # models, of those that fits were asked about
Text = Annotated[str, Query(max_length=200)]
Day = date | Literal[""]


async def asked_of(
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
) -> Asked:
    """What the address says."""
    return Asked(model.strip(), goal, planner, device, runtime, outcome, str(since), str(until), sort, direction, page)


Said = Annotated[Asked, Depends(asked_of)]


@router.get("/")
async def dashboard(request: Request, service: Serving, asked: Said) -> Response:
    """The dashboard."""

    def found() -> dict[str, Any]:
        owned = own_plans(service)
        board, fits = Board(service.store, owned), fitted(service.store, owned, asked)
        shown, sums = board.shown(asked, A_PAGE, A_PAGE * (asked.page - 1))
        said = {
            "sums": sums,
            "rows": fits.joined(shown),
            "choices": board.choices(),
            "pages": -(-sums["rows"] // A_PAGE),
        }
        return said | {"fits": fits.largest()}

    def address(path: str = "/", **other: Any) -> str:
        query = urlencode(asked.query(**other))
        return f"{path}?{query}" if query else path

    def sorted_by(name: str) -> str:
        other = "asc" if asked.direction == "desc" else "desc"
        return address(sort=name, direction=other if name == asked.sort else SORTS[name], page=1)

    said = await anyio.to_thread.run_sync(found)
    return page(
        request,
        "dashboard.html",
        title="Savings",
        here="/",
        asked=asked,
        address=address,
        sorted_by=sorted_by,
        MOST_SHOWN=MOST_SHOWN,
        **said,
    )


@router.get("/savings.csv")
async def savings_csv(service: Serving, asked: Said) -> Response:
    """Every row of the dashboard, bytes and seconds unrounded."""

    def found() -> str:
        owned = own_plans(service)
        rows = Board(service.store, owned).table(asked, COLUMNS, MOST_LINES)
        fits = fitted(service.store, owned, asked)
        if not fits.largest():
            return table_as_csv(COLUMNS, rows)
        return as_csv(COLUMNS, fits.joined(row._asdict() for row in rows))

    text = await anyio.to_thread.run_sync(found)
    headers = {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="savings.csv"'}
    return Response(text, 200, headers, "text/csv")


@router.get("/trends.json")
async def trends(service: Serving, asked: Said) -> Response:
    """Columns by day, for the charts."""
    days = await anyio.to_thread.run_sync(lambda: Board(service.store, own_plans(service)).days(asked))
    names = ("day", "plans", "over_budget", "saved_bytes", "saved", "overhead")
    body = {name: [day[name] for day in days] for name in names}
    return Response(msgspec.json.encode(body), 200, {"Cache-Control": "no-store"}, "application/json")
