"""Batches and their items as rows of the store.

Changes to items lock the row of their batch, so that scheduling, cancel and retry do not interleave.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from app.api.schemas.batch_request import BatchRequest
from app.errors import Busy, Conflict, NotFound
from app.jobs.interface import FINISHED, RETRY_S
from app.jobs.repository import request_cancel
from app.jobs.wakeups import notify_workers
from app.store.batch_tables import batches, items
from app.store.database import insert
from app.store.records import now
from app.store.states import STATES
from app.store.store import ID_PATTERN, Store
from app.store.tables import Timestamp, graphs, operations, plans
from app.telemetry.traces import current_traceparent

CHUNK_SIZE = 500
UNFINISHED = batches.c.ended_at.is_(None)
#: Columns of `plans` in the listing of items.
PLAN_COLUMNS = (
    "status",
    "fits",
    "budget_bytes",
    "baseline_peak_bytes",
    "peak_bytes",
    "arena_bytes",
    "saved_bytes",
    "saved",
    "overhead",
    "bound_overhead",
    "gap",
    "reproducible",
    "solver_seconds",
)


@dataclass(frozen=True, slots=True)
class BatchOwner:
    """Tenant and key that own a batch; None without authentication."""

    tenant: str | None = None
    key_id: str | None = None
    at_once: int | None = None  # concurrent items over the batches of the key


@dataclass(slots=True)
class BatchRecord:
    """One batch; `counts` is the number of its items in each state."""

    id: str
    tenant: str | None
    key_id: str | None
    at_once: int | None
    idempotency: str | None
    body: str
    asked: Mapping[str, Any]
    fields: Mapping[str, Any]
    total: int
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    state: str = "queued"
    runs: int = 1
    solver_seconds: float = 0.0
    last_event: int = 1
    cancel_requested: bool = False
    trace: str | None = None  # traceparent of the request that created it
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def operation_id(self) -> str:
        return operation_id_of(self.id)

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    @property
    def done(self) -> int:
        """Number of items that have ended, successfully or not."""
        return self.count_in(*FINISHED)

    def count_in(self, *states: str) -> int:
        return sum(self.counts.get(state, 0) for state in states)

    def seconds(self) -> float:
        """Elapsed seconds since the start or the last retry."""
        if self.started_at is None:
            return 0.0
        ended = datetime.now(UTC) if self.ended_at is None else datetime.fromisoformat(self.ended_at)
        return max(0.0, (ended - datetime.fromisoformat(self.started_at)).total_seconds())

    def wire(self) -> dict[str, Any]:
        """The batch in the wire format."""
        return {
            "id": self.id,
            "state": self.state,
            "operation": f"/v1/operations/{self.operation_id}",
            "created_at": self.created_at,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            **self.asked,
            "fields": self.fields,
            "total": self.total,
            "done": self.done,
            "items": {state: self.counts.get(state, 0) for state in STATES},
            "seconds": self.seconds(),
            "solver_seconds": self.solver_seconds,
        }


def operation_id_of(batch_id: str) -> str:
    """Id of the operation of a batch."""
    return f"op{batch_id[2:]}"


def batch_id_of(operation_id: str) -> str:
    """Id of the batch of an operation, if the operation is a batch."""
    return f"ba{operation_id[2:]}"


def create(
    store: Store, request: BatchRequest, owner: BatchOwner, idempotency: str | None, body: str, open_items: int
) -> BatchRecord:
    """The stored batch with its items, or the earlier one of the same idempotency key.

    At most `open_items` items are in unfinished batches of the tenant. Raises Busy, Conflict.
    """
    axes = {"budgets": request.budgets, "planners": request.planners, "seeds": request.seeds}
    given_axes = {axis: None if given == (None,) else given for axis, given in axes.items()}
    batch = BatchRecord(
        new_id("ba"),
        **asdict(owner),
        idempotency=idempotency,
        body=body,
        asked=given_axes,
        fields=request.fields,
        total=request.total,
        created_at=now(),
        trace=current_traceparent(),
    )
    columns = {name: given for name, given in asdict(batch).items() if name != "counts"}
    rows = [
        {
            "batch_id": batch.id,
            "number": number,
            "graph_id": graph_id,
            "budget": budget,
            "planner": planner,
            "seed": seed,
            "state": "queued",
            "cached": False,
        }
        for number, (graph_id, budget, planner, seed) in enumerate(request.items())
    ]
    with store.writing() as connection:
        made = insert(connection, batches).values(columns).on_conflict_do_nothing(index_elements=["idempotency"])
        if connection.execute(made.returning(batches.c.id)).first() is not None:
            _require_room(connection, owner.tenant, open_items)
            connection.execute(sa.insert(items), rows)
            notify_workers(connection)
            batch.counts = {"queued": batch.total}
            return batch
    before = find_by_idempotency_key(store, str(idempotency), body)  # a concurrent request with the same key
    assert before is not None
    return before


def _require_room(connection: sa.Connection, tenant: str | None, open_items: int) -> None:
    """Raises Busy if the unfinished batches of the tenant have more than `open_items` items."""
    total = sa.select(sa.func.sum(batches.c.total)).where(UNFINISHED, batches.c.tenant.is_not_distinct_from(tenant))
    count = connection.scalar(total) or 0
    if count > open_items:
        raise Busy(
            f"{count} items would be open; wait for a batch to end, cancel one, or raise REMAT_OPEN_ITEMS",
            limit={"name": "REMAT_OPEN_ITEMS", "value": open_items},
            headers={"Retry-After": str(RETRY_S)},
        )


def find_by_idempotency_key(store: Store, idempotency: str, body: str) -> BatchRecord | None:
    """The batch of the idempotency key. Raises Conflict if its body was different."""
    with store.reading() as connection:
        found = _counted(
            connection, row_dicts(connection, sa.select(batches).where(batches.c.idempotency == idempotency))
        )
    if found and found[0].body != body:
        raise Conflict("the idempotency key was used with a different body; use a new key for a new batch")
    return found[0] if found else None


def new_id(kind: str) -> str:
    """New id of a batch ("ba") or an operation ("op") that sorts by creation time."""
    return f"{kind}{time.time_ns() // 1_000:014x}{secrets.token_hex(6)}"


def find(store: Store, id: str) -> BatchRecord:
    """Current state of the batch. Raises NotFound."""
    if ID_PATTERN.fullmatch(id):
        with store.reading() as connection:
            found = _counted(connection, row_dicts(connection, sa.select(batches).where(batches.c.id == id)))
        if found:
            return found[0]
    raise NotFound(f"no batch {id[:80]!r}")


def page(
    store: Store, tenant: str | None, after: str | None, limit: int, state: str | None, by_items: bool = False
) -> list[BatchRecord]:
    """At most `limit` batches, newest first, older than `after`; of that tenant unless None.

    `by_items`: an ended batch with failed items counts as failed, which its own state never is.
    """
    query = sa.select(batches).order_by(batches.c.id.desc()).limit(limit)
    if tenant is not None:
        query = query.where(batches.c.tenant == tenant)
    if after is not None:
        query = query.where(batches.c.id < after)
    if by_items and state in ("succeeded", "failed"):
        has_failed = sa.exists().where(items.c.batch_id == batches.c.id, items.c.state == "failed")
        query = query.where(batches.c.state == "succeeded", has_failed if state == "failed" else ~has_failed)
    elif state is not None:
        query = query.where(batches.c.state == state)
    with store.reading() as connection:
        return _counted(connection, row_dicts(connection, query))


def _counted(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> list[BatchRecord]:
    """The batches with the counts of their items."""
    found = {row["id"]: BatchRecord(**row) for row in rows}
    for start in range(0, len(rows), CHUNK_SIZE):
        ids = [row["id"] for row in rows[start : start + CHUNK_SIZE]]
        counted = sa.select(items.c.batch_id, items.c.state, sa.func.count()).where(items.c.batch_id.in_(ids))
        for batch_id, state, count in connection.execute(counted.group_by(items.c.batch_id, items.c.state)):
            found[batch_id].counts[state] = count
    return list(found.values())


#: Batch of the planned graph, else of the stored one.
BATCH = sa.func.coalesce(plans.c.batch, graphs.c.batch).label("batch")


def items_of(store: Store, batch_id: str, after: int, limit: int, state: str | None = None) -> list[dict[str, Any]]:
    """At most `limit` items with numbers above `after`, ascending, with PLAN_COLUMNS of their plans."""
    query = (
        sa.select(items, graphs.c.name.label("model"), BATCH, *(plans.c[name] for name in PLAN_COLUMNS))
        .join(graphs, graphs.c.id == items.c.graph_id)
        .join(plans, plans.c.id == items.c.plan_id, isouter=True)
        .where(items.c.batch_id == batch_id, items.c.number > after)
        .order_by(items.c.number)
        .limit(limit)
    )
    if state is not None:
        query = query.where(items.c.state == state)
    with store.reading() as connection:
        return row_dicts(connection, query)


def row_dicts(
    connection: sa.Connection, query: sa.Select[Any], given: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Rows as dicts by column name."""
    return [dict(row) for row in connection.execute(query, given).mappings()]


