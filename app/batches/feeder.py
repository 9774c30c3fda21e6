"""Items on their way through the queue: a few of each batch at a time, however many there are.

In every worker, and nobody feeds what another does: a turn holds the rows of unfinished batches. What a turn changes
is one transaction, operations and their places in the queue included, so it may be killed at any moment.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app.access.keys import own_name
from app.batches import rows
from app.batches.asked import fields_of
from app.jobs import stored
from app.jobs.port import Operation
from app.jobs.queue import Queue
from app.records import now, question_key
from app.settings import Settings
from app.store.store import Store
from app.store.tables import Moment, answers, operations, workers
from app.store.tables_batches import batches, items

log = logging.getLogger(__name__)

AHEAD = 4  # items in the queue for every solve at a time: none has to wait for the next turn
IDLE_S = 0.5  # between two looks for what others have begun or ended
PACE_S = 0.2  # between two turns, however many items end here: there are more ahead than end meanwhile
PRIORITY = 200  # of items: whoever waits for a plan goes first
LOOKED_AT = 50  # items of a batch in one turn, of which more may be answered already than there is room for
MOST_ENDED = 500  # items that end in one turn


class Feeder:
    """One a worker, which gives it a turn now and then."""

    def __init__(self, store: Store, queue: Queue, settings: Settings):
        self._store, self._queue, self._settings = store, queue, settings
        self._turned_at = self._looked_at = -math.inf
        self._nudged = threading.Event()

    def nudge(self) -> None:
        """An operation has ended here: do not wait for the next look."""
        self._nudged.set()

    def turn(self) -> bool:
        """Whether something was fed, so that another turn may find more. Raises CannotWrite, Unavailable."""
        at = time.monotonic()
        if at < (self._turned_at + PACE_S if self._nudged.is_set() else self._looked_at + IDLE_S):
            return False
        self._nudged.clear()
        self._looked_at = at
        if not self._has_work():
            return False
        try:
            with self._store.writing() as connection:
                connection.execute(_LOCKED)
                ended, (fed, asked) = _settle(connection), self._feed(connection)
                stopping = rows.to_cancel(connection, connection.scalars(_ENDING).all())
        except IntegrityError:  # one of the questions was asked by somebody just now; the next turn joins them
            self._looked_at = -math.inf
            return True
        for id in stopping:
            stored.cancel(self._store, id)
        if fed > asked or ended == MOST_ENDED:  # there is room still, or more to settle
            self._looked_at = -math.inf
        else:
            self._turned_at = at
        log.debug("event=batches_fed ended=%d fed=%d", ended, fed)
        return fed > 0

    def _has_work(self) -> bool:
        """Whether a turn would change anything: a look that keeps nobody from writing."""
        with self._store.reading() as connection:
            return connection.execute(_ANY_OPEN).first() is not None and (
                connection.execute(_ANY_OVER).first() is not None
                or bool(self._shares(connection))
                or bool(rows.to_cancel(connection, connection.scalars(_ENDING).all()))
            )

    def _shares(self, connection: sa.Connection) -> dict[str, int]:
        """Batch -> how many of its items there is room for, the batch with the fewest in the queue first."""
        in_queue: Counter[str] = Counter(dict(connection.execute(_IN_QUEUE).all()))
        room = AHEAD * (connection.scalar(_SLOTS) or 0) - in_queue.total()
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
                row for row in every
                if row.id in waiting
                and (row.at_once is None or of_key[row.key_id] < row.at_once)
                and (turns is None or of_tenant[row.tenant] < AHEAD * turns)
            ]  # fmt: skip
            if not free:
                break
            least = min(free, key=lambda row: (in_queue[row.id], row.id))
            for count, name in ((shares, least.id), (in_queue, least.id), (of_key, least.key_id)):
                count[name] += 1
            of_tenant[least.tenant] += 1
            room -= 1
        return dict(shares)

    def _feed(self, connection: sa.Connection) -> tuple[int, int]:
        """How many items were answered or went into the queue, and how many of them went."""
        shares, fed, asked = self._shares(connection), 0, 0
        if shares:
            for row in rows.dicts(connection, _held(batches).where(batches.c.id.in_(list(shares)))):
                room = shares[row["id"]]
                done, left = self._feed_batch(connection, row, room)
                fed, asked = fed + done, asked + room - left
        return fed, asked

    def _feed_batch(self, connection: sa.Connection, batch: Mapping[str, Any], room: int) -> tuple[int, int]:
        """How many items were answered or went into the queue, and how much room is left."""
        which = items.c.batch_id == batch["id"], items.c.state == "queued"
        some = sa.select(items).where(*which).order_by(items.c.number).limit(max(room, LOOKED_AT))
        asked = [(row, _question(batch, row)) for row in rows.dicts(connection, some)]
        known = sa.select(answers.c.key, answers.c.plan_id).where(
            answers.c.key.in_([key for _, (key, _) in asked]), answers.c.plan_id.is_not(None)
        )
        plans = {row.key: row.plan_id for row in connection.execute(known)}
        at, fed = now(), 0
        for row, (key, fields) in asked:
            if key in plans:
                done = {"state": "succeeded", "plan_id": plans[key], "cached": True, "started_at": at, "ended_at": at}
            elif room:
                id = self._ask(connection, Operation(rows.new_id("op"), key, row["graph_id"], fields, at), batch)
                done, room = {"state": "running", "operation_id": id, "cached": False, "started_at": at}, room - 1
            else:
                continue
            connection.execute(sa.update(items).where(_is(row)).values(done))
            fed += 1
        began = {"state": "running", "started_at": sa.func.coalesce(batches.c.started_at, sa.literal(at, Moment()))}
        rows.changed(connection, [batch["id"]], **began)
        rows.finish(connection, [batch["id"]])
        return fed, room

    def _ask(self, connection: sa.Connection, operation: Operation, batch: Mapping[str, Any]) -> str:
        """Id of the operation that answers the question: this one, or another that is at it already."""
        owner = batch["tenant"] or ""
        put = self._queue.put
        return stored.enter(connection, operation, lambda c: put(c, operation.id, PRIORITY, owner)).id


def _held(*columns: Any) -> sa.Select[Any]:
    """Of unfinished batches, oldest first."""
    return sa.select(*columns).where(rows.UNFINISHED).order_by(batches.c.id)


def _question(batch: Mapping[str, Any], item: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(key, fields) of the plan that the item asks for, as its tenant's own."""
    fields = fields_of(batch["fields"], item["budget"], item["planner"], item["seed"])
    key = question_key(item["graph_id"], fields)
    return key if batch["tenant"] is None else own_name(batch["tenant"], key), fields


