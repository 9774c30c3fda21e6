"""Jobs as threads of this process, each following one child process; unfinished ones run again after a restart."""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from app.errors import AppError, Busy, Problem, SolveFailed, Unavailable, problem_of
from app.files import CannotWrite
from app.jobs import stored
from app.jobs.live import Live, woken
from app.jobs.port import Event, Operation, Page, Question
from app.records import answer_of, keep_plan, now, solve_payload
from app.runner import Answer, Runner
from app.settings import Settings
from app.store.store import Store

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0  # a quiet stream says so, or proxies close it
RETRY_S = 5
PATIENCE_S = 1.0  # between two tries to save
T = TypeVar("T")
DIFFERENT = 4  # exit code of a solve whose rewritten graph computes something else


@dataclass(frozen=True, slots=True)
class Means:
    """What jobs need to do their work."""

    store: Store
    runner: Runner
    settings: Settings


class LocalJobs:
    """The port `app.jobs.port.Jobs`, for one process that owns its store."""

    def __init__(self, means: Means):
        self.means = means
        self._lock = threading.RLock()
        self._live: dict[str, Live] = {}
        self._by_key: dict[str, Live] = {}
        self._queue: queue.SimpleQueue[Live | None] = queue.SimpleQueue()
        self._draining = self._closing = False
        self._resume()
        self._threads = [
            threading.Thread(target=self._work, name=f"worker-{n}", daemon=True) for n in range(means.settings.workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, question: Question) -> Operation:
        settings = self.means.settings
        with self._lock:
            if self._draining:
                raise Unavailable("the service is being stopped; ask again", headers={"Retry-After": str(RETRY_S)})
            if (live := self._by_key.get(question.key)) is not None and not live.operation.cancel_requested:
                return live.operation
            if len(self._live) >= settings.workers + settings.queue:
                raise Busy(
                    f"{settings.queue} solves are waiting already; ask again in {RETRY_S} s, or raise REMAT_QUEUE",
                    limit={"name": "REMAT_QUEUE", "value": settings.queue},
                    headers={"Retry-After": str(RETRY_S)},
                )
            operation = Operation(_new_id(), question.key, question.graph_id, question.fields, now())
            stored.add(self.means.store, operation)
            self._enqueue(Live(operation))
            return operation

    def status(self, id: str) -> Operation:
        live = self._live.get(id)
        return live.operation if live is not None else stored.find(self.means.store, id)

    async def wait(self, id: str, seconds: float) -> Operation:
        live, until = self._live.get(id), time.monotonic() + seconds
        if live is not None:
            with live.watched() as event:
                while not live.operation.finished and not self._draining:
                    if not await woken(event, until - time.monotonic()):
                        break
            return live.operation
        return self.status(id)

    async def stream(self, id: str, after: int) -> AsyncIterator[Event | None]:
        live = self._live.get(id)
        if live is None:
            operation = self.status(id)
            if operation.last_event > after:
                yield Event(operation.last_event, "state", operation.wire())
            return
        with live.watched() as woke:
            while True:
                finished = live.operation.finished
                for event in live.since(after):
                    after = event.id
                    yield event
                if finished or self._draining:
                    return
                if not await woken(woke, KEEP_ALIVE_S):
                    yield None

    def cancel(self, id: str) -> Operation:
        with self._lock:
            live = self._live.get(id)
            if live is None or live.operation.finished:
                return self.status(id)
            live.operation.cancel_requested = True
            live.stop.set()
            if live.operation.state == "queued":
                self._end(live, "cancelled")
            return live.operation

    def list(self, after: str | None, limit: int, state: str | None) -> Page:
        found = stored.page(self.means.store, after, limit + 1, state)
        for n, operation in enumerate(found):
            live = self._live.get(operation.id)
            if live is not None and state in (None, live.operation.state):
                found[n] = live.operation  # with its progress
        return Page(tuple(found[:limit]), found[limit - 1].id if len(found) > limit else None)

    def drain(self) -> None:
        """Refuse new work and let everybody who waits go; what runs goes on."""
        self._draining = True
        for live in tuple(self._live.values()):
            live.wake()

    def close(self) -> None:
        """End within `drain_seconds` and a stop; what has not finished by then runs again after a restart."""
        self.drain()
        self._closing = True
        for _ in self._threads:
            self._queue.put(None)
        until = time.monotonic() + self.means.settings.drain_seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        for live in tuple(self._live.values()):
            live.stop.set()
        for thread in self._threads:
            thread.join(2 * self.means.settings.kill_seconds)

    def _resume(self) -> None:
        """Queue again what the process before left behind; one that was started too often has failed."""
        for operation in stored.unfinished(self.means.store):
            live = Live(operation)
            if operation.attempts >= self.means.settings.attempts:
                said = f"started {operation.attempts} times, and the service died each time"
                self._live[operation.id] = live
                self._end(live, "failed", error=problem_of(SolveFailed(said, code="poisoned")))
            elif (plan_id := answer_of(self.means.store, operation.key)) is not None:
                operation.result = plan_id  # the process before died between its plan and its last word
                self._live[operation.id] = live
                self._end(live, "succeeded")
            else:
                operation.state = "queued"
                self._enqueue(live)

    def _enqueue(self, live: Live) -> None:
        self._live[live.operation.id] = self._by_key[live.operation.key] = live
        live.happened("state", live.operation.wire())
        self._queue.put(live)

    def _work(self) -> None:
        while (live := self._queue.get()) is not None:
            with self._lock:
                if self._closing:
                    return  # stays queued in the store
                if live.operation.finished:
                    continue  # cancelled while it waited
                live.operation.state, live.operation.stage = "running", "read"
                live.operation.started_at, live.operation.attempts = now(), live.operation.attempts + 1
            self._save(live.operation)
            live.happened("state", live.operation.wire())
            try:
                self._finish(live, self._solve(live))
            except Problem as problem:
                self._failed(live, problem.body)
            except AppError as error:
                self._failed(live, problem_of(error))
            except Exception as error:
                log.exception("operation=%s event=failed", live.operation.id)
                self._failed(live, problem_of(error))

    def _solve(self, live: Live) -> Answer:
        operation, settings, store = live.operation, self.means.settings, self.means.store
        payload = solve_payload(store, operation.graph_id, operation.fields) | {"limits": asdict(settings.limits())}
        seconds = float(operation.fields.get("search_seconds", 10.0)) + settings.overtime_seconds

        def progressed(told: Mapping[str, Any]) -> None:
            operation.stage, operation.progress = told["stage"], _progress(told, operation.progress)
            live.happened("progress", {"stage": operation.stage, **operation.progress})

        return self.means.runner.run("solve", payload, seconds, progressed, live.stop)

    def _finish(self, live: Live, answer: Answer) -> None:
        operation, solved, store = live.operation, answer.result, self.means.store
        if self._closing and live.stop.is_set() and not operation.cancel_requested:
            operation.state, operation.attempts = "queued", operation.attempts - 1
            self._save(operation)
            return
        if solved["exit_code"] == DIFFERENT:
            raise SolveFailed("the rewritten graph computed something else; the plan is not kept", code="different")
        key = None if answer.hurried or live.stop.is_set() else operation.key
        operation.result = self._patiently(lambda: keep_plan(store, solved, operation.graph_id, key))
        self._end_at_last(live, "cancelled" if operation.cancel_requested else "succeeded")

    def _failed(self, live: Live, problem: Mapping[str, Any]) -> None:
        self._end_at_last(live, "cancelled" if live.operation.cancel_requested else "failed", error=problem)

    def _end_at_last(self, live: Live, state: str, error: Mapping[str, Any] | None = None) -> None:
        """As `_end`; when the store takes nothing, who waits is told, and the store as soon as it does."""
        try:
            self._end(live, state, error)
        except (AppError, CannotWrite) as refused:
            log.error("operation=%s event=not_saved said=%r", live.operation.id, str(refused))
            live.finish(_ended(live.operation, state, error))
            with contextlib.suppress(AppError, CannotWrite):  # closing: it runs again after a restart
                self._patiently(lambda: self._end(live, state, error), CannotWrite)

    def _patiently(self, keep: Callable[[], T], *also: type[Exception]) -> T:
        """What `keep` gives, once the store answers: an hour's work is not lost to a minute without a database."""
        passing: tuple[type[Exception], ...] = (Unavailable, *also)
        while True:
            try:
                return keep()
            except passing:
                if self._closing:
                    raise
            time.sleep(PATIENCE_S)

    def _end(self, live: Live, state: str, error: Mapping[str, Any] | None = None) -> None:
        """Save the last state and tell everybody. Raises CannotWrite, Unavailable with nothing changed."""
        operation = live.operation if live.operation.finished else _ended(live.operation, state, error)
        stored.save(self.means.store, operation)
        if not live.operation.finished:
            live.finish(operation)
        with self._lock:
            self._live.pop(operation.id, None)
            if self._by_key.get(operation.key) is live:
                del self._by_key[operation.key]
        log.info("operation=%s event=%s result=%s", operation.id, state, operation.result)

    def _save(self, operation: Operation) -> None:
        try:
            stored.save(self.means.store, operation)
        except Exception:
            log.exception("operation=%s event=not_saved", operation.id)


def _ended(operation: Operation, state: str, error: Mapping[str, Any] | None) -> Operation:
    return replace(operation, state=state, ended_at=now(), error=error, last_event=operation.last_event + 1)


def _progress(told: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Progress as the wire contract says it; a stage that knows no incumbent or bound leaves the last one."""
    last = before or {"incumbent": None, "bound": None, "gap": None}
    if told["incumbent_peak_bytes"] is not None:
        incumbent = {"overhead": told["incumbent_overhead"], "peak_bytes": told["incumbent_peak_bytes"]}
        last = {**last, "incumbent": incumbent, "gap": told["gap"]}
    if told["bound_overhead"] is not None:
        last = {**last, "bound": {"overhead": told["bound_overhead"]}}
    return {"seconds": told["seconds"], **{name: last[name] for name in ("incumbent", "bound", "gap")}}


def _new_id() -> str:
    """Sorts by the time of its making."""
    return f"op{time.time_ns() // 1_000:014x}{secrets.token_hex(6)}"
