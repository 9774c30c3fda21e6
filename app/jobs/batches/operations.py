"""`app.jobs.interface.Jobs` with batches: each batch is an operation with the progress of its items."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from app.errors import NotFound
from app.jobs.batches import repository
from app.jobs.batches.repository import BatchRecord
from app.jobs.interface import JobEvent, Jobs, Operation, Page, SolveRequest
from app.store.store import Store

POLL_S = 0.25  # between polls of a batch that is waited for or streamed
KEEP_ALIVE_S = 15.0  # between keep-alive messages of an idle stream, against proxy timeouts


class BatchOperation(Operation):
    """A batch as an operation."""

    in_queue = 0  # items that are queued or running as operations
    solver_seconds = 0.0  # sum over its solves

    def wire(self) -> dict[str, Any]:
        done = self.finished and f"/v1/batches/{repository.batch_id_of(self.id)}"
        return {**super().wire(), "result": done or None}


def as_operation(batch: BatchRecord) -> BatchOperation:
    progress = {
        "seconds": batch.seconds(),
        "incumbent": None,
        "bound": None,
        "gap": None,
        "total": batch.total,
        "done": batch.done,
        "items": batch.wire()["items"],
    }
    operation = BatchOperation(
        batch.operation_id,
        "",
        "",
        batch.fields,
        batch.created_at,
        kind="batch",
        state=batch.state,
        stage="items" if batch.state == "running" else None,
        started_at=batch.started_at,
        ended_at=batch.ended_at,
        progress=progress,
        last_event=batch.last_event,
        cancel_requested=batch.cancel_requested,
        tenant=batch.tenant,
    )
    operation.in_queue, operation.solver_seconds = batch.counts.get("running", 0), batch.solver_seconds
    return operation


class JobsWithBatches:
    """Operations of `jobs`, and batches as operations."""

    def __init__(self, jobs: Jobs, store: Store):
        self._jobs, self._store = jobs, store
        self._draining = False
        self._known: dict[str, tuple[float, Operation]] = {}  # batch -> (time of the query, its status)
        self._queries: dict[str, asyncio.Task[Operation]] = {}  # that run

    def start(self) -> None:
        self._jobs.start()

    def submit(self, question: SolveRequest) -> Operation:
        return self._jobs.submit(question)

    def status(self, id: str) -> Operation:
        try:
            return self._jobs.status(id)
        except NotFound:
            batch = self._batch(id)
            if batch is None:
                raise
            return as_operation(batch)

    async def wait(self, id: str, seconds: float) -> Operation:
        if await asyncio.to_thread(self._batch, id) is None:
            return await self._jobs.wait(id, seconds)
        until = time.monotonic() + seconds
        while True:
            operation = await (self._poll(id) if seconds else asyncio.to_thread(self.status, id))
            left = until - time.monotonic()
            if operation.finished or self._draining or left <= 0:
                return operation
            await asyncio.sleep(min(POLL_S, left))

    async def stream(self, id: str, after: int) -> AsyncIterator[JobEvent | None]:
        """Events of the operation; for a batch, its current state after each change, with changes merged."""
        if await asyncio.to_thread(self._batch, id) is None:
            async for event in self._jobs.stream(id, after):
                yield event
            return
        last_sent, state = time.monotonic(), ""
        while True:
            operation = await self._poll(id)
            if operation.last_event > after:
                after, last_sent = operation.last_event, time.monotonic()
                if operation.state != state:
                    yield JobEvent(after, "state", operation.wire())
                else:
                    yield JobEvent(after, "progress", {"stage": operation.stage, **(operation.progress or {})})
                state = operation.state
            if operation.finished or self._draining:
                return
            if time.monotonic() > last_sent + KEEP_ALIVE_S:
                last_sent = time.monotonic()
                yield None
            await asyncio.sleep(POLL_S)

    async def _poll(self, id: str) -> Operation:
        """The status of a batch, at most half of POLL_S old: all that stream it or wait for it share the queries."""
        at, known = self._known.get(id, (0.0, None))
        if known is not None and time.monotonic() - at < POLL_S / 2:
            return known
        if id not in self._queries:
            self._queries[id] = asyncio.create_task(self._query(id))
        return await asyncio.shield(self._queries[id])

    async def _query(self, id: str) -> Operation:
        try:
            operation = await asyncio.to_thread(self.status, id)
        finally:
            del self._queries[id]
        now = time.monotonic()
        self._known = {each: seen for each, seen in self._known.items() if now - seen[0] < POLL_S}
        self._known[id] = now, operation
        return operation

    def cancel(self, id: str) -> Operation:
        batch = self._batch(id)
        if batch is None:
            return self._jobs.cancel(id)
        repository.cancel(self._store, batch.id)
        return self.status(id)

    def list(
        self, after: str | None, limit: int, state: str | None, tenant: str | None = None, by_items: bool = False
    ) -> Page:
        page = self._jobs.list(after, limit, state, tenant)
        before = None if after is None else repository.batch_id_of(after)
        own = repository.page(self._store, tenant, before, limit + 1, state, by_items)
        merged = [*page.operations, *map(as_operation, own)]
        merged.sort(key=lambda operation: operation.id, reverse=True)
        more = len(merged) > limit or page.after is not None
        return Page(tuple(merged[:limit]), merged[limit - 1].id if more else None)

    def drain(self) -> None:
        self._draining = True
        self._jobs.drain()

    def close(self) -> None:
        self._jobs.close()

    def _batch(self, id: str) -> BatchRecord | None:
        try:
            return repository.find(self._store, repository.batch_id_of(id))
        except NotFound:
            return None
