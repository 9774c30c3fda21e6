"""`/batches`: many questions at once, how they go, and what became of each."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Annotated, Any

import anyio.to_thread
import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response

from app.api.auth.batch_access import batch_owner, require_batch
from app.api.routes.dependencies import ServiceDep
from app.jobs.batches import repository
from app.jobs.batches.repository import BatchRecord
from app.jobs.batches.results import PAGE_SIZE
from app.pages.frame import PageRoute, render_page
from app.pages.jobs import JobStateFilter, goal_text
from app.store.batch_tables import batches, items
from app.store.states import STATES
from app.store.store import Store
from app.store.tables import graphs

router = APIRouter(include_in_schema=False, route_class=PageRoute)

BATCHES_PER_PAGE, ITEMS_PER_PAGE = 50, 100  # of a page
AXES = ("budgets", "planners", "seeds")


@router.get("/batches")
async def batches_page(
    request: Request,
    service: ServiceDep,
    state: JobStateFilter = "",
    cursor: Annotated[str, Query(pattern="^(ba[0-9a-f]{26})?$")] = "",
) -> Response:
    """A page of batches, newest first."""

    def found() -> dict[str, Any]:
        tenant = batch_owner(service).tenant
        some = repository.page(service.store, tenant, cursor or None, BATCHES_PER_PAGE + 1, state or None)
        after = some[BATCHES_PER_PAGE - 1].id if len(some) > BATCHES_PER_PAGE else None
        return {"rows": _rows(service.store, some[:BATCHES_PER_PAGE]), "next": after}

    said = await anyio.to_thread.run_sync(found)
    return render_page(request, "batches.html", title="Batches", here="/batches", state=state, cursor=cursor, **said)


@router.get("/batches/{batch_id}")
async def batch_page(
    request: Request,
    service: ServiceDep,
    batch_id: str,
    state: JobStateFilter = "",
    cursor: Annotated[str, Query(pattern="^[0-9]{0,9}$")] = "",
) -> Response:
    """A batch, followed as it goes, and a page of its items by their numbers."""

    def found() -> dict[str, Any]:
        batch = require_batch(service, batch_id)
        after = int(cursor) if cursor else -1
        some = repository.items_of(service.store, batch.id, after, ITEMS_PER_PAGE + 1, state or None)
        last = some[ITEMS_PER_PAGE - 1]["number"] if len(some) > ITEMS_PER_PAGE else None
        (row,) = _rows(service.store, [batch])
        return {"row": row, "items": [_item(one, batch) for one in some[:ITEMS_PER_PAGE]], "next": last}

    said = await anyio.to_thread.run_sync(found)
    return render_page(
        request,
        "batch.html",
        title=f"Batch {said['row']['name']}",
        here="/batches",
        state=state,
        cursor=cursor,
        has_parquet=importlib.util.find_spec("pyarrow") is not None,
        most_json=PAGE_SIZE,
        **said,
    )


def _rows(store: Store, some: Sequence[BatchRecord]) -> list[dict[str, Any]]:
    """What pages say of batches."""
    named, ended = _first_models(store, some), _ended_since_begun(store, some)
    return [_row(batch, named.get(batch.id, ""), ended.get(batch.id, 0)) for batch in some]


def _row(batch: BatchRecord, first: str, ended: int) -> dict[str, Any]:
    axes = {axis: batch.asked.get(axis) for axis in AXES}
    each = math.prod(len(given) for given in axes.values() if given)
    models, waits = batch.total // each, batch.total - batch.done
    rest = f" and {models - 1} more" if models > 1 else ""
    said = batch.wire()
    return said | {
        "name": (first or "(no name)") + rest,
        "asked": [(axis, list(map(str, given))) for axis, given in axes.items() if given],
        "finished": batch.finished,
        "stopping": batch.cancel_requested and not batch.finished,
        "failed": batch.count_in("failed"),
        "again": batch.count_in("failed", "cancelled"),
        "states": [(name, batch.count_in(name)) for name in STATES],
        "left": batch.seconds() * waits / ended if ended and waits and not batch.finished else None,
    }


def _first_models(store: Store, some: Sequence[BatchRecord]) -> dict[str, str]:
    """Batch -> the name of the model of its first item."""
    asked = (
        sa.select(items.c.batch_id, graphs.c.name)
        .join(graphs, graphs.c.id == items.c.graph_id)
        .where(items.c.batch_id.in_([batch.id for batch in some]), items.c.number == 0)
    )
    with store.reading() as connection:
        return {row.batch_id: row.name for row in connection.execute(asked)}


def _ended_since_begun(store: Store, some: Sequence[BatchRecord]) -> dict[str, int]:
    """Batch that goes on -> how many of its items have ended since it was begun, or begun again."""
    asked = (
        sa.select(items.c.batch_id, sa.func.count().label("ended"))
        .join(batches, batches.c.id == items.c.batch_id)
        .where(
            items.c.batch_id.in_([batch.id for batch in some if not batch.finished]),
            items.c.ended_at >= batches.c.started_at,
        )
        .group_by(items.c.batch_id)
    )
    with store.reading() as connection:
        return {row.batch_id: row.ended for row in connection.execute(asked)}


def _item(item: dict[str, Any], batch: BatchRecord) -> dict[str, Any]:
    """An item as its row says it; what was not named is what the batch's fields ask for."""
    own = {} if item["budget"] is None else {"budget": item["budget"]}
    return item | {
        "goal": goal_text({**batch.fields, **own}),
        "planner": item["planner"] or batch.fields.get("planner", "auto"),
        "seed": batch.fields.get("seed", 0) if item["seed"] is None else item["seed"],
        "stage": None,
    }
