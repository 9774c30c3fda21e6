"""`/batches`: list of batches, progress of one batch, results of its items."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import anyio.to_thread
import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response

from app.api.auth.batch_access import batch_owner, require_batch
from app.api.routes.dependencies import ServiceDep
from app.jobs.batches import repository
from app.jobs.batches.repository import BatchRecord
from app.jobs.batches.results import PAGE_SIZE
from app.pages.jobs import JobStateFilter, batch_state, goal_text
from app.pages.plan.stored import shapes_of_plans
from app.pages.shell.format_values import format_shape
from app.pages.shell.frame import PageRoute, render_page
from app.store.batch_tables import batches, items
from app.store.states import STATES
from app.store.store import Store
from app.store.tables import graphs

router = APIRouter(include_in_schema=False, route_class=PageRoute)

BATCHES_PER_PAGE, ITEMS_PER_PAGE = 50, 100
AXES = ("budgets", "planners", "seeds")


@router.get("/batches")
async def batches_page(
    request: Request,
    service: ServiceDep,
    state: JobStateFilter = "",
    cursor: Annotated[str, Query(pattern="^(ba[0-9a-f]{26})?$")] = "",
) -> Response:
    """List of batches, newest first."""

    def load() -> dict[str, Any]:
        tenant = batch_owner(service).tenant
        listed = repository.page(service.store, tenant, cursor or None, BATCHES_PER_PAGE + 1, state or None, True)
        after = listed[BATCHES_PER_PAGE - 1].id if len(listed) > BATCHES_PER_PAGE else None
        return {"rows": _rows(service.store, listed[:BATCHES_PER_PAGE]), "next": after}

    context = await anyio.to_thread.run_sync(load)
    return render_page(
        request, "batches.html", title="Batches", here="/batches", states=STATES, state=state, cursor=cursor, **context
    )


@router.get("/batches/{batch_id}")
async def batch_page(
    request: Request,
    service: ServiceDep,
    batch_id: str,
    state: JobStateFilter = "",
    cursor: Annotated[str, Query(pattern="^[0-9]{0,9}$")] = "",
) -> Response:
    """One batch with live progress, and a page of its items in order."""

    def load() -> dict[str, Any]:
        batch = require_batch(service, batch_id)
        after = int(cursor) if cursor else -1
        listed = repository.items_of(service.store, batch.id, after, ITEMS_PER_PAGE + 1, state or None)
        last = listed[ITEMS_PER_PAGE - 1]["number"] if len(listed) > ITEMS_PER_PAGE else None
        (row,) = _rows(service.store, [batch])
        shapes = shapes_of_plans(service.store, [item["plan_id"] for item in listed if item["plan_id"]])
        rows = [_item_row(item, batch, shapes) for item in listed[:ITEMS_PER_PAGE]]
        return {"row": row, "items": rows, "next": last}

    context = await anyio.to_thread.run_sync(load)
    return render_page(
        request,
        "batch.html",
        title=f"Batch {context['row']['name']}",
        here="/batches",
        state=state,
        cursor=cursor,
        has_parquet=importlib.util.find_spec("pyarrow") is not None,
        max_json_items=PAGE_SIZE,
        **context,
    )


def _rows(store: Store, listed: Sequence[BatchRecord]) -> list[dict[str, Any]]:
    """Template rows of batches."""
    names, ended = _first_models(store, listed), _ended_since_start(store, listed)
    return [_row(batch, names.get(batch.id, ""), ended.get(batch.id, 0)) for batch in listed]


def _row(batch: BatchRecord, first_model: str, ended: int) -> dict[str, Any]:
    """Template row of one batch; `ended`: items that ended since the batch was started or restarted."""
    axes = {axis: batch.asked.get(axis) for axis in AXES}
    plans_per_model = math.prod(len(values) for values in axes.values() if values)
    models, remaining = batch.total // plans_per_model, batch.total - batch.done
    rest = f" and {models - 1} more" if models > 1 else ""
    return batch.wire() | {
        "name": (first_model or "(no name)") + rest,
        "axes": [(axis, list(map(str, values))) for axis, values in axes.items() if values],
        "finished": batch.finished,
        "stopping": batch.cancel_requested and not batch.finished,
        "failed": batch.count_in("failed"),
        "shown_state": batch_state(batch.state, batch.count_in("failed"), batch.total),
        "retryable": batch.count_in("failed", "cancelled"),
        "states": [(name, batch.count_in(name)) for name in STATES],
        "left": batch.seconds() * remaining / ended if ended and remaining and not batch.finished else None,
    }


def _first_models(store: Store, listed: Sequence[BatchRecord]) -> dict[str, str]:
    """Batch id -> model name of the first item."""
    query = (
        sa.select(items.c.batch_id, graphs.c.name)
        .join(graphs, graphs.c.id == items.c.graph_id)
        .where(items.c.batch_id.in_([batch.id for batch in listed]), items.c.number == 0)
    )
    with store.reading() as connection:
        return {row.batch_id: row.name for row in connection.execute(query)}


def _ended_since_start(store: Store, listed: Sequence[BatchRecord]) -> dict[str, int]:
    """Id of an unfinished batch -> items that ended since its last start or retry."""
    query = (
        sa.select(items.c.batch_id, sa.func.count().label("ended"))
        .join(batches, batches.c.id == items.c.batch_id)
        .where(
            items.c.batch_id.in_([batch.id for batch in listed if not batch.finished]),
            items.c.ended_at >= batches.c.started_at,
        )
        .group_by(items.c.batch_id)
    )
    with store.reading() as connection:
        return {row.batch_id: row.ended for row in connection.execute(query)}


def _item_row(item: dict[str, Any], batch: BatchRecord, shapes: Mapping[str, str]) -> dict[str, Any]:
    """Template row of an item; the batch's fields give defaults. `shapes`: batch and inputs by plan id."""
    own = {} if item["budget"] is None else {"budget": item["budget"]}
    return item | {
        "shape": shapes.get(item["plan_id"]) or format_shape({"batch": item["batch"], "inputs": None}),
        "goal": goal_text({**batch.fields, **own}),
        "planner": item["planner"] or batch.fields.get("planner", "auto"),
        "seed": batch.fields.get("seed", 0) if item["seed"] is None else item["seed"],
    }
