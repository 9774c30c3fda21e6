"""The queue of operations, kept by DBOS in the store's own database: what waits, and which worker has what.

An operation and its place in the queue are written in one transaction. dbos is imported when it is first needed.
DBOS means to be one a process; here it is one a store, so that two services may share a process.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from app.jobs.interface import DEFAULT_PRIORITY
from app.store.database import BUSY_SECONDS, translate_errors

if TYPE_CHECKING:
    from dbos import DBOSClient

# Imports inside functions: DBOS takes half a second, and commands that only read the queue do without it.

QUEUE_NAME = "solves"
WORKFLOW = "solve"
VERSION = "1"  # of the workflow: a worker takes those of its own version only
APPLICATION = "remat"
POLL_S = 0.2  # between two looks for work that others have queued, while there is room for it
EAGER_POLL_S = 0.02  # between two turns while eager; else each waits for a nudge, or for the next look
EAGER_WINDOW_S = 0.06  # how long every turn looks, once somebody says that there may be work
SETTINGS_POLL_S = 5.0  # between two looks at the settings of the queue
NEVER_S = 1e6
FINISHED_STATUSES = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]
CHUNK_SIZE = 500

_log = logging.getLogger("dbos")


def new_worker_id() -> str:
    """Of one worker, and of no other before or after it: what it leaves behind is known by it."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


class Queue:
    """What anybody may do with the queue. Safe to use from many threads; connects when first used."""

    def __init__(self, engine: sa.Engine):
        self.engine = _engine_of(engine)

    @functools.cached_property
    def _client(self) -> DBOSClient:
        from dbos import DBOSClient, DBOSPortableJSONSerializer

        with _quiet():
            return DBOSClient(
                system_database_engine=self.engine,
                serializer=DBOSPortableJSONSerializer(),
                application_name=APPLICATION,
                lazy=True,
                retry_connection_errors=False,
            )

    def prepare(self) -> None:
        """Make the queue's tables, or bring them up to date. Raises CannotWrite, Unavailable."""
        from dbos import DBOS

        with _quiet(), translate_errors(self.engine):
            DBOS.migrate(self.engine.url.render_as_string(hide_password=False))

    def limit(self, per_owner: int | None) -> None:
        """Let so many operations of one owner run at a time, over all workers; None: as many as there is room for."""
        with translate_errors(self.engine):
            self._client.register_queue(
                QUEUE_NAME,
                worker_concurrency=1,  # until a worker that begins says its own
                partition_concurrency=per_owner,
                polling_interval_sec=EAGER_POLL_S,
            )

    @functools.cached_property
    def _leaves(self) -> tuple[sa.Delete, ...]:
        schema = self._client._sys_db.schema
        tables = [
            sa.table(name, sa.column("workflow_uuid"), schema=schema) for name in ("workflow_input", "workflow_status")
        ]
        return tuple(sa.delete(table).where(table.c.workflow_uuid == sa.bindparam("left")) for table in tables)

    def put(self, connection: sa.Connection, id: str, priority: int = DEFAULT_PRIORITY, owner: str = "") -> None:
        """Queue the operation once the connection's transaction is committed; those of lower `priority` go first."""
        self._client.enqueue_in_transaction(
            connection,
            {
                "workflow_name": WORKFLOW,
                "queue_name": QUEUE_NAME,
                "workflow_id": id,
                "app_version": VERSION,
                "priority": priority,
                "queue_partition_key": owner or "-",
            },
            id,
        )

    def leave(self, connection: sa.Connection, id: str) -> None:
        """Take a begun operation out of the queue once the connection's transaction, in which it ends, is committed."""
        for leaves in self._leaves:
            connection.execute(leaves, {"left": id})

    def holders(self) -> set[str]:
        """Every worker that has taken something and not ended it."""
        return {status.executor_id for status in self._listed(status="PENDING") if status.executor_id is not None}

    def is_claimed_by(self, id: str, worker: str) -> bool:
        """Whether the worker has taken the operation, and nobody has taken it over."""
        return any(status.executor_id == worker for status in self._listed(workflow_ids=[id], status="PENDING"))

    def ended(self) -> list[str]:
        """Operations that have left the queue and are still in its tables, some of them."""
        return [status.workflow_id for status in self._listed(status=FINISHED_STATUSES, limit=CHUNK_SIZE)]

    def missing(self, ids: list[str]) -> list[str]:
        """Those of the operations that are not in the queue's tables."""
        there = self._listed(workflow_ids=ids) if ids else []
        return sorted(set(ids) - {status.workflow_id for status in there})

    def delete(self, ids: list[str]) -> None:
        """Take operations out of the queue's tables."""
        if ids:
            with translate_errors(self.engine):
                self._client.delete_workflows(ids)

    def _listed(self, **which: Any) -> list[Any]:
        with translate_errors(self.engine):
            return list(self._client.list_workflows(**which, load_input=False, load_output=False))

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.destroy()