def cancel(store: Store, id: str) -> None:
    """Cancel a batch: queued items end now, running items soon; operations wanted by others continue."""
    with store.writing() as connection:
        if lock_batch(connection, id).ended_at is not None:
            return
        running = items.c.batch_id == id, items.c.state == "running"
        continues = items.c.operation_id.in_(_REQUESTED_ALONE) | _SHARED
        ends = items.c.batch_id == id, (items.c.state == "queued") | ((items.c.state == "running") & continues)
        connection.execute(sa.update(items).where(*ends).values(state="cancelled", ended_at=now()))
        request_cancel(connection, connection.scalars(sa.select(items.c.operation_id).where(*running)).all())
        update_batches(connection, [id], cancel_requested=True)
        finish_ended(connection, [id])


def retry(store: Store, id: str) -> BatchRecord:
    """The batch with its failed and cancelled items requeued. Raises Conflict while the batch is being cancelled."""
    with store.writing() as connection:
        batch = lock_batch(connection, id)
        if batch.cancel_requested and batch.ended_at is None:
            raise Conflict(f"batch {id} is being cancelled; retry once it has ended", code="batch_ending")
        requeued = {
            "state": "queued",
            "operation_id": None,
            "plan_id": None,
            "error": None,
            "started_at": None,
            "ended_at": None,
        }
        which = items.c.batch_id == id, items.c.state.in_(["failed", "cancelled"])
        if connection.execute(sa.update(items).where(*which).values(requeued)).rowcount:
            more = {"state": "queued", "started_at": None, "ended_at": None, "runs": batches.c.runs + 1}
            fresh = more | {"solver_seconds": 0.0} if batch.ended_at is not None else {}
            update_batches(connection, [id], cancel_requested=False, **fresh)
            notify_workers(connection)
    return find(store, id)


