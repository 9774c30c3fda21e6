"""A worker: claims operations, runs their attempts, sends heartbeats, and requeues operations of dead workers."""

from __future__ import annotations

import logging
import threading
import time

from app.atomic_files import CannotWrite
from app.errors import AppError
from app.jobs import lease, repository
from app.jobs.attempt import RETRY_DELAY_S, Attempt, Interrupted, WorkerContext, sync_attempts
from app.jobs.lease import Lease
from app.jobs.queue import Queue, QueueConsumer, new_worker_id

log = logging.getLogger(__name__)

POLL_S = 0.25  # between syncs of progress and cancel requests
DRAIN_POLL_S = 0.05  # between checks whether all attempts have ended
SWEEP_S = 60.0  # between reconciliations of operations and queue
MAX_SCHEDULER_RUNS = 10  # consecutive turns of the batch scheduler


class Worker:
    """One worker per store and process. Other workers take over its unfinished operations."""

    def __init__(self, context: WorkerContext, queue: Queue):
        self.context, self._queue = context, queue
        self.id = new_worker_id()
        self._consumer = QueueConsumer(queue, self.id, self._slots, self._run)
        self._scheduler = context.scheduler(context.store, queue, context.settings)
        self._attempts: list[Attempt] = []
        self._lock = threading.Lock()
        self._draining, self._closing, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._woken = threading.Event()
        self._lease = Lease(context.store, self.id, context.settings.lost_seconds)
        self._thread = threading.Thread(target=self._maintain, name="maintain", daemon=True)

    def start(self) -> None:
        """Start to claim operations; the queue is prepared. Raises CannotWrite, Unavailable."""
        settings = self.context.settings
        self._lease.renew(self._slots())  # before the first claim: an unregistered holder counts as dead
        self._queue.limit(settings.solves_per_key)
        self._consumer.start()
        self._thread.start()
        log.info("worker=%s event=started slots=%d", self.id, settings.workers)

    def nudge(self) -> None:
        """Poll for work at once."""
        self._consumer.nudge()

    def look(self) -> None:
        """Check for cancel requests at once."""
        self._woken.set()

    def drain(self) -> None:
        """Stop claiming operations; running ones continue."""
        self._draining.set()

    def close(self) -> None:
        """Stop within `drain_seconds` plus the time to stop children; unfinished operations are requeued."""
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
            self._consumer.recover([self.id])
            repository.deregister(store, [self.id])
        except (AppError, CannotWrite) as error:  # left to the heartbeat timeout
            log.warning("worker=%s event=requeue_failed error=%r", self.id, str(error))
        self._consumer.close()

    def _slots(self) -> int:
        return 0 if self._draining.is_set() else self.context.settings.workers

    def _until_idle(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._attempts and time.monotonic() < until:
            time.sleep(DRAIN_POLL_S)

    def _run(self, id: str) -> None:
        """Run the operation until it ends and leaves the queue. Raises Interrupted."""
        store = self.context.store
        while True:
            if self._closing.is_set():
                raise Interrupted
            try:
                claimed = repository.claim(store, id, self.id)
                if claimed is None:
                    state = repository.state_of(store, id)
                    if state == "running" and not self._queue.is_claimed_by(id, self.id):  # claimed by another worker
                        raise Interrupted
                    if state not in ("queued", "running"):  # cancelled before the claim
                        self._queue.delete([id])
                        return
                    time.sleep(RETRY_DELAY_S)
                    continue
            except (AppError, CannotWrite) as error:
                log.warning("operation=%s event=claim_failed error=%r", id, str(error))
                time.sleep(RETRY_DELAY_S)
                continue
            attempt = Attempt(self.context, *claimed, self._queue.leave)
            with self._lock:
                self._attempts.append(attempt)
            try:
                if self._closing.is_set():
                    attempt.halt("closing")
                if attempt.run():
                    return
            except Exception:  # DBOS would record it as the result of an operation that has not ended
                log.exception("operation=%s event=attempt_failed", id)
                time.sleep(RETRY_DELAY_S)
            finally:
                with self._lock:
                    self._attempts.remove(attempt)
                if self._scheduler.nudge():
                    self._woken.set()

    def _maintain(self) -> None:
        beat = sweep = 0.0
        while not self._ended.is_set():
            self._woken.wait(POLL_S)
            self._woken.clear()
            try:
                sync_attempts(self.context.store, tuple(self._attempts))
                at = time.monotonic()
                if at >= beat:
                    beat = at + lease.HEARTBEAT_S
                    self._lease.renew(self._slots())
                    self._requeue_dead_workers()
                if at >= sweep:
                    sweep = at + SWEEP_S
                    self._sweep()
                self._feed()  # last, so that errors of batches do not stop heartbeats
            except (AppError, CannotWrite) as error:
                log.warning("worker=%s event=maintenance_failed error=%r", self.id, str(error))
            except Exception:
                log.exception("worker=%s event=maintenance_failed", self.id)

    def _feed(self) -> None:
        """Queue items of batches, and settle items that have ended."""
        for _ in range(MAX_SCHEDULER_RUNS):
            if self._draining.is_set() or not self._scheduler.turn():
                return
            self._consumer.nudge()

    def _requeue_dead_workers(self) -> None:
        """Deregister dead workers and requeue their operations.

        Holders are read before registrations, and a worker registers before its first claim. So an unregistered
        holder is dead.
        """
        store = self.context.store
        holders = self._queue.holders() | repository.active_workers(store)
        rows = repository.registered_workers(store)
        if dead := self._lease.expired(rows):
            log.warning("event=workers_dead workers=%s", ",".join(dead))
            repository.deregister(store, dead)
        if orphaned := holders - ({row["id"] for row in rows} - set(dead)) - {self.id}:
            requeued = repository.requeue_of_workers(store, orphaned)
            self._consumer.recover(orphaned)
            log.warning("event=requeued operations=%d", requeued)

    def _sweep(self) -> None:
        """Reconcile: delete finished operations from the queue, and queue operations that it lacks."""
        store = self.context.store
        self._queue.delete(self._queue.ended())
        if missing := self._queue.missing(repository.queued_ids(store)):
            log.warning("event=requeued_missing operations=%s", ",".join(missing))
            with store.writing() as connection:
                for id in missing:
                    self._queue.put(connection, id)
