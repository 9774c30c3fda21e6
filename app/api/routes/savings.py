"""`/v1/savings`: aggregated savings of plans, for dashboards."""

from __future__ import annotations

from typing import Annotated, Literal

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Query, Response

from app.api.auth.tenant_view import plan_scope
from app.api.routes.dependencies import ServiceDep, time_parameter, utc_time
from app.api.wire.openapi import problem_docs, ref, response_docs
from app.render.csv_table import as_csv
from app.store.savings import AGGREGATES, GROUPS, savings

router = APIRouter(tags=["savings"])

GROUP_PATTERN = "|".join(GROUPS)
GroupBy = Annotated[
    str,
    Query(
        pattern=f"^({GROUP_PATTERN})(,({GROUP_PATTERN}))*$",
        max_length=200,
        description=f"comma-separated: {', '.join(GROUPS)}",
    ),
]
From = Annotated[str | None, time_parameter("earliest creation time, inclusive", "from")]
To = Annotated[str | None, time_parameter("latest creation time, exclusive", "to")]


@router.get(
    "/v1/savings",
    response_class=Response,
    responses=response_docs(200, "Rows by group", {"application/json": ref("Savings"), "text/csv": {"type": "string"}})
    | problem_docs(422),
)
async def get_savings(
    service: ServiceDep,
    group_by: GroupBy = "model",
    since: From = None,
    until: To = None,
    format: Annotated[Literal["json", "csv"], Query(description="response format")] = "json",
) -> Response:
    """Bytes saved and overhead, of the plans of the tenant, or of all plans for operators. Times default to UTC."""
    by = list(dict.fromkeys(group_by.split(",")))
    first, last = utc_time(since, "query.from"), utc_time(until, "query.to")
    rows = await anyio.to_thread.run_sync(savings, service.store, by, first, last, plan_scope(service))
    headers = {"Cache-Control": "no-store"}
    if format == "csv":
        return Response(as_csv([*by, *(figure.name for figure in AGGREGATES)], rows), 200, headers, "text/csv")
    body = {"group_by": by, "from": first, "to": last, "rows": rows}
    return Response(msgspec.json.encode(body), 200, headers, "application/json")
