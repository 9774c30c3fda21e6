"""Items on their way through the queue: a few of each batch at a time, however many there are.

In every worker, and nobody feeds what another does: a turn holds the rows of unfinished batches. What a turn changes
is one transaction, operations and their places in the queue included, so it may be killed at any moment.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app.api.schemas.batch_request import item_fields
from app.jobs import repository as operations_repository
from app.jobs.batches import repository
from app.jobs.interface import Operation
from app.jobs.queue import Queue
from app.settings import Settings
from app.store.batch_tables import batches, items
from app.store.records import now, request_key
from app.store.store import Store
from app.store.tables import Timestamp, answers, operations, workers
from app.store.tenancy import scoped_name

log = logging.getLogger(__name__)

ITEMS_AHEAD = 4  # items in the queue for every solve at a time: none has to wait for the next turn
IDLE_POLL_S = 0.5  # between two looks for what others have begun or ended
BUSY_POLL_S = 1.0  # the same while there are items in the queue: half of those ahead ending here is a turn at once
ITEM_PRIORITY = 200  # of items: whoever waits for a plan goes first
MAX_FED = 50  # items of a batch in one turn, of which more may be answered already than there is room for
MAX_ENDED = 500  # items that end in one turn


class BatchScheduler:
    """One a worker, which gives it a turn now and then."""

    def __init__(self, store: Store, queue: Queue, settings: Settings):
        self._store, self._queue, self._settings = store, queue, settings
        self._looked_at = -math.inf
        self._in_queue = 0  # items, after the last turn
        self._ended = 0  # operations, here and since

    def nudge(self) -> bool:
        """An operation has ended here. Whether that is enough to have a turn."""
        self._ended += 1
        return self._is_due()

    def _is_due(self) -> bool:
        return self._ended >= max(1, min(self._in_queue, ITEMS_AHEAD * self._settings.workers) // 2)

    def turn(self) -> bool:
        """Whether something was fed, so that another turn may find more. Raises CannotWrite, Unavailable."""
        at = time.monotonic()
        if not self._is_due() and at < self._looked_at + (BUSY_POLL_S if self._in_queue else IDLE_POLL_S):
            return False
        self._looked_at, self._ended = at, 0
        if not self._has_work():
            return False
        try:
            with self._store.writing() as connection:
                connection.execute(_LOCKED)
                ended, seconds = _settle(connection)
                fed, asked = self._feed(connection, seconds)
                self._in_queue += asked
                _move(connection, seconds)
        except IntegrityError:  # one of the questions was asked by somebody just now; the next turn joins them
            self._looked_at = -math.inf
            return True
        if fed > asked or ended == MAX_ENDED:  # there is room still, or more to settle
            self._looked_at = -math.inf
        log.debug("event=batches_fed ended=%d fed=%d", ended, fed)
        return fed > 0

    def _has_work(self) -> bool:
        """Whether a turn would change anything: a look that keeps nobody from writing."""
        self._in_queue = 0
        with self._store.reading() as connection:
            return connection.execute(_ANY_OPEN).first() is not None and (
                connection.execute(_ANY_OVER).first() is not None or bool(self._shares(connection))
            )

    def _shares(self, connection: sa.Connection) -> dict[str, int]:
        """Batch -> how many of its items there is room for, the batch with the fewest in the queue first."""
        in_queue: Counter[str] = Counter(dict(connection.execute(_IN_QUEUE).all()))
        self._in_queue = in_queue.total()
        room = ITEMS_AHEAD * (connection.scalar(_SLOTS) or 0) - self._in_queue
        if room <= 0:
            return {}
        every = connection.execute(_OPEN).all()
        of_tenant, of_key = Counter[str | None](), Counter[str | None]()
        for row in every:
            of_tenant[row.tenant] += in_queue[row.id]
            of_key[row.key_id] += in_queue[row.id]
        waiting = set(connection.scalars(_WAITING))
        turns = self._settings.solves_per_key
        shares = Counter[str]()
        while room:
            free = [
                row
                for row in every
                if row.id in waiting
                and (row.at_once is None or of_key[row.key_id] < row.at_once)
                and (turns is None or of_tenant[row.tenant] < ITEMS_AHEAD * turns)
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
        """How many items were answered or went into the queue, and how many of them went; their batches come along."""
        shares, fed, asked = self._shares(connection), 0, 0
        for row in repository.row_dicts(connection, _SHARING, {"ids": list(shares)}) if shares else []:
            done, left = self._feed_batch(connection, row, shares[row["id"]])
            fed, asked = fed + done, asked + shares[row["id"]] - left
            seconds.setdefault(row["id"], 0.0)
        return fed, asked

    def _feed_batch(self, connection: sa.Connection, batch: Mapping[str, Any], room: int) -> tuple[int, int]:
        """How many items were answered or went into the queue, and how much room is left."""
        fed, at = 0, now()
        while room and fed < MAX_FED:
            some = repository.row_dicts(connection, _NEXT, {"of": batch["id"], "most": room})
            if not some:
                break
            questions = [(row, *_question(batch, row)) for row in some]
            known = connection.execute(_KNOWN, {"keys": [key for _, key, _ in questions]})
            plans = {row.key: row.plan_id for row in known}
            news = [
                Operation(repository.new_id("op"), key, row["graph_id"], fields, at)
                for row, key, fields in questions
                if key not in plans
            ]
            solving = {operation.key: operation.id for operation in self._ask(connection, news, batch)}
            become = []
            for row, key, _ in questions:
                done = {"state": "running", "operation_id": solving.get(key), "ended_at": None}
                if key in plans:
                    done |= {"state": "succeeded", "ended_at": at}
                said = {"plan_id": plans.get(key), "cached": key in plans, "started_at": at}
                become.append(_is(row) | done | said)
            connection.execute(_BECOMES, become)
            room -= len(news)
            fed += len(some)
        return fed, room

    def _ask(self, connection: sa.Connection, news: Sequence[Operation], batch: Mapping[str, Any]) -> list[Operation]:
        """The operations that answer the questions: these, or others that are at it already."""
        owner = batch["tenant"] or ""
        return operations_repository.insert_or_join(
            connection, news, lambda c, operation: self._queue.put(c, operation.id, ITEM_PRIORITY, owner)
        )


def _held(*columns: Any) -> sa.Select[Any]:
    """Of unfinished batches, oldest first."""
    return sa.select(*columns).where(repository.UNFINISHED).order_by(batches.c.id)


def _question(batch: Mapping[str, Any], item: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(key, fields) of the plan that the item asks for, as its tenant's own."""
    fields = item_fields(batch["fields"], item["budget"], item["planner"], item["seed"])
    key = request_key(item["graph_id"], fields)
    return key if batch["tenant"] is None else scoped_name(batch["tenant"], key), fields