class Dequeued(BaseException):
    """The operation has left the queue, and there is nobody to tell. Not an Exception: DBOS would write that down."""


class QueueConsumer:
    """The queue as one worker takes from it. What DBOS does every second for what we have none of, it leaves."""

    def __init__(self, queue: Queue, worker: str, slots: Callable[[], int], run: Callable[[str], None]):
        self._queue, self._worker, self._slots, self._run = queue, worker, slots, run
        self._dbos: Any = None
        self._settings: Any = None  # of the queue, as read at `_read_at`
        self._read_at = self._looked_at = self._eager_until = 0.0
        self._nudged = threading.Event()

    def start(self) -> None:
        """From now on `run` has every operation the worker takes, `slots()` at a time. Raises Unavailable.

        When it returns the operation has left the queue; what it raises leaves it there.
        """
        import dbos._dbos as its
        from dbos import DBOS, DBOSPortableJSONSerializer
        from dbos._core import decorate_workflow

        def solve(id: str) -> None:
            try:
                self._run(id)
            finally:
                self.nudge()  # there is room in a moment
            raise Dequeued

        dbos, engine = object.__new__(DBOS), self._queue.engine
        with _quiet(), translate_errors(engine):
            DBOS.__init__(
                dbos,
                config={
                    "name": APPLICATION,
                    "system_database_engine": engine,
                    "system_database_url": engine.url.render_as_string(hide_password=False),
                    "serializer": DBOSPortableJSONSerializer(),
                    "executor_id": self._worker,
                    "application_version": VERSION,
                    "log_level": "WARNING",
                    "run_migrations": False,
                    "use_listen_notify": False,
                    "notification_listener_polling_interval_sec": POLL_S,
                    "scheduler_polling_interval_sec": NEVER_S,
                },
            )
            dbos._registry = its.DBOSRegistry()
            dbos._registry.dbos = dbos
            decorate_workflow(dbos._registry, WORKFLOW, None)(solve)
            dbos._registry.get_internal_queue()._polling_interval_sec = NEVER_S  # nothing is queued by DBOS itself
            dbos._background_jobs_stop_event.set()  # nothing is delayed, nor has a deadline that DBOS knows
            its._dbos_global_instance = dbos  # a thread that looks for schedules, of which there are none, asks for it
            dbos._launch()
        queues: Any = dbos._sys_db
        self._dbos, self._stored = dbos, queues.get_queue
        queues.get_queue = self._get_queue
        queues.list_queues = functools.cache(queues.list_queues)  # ours is there before any worker
        queues._is_latest_version = lambda *_: False  # nothing is queued without a version, which the latest would take

    def nudge(self) -> None:
        """Look for work at once: there may be some, or room for it."""
        self._eager_until = time.monotonic() + EAGER_WINDOW_S
        self._nudged.set()

    def _get_queue(self, name: str, **more: Any) -> Any:
        """What DBOS asks before each of its turns, and waits for. It has one figure for all workers, and one pace."""
        if name != QUEUE_NAME:
            return self._stored(name, **more)
        now = time.monotonic()
        if now >= self._eager_until:
            full = self._dbos._active_workflows_set.count_for_queue(QUEUE_NAME) >= self._slots()
            self._nudged.wait(max(0.0, self._looked_at + (SETTINGS_POLL_S if full else POLL_S) - now))
        self._nudged.clear()
        now = time.monotonic()
        if self._settings is None or now > self._read_at + SETTINGS_POLL_S:
            self._settings, self._read_at = self._stored(name, **more), now
        if self._settings is not None:
            self._settings._worker_concurrency, self._looked_at = self._slots(), now
        return self._settings

    def recover(self, workers: Iterable[str]) -> None:
        """Queue again what these workers have taken; what another has taken since stays with it."""
        from dbos._recovery import recover_pending_workflows

        if gone := list(workers):
            recover_pending_workflows(self._dbos, gone)

    def close(self) -> None:
        """Take nothing any more."""
        self._nudged.set()
        with _quiet():
            self._dbos._destroy(workflow_completion_timeout_sec=0)


def _engine_of(engine: sa.Engine) -> sa.Engine:
    """DBOS begins transactions as Python's sqlite3 does, ours begin by themselves: it has connections of its own."""
    if engine.dialect.name != "sqlite":
        return engine
    own = sa.create_engine(engine.url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})
    sa.event.listen(own, "connect", _prepare_sqlite)
    return own


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = "IMMEDIATE"
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Warnings of DBOS go where ours go, in one form; its news go nowhere."""
    _log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        _log.handlers.clear()
        _log.propagate = True
        _log.setLevel(logging.WARNING)