def _settle(connection: sa.Connection) -> int:
    """How many items have ended as their operations have; those of an operation that is gone wait again."""
    ended = rows.dicts(connection, _OVER_NOW)
    seconds: dict[str, float] = {}
    for row in ended:
        said: dict[str, Any] = {"state": "queued", "operation_id": None, "started_at": None}
        if row["id"] is not None:
            said = {"state": row["state"], "plan_id": row["result"], "error": row["error"], "ended_at": row["ended_at"]}
            said["started_at"] = row["started_at"] or row["ended_at"]
        connection.execute(sa.update(items).where(_is(row)).values(said))
        seconds[row["batch_id"]] = seconds.get(row["batch_id"], 0.0) + _seconds(row)
    for id, taken in seconds.items():
        rows.changed(connection, [id], solver_seconds=batches.c.solver_seconds + taken)
    rows.finish(connection, seconds)
    return len(ended)


def _is(item: Mapping[str, Any]) -> sa.ColumnElement[bool]:
    return sa.and_(items.c.batch_id == item["batch_id"], items.c.number == item["number"])


def _seconds(row: Mapping[str, Any]) -> float:
    if row["started_at"] is None:
        return 0.0
    began, ended = (datetime.fromisoformat(row[name]) for name in ("started_at", "ended_at"))
    return max(0.0, (ended - began).total_seconds())


# Statements of every look and turn, made once: making one takes longer than SQLite takes to answer it.
_WAITS = sa.exists().where(items.c.batch_id == batches.c.id, items.c.state == "queued")
_OPEN = _held(batches.c.id, batches.c.tenant, batches.c.key_id, batches.c.at_once)
_ANY_OPEN = _OPEN.limit(1)
_LOCKED = _held(batches.c.id).with_for_update()
_ENDING = _held(batches.c.id).where(batches.c.cancel_requested)
_WAITING = _held(batches.c.id).where(_WAITS, ~batches.c.cancel_requested)
_IN_QUEUE = sa.select(items.c.batch_id, sa.func.count()).where(items.c.state == "running").group_by(items.c.batch_id)
_SLOTS = sa.select(sa.func.sum(workers.c.slots))
_ENDED = operations.c.state, operations.c.result, operations.c.error, operations.c.started_at, operations.c.ended_at
_OVER = (  # running items whose operation has ended, or is gone
    sa.select(items.c.batch_id, items.c.number, operations.c.id, *_ENDED)
    .join(operations, operations.c.id == items.c.operation_id, isouter=True)
    .where(items.c.state == "running", operations.c.id.is_(None) | operations.c.ended_at.is_not(None))
)
_ANY_OVER, _OVER_NOW = _OVER.limit(1), _OVER.limit(MOST_ENDED)
