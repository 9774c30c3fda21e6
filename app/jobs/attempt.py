"""One attempt of a worker at an operation: run a child process and save its result."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import sqlalchemy as sa
from structlog.contextvars import bound_contextvars

from app.atomic_files import CannotWrite
from app.errors import AppError, ProblemDetails, SolveFailed, Unavailable, to_problem
from app.jobs import repository
from app.jobs.answers.equivalent_graphs import find_search, form_key
from app.jobs.interface import EXIT_DIFFERENT, JobEvent, Operation, Scheduler
from app.settings import Settings
from app.solver.child_process import ChildResult, TaskRunner
from app.store.records import save_plan, save_result, solve_payload
from app.store.store import Store
from app.telemetry import metrics
from app.telemetry.traces import job_span
from graph.cancellation import CancellationError
from planner.request.field_kinds import DEFAULT_SEARCH_SECONDS

log = logging.getLogger(__name__)

RETRY_DELAY_S = 1.0  # between attempts to save
MAX_PENDING = 200  # buffered progress events; older ones are dropped
T = TypeVar("T")
StopReason = Literal["cancelled", "closing", "lost"]


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Dependencies of workers."""

    store: Store
    runner: TaskRunner
    settings: Settings
    scheduler: Callable[[Store, Settings], Scheduler]  # called once per worker


class Interrupted(Exception):
    """The worker shuts down and requeues the operation."""


class Attempt:
    """Runs in one thread; another thread calls `halt` and `sync_attempts`."""

    def __init__(self, context: WorkerContext, operation: Operation, stored_id: str | None):
        """`stored_id` is a result that exists already."""
        self.context, self.operation, self._stored_id = context, operation, stored_id
        self._form_key: str | None = None  # key of the result for equivalent graphs
        self._stop = threading.Event()
        self._why: StopReason | None = None
        self._lock = threading.Lock()
        self._pending: deque[tuple[str, dict[str, Any]]] = deque(maxlen=MAX_PENDING)

    def halt(self, why: StopReason) -> None:
        """Stop the child with its best plan so far; `why` decides whether the plan is kept."""
        if self._why != "lost":
            self._why = why
        self._stop.set()

    @contextlib.contextmanager
    def try_lock(self, wait: bool) -> Iterator[bool]:
        """Lock against saving; yields whether the lock is held. With `wait`, block until it is."""
        held = self._lock.acquire(blocking=wait)
        try:
            yield held
        finally:
            if held:
                self._lock.release()

    def _pending_events(self) -> list[JobEvent]:
        last = self.operation.last_event
        return [JobEvent(last + n, name, data) for n, (name, data) in enumerate(tuple(self._pending), 1)]

    def _mark_saved(self, events: Sequence[JobEvent]) -> None:
        if events:
            self.operation.last_event = events[-1].id
        for _ in events:
            self._pending.popleft()

    def run(self) -> None:
        """Run the operation to its end, unless its child dies or its claim is lost. Raises Interrupted."""
        operation = self.operation
        with bound_contextvars(operation=operation.id), job_span(operation.kind, operation.trace, operation.attempts):
            try:
                self._run()
            except repository.ClaimLost:
                log.warning("operation=%s event=lost", self.operation.id)

    def _run(self) -> None:
        operation, settings = self.operation, self.context.settings
        if operation.cancel_requested:
            return self._end("cancelled")
        if operation.attempts - operation.child_deaths > settings.worker_losses:
            message = f"the worker was lost in each of {settings.worker_losses} attempts; see REMAT_WORKER_LOSSES"
            return self._end("failed", error=to_problem(SolveFailed(message, code="poisoned")))
        try:
            return self._save(self._solve())
        except (Interrupted, repository.ClaimLost):
            raise
        except CancellationError:
            self._require_active()
            return self._end("cancelled")
        except ProblemDetails as problem:
            error: Mapping[str, Any] = problem.body
        except AppError as failed:
            if failed.code == "child_died" and self._why is None and operation.child_deaths + 1 < settings.attempts:
                log.warning("operation=%s event=child_died attempt=%d", operation.id, operation.attempts)
                return self._requeue()
            error = to_problem(failed)
        except Exception as failed:
            if not isinstance(failed, CannotWrite):
                log.exception("operation=%s event=failed", operation.id)
            error = to_problem(failed)
        self._require_active()
        return self._end("cancelled" if self._why == "cancelled" else "failed", error=error)

    def _solve(self) -> ChildResult | str:
        """The result of the child, or the id of a stored result."""
        operation, settings, store = self.operation, self.context.settings, self.context.store
        if self._stored_id is not None:
            return self._stored_id  # saved by an attempt that died before finishing, or by another operation
        subject = operation.graph_id, operation.fields, operation.asked
        payload = self._retry_unavailable(lambda: solve_payload(store, *subject))
        seconds = float(operation.fields.get("search_seconds", DEFAULT_SEARCH_SECONDS)) + settings.overtime_seconds
        payload = payload | {"limits": asdict(settings.limits())}
        if operation.kind == "plan":
            request = str(operation.graph_id), operation.fields, operation.tenant
            self._form_key = self._retry_unavailable(lambda: form_key(store, *request))
            payload["known"] = find_search(store, self._form_key)
        task = "solve" if operation.kind == "plan" else operation.kind
        try:
            return self.context.runner.run(task, payload, seconds, self._on_progress, self._stop)
        except (ProblemDetails, SolveFailed) as error:
            if payload.get("known") is None:
                raise
            log.warning("operation=%s event=reuse_failed error=%r", operation.id, str(error))
        return self.context.runner.run(task, payload | {"known": None}, seconds, self._on_progress, self._stop)

    def _on_progress(self, progress: Mapping[str, Any]) -> None:
        with self._lock:
            operation = self.operation
            operation.stage, operation.progress = progress["stage"], wire_progress(progress, operation.progress)
            self._pending.append(("progress", {"stage": operation.stage, **operation.progress}))

    def _save(self, outcome: ChildResult | str) -> None:
        """Save the result and the end of the operation in one transaction."""
        self._require_active()
        if isinstance(outcome, str):
            return self._end("succeeded", result=outcome, also=repository.end_answered)
        operation, store, solved = self.operation, self.context.store, outcome.result
        plans = [solved] if operation.kind == "plan" else solved["plans"]
        if any(plan["exit_code"] == EXIT_DIFFERENT for plan in plans):
            raise SolveFailed("the rewritten graph computed different results; the plan is discarded", code="different")
        state = "cancelled" if self._why == "cancelled" else "succeeded"
        key = None if outcome.hit_deadline or state == "cancelled" else operation.key

        def finish(connection: sa.Connection, id: str) -> None:
            repository.finish(connection, operation, self._pending_events(), state, id)

        def save() -> str:
            with self._lock:
                if operation.kind == "plan":
                    return save_plan(store, solved, str(operation.graph_id), key, finish, key and self._form_key)
                return save_result(store, operation.kind, solved, operation.graph_id, key, finish, operation.tenant)

        result = self._retry_unavailable(save, CannotWrite)  # a full disk costs no finished solve
        self._count_end(state)
        log.info("operation=%s event=%s result=%s", operation.id, state, result)

    def _end(
        self,
        state: str,
        result: str | None = None,
        error: Mapping[str, Any] | None = None,
        also: Callable[[sa.Connection], object] = lambda _: None,
    ) -> None:
        """End the operation; `also` runs in the same transaction."""

        def end() -> None:
            with self._lock, self.context.store.writing() as connection:
                repository.finish(connection, self.operation, self._pending_events(), state, result, error)
                also(connection)

        self._retry_unavailable(end, CannotWrite)
        self._count_end(state, "" if error is None else str(error["code"]))
        log.info("operation=%s event=%s result=%s", self.operation.id, state, result)

    def _count_end(self, state: str, code: str = "") -> None:
        metrics.count_job(self.operation.kind, state, code, *self.operation.seconds())

    def _requeue(self) -> None:
        """Set the operation back to queued."""
        self._retry_unavailable(lambda: sync_attempts(self.context.store, [self], wait=True), CannotWrite)
        self._retry_unavailable(lambda: repository.requeue(self.context.store, self.operation), CannotWrite)

    def _require_active(self) -> None:
        """Raises Interrupted or ClaimLost if the result must not be saved."""
        if self._why == "closing":
            raise Interrupted
        if self._why == "lost":
            raise repository.ClaimLost

    def _retry_unavailable(self, act: Callable[[], T], *also: type[Exception]) -> T:
        """Result of `act`, retried while the store is unavailable or `act` raises one of `also`."""
        transient: tuple[type[Exception], ...] = (Unavailable, *also)
        while True:
            try:
                return act()
            except transient as error:
                self._require_active()
                log.warning("operation=%s event=not_saved error=%r", self.operation.id, str(error))
            time.sleep(RETRY_DELAY_S)