def _settle(connection: sa.Connection) -> tuple[int, dict[str, float]]:
    """How many items have ended as their operations have, and their batches with what they took.

    Those of an operation that is gone wait again.
    """
    ended = repository.row_dicts(connection, _OVER_NOW)
    seconds: dict[str, float] = {}
    over, gone = [], []
    for row in ended:
        if row["id"] is None:
            gone.append(_is(row) | {"state": "queued", "operation_id": None, "started_at": None})
        else:
            said = {"state": row["state"], "plan_id": row["result"], "error": row["error"], "ended_at": row["ended_at"]}
            over.append(_is(row) | said | {"started_at": row["started_at"] or row["ended_at"]})
        seconds[row["batch_id"]] = seconds.get(row["batch_id"], 0.0) + _seconds(row)
    for become in filter(None, (over, gone)):
        connection.execute(_BECOMES, become)
    return len(ended), seconds


def _move(connection: sa.Connection, seconds: Mapping[str, float]) -> None:
    """Say of these batches that items have moved, which took so long."""
    at = now()
    for id, taken in seconds.items():
        connection.execute(_MOVES, {"moved": id, "moved_at": at, "taken": taken})
    repository.finish_ended(connection, seconds)


def _is(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"of_batch": item["batch_id"], "of_number": item["number"]}


def _seconds(row: Mapping[str, Any]) -> float:
    if row["started_at"] is None:
        return 0.0
    began, ended = (datetime.fromisoformat(row[name]) for name in ("started_at", "ended_at"))
    return max(0.0, (ended - began).total_seconds())


# Statements of every look and turn, made once: making one takes longer than SQLite takes to answer it.
_WAITS = sa.exists().where(items.c.batch_id == batches.c.id, items.c.state == "queued")
_OPEN = _held(batches.c.id, batches.c.tenant, batches.c.key_id, batches.c.at_once)
_ANY_OPEN = _OPEN.limit(1)
_SHARING = _held(batches).where(batches.c.id.in_(sa.bindparam("ids", expanding=True)))
_LOCKED = _held(batches.c.id).with_for_update()
_WAITING = _held(batches.c.id).where(_WAITS, ~batches.c.cancel_requested)
_IN_QUEUE = sa.select(items.c.batch_id, sa.func.count()).where(items.c.state == "running").group_by(items.c.batch_id)
_SLOTS = sa.select(sa.func.sum(workers.c.slots))
_ENDED = operations.c.state, operations.c.result, operations.c.error, operations.c.started_at, operations.c.ended_at
_OVER = (  # running items whose operation has ended, or is gone
    sa.select(items.c.batch_id, items.c.number, operations.c.id, *_ENDED)
    .join(operations, operations.c.id == items.c.operation_id, isouter=True)
    .where(items.c.state == "running", operations.c.id.is_(None) | operations.c.ended_at.is_not(None))
)
_NEXT = (
    sa.select(items)
    .where(items.c.batch_id == sa.bindparam("of"), items.c.state == "queued")
    .order_by(items.c.number)
    .limit(sa.bindparam("most"))
)
_KNOWN = sa.select(answers.c.key, answers.c.plan_id).where(
    answers.c.key.in_(sa.bindparam("keys", expanding=True)), answers.c.plan_id.is_not(None)
)
_BECOMES = sa.update(items).where(
    items.c.batch_id == sa.bindparam("of_batch"), items.c.number == sa.bindparam("of_number")
)
_MOVES = (
    sa.update(batches)
    .where(batches.c.id == sa.bindparam("moved"))
    .values(
        state="running",
        started_at=sa.func.coalesce(batches.c.started_at, sa.bindparam("moved_at", type_=Timestamp())),
        solver_seconds=batches.c.solver_seconds + sa.bindparam("taken", type_=sa.Double()),
        last_event=batches.c.last_event + 1,
    )
)
_ANY_OVER, _OVER_NOW = _OVER.limit(1), _OVER.limit(MAX_ENDED)
