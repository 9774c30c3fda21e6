"""Batch scheduler: keeps a small window of items of each batch in the queue.

Every worker runs one. A turn locks the rows of unfinished batches, so that no two workers queue the same item. A turn
is one transaction, operations and queue entries included, so the process may be killed at any time.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app.api.schemas.batch_request import item_fields
from app.jobs import repository as operations_repository
from app.jobs.batches import repository
from app.jobs.interface import Operation
from app.settings import Settings
from app.store.batch_tables import batches, items
from app.store.records import now, request_key
from app.store.store import Store
from app.store.tables import Timestamp, answers, operations, workers
from app.store.tenancy import scoped_name

log = logging.getLogger(__name__)

ITEMS_AHEAD = 4  # queued items of a single worker slot, so that it does not wait for the next turn
WOKEN_POLL_S = 0.5  # between turns while wake-ups arrive
BUSY_POLL_S = 1.0  # between turns with unfinished batches; a turn is due earlier once half of their items ended here
IDLE_POLL_S = 5.0  # between turns without batches and wake-ups
ITEM_PRIORITY = 200  # of items; interactive requests run first
MAX_FED = 50  # items of one batch per turn, including those answered from stored plans
MAX_ENDED = 500  # items settled per turn


class BatchScheduler:
    """Implementation of `app.jobs.interface.Scheduler`."""

    def __init__(self, store: Store, settings: Settings):
        self._store, self._settings = store, settings
        self._looked_at = -math.inf
        self._in_queue = 0  # items in the queue after the last turn
        self._ended = 0  # operations that ended in this process since the last turn
        self._woken = True  # since the last turn
        self._open = False  # a batch was unfinished at the last turn

    def nudge(self) -> bool:
        """Count an ended operation; whether a turn is due."""
        self._ended += 1
        return self._is_due()

    def wake(self) -> None:
        self._woken = True

    def _is_due(self) -> bool:
        return self._open and self._ended >= max(1, min(self._in_queue, ITEMS_AHEAD) // 2)

    def turn(self) -> bool:
        """Whether items were queued or answered; another turn may find more. Raises CannotWrite, Unavailable."""
        at = time.monotonic()
        pause = WOKEN_POLL_S if self._woken else BUSY_POLL_S if self._open else IDLE_POLL_S
        if not self._is_due() and at < self._looked_at + pause:
            return False
        self._looked_at, self._ended, self._woken = at, 0, False
        if not self._has_work():
            return False
        try:
            with self._store.writing() as connection:
                connection.execute(_LOCK_BATCHES)
                ended, seconds = _settle(connection)
                fed, queued = self._feed(connection, seconds)
                self._in_queue += queued
                _update_progress(connection, seconds)
        except IntegrityError:  # the same key was submitted concurrently; the next turn joins that operation
            self._looked_at = -math.inf
            return True
        if fed > queued or ended == MAX_ENDED:  # free slots, or more items to settle
            self._looked_at = -math.inf
        log.debug("event=batches_fed ended=%d fed=%d", ended, fed)
        return fed > 0

    def _has_work(self) -> bool:
        """Whether a turn would change anything; a read-only check without locks."""
        self._in_queue = 0
        with self._store.reading() as connection:
            self._open = connection.execute(_ANY_OPEN).first() is not None
            return self._open and (connection.execute(_ANY_ENDED).first() is not None or bool(self._shares(connection)))

    def _shares(self, connection: sa.Connection) -> dict[str, int]:
        """Batch id -> number of items to queue; the batch with the fewest queued items comes first."""
        in_queue: Counter[str] = Counter(dict(connection.execute(_IN_QUEUE).all()))
        self._in_queue = in_queue.total()
        slots = connection.scalar(_SLOTS) or 0
        # One slot stays free for interactive requests. A single slot cannot; items wait behind it, after those.
        room = (slots - 1 if slots > 1 else ITEMS_AHEAD * slots) - self._in_queue
        if room <= 0:
            return {}
        unfinished = connection.execute(_OPEN).all()
        of_tenant, of_key = Counter[str | None](), Counter[str | None]()
        for row in unfinished:
            of_tenant[row.tenant] += in_queue[row.id]
            of_key[row.key_id] += in_queue[row.id]
        waiting = set(connection.scalars(_WAITING))
        solves_per_tenant = self._settings.solves_per_key
        shares = Counter[str]()
        while room:
            free = [
                row
                for row in unfinished
                if row.id in waiting
                and (row.at_once is None or of_key[row.key_id] < row.at_once)
                and (solves_per_tenant is None or of_tenant[row.tenant] < ITEMS_AHEAD * solves_per_tenant)
            ]
            if not free:
                break
            least = min(free, key=lambda row: (in_queue[row.id], row.id))
            for count, name in ((shares, least.id), (in_queue, least.id), (of_key, least.key_id)):
                count[name] += 1
            of_tenant[least.tenant] += 1
            room -= 1
        return dict(shares)

    def _feed(self, connection: sa.Connection, seconds: dict[str, float]) -> tuple[int, int]:
        """(items answered or queued, items queued); adds the batches to `seconds`."""
        shares, fed, queued = self._shares(connection), 0, 0
        for row in repository.row_dicts(connection, _SELECT_BATCHES, {"ids": list(shares)}) if shares else []:
            done, left = self._feed_batch(connection, row, shares[row["id"]])
            fed, queued = fed + done, queued + shares[row["id"]] - left
            seconds.setdefault(row["id"], 0.0)
        return fed, queued

    def _feed_batch(self, connection: sa.Connection, batch: Mapping[str, Any], room: int) -> tuple[int, int]:
        """(items answered or queued, room left)."""
        fed, at = 0, now()
        while room and fed < MAX_FED:
            rows = repository.row_dicts(connection, _NEXT_ITEMS, {"of": batch["id"], "most": room})
            if not rows:
                break
            requests = [(row, *_item_request(batch, row)) for row in rows]
            stored = connection.execute(_STORED_PLANS, {"keys": [key for _, key, _ in requests]})
            plans = {row.key: row.plan_id for row in stored}
            unanswered = [
                Operation(
                    repository.new_id("op"),
                    key,
                    row["graph_id"],
                    fields,
                    at,
                    tenant=batch["tenant"],
                    priority=ITEM_PRIORITY,
                    trace=batch["trace"],
                )
                for row, key, fields in requests
                if key not in plans
            ]
            queued = operations_repository.insert_or_join(connection, unanswered)
            solving = {operation.key: operation.id for operation in queued}
            updates = []
            for row, key, _ in requests:
                done = {"state": "running", "operation_id": solving.get(key), "ended_at": None}
                if key in plans:
                    done |= {"state": "succeeded", "ended_at": at}
                plan = {"plan_id": plans.get(key), "cached": key in plans, "started_at": at}
                updates.append(_item_key(row) | done | plan)
            connection.execute(_UPDATE_ITEM, updates)
            room -= len(unanswered)
            fed += len(rows)
        return fed, room


def _unfinished(*columns: Any) -> sa.Select[Any]:
    """Query over unfinished batches, oldest first."""
    return sa.select(*columns).where(repository.UNFINISHED).order_by(batches.c.id)


def _item_request(batch: Mapping[str, Any], item: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(request key scoped to the tenant, fields) of an item."""
    fields = item_fields(batch["fields"], item["budget"], item["planner"], item["seed"])
    key = request_key(item["graph_id"], fields)
    return key if batch["tenant"] is None else scoped_name(batch["tenant"], key), fields


