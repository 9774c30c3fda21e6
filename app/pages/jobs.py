"""`/jobs`: operations, how they go, an end to them, and the same question once more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import anyio.to_thread
import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response

from app import records
from app.access.view import own_question
from app.errors import Conflict
from app.jobs.port import Operation, Question
from app.pages.frame import PageRoute, page
from app.pages.login import demand_same_origin
from app.routes.asking import demand_time
from app.routes.common import Serving
from app.service import Service
from app.store.store import Store
from app.store.tables import graphs
from planner.request import parse_request

router = APIRouter(include_in_schema=False, route_class=PageRoute)

A_PAGE = 50
State = Literal["", "queued", "running", "succeeded", "failed", "cancelled"]
SHOWN = ("planner", "device", "runtime", "search_seconds", "batch", "order", "layout", "seed", "iterations")


@router.get("/jobs")
async def jobs(
    request: Request,
    service: Serving,
    state: State = "",
    cursor: Annotated[str, Query(pattern="^(op[0-9a-f]{26})?$")] = "",
) -> Response:
    """A page of operations, newest first."""

    def found() -> dict[str, Any]:
        some = service.jobs.list(cursor or None, A_PAGE, state or None)
        models = names_of(service.store, [one.graph_id for one in some.operations if one.graph_id])
        return {"rows": [_row(one, models) for one in some.operations], "next": some.after}

    said = await anyio.to_thread.run_sync(found)
    return page(request, "jobs.html", title="Jobs", here="/jobs", state=state, cursor=cursor, **said)


@router.get("/jobs/{operation_id}")
async def job(request: Request, service: Serving, operation_id: str) -> Response:
    """One operation, followed as it goes."""

    def found() -> dict[str, Any]:
        operation = service.jobs.status(operation_id)
        models = names_of(service.store, [operation.graph_id] if operation.graph_id else [])
        row = _row(operation, models)
        row["asked"] = [(name, operation.fields[name]) for name in SHOWN if name in operation.fields]
        if operation.kind == "plan" and operation.result is not None:
            row["report"] = msgspec.json.decode(records.report_of(service.store, operation.result, ("plan",)))
        return row

    row = await anyio.to_thread.run_sync(found)
    return page(request, "job.html", title=f"Job {row['model']}", here="/jobs", row=row, report=row.get("report"))


@router.post("/jobs/{operation_id}/retry")
async def retry(request: Request, service: Serving, operation_id: str) -> Response:
    """Ask the same question again; the answer names the page of the operation that looks for it."""
    demand_same_origin(request)
    operation = await anyio.to_thread.run_sync(_again, service, operation_id)
    body = msgspec.json.encode({"id": operation.id, "page": f"/jobs/{operation.id}"})
    return Response(body, 201, {"Cache-Control": "no-store"}, "application/json")


def _again(service: Service, operation_id: str) -> Operation:
    old = service.jobs.status(operation_id)
    if old.kind != "plan" or old.graph_id is None:
        raise Conflict(f"{operation_id} is a {old.kind}, which is asked again by posting it again", code="not_a_plan")
    if not old.finished:
        return old
    demand_time(service, parse_request(old.fields).search_seconds)
    service.has_graph(old.graph_id)
    key = records.question_key(old.graph_id, old.fields)
    return service.jobs.submit(own_question(service, Question(key, old.graph_id, old.fields)))


def names_of(store: Store, ids: list[str]) -> dict[str, str]:
    """Id of a graph -> its name."""
    asked = sa.select(graphs.c.id, graphs.c.name).where(graphs.c.id.in_(set(ids)))
    with store.reading() as connection:
        return {row.id: row.name for row in connection.execute(asked)}


def goal_of(fields: Mapping[str, Any]) -> str:
    """What a question asks for, in a word or two."""
    if fields.get("budget") is not None:
        return "lowest peak" if fields["budget"] == 0 else str(fields["budget"])
    if fields.get("budgets") is not None:
        return ", ".join(map(str, fields["budgets"]))
    if fields.get("max_overhead") is not None:
        return f"time +{fields['max_overhead']}"
    if fields.get("fits") is not None:
        return f"fits {fields['fits']}"
    return "time +10 %"


def _row(operation: Operation, models: Mapping[str, str]) -> dict[str, Any]:
    said = operation.wire()
    result = said["result"]
    plan = None if operation.result is None else f"/plans/{operation.result}"
    return said | {
        "model": models.get(operation.graph_id or "", "") or operation.kind,
        "goal": goal_of(operation.fields),
        "finished": operation.finished,
        "plan": plan,
        "result": result,
        "can_retry": operation.finished and operation.kind == "plan",
        "planner": operation.fields.get("planner", "auto") if operation.kind != "layout" else "",
    }
