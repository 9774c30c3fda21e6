"""Wake-ups of idle workers: NOTIFY on PostgreSQL, writes to the WAL file on SQLite. Workers also poll, rarely."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

CHANNEL = "remat_queue"
WATCH_S = 0.1  # between looks at the WAL file, and at whether to stop
RECONNECT_S = 1.0  # between attempts to listen

log = logging.getLogger(__name__)


def notify_workers(connection: sa.Connection) -> None:
    """Wake the idle workers of all processes when the transaction commits; on SQLite the commit itself does."""
    if connection.dialect.name == "postgresql":
        connection.execute(_NOTIFY)


class QueueWatcher:
    """One thread that calls `on_change` when work may have been queued; spurious calls are possible."""

    def __init__(self, engine: sa.Engine, on_change: Callable[[], None]):
        self._engine, self._on_change = engine, on_change
        self._closed = threading.Event()
        watch = self._watch_file if engine.dialect.name == "sqlite" else self._listen
        self._thread = threading.Thread(target=watch, name="queue", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch_file(self) -> None:
        wal, seen = Path(f"{self._engine.url.database}-wal"), None
        while not self._closed.wait(WATCH_S):
            if (stamp := _stamp(wal)) != seen:
                seen = stamp
                self._on_change()

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen_once()
            except Exception as error:  # the database is down; workers poll until it is back
                log.warning("event=listen_failed error=%r", str(error))
            self._closed.wait(RECONNECT_S)

    def _listen_once(self) -> None:
        """Listen on a connection of its own until it breaks."""
        own = self._engine.raw_connection()
        connection: Any = own.driver_connection
        own.detach()  # from the pool: it stays in use
        try:
            connection.autocommit = True
            connection.execute(f"LISTEN {CHANNEL}")
            self._on_change()  # work queued while nothing listened
            while not self._closed.is_set():
                for _ in connection.notifies(timeout=WATCH_S, stop_after=1):
                    self._on_change()
        finally:
            own.close()


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes with each write to the file; None: no such file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


_NOTIFY = sa.select(sa.func.pg_notify(CHANNEL, ""))
