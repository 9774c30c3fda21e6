"""A worker: takes operations from the queue, follows their children, says that it lives, and looks after the dead."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.atomic_files import CannotWrite
from app.errors import AppError
from app.jobs import repository
from app.jobs.attempt import RETRY_DELAY_S, Attempt, Interrupted, WorkerContext, sync_attempts
from app.jobs.queue import Queue, QueueConsumer, new_worker_id

log = logging.getLogger(__name__)

POLL_S = 0.25  # between two looks at what was told, and at what is to end
DRAIN_POLL_S = 0.05  # between two looks whether all has ended
HEARTBEAT_S = 2.0  # between two signs of life
SWEEP_S = 60.0  # between two looks for what has left the queue
MAX_SCHEDULER_RUNS = 10  # of the feeder in a row


class Worker:
    """One a store and process. What it leaves behind is taken over by others."""

    def __init__(self, means: WorkerContext, queue: Queue):
        self.context, self._queue = means, queue
        self.id = new_worker_id()
        self._taking = QueueConsumer(queue, self.id, self._slots, self._run)
        self._feeder = means.scheduler(means.store, queue, means.settings)
        self._attempts: list[Attempt] = []
        self._lock = threading.Lock()
        self._draining, self._closing, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._woken = threading.Event()
        self._beats: dict[str, tuple[int, float]] = {}  # of other workers, and since when there were so many
        self._thread = threading.Thread(target=self._attend, name="attend", daemon=True)

    def start(self) -> None:
        """Take operations of a queue that is prepared. Raises CannotWrite, Unavailable."""
        store, settings = self.context.store, self.context.settings
        repository.heartbeat(store, self._row())  # before it takes anything: a holder that is not enlisted is dead
        self._queue.limit(settings.solves_per_key)
        self._taking.start()
        self._thread.start()
        log.info("worker=%s event=started slots=%d", self.id, settings.workers)

    def nudge(self) -> None:
        """Look for work at once."""
        self._taking.nudge()

    def look(self) -> None:
        """Look at once whether something is to end."""
        self._woken.set()

    def drain(self) -> None:
        """Take nothing any more; what runs goes on."""
        self._draining.set()

    def close(self) -> None:
        """End within `drain_seconds` and a stop; what has not finished by then is somebody else's."""
        settings, store = self.context.settings, self.context.store
        self.drain()
        self._until_idle(settings.drain_seconds)
        self._closing.set()
        for attempt in tuple(self._attempts):
            attempt.halt("closing")
        self._until_idle(2 * settings.kill_seconds)
        self._ended.set()
        self._woken.set()
        self._thread.join()
        try:
            repository.requeue_of_workers(store, [self.id], begun=-1)
            self._taking.recover([self.id])
            repository.deregister(store, [self.id])
        except (AppError, CannotWrite) as error:  # others will find out
            log.warning("worker=%s event=not_given_back said=%r", self.id, str(error))
        self._taking.close()

    def _slots(self) -> int:
        return 0 if self._draining.is_set() else self.context.settings.workers

    def _row(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "host": _host(),
            "pid": os.getpid(),
            "born": _process_start(os.getpid()),
            "slots": self._slots(),
        }

    def _until_idle(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._attempts and time.monotonic() < until:
            time.sleep(DRAIN_POLL_S)

    def _run(self, id: str) -> None:
        """Run the operation to its end, with which it leaves the queue. Raises Interrupted."""
        store = self.context.store
        while True:
            if self._closing.is_set():
                raise Interrupted
            try:
                begun = repository.claim(store, id, self.id)
                if begun is None:
                    state = repository.state_of(store, id)
                    if state == "running" and not self._queue.is_claimed_by(id, self.id):  # it was taken over
                        raise Interrupted
                    if state not in ("queued", "running"):  # it was cancelled before it was begun
                        self._queue.delete([id])
                        return
                    time.sleep(RETRY_DELAY_S)
                    continue
            except (AppError, CannotWrite) as error:
                log.warning("operation=%s event=not_begun said=%r", id, str(error))
                time.sleep(RETRY_DELAY_S)
                continue
            attempt = Attempt(self.context, *begun, self._queue.leave)
            with self._lock:
                self._attempts.append(attempt)
            try:
                if self._closing.is_set():
                    attempt.halt("closing")
                if attempt.run():
                    return
            except Exception:  # what DBOS is told has ended here, and the operation has not
                log.exception("operation=%s event=broken", id)
                time.sleep(RETRY_DELAY_S)
            finally:
                with self._lock:
                    self._attempts.remove(attempt)
                if self._feeder.nudge():
                    self._woken.set()

    def _attend(self) -> None:
        beat = sweep = 0.0
        while not self._ended.is_set():
            self._woken.wait(POLL_S)
            self._woken.clear()
            try:
                sync_attempts(self.context.store, tuple(self._attempts))
                at = time.monotonic()
                if at >= beat:
                    beat = at + HEARTBEAT_S
                    repository.heartbeat(self.context.store, self._row())
                    self._look_after_others()
                if at >= sweep:
                    sweep = at + SWEEP_S
                    self._sweep()
                self._feed()  # last: whatever is wrong with batches, the worker lives
            except (AppError, CannotWrite) as error:
                log.warning("worker=%s event=not_attended said=%r", self.id, str(error))
            except Exception:
                log.exception("worker=%s event=not_attended", self.id)

    def _feed(self) -> None:
        """Let items of batches into the queue, and those out that have ended."""
        for _ in range(MAX_SCHEDULER_RUNS):
            if self._draining.is_set() or not self._feeder.turn():
                return
            self._taking.nudge()

    def _look_after_others(self) -> None:
        """Forget workers that are gone, and queue again what they had.

        Who holds something is read before who is enlisted, and everybody is enlisted before holding anything.
        """
        store = self.context.store
        holders = self._queue.holders() | repository.active_workers(store)
        rows = repository.registered_workers(store)
        gone = [row["id"] for row in rows if row["id"] != self.id and self._is_gone(row)]
        if gone:
            log.warning("event=workers_gone workers=%s", ",".join(gone))
            repository.deregister(store, gone)
        if orphaned := holders - ({row["id"] for row in rows} - set(gone)) - {self.id}:
            taken = repository.requeue_of_workers(store, orphaned)
            self._taking.recover(orphaned)
            log.warning("event=taken_over operations=%d", taken)

    def _is_gone(self, row: Mapping[str, Any]) -> bool:
        """A process of this machine is looked at; one of another has died when it says nothing for long enough.

        This process has one worker at a time: another of its is of before. Beats of another machine are counted,
        and the time between them is ours: no clock of anybody's can be wrong.
        """
        if row["host"] == _host():
            return row["pid"] == os.getpid() or bool(_process_start(row["pid"]) != row["born"])
        beats, since = self._beats.get(row["id"], (-1, 0.0))
        if beats != row["beats"]:
            self._beats[row["id"]] = (row["beats"], time.monotonic())
            return False
        return time.monotonic() > since + self.context.settings.lost_seconds

    def _sweep(self) -> None:
        """Take what has ended out of the queue's tables; what waits and is not in them goes in again."""
        store = self.context.store
        self._queue.delete(self._queue.ended())
        if missing := self._queue.missing(repository.queued_ids(store)):
            log.warning("event=queued_again operations=%s", ",".join(missing))
            with store.writing() as connection:
                for id in missing:
                    self._queue.put(connection, id)


def _host() -> str:
    """Names the machine since it was started, and the part of it whose processes can be seen from here."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def _process_start(pid: int) -> str:
    """When the process was started, in ticks since the machine was; empty: there is none."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *rest = said.rpartition(")")[2].split()
    return "" if state in ("Z", "X") else rest[18]  # a zombie is dead
