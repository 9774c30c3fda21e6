"""Operations, their events and the workers that run them, as rows of the store.

A running operation is of one worker and one attempt. What is said of it by another, such as a worker that was taken
for dead, is not heard: `ClaimLost`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app.errors import Busy, NotFound
from app.jobs.interface import RETRY_S, JobEvent, Operation
from app.store.batch_tables import items
from app.store.blobs import blob_key
from app.store.database import insert_if_absent
from app.store.records import find_answer_in, now
from app.store.store import Store
from app.store.tables import events, graphs, operations, questions, workers

#: Name of the graph that an operation is about.
MODEL_NAME = sa.select(graphs.c.name).where(graphs.c.id == operations.c.graph_id).scalar_subquery().label("model")
OPERATION_COLUMNS = (*operations.c, MODEL_NAME)  # what an Operation is made of
UNFINISHED = operations.c.ended_at.is_(None)
RUNNING = operations.c.state == "running"
IN_BATCH = sa.exists().where(items.c.operation_id == operations.c.id, items.c.state == "running")
IS_OPEN = sa.text("ended_at IS NULL AND NOT cancel_requested")  # word for word as in the index of these
MAX_EVENTS = 1_000  # kept of an operation; older ones go, the newest state does not
CHUNK_SIZE = 500


class ClaimLost(Exception):
    """The operation is no longer of this worker and attempt."""


def submit(
    store: Store,
    operation: Operation,
    slots: int,
    queue: int,
    put: Callable[[sa.Connection], None],
    data: bytes | None = None,
) -> Operation:
    """The operation, kept and queued with what it is about, or the one that answers its question already.

    `queue` may wait besides those that run, on `slots` or on as many as workers have.
    Raises Busy, NotFound when its graph has gone, CannotWrite, Unavailable.
    """
    try:
        with store.writing(*(() if data is None else (data,))) as connection:
            if (same := _wanted(connection, operation.key)) is not None:
                return same
            operation.wanted = True
            count = sa.select(sa.func.count()).where(operations.c.state.in_(["queued", "running"]), ~IN_BATCH)
            there = connection.scalar(sa.select(sa.func.sum(workers.c.slots))) or 0
            if (connection.scalar(count) or 0) >= max(slots, there) + queue:
                raise Busy(
                    f"{queue} solves are waiting already; ask again in {RETRY_S} s, or raise REMAT_QUEUE",
                    limit={"name": "REMAT_QUEUE", "value": queue},
                    headers={"Retry-After": str(RETRY_S)},
                )
            operation.last_event = 1
            if data is not None:
                operation.asked = blob_key(data)
                question = {"id": operation.asked, "created_at": operation.created_at}
                connection.execute(insert_if_absent(connection, questions), question)
            insert_or_join(connection, [operation], lambda c, _: put(c))
    except IntegrityError as error:
        with store.writing() as connection:
            if (same := _wanted(connection, operation.key)) is not None:  # asked in another process at the same time
                return same
        raise NotFound(f"there is no graph {operation.graph_id}; post it to /v1/graphs first") from error
    return operation


def insert_or_join(
    connection: sa.Connection, asked: Sequence[Operation], put: Callable[[sa.Connection, Operation], None]
) -> list[Operation]:
    """The operations in their order, kept and queued, or for each the one that answers its question already.

    Raises IntegrityError when another transaction has just kept one, or a graph has gone.
    """
    found = {row.key: row for row in _same(connection, [operation.key for operation in asked])}
    fresh = [operation for operation in asked if found.setdefault(operation.key, operation) is operation]
    if fresh:
        named = connection.execute(_NAMES, {"ids": [operation.graph_id for operation in fresh]})
        names: dict[str | None, str] = {row.id: row.name for row in named}
        for operation in fresh:
            operation.last_event, operation.model = 1, names.get(operation.graph_id)
        connection.execute(_ENTERS, [_row(operation) for operation in fresh])
        connection.execute(_TELLS, [_told(operation.id, JobEvent(1, "state", operation.wire())) for operation in fresh])
        for operation in fresh:
            put(connection, operation)
    return [found[operation.key] for operation in asked]


def _row(operation: Operation) -> dict[str, Any]:
    return {column.name: getattr(operation, column.name) for column in operations.c}


def _same(connection: sa.Connection, keys: Sequence[str]) -> list[Operation]:
    return [Operation(**row) for row in connection.execute(_OPEN_ONES, {"keys": keys}).mappings()]


def _wanted(connection: sa.Connection, key: str) -> Operation | None:
    """The operation that answers the question already, which from now on does not end with a batch it is of."""
    for same in _same(connection, [key]):
        if not same.wanted:
            connection.execute(sa.update(operations).where(operations.c.id == same.id).values(wanted=True))
            same.wanted = True
        return same
    return None


def claim(store: Store, id: str, worker: str) -> tuple[Operation, str | None] | None:
    """The operation, begun once more and by that worker, with what answers its question already; None unless it waits.

    One that the worker has begun already waits too: it was begun, and nobody heard of it, as the database went away.
    """
    with store.writing() as connection:
        row = connection.execute(_BEGINS, {"waits": id, "begun_by": worker, "begun_at": now()}).mappings().first()
        if row is None:
            return None
        operation = Operation(**row)
        connection.execute(_TELLS, _told(id, JobEvent(operation.last_event, "state", operation.wire())))
        return operation, find_answer_in(connection, operation.key)


def save_progress(store: Store, told: Sequence[tuple[Operation, Sequence[JobEvent]]]) -> dict[str, bool]:
    """Operation -> whether its end was asked for, of those that are still run as these are.

    Of these stage, progress and the events, whose ids go on from the last, are kept. Raises CannotWrite, Unavailable.
    """
    news = [(operation, events) for operation, events in told if events]
    found: dict[str, bool] = {}
    with store.writing() if news else store.reading() as connection:
        for operation, events in news:
            last = events[-1].id
            said = {"to_stage": operation.stage, "to_progress": operation.progress, "to_last": last}
            row = connection.execute(_GOES_ON, _run_as(operation) | said).first()
            if row is not None:
                found[operation.id] = row.cancel_requested
                _insert_missing_events(connection, operation.id, events)
                if last > MAX_EVENTS:
                    connection.execute(_FORGETS, {"of": operation.id, "until": last - MAX_EVENTS})
        for operation, events in told:
            if not events and (row := connection.execute(_GOES, _run_as(operation)).first()) is not None:
                found[operation.id] = row.cancel_requested
    return found


def finish(
    connection: sa.Connection,
    operation: Operation,
    told: Sequence[JobEvent],
    state: str,
    result: str | None = None,
    error: Mapping[str, Any] | None = None,
) -> None:
    """The last word on a running operation, after those of `told`. Raises Lost, with which nothing may be kept."""
    last = (told[-1].id if told else operation.last_event) + 1
    said = {"stage": operation.stage, "progress": operation.progress, "last_event": last}
    answer = {"result" if operation.kind == "plan" else "found": result}
    ended = _mine(connection, operation, said | answer | {"state": state, "ended_at": now(), "error": error})
    _insert_missing_events(connection, operation.id, [*told, JobEvent(last, "state", ended.wire())])


def _mine(connection: sa.Connection, operation: Operation, said: Mapping[str, Any]) -> Operation:
    """The operation with what is said of it, by the one who runs it. Raises Lost."""
    row = connection.execute(_BECOMES, {**_run_as(operation), **said}).mappings().first()
    if row is None:
        raise ClaimLost(operation.id)
    return Operation(**row)


def _run_as(operation: Operation) -> dict[str, Any]:
    return {"run_as": operation.id, "run_by": operation.worker, "the_time": operation.attempts}


def requeue(store: Store, operation: Operation) -> None:
    """Give a running operation back to the queue, where it still is. Raises Lost, CannotWrite, Unavailable."""
    with store.writing() as connection:
        _mine(connection, operation, {"state": "queued", "worker": None})


def cancel(store: Store, id: str) -> bool:
    """Ask for the end of an operation; one that waits has ended with that. False: it has ended before."""
    with store.writing() as connection:
        return request_cancel(connection, [id]) > 0


def request_cancel(connection: sa.Connection, ids: Collection[str]) -> int:
    """As `cancel`; how many of them had not ended."""
    which = operations.c.id.in_(list(ids)), UNFINISHED
    asked = connection.execute(sa.update(operations).where(*which).values(cancel_requested=True)).rowcount
    done = {"state": "cancelled", "ended_at": now(), "last_event": operations.c.last_event + 1}
    _changed(connection, done, *which, operations.c.state == "queued")
    return asked


def requeue_of_workers(store: Store, gone: Iterable[str], begun: int = 0) -> int:
    """How many operations these workers ran and now wait again; `begun` is added to how often they were begun."""
    waits = {
        "state": "queued",
        "worker": None,
        "attempts": operations.c.attempts + begun,
        "last_event": operations.c.last_event + 1,
    }
    with store.writing() as connection:
        return len(_changed(connection, waits, RUNNING, operations.c.worker.in_(list(gone))))


def _changed(connection: sa.Connection, values: Mapping[str, Any], *which: sa.ColumnElement[bool]) -> list[Operation]:
    """Operations in their new state, with the event that says so."""
    rows = connection.execute(
        sa.update(operations).where(*which).values(values).returning(*OPERATION_COLUMNS)
    ).mappings()
    found = [Operation(**row) for row in rows]
    if found:
        said = [_told(operation.id, JobEvent(operation.last_event, "state", operation.wire())) for operation in found]
        connection.execute(_TELLS, said)
    return found


def _insert_missing_events(connection: sa.Connection, id: str, told: Sequence[JobEvent]) -> None:
    """Those of the events that are not kept: of a commit whose end was not heard, all may be."""
    connection.execute(insert_if_absent(connection, events), [_told(id, event) for event in told])


def _told(id: str, event: JobEvent) -> dict[str, Any]:
    return {"operation_id": id, "id": event.id, "name": event.name, "data": event.data}


def find(store: Store, id: str) -> Operation:
    """The operation as it stands. Raises NotFound."""
    return Operation(**store.row(operations, id, MODEL_NAME))


def events_since(store: Store, id: str, after: int) -> tuple[list[JobEvent], Operation]:
    """Events with ids above `after`, as far as they are kept, the operation as of then or later. Raises NotFound."""
    asked = sa.select(events.c.id, events.c.name, events.c.data).where(events.c.operation_id == id, events.c.id > after)
    with store.reading() as connection:
        told = [JobEvent(row.id, row.name, row.data) for row in connection.execute(asked.order_by(events.c.id))]
    return told, find(store, id)


def last_event_ids(store: Store, ids: Sequence[str]) -> dict[str, int]:
    """Id -> number of its latest event."""
    found: dict[str, int] = {}
    with store.reading() as connection:
        for start in range(0, len(ids), CHUNK_SIZE):
            some = operations.c.id.in_(ids[start : start + CHUNK_SIZE])
            for row in connection.execute(sa.select(operations.c.id, operations.c.last_event).where(some)):
                found[row.id] = row.last_event
    return found


def page(store: Store, after: str | None, limit: int, state: str | None) -> list[Operation]:
    """At most `limit` of them, newest first, older than `after`."""
    asked = sa.select(*OPERATION_COLUMNS).order_by(operations.c.id.desc()).limit(limit)
    if after is not None:
        asked = asked.where(operations.c.id < after)
    if state is not None:
        asked = asked.where(operations.c.state == state)
    with store.reading() as connection:
        return [Operation(**row) for row in connection.execute(asked).mappings()]


def state_of(store: Store, id: str) -> str | None:
    """The state of the operation; None: it is not there."""
    with store.reading() as connection:
        state: str | None = connection.scalar(sa.select(operations.c.state).where(operations.c.id == id))
    return state


def queued_ids(store: Store) -> list[str]:
    """Operations that nobody has begun, the oldest of them."""
    asked = sa.select(operations.c.id).where(operations.c.state == "queued").order_by(operations.c.id)
    with store.reading() as connection:
        return list(connection.scalars(asked.limit(CHUNK_SIZE)))


def heartbeat(store: Store, worker: Mapping[str, Any]) -> None:
    """Say that the worker lives; one that is not there, or was taken for dead, is there again."""
    with store.writing() as connection:
        lives = sa.update(workers).where(workers.c.id == worker["id"])
        done = connection.execute(lives.values(beats=workers.c.beats + 1, beat_at=now(), slots=worker["slots"]))
        if done.rowcount == 0:
            at = now()
            connection.execute(sa.insert(workers).values({**worker, "beats": 0, "started_at": at, "beat_at": at}))


def deregister(store: Store, ids: Iterable[str]) -> None:
    """Forget workers that are gone."""
    with store.writing() as connection:
        connection.execute(sa.delete(workers).where(workers.c.id.in_(list(ids))))


def registered_workers(store: Store) -> list[dict[str, Any]]:
    """Every worker that has not been forgotten."""
    with store.reading() as connection:
        return [dict(row) for row in connection.execute(sa.select(workers)).mappings()]


def active_workers(store: Store) -> set[str]:
    """Every worker that an operation says runs it."""
    with store.reading() as connection:
        return set(connection.scalars(sa.select(operations.c.worker).where(RUNNING)))


# Statements of every operation and look, made once: making one takes longer than SQLite takes to answer it.
_RUN_AS = (
    operations.c.id == sa.bindparam("run_as"),
    UNFINISHED,
    RUNNING,
    operations.c.worker == sa.bindparam("run_by"),
    operations.c.attempts == sa.bindparam("the_time"),
)
_ENTERS = sa.insert(operations)
_NAMES = sa.select(graphs.c.id, graphs.c.name).where(graphs.c.id.in_(sa.bindparam("ids", expanding=True)))
_OPEN_ONES = sa.select(*OPERATION_COLUMNS).where(operations.c.key.in_(sa.bindparam("keys", expanding=True)), IS_OPEN)
_BEGINS = (
    sa.update(operations)
    .where(
        operations.c.id == sa.bindparam("waits"),
        (operations.c.state == "queued") | (RUNNING & (operations.c.worker == sa.bindparam("begun_by"))),
    )
    .values(
        state="running",
        stage="read",
        worker=sa.bindparam("begun_by"),
        started_at=sa.bindparam("begun_at", type_=operations.c.started_at.type),
        attempts=operations.c.attempts + 1,
        last_event=operations.c.last_event + 1,
    )
    .returning(*OPERATION_COLUMNS)
)
_BECOMES = sa.update(operations).where(*_RUN_AS).returning(*OPERATION_COLUMNS)
_GOES_ON = (
    sa.update(operations)
    .where(*_RUN_AS)
    .values(
        stage=sa.bindparam("to_stage"),
        progress=sa.bindparam("to_progress", type_=operations.c.progress.type),
        last_event=sa.bindparam("to_last"),
    )
    .returning(operations.c.cancel_requested)
)
_GOES = sa.select(operations.c.cancel_requested).where(*_RUN_AS)
_FORGETS = sa.delete(events).where(events.c.operation_id == sa.bindparam("of"), events.c.id <= sa.bindparam("until"))
_TELLS = sa.insert(events)
