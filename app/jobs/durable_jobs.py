"""Implementation of `app.jobs.interface.Jobs` over the store, shared by all processes."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator

from app.errors import Unavailable
from app.jobs import repository
from app.jobs.attempt import WorkerContext
from app.jobs.interface import RETRY_S, JobEvent, Operation, Page, SolveRequest
from app.jobs.notifications import OperationWatcher, wait_for_event
from app.jobs.worker import Worker
from app.store.records import now
from app.telemetry.traces import current_traceparent

KEEP_ALIVE_S = 15.0  # between keep-alive messages of an idle stream, against proxy timeouts


class DurableJobs:
    """Durable operations; this process runs a worker unless REMAT_WORKERS is 0."""

    def __init__(self, context: WorkerContext):
        self._store, self._settings = context.store, context.settings
        self._watch = OperationWatcher(context.store)
        self._worker = Worker(context) if context.settings.workers else None
        self._starting = threading.Lock()
        self._started = self._draining = False

    def start(self) -> None:
        with self._starting:
            if not self._started:
                if self._worker is not None:
                    self._worker.start()
                self._started = True

    def submit(self, question: SolveRequest) -> Operation:
        if self._draining:
            raise Unavailable("the service is shutting down; retry", headers={"Retry-After": str(RETRY_S)})
        self.start()
        operation = Operation(_new_id(), question.key, question.graph_id, question.fields, now(), question.kind)
        operation.tenant, operation.priority = question.owner or None, question.priority
        operation.trace = current_traceparent()
        slots, queue = self._settings.workers, self._settings.queue
        submitted = repository.submit(self._store, operation, slots, queue, question.data)
        if self._worker is not None:
            self._worker.nudge()
        return submitted

    def status(self, id: str) -> Operation:
        return repository.find(self._store, id)

    async def wait(self, id: str, seconds: float) -> Operation:
        until = time.monotonic() + seconds
        with self._watch.subscribe(id) as event:
            while True:
                operation = await asyncio.to_thread(self.status, id)
                if operation.finished or self._draining or not await wait_for_event(event, until - time.monotonic()):
                    return operation

    async def stream(self, id: str, after: int) -> AsyncIterator[JobEvent | None]:
        with self._watch.subscribe(id) as changed:
            while True:
                events, operation = await asyncio.to_thread(repository.events_since, self._store, id, after)
                for event in events:
                    after = event.id
                    yield event
                if operation.finished and after >= operation.last_event:
                    return
                if operation.finished and not events:  # written by a version that stored no events
                    yield JobEvent(operation.last_event, "state", operation.wire())
                    return
                if self._draining:
                    return
                if not events and not await wait_for_event(changed, KEEP_ALIVE_S):
                    yield None

    def cancel(self, id: str) -> Operation:
        self.status(id)  # raises NotFound
        repository.cancel(self._store, id)
        if self._worker is not None:
            self._worker.look()
        self._watch.notify(id)
        return self.status(id)

    def list(
        self, after: str | None, limit: int, state: str | None, tenant: str | None = None, by_items: bool = False
    ) -> Page:
        rows = repository.page(self._store, after, limit + 1, state, tenant)
        return Page(tuple(rows[:limit]), rows[limit - 1].id if len(rows) > limit else None)

    def drain(self) -> None:
        self._draining = True
        self._watch.notify()
        if self._worker is not None:
            self._worker.drain()

    def close(self) -> None:
        self.drain()
        with self._starting:
            if self._worker is not None and self._started:
                self._worker.close()
            self._started = False


def _new_id() -> str:
    """Operation id that sorts by creation time."""
    return f"op{time.time_ns() // 1_000:014x}{secrets.token_hex(6)}"
