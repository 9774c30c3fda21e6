"""State shared by the routes: settings, store, child processes, jobs, and the calls that combine them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import anyio.to_thread
import sqlalchemy as sa

from app.api.service.process_admission import Admission, RequestMemory, SlotPool
from app.api.service.readiness import Readiness
from app.api.service.response_cache import ResponseCache
from app.api.service.stored_bytes import StoredBytes
from app.atomic_files import CannotWrite
from app.errors import AppError, ProblemDetails, SolveFailed, Unavailable
from app.jobs.attempt import WorkerContext
from app.jobs.batches.operations import JobsWithBatches
from app.jobs.batches.scheduler import BatchScheduler
from app.jobs.durable_jobs import DurableJobs
from app.jobs.interface import RETRY_S, Jobs
from app.settings import Settings
from app.solver.child_process import Runner
from app.store import records
from app.store.maintenance.garbage_collection import collect
from app.store.schema import require_current_schema
from app.store.states import STATES
from app.store.store import Store
from app.store.tables import operations, workers
from app.telemetry import metrics

log = logging.getLogger(__name__)

FIRST_COLLECTION_S = 600.0
MEMORY_PER_DOCUMENT_BYTE = 8  # bytes of memory to parse one byte of a document
NO_SHAPES: dict[str, Any] = {"inputs": {}, "batch": None, "dims": {}, "max": {}}


class Service:
    """One service over one store."""

    tenant = ""  # of the caller, in the view of a tenant

    def __init__(self, settings: Settings):
        self.settings = settings
        self.store = Store.open_for_serving(settings)
        self.runner = Runner(settings.solve_memory_bytes, settings.kill_seconds)
        self.jobs: Jobs = JobsWithBatches(
            DurableJobs(WorkerContext(self.store, self.runner, settings, BatchScheduler)), self.store
        )
        self.draining = False
        self._closed = threading.Event()
        self._stored = StoredBytes(self.store, self._closed)
        if settings.gc_hours:
            threading.Thread(target=self._collect, name="collector", daemon=True).start()
        self.admission = Admission(settings)
        self.responses = ResponseCache(settings.kept_bytes)
        self._reads = SlotPool(settings.readers, settings.read_queue, settings.read_seconds, "REMAT_READ_QUEUE")
        self.readiness = Readiness(self._probe)
        metrics.register_service(self)

    def drain(self) -> None:
        """Reject new work, and end event streams."""
        self.draining = True
        self.jobs.drain()

    def close(self) -> None:
        self.draining = True
        metrics.unregister_service(self)
        self._closed.set()
        self.jobs.close()
        self.store.close()

    def jobs_by_state(self) -> dict[str, int]:
        """Number of stored operations by state. Raises CannotWrite, Unavailable."""
        counted = sa.select(operations.c.state, sa.func.count()).group_by(operations.c.state)
        with self.store.reading() as connection:
            counts = {row.state: row[1] for row in connection.execute(counted)}
        return {state: counts.get(state, 0) for state in STATES}

    def workers(self) -> dict[str, int]:
        """Numbers of registered workers, their slots, and slots that run a job. Raises CannotWrite, Unavailable."""
        busy = sa.select(sa.func.count()).where(operations.c.state == "running").scalar_subquery()
        counted = sa.select(sa.func.count(workers.c.id), sa.func.coalesce(sa.func.sum(workers.c.slots), 0), busy)
        with self.store.reading() as connection:
            count, slots, running = connection.execute(counted).one()
        return {"workers": count, "slots": int(slots), "busy_slots": running}

    def stored_bytes(self) -> dict[str, int]:
        """Bytes of the database, and of the blobs when last counted. Raises CannotWrite, Unavailable."""
        return self._stored.read()

    def streams(self) -> int:
        return self.admission.streams.total()

    def waiting(self) -> dict[str, int]:
        """Number of waiting short tasks, such as reading."""
        return {"reads": self._reads.waiting}

    def held_bytes(self) -> int:
        return self.admission.bytes

    def free_bytes(self) -> int:
        return self.admission.free_bytes()

    def _probe(self) -> None:
        """Raises CannotWrite, Unavailable unless the store is writable and its schema is current."""
        require_current_schema(self.store.engine)
        self.store.check()

    async def read_graph(
        self, data: bytes, shapes: Mapping[str, Any] = NO_SHAPES, name: str | None = None
    ) -> dict[str, Any]:
        """Row of the graph in `data`, read in a child process and stored; `name`: of the model, if not the graph's.

        Raises ProblemDetails, SolveFailed.
        """
        payload = {"data": data, "limits": asdict(self.settings.limits()), "shapes": shapes, "name": name}
        try:
            read = await self.run_in_child("read", lambda: payload, len(data))
        except ProblemDetails as problem:
            raise self._with_limit_of_key(problem) from None
        return await anyio.to_thread.run_sync(records.save_graph, self.store, read, self.tenant or None)

    def _with_limit_of_key(self, problem: ProblemDetails) -> ProblemDetails:
        """The problem; a limit that is a quota of the key has its name, since raising the setting would not help."""
        limit = problem.body.get("limit")
        if not limit:
            return problem
        name = self.settings.limit_name(limit["name"].removeprefix("REMAT_").lower())
        return ProblemDetails({**problem.body, "limit": {**limit, "name": name}}, problem.headers)

    async def write_graph(self, document_key: str, format: str) -> bytes:
        """A stored document in that format."""
        load = partial(self.store.blobs.get, document_key)
        if format == "rows":  # as stored
            return await anyio.to_thread.run_sync(load)
        written: bytes = await self.run_in_child("write", lambda: {"data": load(), "format": format})
        return written

    async def analyse(self, graph_ids: Sequence[str], start: Mapping[str, int]) -> bytes:
        """The analysis of the last graph; version numbers continue from the graphs before it. Raises NotFound."""

        def load() -> dict[str, Any]:
            keys = {id: records.document_key(self.store, id) for id in graph_ids}
            documents = {id: self.store.blobs.get(key) for id, key in keys.items()}
            *before, last = (documents[id] for id in graph_ids)
            return {"data": last, "before": before, "start": dict(start)}

        analysis: bytes = await self.run_in_child("analyse", load)
        return analysis

    async def transform(self, document_key: str, request: bytes) -> tuple[dict[str, Any] | None, Any]:
        """(row of the new graph, notes of the pass), or (None, result of a query)."""
        load = partial(self.store.blobs.get, document_key)
        result = await self.run_in_child("transform", lambda: {"data": load(), "request": request})
        if "graph" not in result:
            return None, result["result"]
        save = partial(records.save_graph, self.store, result["graph"], self.tenant or None)
        return await anyio.to_thread.run_sync(save), result["notes"]

    async def run_in_child(self, task: str, load: Callable[[], Mapping[str, Any]], counted: int = 0) -> Any:
        """Result of a short task of `app.solver.child_tasks` on the payload that `load` returns.

        REMAT_READERS limits concurrency. A payload is loaded in its turn only, and its bytes count as those of
        bodies, except `counted` bytes that are counted already. Raises Busy, TooLarge, ProblemDetails, SolveFailed,
        and Unavailable if the child process died twice.
        """
        async with self._reads.turn(self.tenant):
            payload = await anyio.to_thread.run_sync(load)
            size = _size(payload)
            self.admission.require_memory(MEMORY_PER_DOCUMENT_BYTE * size)
            memory = RequestMemory(self.admission)
            memory.take(max(0, size - counted))
            try:
                return await self._run_twice(task, payload)
            finally:
                memory.give(memory.bytes)

    async def _run_twice(self, task: str, payload: Mapping[str, Any]) -> Any:
        """Result of the task; a child that dies is replaced once."""
        try:
            return await self._run(task, payload)
        except SolveFailed as died:
            if died.code != "child_died":
                raise
            log.warning("task=%s event=child_died error=%r", task, str(died))
        try:
            return await self._run(task, payload)
        except SolveFailed as died:
            if died.code != "child_died":
                raise
            message = f"the child process of task {task} died twice: {died}"
            raise Unavailable(message, code="child_died", headers={"Retry-After": str(RETRY_S)}) from died

    async def _run(self, task: str, payload: Mapping[str, Any]) -> Any:
        answer = await anyio.to_thread.run_sync(self.runner.run, task, payload, self.settings.read_seconds)
        return answer.result

    def _collect(self) -> None:
        """Collect garbage of the store, FIRST_COLLECTION_S after the start and then every `gc_hours`."""
        settings, seconds = self.settings, FIRST_COLLECTION_S
        while not self._closed.wait(seconds):
            seconds = settings.gc_hours * 3600
            try:
                counts = collect(self.store, settings.keep_days, settings.idempotency_days)
            except (AppError, CannotWrite) as error:
                log.warning("event=collection_failed error=%r", str(error))
            else:
                log.info("event=collected %s", " ".join(f"{name}={count}" for name, count in asdict(counts).items()))

    async def claim(self, key: str | None, path: str, body: bytes) -> str | None:
        """Bind an idempotency key to this body; returns the operation it started before, if any. Raises Conflict."""
        return None if key is None else await anyio.to_thread.run_sync(records.claim_key, self.store, key, path, body)

    async def require_key_free(self, key: str | None, path: str, body: bytes) -> None:
        """Raises Conflict if an idempotency key is bound to a different body."""
        if key is not None:
            await anyio.to_thread.run_sync(records.require_key_free, self.store, key, path, body)

    async def bind(self, key: str | None, path: str, operation_id: str) -> None:
        """Record the operation that the request with the key started."""
        if key is not None:
            await anyio.to_thread.run_sync(records.bind_key, self.store, key, path, operation_id)

    def has_graph(self, graph_id: str) -> None:
        """Require that the graph is stored. Raises NotFound."""
        records.graph_of(self.store, graph_id)


def _size(payload: object) -> int:
    """Bytes of all documents in the payload of a child."""
    if isinstance(payload, bytes):
        return len(payload)
    inner = payload.values() if isinstance(payload, Mapping) else payload if isinstance(payload, list) else ()
    return sum(map(_size, inner))
