"""Batches and their items as rows of the store.

Whoever changes items holds the row of their batch, so that no two feed, cancel or retry the same one.
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
from app.errors import Conflict, NotFound
from app.jobs.interface import FINISHED
from app.jobs.repository import request_cancel
from app.store.batch_tables import batches, items
from app.store.database import insert
from app.store.records import now
from app.store.states import STATES
from app.store.store import ID_PATTERN, Store
from app.store.tables import Timestamp, graphs, operations, plans

CHUNK_SIZE = 500
UNFINISHED = batches.c.ended_at.is_(None)
#: What a plan says of the item it answers.
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
    """Whose a batch is, and what it counts against; without keys nobody's."""

    tenant: str | None = None
    key_id: str | None = None
    at_once: int | None = None  # items of the key's batches at a time


@dataclass(slots=True)
class BatchRecord:
    """One batch; `counts` says how many of its items are in each state."""

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
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def operation_id(self) -> str:
        return operation_id_of(self.id)

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    @property
    def done(self) -> int:
        """Items that have ended, well or not."""
        return self.count_in(*FINISHED)

    def count_in(self, *states: str) -> int:
        return sum(self.counts.get(state, 0) for state in states)

    def seconds(self) -> float:
        """Since it was begun, or begun again."""
        if self.started_at is None:
            return 0.0
        ended = datetime.now(UTC) if self.ended_at is None else datetime.fromisoformat(self.ended_at)
        return max(0.0, (ended - datetime.fromisoformat(self.started_at)).total_seconds())

    def wire(self) -> dict[str, Any]:
        """The batch as people see it."""
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
    """Id of the operation that a batch is."""
    return f"op{batch_id[2:]}"


def batch_id_of(operation_id: str) -> str:
    """Id of the batch that an operation would be."""
    return f"ba{operation_id[2:]}"


def create(store: Store, asked: BatchRequest, owner: BatchOwner, idempotency: str | None, body: str) -> BatchRecord:
    """The batch, kept with every item, or the one that came under the key before. Raises Conflict for another body."""
    axes = {"budgets": asked.budgets, "planners": asked.planners, "seeds": asked.seeds}
    said = {axis: None if given == (None,) else given for axis, given in axes.items()}
    batch = BatchRecord(
        new_id("ba"),
        **asdict(owner),
        idempotency=idempotency,
        body=body,
        asked=said,
        fields=asked.fields,
        total=asked.total,
        created_at=now(),
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
        for number, (graph_id, budget, planner, seed) in enumerate(asked.items())
    ]
    with store.writing() as connection:
        made = insert(connection, batches).values(columns).on_conflict_do_nothing(index_elements=["idempotency"])
        if connection.execute(made.returning(batches.c.id)).first() is not None:
            connection.execute(sa.insert(items), rows)
            batch.counts = {"queued": batch.total}
            return batch
    before = find_by_idempotency_key(store, str(idempotency), body)  # of another who came with the key at the same time
    assert before is not None
    return before


def find_by_idempotency_key(store: Store, idempotency: str, body: str) -> BatchRecord | None:
    """The batch that came under the key before. Raises Conflict where it had another body."""
    with store.reading() as connection:
        found = _counted(
            connection, row_dicts(connection, sa.select(batches).where(batches.c.idempotency == idempotency))
        )
    if found and found[0].body != body:
        raise Conflict("the idempotency key came with another body before; take a new key for a new batch")
    return found[0] if found else None


def new_id(kind: str) -> str:
    """Of a batch, "ba", or of an operation, "op": sorts by the time of its making."""
    return f"{kind}{time.time_ns() // 1_000:014x}{secrets.token_hex(6)}"


def find(store: Store, id: str) -> BatchRecord:
    """The batch as it stands. Raises NotFound."""
    if ID_PATTERN.fullmatch(id):
        with store.reading() as connection:
            found = _counted(connection, row_dicts(connection, sa.select(batches).where(batches.c.id == id)))
        if found:
            return found[0]
    raise NotFound(f"there is no batch {id[:80]!r}")


def page(store: Store, tenant: str | None, after: str | None, limit: int, state: str | None) -> list[BatchRecord]:
    """At most `limit` of them, newest first, older than `after`; of that tenant unless None."""
    asked = sa.select(batches).order_by(batches.c.id.desc()).limit(limit)
    if tenant is not None:
        asked = asked.where(batches.c.tenant == tenant)
    if after is not None:
        asked = asked.where(batches.c.id < after)
    if state is not None:
        asked = asked.where(batches.c.state == state)
    with store.reading() as connection:
        return _counted(connection, row_dicts(connection, asked))


