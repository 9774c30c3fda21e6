"""Operations and their events as rows of the store, and the queue that they form.

The queue is the operations in state `queued`. A running operation is claimed by one worker for one attempt. Updates
under an older claim, such as those of a worker whose heartbeat timed out, raise `ClaimLost` (fencing).

submit ──▶ queued ── claim ──▶ running ── finish ──▶ succeeded, failed, cancelled
             ▲                    │
             ╰───── requeue ──────╯   the child died, the worker died or shut down
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app.errors import Busy, NotFound
from app.jobs.interface import RETRY_S, JobEvent, Operation
from app.jobs.statements import (
    CLAIM,
    CLAIM_IN_TURN,
    DELETE_EVENTS,
    END_ANSWERED,
    INSERT_EVENT,
    INSERT_OPERATION,
    LOCK_CLAIMS,
    OF_GRAPH,
    OPERATION_COLUMNS,
    RUNNING,
    SELECT_CANCEL,
    SELECT_GRAPHS,
    SELECT_OPEN,
    UNFINISHED,
    UPDATE_CLAIMED,
    UPDATE_PROGRESS,
)
from app.jobs.wakeups import notify_workers
from app.store.batch_tables import items
from app.store.blobs import blob_key
from app.store.database import insert_if_absent
from app.store.records import find_answer_in, now
from app.store.store import Store
from app.store.tables import events, operations, questions, workers
from app.telemetry import metrics

IN_BATCH = sa.exists().where(items.c.operation_id == operations.c.id, items.c.state == "running")
MAX_EVENTS = 1_000  # stored events per operation; older ones are deleted
CHUNK_SIZE = 500


class ClaimLost(Exception):
    """The operation is no longer claimed by this worker and attempt."""


def submit(store: Store, operation: Operation, slots: int, queue: int, data: bytes | None = None) -> Operation:
    """The operation, stored in the queue with its input `data`, or the unfinished operation of the same key.

    At most `queue` operations wait in addition to those that run; with tenants, half of all these are of one. The
    number that run is `slots`, or the slots of all workers if greater. Raises Busy, NotFound if the graph was deleted,
    CannotWrite, Unavailable.
    """
    try:
        with store.writing(*(() if data is None else (data,))) as connection:
            if (same := _join(connection, operation.key)) is not None:
                return same
            operation.wanted = True
            _require_room(connection, operation.tenant, slots, queue)
            operation.last_event = 1
            if data is not None:
                operation.asked = blob_key(data)
                question = {"id": operation.asked, "created_at": operation.created_at}
                connection.execute(insert_if_absent(connection, questions), question)
            insert_or_join(connection, [operation])
    except IntegrityError as error:
        with store.writing() as connection:
            if (same := _join(connection, operation.key)) is not None:  # submitted concurrently by another process
                return same
        raise NotFound(f"no graph {operation.graph_id}; post it to /v1/graphs first") from error
    return operation


def _require_room(connection: sa.Connection, tenant: str | None, slots: int, queue: int) -> None:
    """Raises Busy if the queue, or the half of it that a tenant may fill, is full."""
    is_own = operations.c.tenant == tenant
    count = sa.select(sa.func.count(), sa.func.count(sa.case((is_own, 1)))).select_from(operations)
    waiting, own = connection.execute(count.where(operations.c.state.in_(["queued", "running"]), ~IN_BATCH)).one()
    room = max(slots, connection.scalar(sa.select(sa.func.sum(workers.c.slots))) or 0) + queue
    if waiting >= room or (tenant is not None and own >= max(1, (room + 1) // 2)):
        whose = "is full" if waiting >= room else "has as many solves of this tenant as it may"
        raise Busy(
            f"the queue {whose} ({queue} waiting solves); retry in {RETRY_S} s, or raise REMAT_QUEUE",
            limit={"name": "REMAT_QUEUE", "value": queue},
            headers={"Retry-After": str(RETRY_S)},
        )


def insert_or_join(connection: sa.Connection, submitted: Sequence[Operation]) -> list[Operation]:
    """For each operation in order: itself, stored in the queue, or the unfinished operation of the same key.

    Raises IntegrityError if another transaction stored the key concurrently, or a graph was deleted.
    """
    by_key = {row.key: row for row in _unfinished_of_keys(connection, [operation.key for operation in submitted])}
    fresh = [operation for operation in submitted if by_key.setdefault(operation.key, operation) is operation]
    if fresh:
        found = connection.execute(SELECT_GRAPHS, {"ids": [operation.graph_id for operation in fresh]})
        known: dict[str | None, tuple[str, int | None]] = {row.id: (row.name, row.batch) for row in found}
        for operation in fresh:
            operation.last_event = 1
            operation.model, operation.graph_batch = known.get(operation.graph_id, (None, None))
        connection.execute(INSERT_OPERATION, [_row(operation) for operation in fresh])
        started = [_event_row(operation.id, JobEvent(1, "state", operation.wire())) for operation in fresh]
        connection.execute(INSERT_EVENT, started)
        notify_workers(connection)
    return [by_key[operation.key] for operation in submitted]


def _row(operation: Operation) -> dict[str, Any]:
    return {column.name: getattr(operation, column.name) for column in operations.c}


def _unfinished_of_keys(connection: sa.Connection, keys: Sequence[str]) -> list[Operation]:
    return [Operation(**row) for row in connection.execute(SELECT_OPEN, {"keys": keys}).mappings()]


def _join(connection: sa.Connection, key: str) -> Operation | None:
    """The unfinished operation of the key, marked `wanted`: cancelling a batch no longer ends it."""
    for same in _unfinished_of_keys(connection, [key]):
        if not same.wanted:
            connection.execute(sa.update(operations).where(operations.c.id == same.id).values(wanted=True))
            same.wanted = True
        return same
    return None


def claim(store: Store, worker: str, per_tenant: int | None = None) -> tuple[Operation, str | None] | None:
    """(operation, id of a stored result or None), the next of the queue, claimed by the worker; None: there is none.

    The lowest `priority` is next, and of these the oldest. With `per_tenant` no tenant has more operations running,
    and of one priority the tenant is next whose latest start is the longest ago.
    """
    claimed = {"begun_by": worker, "begun_at": now()}
    with store.writing() as connection:
        if per_tenant is None:
            row = connection.execute(CLAIM, claimed).mappings().first()
        else:
            if connection.dialect.name == "postgresql":
                connection.execute(LOCK_CLAIMS)  # concurrent claims would not count each other
            row = connection.execute(CLAIM_IN_TURN, {**claimed, "per_tenant": per_tenant}).mappings().first()
        if row is None:
            return None
        operation = Operation(**row)
        started = JobEvent(operation.last_event, "state", operation.wire())
        connection.execute(INSERT_EVENT, _event_row(operation.id, started))
        return operation, find_answer_in(connection, operation.key)


def save_progress(store: Store, progress: Sequence[tuple[Operation, Sequence[JobEvent]]]) -> dict[str, bool]:
    """Operation id -> whether a cancel was requested, for the operations whose claim still holds.

    Saves their stage, progress and events; event ids continue from the last. Raises CannotWrite, Unavailable.
    """
    changed = [(operation, events) for operation, events in progress if events]
    cancel_requested: dict[str, bool] = {}
    with store.writing() if changed else store.reading() as connection:
        for operation, events in changed:
            last = events[-1].id
            values = {"to_stage": operation.stage, "to_progress": operation.progress, "to_last": last}
            row = connection.execute(UPDATE_PROGRESS, _claim_of(operation) | values).first()
            if row is not None:
                cancel_requested[operation.id] = row.cancel_requested
                _insert_missing_events(connection, operation.id, events)
                if last > MAX_EVENTS:
                    connection.execute(DELETE_EVENTS, {"of": operation.id, "until": last - MAX_EVENTS})
        for operation, events in progress:
            if not events and (row := connection.execute(SELECT_CANCEL, _claim_of(operation)).first()) is not None:
                cancel_requested[operation.id] = row.cancel_requested
    return cancel_requested


def finish(
    connection: sa.Connection,
    operation: Operation,
    pending: Sequence[JobEvent],
    state: str,
    result: str | None = None,
    error: Mapping[str, Any] | None = None,
) -> None:
    """End a running operation and store its `pending` events. Raises ClaimLost; the caller must then roll back."""
    last = (pending[-1].id if pending else operation.last_event) + 1
    values = {"stage": operation.stage, "progress": operation.progress, "last_event": last}
    answer = {"result" if operation.kind == "plan" else "found": result}
    ended = _update_claimed(
        connection, operation, values | answer | {"state": state, "ended_at": now(), "error": error}
    )
    _insert_missing_events(connection, operation.id, [*pending, JobEvent(last, "state", ended.wire())])


def end_answered(connection: sa.Connection) -> int:
    """Number of operations, of the next MAX_ANSWERED in the queue, ended with results that are stored already."""
    at = now()
    rows = connection.execute(END_ANSWERED, {"begun_at": at, "done_at": at}).mappings()
    ended = [Operation(**row) for row in rows]
    if ended:
        last = [_event_row(each.id, JobEvent(each.last_event, "state", each.wire())) for each in ended]
        connection.execute(INSERT_EVENT, last)
    for each in ended:
        metrics.count_job(each.kind, each.state, "", *each.seconds())
    return len(ended)


def _update_claimed(connection: sa.Connection, operation: Operation, values: Mapping[str, Any]) -> Operation:
    """The operation with new column values, if its claim still holds. Raises ClaimLost."""
    row = connection.execute(UPDATE_CLAIMED, {**_claim_of(operation), **values}).mappings().first()
    if row is None:
        raise ClaimLost(operation.id)
    return Operation(**row)


def _claim_of(operation: Operation) -> dict[str, Any]:
    return {"claimed_id": operation.id, "claimed_by": operation.worker, "claimed_attempt": operation.attempts}


def requeue(store: Store, operation: Operation) -> None:
    """Set a running operation whose child died to queued.

    Raises ClaimLost, CannotWrite, Unavailable.
    """
    with store.writing() as connection:
        queued = {"state": "queued", "worker": None, "child_deaths": operation.child_deaths + 1}
        _update_claimed(connection, operation, queued)
        notify_workers(connection)


def cancel(store: Store, id: str) -> bool:
    """Request a cancel; a queued operation ends at once. False: the operation has ended already."""
    with store.writing() as connection:
        return request_cancel(connection, [id]) > 0


def request_cancel(connection: sa.Connection, ids: Collection[str]) -> int:
    """Number of unfinished operations among `ids`, which are cancelled as in `cancel`."""
    which = operations.c.id.in_(list(ids)), UNFINISHED
    count = connection.execute(sa.update(operations).where(*which).values(cancel_requested=True)).rowcount
    done = {"state": "cancelled", "ended_at": now(), "last_event": operations.c.last_event + 1}
    _update_with_event(connection, done, *which, operations.c.state == "queued")
    return count


def requeue_of_workers(store: Store, gone: Iterable[str], begun: int = 0, keep: Collection[str] = ()) -> int:
    """Number of running operations of these workers, except `keep`, now queued; `begun` is added to their attempts."""
    queued = {
        "state": "queued",
        "worker": None,
        "attempts": operations.c.attempts + begun,
        "last_event": operations.c.last_event + 1,
    }
    is_held = operations.c.worker.in_(list(gone)), operations.c.id.not_in(list(keep))
    with store.writing() as connection:
        requeued = len(_update_with_event(connection, queued, RUNNING, *is_held))
        if requeued:
            notify_workers(connection)
    return requeued


def _update_with_event(
    connection: sa.Connection, values: Mapping[str, Any], *which: sa.ColumnElement[bool]
) -> list[Operation]:
    """The updated operations, each with a new state event."""
    rows = connection.execute(
        sa.update(operations).where(*which).values(values).returning(*OPERATION_COLUMNS)
    ).mappings()
    changed = [Operation(**row) for row in rows]
    if changed:
        new = [_event_row(each.id, JobEvent(each.last_event, "state", each.wire())) for each in changed]
        connection.execute(INSERT_EVENT, new)
    return changed


def _insert_missing_events(connection: sa.Connection, id: str, pending: Sequence[JobEvent]) -> None:
    """Insert events that are not stored yet; all may be stored if the reply to a commit was lost."""
    connection.execute(insert_if_absent(connection, events), [_event_row(id, event) for event in pending])


def _event_row(id: str, event: JobEvent) -> dict[str, Any]:
    return {"operation_id": id, "id": event.id, "name": event.name, "data": event.data}


def find(store: Store, id: str) -> Operation:
    """Current state of the operation. Raises NotFound."""
    return Operation(**store.row(operations, id, *OF_GRAPH))


def events_since(store: Store, id: str, after: int) -> tuple[list[JobEvent], Operation]:
    """(stored events with ids above `after`, the operation read after them). Raises NotFound."""
    query = sa.select(events.c.id, events.c.name, events.c.data).where(events.c.operation_id == id, events.c.id > after)
    with store.reading() as connection:
        newer = [JobEvent(row.id, row.name, row.data) for row in connection.execute(query.order_by(events.c.id))]
    return newer, find(store, id)


def last_event_ids(store: Store, ids: Sequence[str]) -> dict[str, int]:
    """Operation id -> id of its last event."""
    last: dict[str, int] = {}
    with store.reading() as connection:
        for start in range(0, len(ids), CHUNK_SIZE):
            some = operations.c.id.in_(ids[start : start + CHUNK_SIZE])
            for row in connection.execute(sa.select(operations.c.id, operations.c.last_event).where(some)):
                last[row.id] = row.last_event
    return last


def page(store: Store, after: str | None, limit: int, state: str | None, tenant: str | None = None) -> list[Operation]:
    """At most `limit` operations, newest first, older than `after`; of that tenant unless None."""
    query = sa.select(*OPERATION_COLUMNS).order_by(operations.c.id.desc()).limit(limit)
    if tenant is not None:
        query = query.where(operations.c.tenant == tenant)
    if after is not None:
        query = query.where(operations.c.id < after)
    if state is not None:
        query = query.where(operations.c.state == state)
    with store.reading() as connection:
        return [Operation(**row) for row in connection.execute(query).mappings()]
