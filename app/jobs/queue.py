"""The queue of operations: a DBOS queue in the database of the store.

An operation and its queue entry are written in one transaction. dbos is imported on first use.
DBOS assumes one instance per process; here there is one per store, so that two services may share a process.
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

# Imports inside functions: importing DBOS takes half a second, and commands that only read the queue do not need it.

QUEUE_NAME = "solves"
WORKFLOW = "solve"
VERSION = "1"  # of the workflow: a worker claims operations of its own version only
APPLICATION = "remat"
POLL_S = 0.2  # between polls for work from other processes, while slots are free
EAGER_POLL_S = 0.02  # between polls after a nudge
EAGER_WINDOW_S = 0.06  # duration of eager polling after a nudge
SETTINGS_POLL_S = 5.0  # between reads of the queue settings
NEVER_S = 1e6
FINISHED_STATUSES = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]
CHUNK_SIZE = 500

_log = logging.getLogger("dbos")


def new_worker_id() -> str:
    """Worker id, unique over time: its unfinished operations are found by it."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


class Queue:
    """Producer side and administration of the queue. Thread-safe; connects on first use."""

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
        """Create or upgrade the tables of the queue. Raises CannotWrite, Unavailable."""
        from dbos import DBOS

        with _quiet(), translate_errors(self.engine):
            DBOS.migrate(self.engine.url.render_as_string(hide_password=False))

    def limit(self, per_owner: int | None) -> None:
        """Limit the concurrent operations per owner over all workers; None: unlimited."""
        with translate_errors(self.engine):
            self._client.register_queue(
                QUEUE_NAME,
                worker_concurrency=1,  # overridden by each worker
                partition_concurrency=per_owner,
                polling_interval_sec=EAGER_POLL_S,
            )

    @functools.cached_property
    def _dequeue_statements(self) -> tuple[sa.Delete, ...]:
        schema = self._client._sys_db.schema
        tables = [
            sa.table(name, sa.column("workflow_uuid"), schema=schema) for name in ("workflow_input", "workflow_status")
        ]
        return tuple(sa.delete(table).where(table.c.workflow_uuid == sa.bindparam("left")) for table in tables)

    def put(self, connection: sa.Connection, id: str, priority: int = DEFAULT_PRIORITY, owner: str = "") -> None:
        """Queue the operation in the transaction of `connection`; lower `priority` runs first."""
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
        """Remove a claimed operation from the queue in the transaction of `connection`, which ends the operation."""
        for statement in self._dequeue_statements:
            connection.execute(statement, {"left": id})

    def holders(self) -> set[str]:
        """Workers that have claimed an operation and not finished it."""
        return {status.executor_id for status in self._listed(status="PENDING") if status.executor_id is not None}

    def is_claimed_by(self, id: str, worker: str) -> bool:
        """Whether the worker still holds its claim on the operation."""
        return any(status.executor_id == worker for status in self._listed(workflow_ids=[id], status="PENDING"))

    def ended(self) -> list[str]:
        """At most CHUNK_SIZE operations that have finished and still have a row in the queue."""
        return [status.workflow_id for status in self._listed(status=FINISHED_STATUSES, limit=CHUNK_SIZE)]

    def missing(self, ids: list[str]) -> list[str]:
        """Sorted ids of those operations that have no row in the queue."""
        present = self._listed(workflow_ids=ids) if ids else []
        return sorted(set(ids) - {status.workflow_id for status in present})

    def delete(self, ids: list[str]) -> None:
        """Delete the rows of the operations from the queue."""
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
    """The operation has left the queue. A BaseException, as DBOS would record an Exception as the result."""


class QueueConsumer:
    """Consumer side of the queue for one worker. DBOS background jobs that are not needed are switched off."""

    def __init__(self, queue: Queue, worker: str, slots: Callable[[], int], run: Callable[[str], None]):
        self._queue, self._worker, self._slots, self._run = queue, worker, slots, run
        self._dbos: Any = None
        self._settings: Any = None  # of the queue, as read at `_read_at`
        self._read_at = self._looked_at = self._eager_until = 0.0
        self._nudged = threading.Event()

    def start(self) -> None:
        """Run `run` for every operation that the worker claims, at most `slots()` concurrently. Raises Unavailable.

        If `run` returns, the operation has left the queue. If `run` raises, the operation remains queued.
        """
        import dbos._dbos as its
        from dbos import DBOS, DBOSPortableJSONSerializer
        from dbos._core import decorate_workflow

        def solve(id: str) -> None:
            try:
                self._run(id)
            finally:
                self.nudge()  # a slot is about to become free
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
            dbos._registry.get_internal_queue()._polling_interval_sec = NEVER_S  # DBOS itself queues nothing
            dbos._background_jobs_stop_event.set()  # no delayed workflows, no DBOS deadlines
            its._dbos_global_instance = dbos  # read by the scheduler thread of DBOS
            dbos._launch()
        queues: Any = dbos._sys_db
        self._dbos, self._stored = dbos, queues.get_queue
        queues.get_queue = self._get_queue
        queues.list_queues = functools.cache(queues.list_queues)  # the queue exists before any worker
        queues._is_latest_version = lambda *_: False  # every queued workflow has a version

    def nudge(self) -> None:
        """Poll for work at once."""
        self._eager_until = time.monotonic() + EAGER_WINDOW_S
        self._nudged.set()

    def _get_queue(self, name: str, **more: Any) -> Any:
        """Settings of the queue, read by DBOS before each poll.

        DBOS has one concurrency and one polling interval for all workers. This wrapper waits for the next poll and
        sets the concurrency to the slots of this worker.
        """
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
        """Requeue the operations that these workers hold; operations claimed by others since are left alone."""
        from dbos._recovery import recover_pending_workflows

        if lost := list(workers):
            recover_pending_workflows(self._dbos, lost)

    def close(self) -> None:
        """Stop claiming operations."""
        self._nudged.set()
        with _quiet():
            self._dbos._destroy(workflow_completion_timeout_sec=0)


def _engine_of(engine: sa.Engine) -> sa.Engine:
    """The engine for DBOS. SQLite needs its own connections: DBOS relies on implicit BEGIN, the store does not."""
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
    """Send warnings of DBOS to the root logger and drop its other messages."""
    _log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        _log.handlers.clear()
        _log.propagate = True
        _log.setLevel(logging.WARNING)
