"""`/jobs`: list of jobs (operations), progress and result of one job, retry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import anyio.to_thread
import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from app.api.routes.dependencies import ServiceDep
from app.api.routes.operations import SEARCH_SECONDS, resubmit
from app.jobs.batches.repository import batch_id_of
from app.jobs.interface import Operation
from app.pages.login import demand_same_origin
from app.pages.result_view import result_view
from app.pages.samples import SAMPLE
from app.pages.shell.format_values import format_shape
from app.pages.shell.frame import PageRoute, render_page
from app.render.text import STAGES
from app.store import records
from app.store.states import STATES
from app.store.store import Store
from app.store.tables import graphs, plans, result_plans

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
MODEL_COLUMNS = (graphs.c.name, graphs.c.batch, graphs.c.inputs)
MAX_LISTED_BUDGETS = 5  # of a curve


@router.get("/jobs")
async def jobs(
    request: Request,
    service: ServiceDep,
    state: JobStateFilter = "",
    cursor: Annotated[str, Query(pattern="^(op[0-9a-f]{26})?$")] = "",
) -> Response:
    """List of jobs, newest first."""

    def load() -> dict[str, Any]:
        page = service.jobs.list(cursor or None, JOBS_PER_PAGE, state or None, by_items=True)
        models = _models(service.store, page.operations)
        return {"rows": [_row(operation, models) for operation in page.operations], "next": page.after}

    context = await anyio.to_thread.run_sync(load)
    return render_page(
        request,
        "jobs.html",
        title="Jobs",
        here="/jobs",
        states=STATES,
        state=state,
        cursor=cursor,
        sample=SAMPLE,
        **context,
    )


@router.get("/jobs/{operation_id}")
async def job(request: Request, service: ServiceDep, operation_id: str, follow: bool = False) -> Response:
    """One job with live progress, and its result; `follow` leads to a plan that met its goal."""

    def load() -> dict[str, Any]:
        operation = service.jobs.status(operation_id)
        row = _row(operation, _models(service.store, [operation]))
        shown = {name: operation.fields[name] for name in SHOWN_FIELDS if name in operation.fields}
        row["fields"] = [(name, f"{value:g}" if isinstance(value, float) else value) for name, value in shown.items()]
        if operation.kind == "plan" and operation.result is not None:
            plan = msgspec.json.decode(records.report_of(service.store, operation.result, ("plan",)))["plan"]
            is_over_budget = plan["status"] == "over_budget"
            row |= {"plan_figures": plan, "best": _plan_best(plan), "is_over_budget": is_over_budget}
        row["duration_seconds"] = _duration(operation)
        return row | {"found": result_view(service.store, operation)}

    row = await anyio.to_thread.run_sync(load)
    if row["kind"] == "batch":
        return RedirectResponse(row["page"], 303)
    title, plan = f"Job {row['model']}", row.get("plan_figures")
    if follow and plan and plan["status"] != "over_budget":
        return RedirectResponse(row["plan"], 303)
    return render_page(
        request, "job.html", title=title, here="/jobs", row=row, plan=plan, found=row["found"], stages=STAGES
    )


@router.post("/jobs/{operation_id}/retry")
async def retry(request: Request, service: ServiceDep, operation_id: str) -> Response:
    """Submit the same request again; the response has the page of the new job."""
    demand_same_origin(request)
    operation = await anyio.to_thread.run_sync(resubmit, service, operation_id)
    body = msgspec.json.encode({"id": operation.id, "page": f"/jobs/{operation.id}"})
    return Response(body, 201, {"Cache-Control": "no-store"}, "application/json")


def _models_of_results(store: Store, result_ids: list[str]) -> dict[str, dict[str, Any]]:
    """Id of a curve or fit -> name, batch and inputs of the graph of one of its plans."""
    if not result_ids:
        return {}
    query = (
        sa.select(result_plans.c.result_id, *MODEL_COLUMNS)
        .join(plans, plans.c.id == result_plans.c.plan_id)
        .join(graphs, graphs.c.id == plans.c.graph_id)
        .where(result_plans.c.result_id.in_(set(result_ids)))
    )
    with store.reading() as connection:
        return {row["result_id"]: dict(row) for row in connection.execute(query).mappings()}


def goal_text(fields: Mapping[str, Any], kind: str = "plan") -> str:
    """Goal of a request in a few words: `50%`, `lowest peak`, `largest batch in 8GiB`."""
    if kind == "layout":
        return "buffer addresses"
    if kind == "fit":
        return f"largest {fields.get('grow', 'batch')} in {fields.get('budget') or fields.get('fits')}"
    if fields.get("budgets") is not None:
        budgets = list(map(str, fields["budgets"]))
        if len(budgets) > MAX_LISTED_BUDGETS:
            return f"{budgets[0]} to {budgets[-1]}, {len(budgets)} budgets"
        return ", ".join(budgets)
    if fields.get("budget") is not None:
        return "lowest peak" if fields["budget"] == 0 else str(fields["budget"])
    if fields.get("max_overhead") is not None:
        return f"overhead up to {fields['max_overhead']}"
    if fields.get("fits") is not None:
        return f"memory of {fields['fits']}"
    return "overhead up to 10%"


def _duration(operation: Operation) -> float | None:
    """Seconds from start to end; None before the end."""
    if not operation.started_at or not operation.ended_at:
        return None
    began, ended = map(datetime.fromisoformat, (operation.started_at, operation.ended_at))
    return (ended - began).total_seconds()


def _stage(operation: Operation) -> str:
    return STAGES.get(operation.stage or "", operation.stage or "")


def batch_state(state: str, failed: int, total: int) -> dict[str, str] | None:
    """Mark and text of a batch with failed items, once it has ended; None: its state says all."""
    if state != "succeeded" or not failed:
        return None
    if failed == total:
        return {"mark": "failed", "text": "all failed" if total > 1 else "failed"}
    return {"mark": "partly", "text": f"{failed:,} of {total:,} failed"}


def _row(operation: Operation, models: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Template row of an operation; `models`: of `_models`."""
    kind, model = operation.kind, models.get(operation.graph_id or operation.found or "", {})
    is_rebound = any(operation.fields.get(name) for name in ("batch", "dims", "inputs", "shapes"))
    wire = operation.wire()
    plan = None if operation.result is None else f"/plans/{operation.result}"
    is_batch, progress = kind == "batch", operation.progress or {}
    goal = f"{progress.get('total', 0)} plans" if is_batch else goal_text(operation.fields, kind)
    best = _progress_best(progress)
    failed, total = progress.get("items", {}).get("failed", 0), progress.get("total", 0)
    return wire | {
        "model": model.get("name") or kind,
        "shape": format_shape({"batch": wire["batch"], "inputs": None if is_rebound else model.get("inputs")}),
        "page": f"/batches/{batch_id_of(operation.id)}" if is_batch else f"/jobs/{operation.id}",
        "goal": goal,
        "goal_text": f"budget {goal}" if kind == "plan" and operation.fields.get("budget") else goal,
        "is_over_budget": plan is not None and best["peak_bytes"] is not None and best["overhead"] is None,
        "shown_state": batch_state(operation.state, failed, total) if is_batch else None,
        "expected_seconds": operation.fields.get("search_seconds"),
        "finished": operation.finished,
        "best": best,
        "stage_note": f": {_stage(operation)}" if operation.state == "running" and operation.stage else "",
        "plan": plan,
        "can_retry": operation.finished and kind in SEARCH_SECONDS,
        "planner": "" if kind in ("layout", "batch") else operation.fields.get("planner", "auto"),
    }


def _models(store: Store, operations: Sequence[Operation]) -> dict[str, dict[str, Any]]:
    """Name, batch and inputs of the graphs of operations by graph id, or by result id without a stored graph."""
    query = sa.select(graphs.c.id, *MODEL_COLUMNS).where(graphs.c.id.in_({each.graph_id for each in operations}))
    with store.reading() as connection:
        models = {row["id"]: dict(row) for row in connection.execute(query).mappings()}
    without_graph = [each.found for each in operations if each.found and not each.graph_id]
    return models | _models_of_results(store, without_graph)


def _progress_best(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Best plan so far, its bound and gap; None for unknown figures."""
    incumbent, bound = progress.get("incumbent") or {}, progress.get("bound") or {}
    return {
        "peak_bytes": incumbent.get("peak_bytes"),
        "overhead": incumbent.get("overhead"),
        "bound_overhead": bound.get("overhead"),
        "gap": progress.get("gap"),
    }


def _plan_best(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of `_progress_best` for a finished plan."""
    figures = {name: plan[name] for name in ("peak_bytes", "overhead", "gap")}
    return figures | {"bound_overhead": plan["bound"]["overhead"]}