def _settle(connection: sa.Connection) -> tuple[int, dict[str, float]]:
    """(number of items settled, batch id -> solver seconds) for running items whose operation has ended.

    Items whose operation was deleted are requeued.
    """
    ended = repository.row_dicts(connection, _SELECT_ENDED)
    seconds: dict[str, float] = {}
    settled, requeued = [], []
    for row in ended:
        if row["id"] is None:
            requeued.append(_item_key(row) | {"state": "queued", "operation_id": None, "started_at": None})
        else:
            outcome = {name: row[column] for name, column in _OUTCOME_COLUMNS}
            settled.append(_item_key(row) | outcome | {"started_at": row["started_at"] or row["ended_at"]})
        seconds[row["batch_id"]] = seconds.get(row["batch_id"], 0.0) + _seconds(row)
    for updates in filter(None, (settled, requeued)):
        connection.execute(_UPDATE_ITEM, updates)
    return len(ended), seconds


def _update_progress(connection: sa.Connection, seconds: Mapping[str, float]) -> None:
    """Record progress and solver seconds of the batches, and end batches without open items."""
    at = now()
    for id, taken in seconds.items():
        connection.execute(_UPDATE_BATCH, {"moved": id, "moved_at": at, "taken": taken})
    repository.finish_ended(connection, seconds)


