"""A worker: claims operations, runs their attempts, sends heartbeats, and requeues operations of dead workers."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from os import getpid

from app.atomic_files import CannotWrite
from app.errors import AppError
from app.jobs import lease, repository
from app.jobs.attempt import RETRY_DELAY_S, Attempt, Interrupted, WorkerContext, sync_attempts
from app.jobs.lease import Lease
from app.jobs.wakeups import QueueWatcher
from app.telemetry import metrics

log = logging.getLogger(__name__)

QUEUE_POLL_S = 5.0  # between claims without a wake-up
POLL_S = 0.25  # between syncs of progress and cancel requests
DRAIN_POLL_S = 0.05  # between checks whether all attempts have ended
MAX_SCHEDULER_RUNS = 10  # consecutive turns of the batch scheduler


class Worker:
    """One worker per store and process. Other workers take over its unfinished operations."""

    def __init__(self, context: WorkerContext):
        self.context = context
        self.id = f"{socket.gethostname()}-{getpid()}-{secrets.token_hex(4)}"  # never reused
        self._scheduler = context.scheduler(context.store, context.settings)
        self._attempts: list[Attempt] = []  # changed under `_claiming`
        self._busy = 0  # slots that run an attempt or claim one; changed under `_lock`
        self._lock, self._claiming = threading.Lock(), threading.Lock()
        self._draining, self._closing, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._woken, self._nudged = threading.Event(), threading.Event()
        self._holds_strays = False  # may hold operations without an attempt
        self._lease = Lease(context.store, self.id, context.settings.lost_seconds)
        self._watcher = QueueWatcher(context.store.engine, self._on_change)
        self._claims = threading.Thread(target=self._keep_claiming, name="claim", daemon=True)
        self._maintenance = threading.Thread(target=self._maintain, name="maintain", daemon=True)

    def start(self) -> None:
        """Start to claim operations. Raises CannotWrite, Unavailable."""
        self._lease.renew(self._slots())  # before the first claim: an unregistered holder counts as dead
        self._watcher.start()
        self._claims.start()
        self._woken.set()  # requeue at once what a killed process was solving here
        self._maintenance.start()
        log.info("worker=%s event=started slots=%d", self.id, self.context.settings.workers)

    def nudge(self) -> None:
        """Look for work at once."""
        self._nudged.set()

    def look(self) -> None:
        """Check for cancel requests at once."""
        self._woken.set()

    def drain(self) -> None:
        """Stop claiming operations; running ones continue."""
        self._draining.set()  # nothing else: a signal handler may call this at any point

    def close(self) -> None:
        """Stop within `drain_seconds` plus the time to stop children; unfinished operations are requeued."""
        settings, store = self.context.settings, self.context.store
        self.drain()
        self.nudge()
        self._watcher.close()
        self._claims.join()
        self._until_idle(settings.drain_seconds)
        self._closing.set()
        for attempt in tuple(self._attempts):
            attempt.halt("closing")
        self._until_idle(2 * settings.kill_seconds)
        self._ended.set()
        self._woken.set()
        self._maintenance.join()
        try:
            repository.requeue_of_workers(store, [self.id], begun=-1)
            lease.deregister(store, [self.id])
        except (AppError, CannotWrite) as error:  # left to the heartbeat timeout
            log.warning("worker=%s event=requeue_failed error=%r", self.id, str(error))

    def _slots(self) -> int:
        return 0 if self._draining.is_set() else self.context.settings.workers

    def _on_change(self) -> None:
        self._scheduler.wake()
        self.nudge()

    def _until_idle(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._busy and time.monotonic() < until:
            time.sleep(DRAIN_POLL_S)

    def _keep_claiming(self) -> None:
        """Start a thread for each slot that work is found for."""
        while not self._draining.is_set():
            self._nudged.clear()  # before the claim, so that no wake-up is lost
            with self._lock:
                is_free = self._busy < self._slots()
                self._busy += is_free
            if is_free and (attempt := self._claim()) is not None:
                threading.Thread(target=self._work, args=(attempt,), name="slot", daemon=True).start()
                continue
            with self._lock:
                self._busy -= is_free
            self._nudged.wait(QUEUE_POLL_S)

    def _work(self, attempt: Attempt | None) -> None:
        """Run the attempt, and those that its slot claims after it."""
        while attempt is not None:
            self._run(attempt)
            attempt = self._claim() if self._slots() else None
        with self._lock:
            self._busy -= 1
        self.nudge()

    def _claim(self) -> Attempt | None:
        """An attempt at the next operation of the queue; None: the queue is empty. Waits while the store is down."""
        store = self.context.store
        while not self._draining.is_set():
            try:
                with self._claiming:
                    if self._holds_strays:
                        keep = [each.operation.id for each in self._attempts]
                        repository.requeue_of_workers(store, [self.id], keep=keep)
                        self._holds_strays = False
                    claimed = repository.claim(store, self.id, self.context.settings.solves_per_key)
                    if claimed is None:
                        return None
                    attempt = Attempt(self.context, *claimed)
                    self._attempts.append(attempt)
                    return attempt
            except (AppError, CannotWrite) as error:
                log.warning("worker=%s event=claim_failed error=%r", self.id, str(error))
            except Exception:
                log.exception("worker=%s event=claim_failed", self.id)
            self._holds_strays = True  # the claim may be committed, and its reply lost with the connection
            self._draining.wait(RETRY_DELAY_S)
        return None

    def _run(self, attempt: Attempt) -> None:
        is_stray = False
        try:
            if self._closing.is_set():
                attempt.halt("closing")
            attempt.run()
        except Interrupted:
            log.info("operation=%s event=interrupted", attempt.operation.id)
        except Exception:
            log.exception("operation=%s event=attempt_failed", attempt.operation.id)
            self._closing.wait(RETRY_DELAY_S)
            is_stray = True
        finally:
            with self._claiming:
                self._attempts.remove(attempt)
                self._holds_strays |= is_stray
            if self._scheduler.nudge():
                self._woken.set()

    def _maintain(self) -> None:
        beat, failure = 0.0, ""
        while not self._ended.is_set():
            self._woken.wait(POLL_S)
            self._woken.clear()
            try:
                sync_attempts(self.context.store, tuple(self._attempts))
                at = time.monotonic()
                if at >= beat:
                    beat = at + self._lease.heartbeat_seconds
                    self._lease.renew(self._slots())
                    self._requeue_dead_workers()
                self._feed()  # last, so that errors of batches do not stop heartbeats
                failure = ""
            except (AppError, CannotWrite) as error:
                if str(error) != failure:  # a full disk is not filled with lines about it
                    log.warning("worker=%s event=maintenance_failed error=%r", self.id, str(error))
                failure = str(error)
            except Exception:
                log.exception("worker=%s event=maintenance_failed", self.id)

    def _feed(self) -> None:
        """Queue items of batches, and settle items that have ended."""
        for _ in range(MAX_SCHEDULER_RUNS):
            if self._draining.is_set() or not self._scheduler.turn():
                return
            self.nudge()

    def _requeue_dead_workers(self) -> None:
        """Deregister dead workers and requeue their operations.

        A worker registers before its first claim, so an unregistered holder is dead.
        """
        store = self.context.store
        registered, holders = lease.census(store)
        if dead := self._lease.expired(registered):
            log.warning("event=workers_dead workers=%s", ",".join(dead))
            lease.deregister(store, dead)
        if orphaned := holders - ({row["id"] for row in registered} - set(dead)) - {self.id}:
            requeued = repository.requeue_of_workers(store, orphaned)
            metrics.count_takeovers(requeued)
            self.nudge()
            log.warning("event=requeued operations=%d", requeued)
