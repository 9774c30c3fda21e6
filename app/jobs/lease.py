"""Leases of workers: heartbeats that renew a registration, and the registrations that have expired.

A worker on this machine is dead once its process is gone; one on another machine once its heartbeats have stopped for
`lost_seconds` (a setting). Expired leases let other workers requeue what the dead one was solving.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.jobs import repository
from app.store.store import Store

HEARTBEAT_S = 2.0  # between heartbeats


class Lease:
    """The registration of this worker, and its view of the registrations of others."""

    def __init__(self, store: Store, worker: str, lost_seconds: float):
        self._store, self._worker, self._lost_seconds = store, worker, lost_seconds
        self._beats: dict[str, tuple[int, float]] = {}  # other worker -> (count, local time of its change)

    def renew(self, slots: int) -> None:
        """Record a heartbeat; registers the worker if it is not registered. Raises CannotWrite, Unavailable."""
        pid = os.getpid()
        row = {"id": self._worker, "host": host_id(), "pid": pid, "born": process_start(pid), "slots": slots}
        repository.heartbeat(self._store, row)

    def expired(self, registered: Sequence[Mapping[str, Any]]) -> list[str]:
        """Ids of the other workers that are dead."""
        return [row["id"] for row in registered if row["id"] != self._worker and self.is_expired(row)]

    def is_expired(self, row: Mapping[str, Any]) -> bool:
        """Whether the worker is dead: its local process is gone, or its remote heartbeat has timed out.

        This process has one worker at a time, so another registration of this process is stale. Remote heartbeats
        are compared by count and timed by the local monotonic clock, so clock skew has no effect.
        """
        if row["host"] == host_id():
            return row["pid"] == os.getpid() or bool(process_start(row["pid"]) != row["born"])
        beats, since = self._beats.get(row["id"], (-1, 0.0))
        if beats != row["beats"]:
            self._beats[row["id"]] = (row["beats"], time.monotonic())
            return False
        return time.monotonic() > since + self._lost_seconds


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