def sync_attempts(store: Store, attempts: Iterable[Attempt], wait: bool = False) -> None:
    """Save pending progress and halt cancelled or lost attempts. Raises CannotWrite, Unavailable with nothing lost.

    Unless `wait`, attempts that are saving their result are skipped; they save their own events.
    """
    with contextlib.ExitStack() as locks:
        locked = [attempt for attempt in attempts if locks.enter_context(attempt.try_lock(wait))]
        progress = [(attempt.operation, attempt._pending_events()) for attempt in locked]
        cancelled = repository.save_progress(store, progress) if progress else {}
        for attempt, (operation, events) in zip(locked, progress, strict=True):
            if operation.id not in cancelled:
                attempt.halt("lost")
                continue
            attempt._mark_saved(events)
            if cancelled[operation.id]:
                attempt.halt("cancelled")


def wire_progress(progress: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Progress in the wire format; incumbent and bound default to those of `before`."""
    last = before or {"incumbent": None, "bound": None, "gap": None}
    if progress["incumbent_peak_bytes"] is not None:
        incumbent = {"overhead": progress["incumbent_overhead"], "peak_bytes": progress["incumbent_peak_bytes"]}
        last = {**last, "incumbent": incumbent, "gap": progress["gap"]}
    if progress["bound_overhead"] is not None:
        last = {**last, "bound": {"overhead": progress["bound_overhead"]}}
    return {"seconds": progress["seconds"], **{name: last[name] for name in ("incumbent", "bound", "gap")}}