def _counted(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> list[BatchRecord]:
    """The batches with the counts of their items."""
    found = {row["id"]: BatchRecord(**row) for row in rows}
    for start in range(0, len(rows), CHUNK_SIZE):
        ids = [row["id"] for row in rows[start : start + CHUNK_SIZE]]
        counted = sa.select(items.c.batch_id, items.c.state, sa.func.count()).where(items.c.batch_id.in_(ids))
        for batch_id, state, count in connection.execute(counted.group_by(items.c.batch_id, items.c.state)):
            found[batch_id].counts[state] = count
    return list(found.values())


def items_of(store: Store, batch_id: str, after: int, limit: int, state: str | None = None) -> list[dict[str, Any]]:
    """At most `limit` items with numbers above `after`, ascending, with what their plans say."""
    asked = (
        sa.select(items, graphs.c.name.label("model"), *(plans.c[name] for name in PLAN_COLUMNS))
        .join(graphs, graphs.c.id == items.c.graph_id)
        .join(plans, plans.c.id == items.c.plan_id, isouter=True)
        .where(items.c.batch_id == batch_id, items.c.number > after)
        .order_by(items.c.number)
        .limit(limit)
    )
    if state is not None:
        asked = asked.where(items.c.state == state)
    with store.reading() as connection:
        return row_dicts(connection, asked)


def row_dicts(
    connection: sa.Connection, asked: sa.Select[Any], given: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The rows by their columns' names."""
    return [dict(row) for row in connection.execute(asked, given).mappings()]


def cancel(store: Store, id: str) -> None:
    """Ask for the end of a batch: what waits ends now, what runs soon, and what others wait for goes on without it."""
    with store.writing() as connection:
        if lock_batch(connection, id).ended_at is not None:
            return
        ours = items.c.batch_id == id, items.c.state == "running"
        goes_on = items.c.operation_id.in_(_REQUESTED_ALONE) | _SHARED
        ends = items.c.batch_id == id, (items.c.state == "queued") | ((items.c.state == "running") & goes_on)
        connection.execute(sa.update(items).where(*ends).values(state="cancelled", ended_at=now()))
        request_cancel(connection, connection.scalars(sa.select(items.c.operation_id).where(*ours)).all())
        update_batches(connection, [id], cancel_requested=True)
        finish_ended(connection, [id])


def retry(store: Store, id: str) -> BatchRecord:
    """The batch, whose failed and cancelled items wait again. Raises Conflict while it is being cancelled."""
    with store.writing() as connection:
        batch = lock_batch(connection, id)
        if batch.cancel_requested and batch.ended_at is None:
            raise Conflict(f"batch {id} is being cancelled; retry once it has ended", code="batch_ending")
        again = {
            "state": "queued",
            "operation_id": None,
            "plan_id": None,
            "error": None,
            "started_at": None,
            "ended_at": None,
        }
        which = items.c.batch_id == id, items.c.state.in_(["failed", "cancelled"])
        if connection.execute(sa.update(items).where(*which).values(again)).rowcount:
            more = {"state": "queued", "started_at": None, "ended_at": None, "runs": batches.c.runs + 1}
            fresh = more | {"solver_seconds": 0.0} if batch.ended_at is not None else {}
            update_batches(connection, [id], cancel_requested=False, **fresh)
    return find(store, id)


def lock_batch(connection: sa.Connection, id: str) -> sa.Row[Any]:
    """The row of a batch, which nobody else changes until the transaction ends."""
    return connection.execute(sa.select(batches).where(batches.c.id == id).with_for_update()).one()


def update_batches(connection: sa.Connection, ids: Collection[str], **values: Any) -> None:
    """Batches in their new state, and that something has happened to them."""
    if ids:
        said = values | {"last_event": batches.c.last_event + 1}
        connection.execute(sa.update(batches).where(batches.c.id.in_(list(ids))).values(said))


def finish_ended(connection: sa.Connection, ids: Collection[str]) -> None:
    """End those of the batches whose items have all ended."""
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


def operations_of(store: Store, tenant: str, ids: Collection[str]) -> set[str]:
    """Those of the operations that are, or solve items of, the tenant's batches."""
    found: set[str] = set()
    listed = list(ids)
    with store.reading() as connection:
        for start in range(0, len(listed), CHUNK_SIZE):
            some = listed[start : start + CHUNK_SIZE]
            which = items.c.operation_id.in_(some), batches.c.tenant == tenant
            found |= set(connection.scalars(sa.select(items.c.operation_id).join(batches).where(*which)))
            own = batches.c.id.in_(list(map(batch_id_of, some))), batches.c.tenant == tenant
            found |= {operation_id_of(id) for id in connection.scalars(sa.select(batches.c.id).where(*own))}
    return found


def item_operations_of(store: Store, tenant: str) -> list[str]:
    """Operations that solve items of the tenant's batches, or have."""
    asked = sa.select(items.c.operation_id).join(batches)
    with store.reading() as connection:
        mine = asked.where(batches.c.tenant == tenant, items.c.operation_id.is_not(None))
        return list(connection.scalars(mine.distinct()))