def lock_batch(connection: sa.Connection, id: str) -> sa.Row[Any]:
    """The row of a batch, locked until the transaction ends (SELECT ... FOR UPDATE)."""
    return connection.execute(sa.select(batches).where(batches.c.id == id).with_for_update()).one()


def update_batches(connection: sa.Connection, ids: Collection[str], **values: Any) -> None:
    """Update the batches and increment their `last_event`."""
    if ids:
        changes = values | {"last_event": batches.c.last_event + 1}
        connection.execute(sa.update(batches).where(batches.c.id.in_(list(ids))).values(changes))


def finish_ended(connection: sa.Connection, ids: Collection[str]) -> None:
    """End the batches whose items have all ended."""
    if ids:
        connection.execute(_FINISH, {"ids": list(ids), "at": now()})


_OPEN_ITEMS = sa.exists().where(items.c.batch_id == batches.c.id, items.c.state.in_(["queued", "running"]))
_FINISH = (
    sa.update(batches)
    .where(batches.c.id.in_(sa.bindparam("ids", expanding=True)), UNFINISHED, ~_OPEN_ITEMS)
    .values(
        state=sa.case((batches.c.cancel_requested, "cancelled"), else_="succeeded"),
        ended_at=sa.bindparam("at", type_=Timestamp()),
        last_event=batches.c.last_event + 1,
    )
)


_REQUESTED_ALONE = sa.select(operations.c.id).where(
    operations.c.ended_at.is_(None), ~operations.c.cancel_requested, operations.c.wanted
)
_OTHER = items.alias()
_SHARED = (  # an item of another batch waits for the same operation
    sa.exists()
    .where(_OTHER.c.operation_id == items.c.operation_id, _OTHER.c.state == "running")
    .where(_OTHER.c.batch_id != items.c.batch_id)
    .correlate(items)
)
