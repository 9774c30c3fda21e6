"""Leases of workers: heartbeats that renew a registration, and the registrations that have expired.

A worker is dead once its heartbeats have stopped for `lost_seconds` (a setting), and at once if it ran on this machine
and its process is gone. Expired leases let other workers requeue what the dead one was solving.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from app.store.records import now
from app.store.store import Store
from app.store.tables import operations, workers

HEARTBEAT_S = 3.0  # between heartbeats, at most
HEARTBEATS_PER_LEASE = 5  # a lease survives the loss of some


class Lease:
    """The registration of this worker, and its view of the registrations of others."""

    def __init__(self, store: Store, worker: str, lost_seconds: float):
        self._store, self._worker, self._lost_seconds = store, worker, lost_seconds
        self._beats: dict[str, tuple[int, float]] = {}  # other worker -> (count, local time of its change)

    @property
    def heartbeat_seconds(self) -> float:
        """Time between heartbeats."""
        return min(HEARTBEAT_S, self._lost_seconds / HEARTBEATS_PER_LEASE)

    def renew(self, slots: int) -> None:
        """Record a heartbeat; registers the worker if it is not registered. Raises CannotWrite, Unavailable."""
        at = now()
        with self._store.writing() as connection:
            renewed = {"renewed": self._worker, "renewed_at": at, "free": slots}
            if connection.execute(_RENEW, renewed).rowcount == 0:  # new, or deregistered as dead
                pid = os.getpid()
                process = {"host": host_id(), "pid": pid, "born": process_start(pid)}
                row = {"id": self._worker, **process, "slots": slots, "beats": 0, "started_at": at, "beat_at": at}
                connection.execute(sa.insert(workers), row)

    def expired(self, registered: Sequence[Mapping[str, Any]]) -> list[str]:
        """Ids of the other workers that are dead."""
        return [row["id"] for row in registered if row["id"] != self._worker and self.is_expired(row)]

    def is_expired(self, row: Mapping[str, Any]) -> bool:
        """Whether the worker is dead: its local process is gone, or its heartbeats have stopped.

        This process has one worker at a time, so another registration of this process is stale. Heartbeats are
        compared by count and timed by the local monotonic clock, so clock skew has no effect.
        """
        if row["host"] == host_id() and (row["pid"] == os.getpid() or process_start(row["pid"]) != row["born"]):
            return True
        beats, since = self._beats.get(row["id"], (-1, 0.0))
        if beats != row["beats"]:
            self._beats[row["id"]] = (row["beats"], time.monotonic())
            return False
        return time.monotonic() > since + self._lost_seconds


def census(store: Store) -> tuple[list[dict[str, Any]], set[str]]:
    """(rows of all registered workers, ids of workers that hold a running operation), of one moment."""
    with store.reading() as connection:
        rows = [dict(row) for row in connection.execute(_CENSUS).mappings()]
    return [row for row in rows if row["host"] is not None], {row["id"] for row in rows if row["host"] is None}


def deregister(store: Store, ids: Iterable[str]) -> None:
    """Remove workers from the registry."""
    with store.writing() as connection:
        connection.execute(sa.delete(workers).where(workers.c.id.in_(list(ids))))


def host_id() -> str:
    """Host name, boot id and PID namespace: identifies the processes visible from here."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def process_start(pid: int) -> str:
    """Start time of the process in clock ticks since boot; empty: no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *rest = stat.rpartition(")")[2].split()
    return "" if state in ("Z", "X") else rest[18]  # zombies count as dead


_RENEW = (
    sa.update(workers)
    .where(workers.c.id == sa.bindparam("renewed"))
    .values(
        beats=workers.c.beats + 1,
        beat_at=sa.bindparam("renewed_at", type_=workers.c.beat_at.type),
        slots=sa.bindparam("free"),
    )
)
_REGISTERED = workers.c.id, workers.c.host, workers.c.pid, workers.c.born, workers.c.beats
_ABSENT = [sa.cast(sa.null(), column.type) for column in _REGISTERED[1:]]
_HOLDERS = sa.select(operations.c.worker, *_ABSENT).where(operations.c.state == "running")
_CENSUS = sa.select(*_REGISTERED).union_all(_HOLDERS.distinct())
