"""`/jobs`: operations, how they go, an end to them, and the same question once more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import anyio.to_thread
import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from app.api.auth.tenant_view import scope_request
from app.api.routes.dependencies import ServiceDep
from app.api.routes.submit_or_wait import data_request, require_search_time
from app.api.service.service import Service
from app.errors import Conflict
from app.jobs.batches.repository import batch_id_of
from app.jobs.interface import Operation, SolveRequest
from app.pages.frame import PageRoute, render_page
from app.pages.login import demand_same_origin
from app.pages.result_view import result_view
from app.store import records
from app.store.store import Store
from app.store.tables import graphs, plans, result_plans
from planner.layout.csv_buffers import parse_seconds
from planner.request.curve_and_fit_request import parse_curve, parse_fit
from planner.request.plan_request import parse_request

router = APIRouter(include_in_schema=False, route_class=PageRoute)

JOBS_PER_PAGE = 50
JobStateFilter = Literal["", "queued", "running", "succeeded", "failed", "cancelled"]
SHOWN_FIELDS = (
    "planner",
    "device",
    "runtime",
    "search_seconds",
    "batch",
    "grow",
    "max_overhead",
    "order",
    "layout",
    "seed",
    "iterations",
)
MAX_MODEL_NAMES = 5  # budgets of a curve


@router.get("/jobs")
async def jobs(
    request: Request,
    service: ServiceDep,
    state: JobStateFilter = "",
    cursor: Annotated[str, Query(pattern="^(op[0-9a-f]{26})?$")] = "",
) -> Response:
    """A page of operations, newest first."""

    def found() -> dict[str, Any]:
        some = service.jobs.list(cursor or None, JOBS_PER_PAGE, state or None)
        models = _named(service.store, some.operations)
        return {"rows": [_row(one, models) for one in some.operations], "next": some.after}

    said = await anyio.to_thread.run_sync(found)
    return render_page(request, "jobs.html", title="Jobs", here="/jobs", state=state, cursor=cursor, **said)


@router.get("/jobs/{operation_id}")
async def job(request: Request, service: ServiceDep, operation_id: str) -> Response:
    """One operation, followed as it goes."""

    def found() -> dict[str, Any]:
        operation = service.jobs.status(operation_id)
        row = _row(operation, _named(service.store, [operation]))
        row["asked"] = [(name, operation.fields[name]) for name in SHOWN_FIELDS if name in operation.fields]
        if operation.kind == "plan" and operation.result is not None:
            row["report"] = msgspec.json.decode(records.report_of(service.store, operation.result, ("plan",)))
        row["result_of"] = result_view(service.store, operation)
        return row

    row = await anyio.to_thread.run_sync(found)
    if row["kind"] == "batch":
        return RedirectResponse(row["page"], 303)
    title = f"Job {row['model']}"
    return render_page(
        request, "job.html", title=title, here="/jobs", row=row, report=row.get("report"), found=row["result_of"]
    )


@router.post("/jobs/{operation_id}/retry")
async def retry(request: Request, service: ServiceDep, operation_id: str) -> Response:
    """Ask the same question again; the answer names the page of the operation that looks for it."""
    demand_same_origin(request)
    operation = await anyio.to_thread.run_sync(_resubmit, service, operation_id)
    body = msgspec.json.encode({"id": operation.id, "page": f"/jobs/{operation.id}"})
    return Response(body, 201, {"Cache-Control": "no-store"}, "application/json")


#: Kind of operation -> seconds that its fields ask for. Raises BadRequest.
SEARCH_SECONDS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "plan": lambda fields: parse_request(fields).search_seconds,
    "curve": lambda fields: parse_curve(fields).request.search_seconds,
    "fit": lambda fields: parse_fit(fields).request.search_seconds,
    "layout": parse_seconds,
}


def _resubmit(service: Service, operation_id: str) -> Operation:
    """The operation that looks for the same once more; the old one while it is at it. Raises what posting it would."""
    old = service.jobs.status(operation_id)
    if old.kind not in SEARCH_SECONDS:
        raise Conflict(f"{operation_id} is a {old.kind}; its own page has those of its items again that failed")
    if not old.finished:
        return old
    require_search_time(service, SEARCH_SECONDS[old.kind](old.fields))
    if old.graph_id is not None:
        service.has_graph(old.graph_id)
        key = records.request_key(old.graph_id, old.fields, old.kind)
        question = SolveRequest(key, old.graph_id, old.fields, kind=old.kind)
    else:
        question = data_request(service.store.blobs.get(str(old.asked)), old.fields, old.kind)
    return service.jobs.submit(scope_request(service, question))


def graph_names(store: Store, ids: list[str]) -> dict[str, str]:
    """Id of a graph -> its name."""
    asked = sa.select(graphs.c.id, graphs.c.name).where(graphs.c.id.in_(set(ids)))
    with store.reading() as connection:
        return {row.id: row.name for row in connection.execute(asked)}


def result_model_names(store: Store, found: list[str]) -> dict[str, str]:
    """Id of a curve or a fit -> the name of the model that its plans are of."""
    asked = (
        sa.select(result_plans.c.result_id, sa.func.min(graphs.c.name).label("name"))
        .join(plans, plans.c.id == result_plans.c.plan_id)
        .join(graphs, graphs.c.id == plans.c.graph_id)
        .where(result_plans.c.result_id.in_(set(found)))
        .group_by(result_plans.c.result_id)
    )
    if not found:
        return {}
    with store.reading() as connection:
        return {row.result_id: row.name for row in connection.execute(asked)}


def goal_text(fields: Mapping[str, Any], kind: str = "plan") -> str:
    """What a question asks for, in a word or two."""
    if kind == "layout":
        return "an address for every buffer"
    if kind == "fit":
        return f"largest {fields.get('grow', 'batch')} in {fields.get('budget') or fields.get('fits')}"
    if fields.get("budgets") is not None:
        budgets = list(map(str, fields["budgets"]))
        if len(budgets) > MAX_MODEL_NAMES:
            return f"{budgets[0]} to {budgets[-1]}, {len(budgets)} budgets"
        return ", ".join(budgets)
    if fields.get("budget") is not None:
        return "lowest peak" if fields["budget"] == 0 else str(fields["budget"])
    if fields.get("max_overhead") is not None:
        return f"time +{fields['max_overhead']}"
    if fields.get("fits") is not None:
        return f"fits {fields['fits']}"
    return "time +10 %"


def _row(operation: Operation, models: Mapping[str, str]) -> dict[str, Any]:
    """What lists and pages say of an operation; `models` by id of a graph, and of a result about no stored graph."""
    said, kind = operation.wire(), operation.kind
    plan = None if operation.result is None else f"/plans/{operation.result}"
    is_batch, progress = kind == "batch", operation.progress or {}
    goal = f"{progress.get('total', 0)} plans" if is_batch else goal_text(operation.fields, kind)
    return said | {
        "model": models.get(operation.graph_id or operation.found or "", "") or kind,
        "page": f"/batches/{batch_id_of(operation.id)}" if is_batch else f"/jobs/{operation.id}",
        "goal": goal,
        "finished": operation.finished,
        "plan": plan,
        "can_retry": operation.finished and kind in SEARCH_SECONDS,
        "planner": "" if kind in ("layout", "batch") else operation.fields.get("planner", "auto"),
    }


def _named(store: Store, operations: Sequence[Operation]) -> dict[str, str]:
    """Names of the models that the operations are about, as `_row` looks for them."""
    about = graph_names(store, [one.graph_id for one in operations if one.graph_id])
    return about | result_model_names(store, [one.found for one in operations if one.found and not one.graph_id])