def _item_key(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"of_batch": item["batch_id"], "of_number": item["number"]}


def _seconds(row: Mapping[str, Any]) -> float:
    if row["started_at"] is None:
        return 0.0
    began, ended = (datetime.fromisoformat(row[name]) for name in ("started_at", "ended_at"))
    return max(0.0, (ended - began).total_seconds())


_OUTCOME_COLUMNS = (("state", "state"), ("plan_id", "result"), ("error", "error"), ("ended_at", "ended_at"))
# Statements built once: building one takes longer than SQLite takes to execute it.
_HAS_QUEUED = sa.exists().where(items.c.batch_id == batches.c.id, items.c.state == "queued")
_OPEN = _unfinished(batches.c.id, batches.c.tenant, batches.c.key_id, batches.c.at_once)
_ANY_OPEN = _OPEN.limit(1)
_SELECT_BATCHES = _unfinished(batches).where(batches.c.id.in_(sa.bindparam("ids", expanding=True)))
_LOCK_BATCHES = _unfinished(batches.c.id).with_for_update()
_WAITING = _unfinished(batches.c.id).where(_HAS_QUEUED, ~batches.c.cancel_requested)
_IN_QUEUE = sa.select(items.c.batch_id, sa.func.count()).where(items.c.state == "running").group_by(items.c.batch_id)
_SLOTS = sa.select(sa.func.sum(workers.c.slots))
_OPERATION_END = (
    operations.c.state,
    operations.c.result,
    operations.c.error,
    operations.c.started_at,
    operations.c.ended_at,
)
_ENDED_ITEMS = (  # running items whose operation has ended or was deleted
    sa.select(items.c.batch_id, items.c.number, operations.c.id, *_OPERATION_END)
    .join(operations, operations.c.id == items.c.operation_id, isouter=True)
    .where(items.c.state == "running", operations.c.id.is_(None) | operations.c.ended_at.is_not(None))
)
_NEXT_ITEMS = (
    sa.select(items)
    .where(items.c.batch_id == sa.bindparam("of"), items.c.state == "queued")
    .order_by(items.c.number)
    .limit(sa.bindparam("most"))
)
_STORED_PLANS = sa.select(answers.c.key, answers.c.plan_id).where(
    answers.c.key.in_(sa.bindparam("keys", expanding=True)), answers.c.plan_id.is_not(None)
)
_UPDATE_ITEM = sa.update(items).where(
    items.c.batch_id == sa.bindparam("of_batch"), items.c.number == sa.bindparam("of_number")
)
_UPDATE_BATCH = (
    sa.update(batches)
    .where(batches.c.id == sa.bindparam("moved"))
    .values(
        state="running",
        started_at=sa.func.coalesce(batches.c.started_at, sa.bindparam("moved_at", type_=Timestamp())),
        solver_seconds=batches.c.solver_seconds + sa.bindparam("taken", type_=sa.Double()),
        last_event=batches.c.last_event + 1,
    )
)
_ANY_ENDED, _SELECT_ENDED = _ENDED_ITEMS.limit(1), _ENDED_ITEMS.limit(MAX_ENDED)
