"""One attempt of one worker at one operation: a child is started and followed, and its answer kept."""

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
from app.jobs.answers.isomorphic_graphs import item_key_scope, relabel_payload
from app.jobs.interface import EXIT_DIFFERENT, JobEvent, Operation, Scheduler
from app.jobs.queue import Queue
from app.settings import Settings
from app.solver.child_process import ChildResult, Runner
from app.store.records import save_plan, save_result, solve_payload
from app.store.store import Store
from graph.cancellation import CancellationError

log = logging.getLogger(__name__)

RETRY_DELAY_S = 1.0  # between two tries to save
MAX_PENDING = 200  # events between two looks at what was told
T = TypeVar("T")
Dequeue = Callable[[sa.Connection, str], None]
StopReason = Literal["cancelled", "closing", "lost"]


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What workers need to do their work."""

    store: Store
    runner: Runner
    settings: Settings
    scheduler: Callable[[Store, Queue, Settings], Scheduler]  # called once a worker


class Interrupted(BaseException):
    """The worker ends. Not an Exception: what DBOS is not told stays in its queue."""


class Attempt:
    """Run by one thread; told by another what it may not know: `halt`, `sync_attempts`."""

    def __init__(self, means: WorkerContext, operation: Operation, known: str | None, leave: Dequeue):
        """`known` answers the question already; `leave` takes the operation out of the queue, as it ends."""
        self.context, self.operation, self._known, self._leave = means, operation, known, leave
        self._stop = threading.Event()
        self._why: StopReason | None = None
        self._lock = threading.Lock()
        self._pending: deque[tuple[str, dict[str, Any]]] = deque(maxlen=MAX_PENDING)

    def halt(self, why: StopReason) -> None:
        """Ask the child for its best so far; whether that is kept depends on `why`."""
        if self._why != "lost":
            self._why = why
        self._stop.set()

    @contextlib.contextmanager
    def try_lock(self, wait: bool) -> Iterator[bool]:
        """Whether nothing is being kept of it, or once that is so; nothing will be meanwhile."""
        held = self._lock.acquire(blocking=wait)
        try:
            yield held
        finally:
            if held:
                self._lock.release()

    def _told(self) -> list[JobEvent]:
        last = self.operation.last_event
        return [JobEvent(last + n, name, data) for n, (name, data) in enumerate(tuple(self._pending), 1)]

    def _heard(self, told: Sequence[JobEvent]) -> None:
        """These are kept."""
        if told:
            self.operation.last_event = told[-1].id
        for _ in told:
            self._pending.popleft()

    def run(self) -> bool:
        """Whether the operation has ended; else its child died, or others took it over. Raises Interrupted."""
        with bound_contextvars(operation=self.operation.id):
            try:
                return self._run()
            except repository.ClaimLost:
                log.warning("operation=%s event=lost", self.operation.id)
                return False

    def _run(self) -> bool:
        operation, settings = self.operation, self.context.settings
        if operation.cancel_requested:
            return self._end("cancelled")
        if operation.attempts > settings.attempts:
            said = f"begun {settings.attempts} times, and the worker died each time"
            return self._end("failed", error=to_problem(SolveFailed(said, code="poisoned")))
        try:
            return self._keep(self._solve())
        except repository.ClaimLost:
            raise
        except CancellationError:
            self._go_on()
            return self._end("cancelled")
        except ProblemDetails as problem:
            error: Mapping[str, Any] = problem.body
        except AppError as failed:
            if failed.code == "child_died" and self._why is None and operation.attempts < settings.attempts:
                log.warning("operation=%s event=child_died attempt=%d", operation.id, operation.attempts)
                return self._begin_again()
            error = to_problem(failed)
        except Exception as failed:
            if not isinstance(failed, CannotWrite):
                log.exception("operation=%s event=failed", operation.id)
            error = to_problem(failed)
        self._go_on()
        return self._end("cancelled" if self._why == "cancelled" else "failed", error=error)

    def _solve(self) -> ChildResult | str:
        """The child's answer, or the id of what answers the question already."""
        operation, settings, store = self.operation, self.context.settings, self.context.store
        if self._known is not None:
            return self._known  # by one who died between its plan and its last word, or for somebody else
        if operation.kind == "plan" and (retold := self._told_again()) is not None:
            return retold
        about = operation.graph_id, operation.fields, operation.asked
        payload = self._patiently(lambda: solve_payload(store, *about))
        seconds = float(operation.fields.get("search_seconds", 10.0)) + settings.overtime_seconds
        told = payload | {"limits": asdict(settings.limits())}
        task = "solve" if operation.kind == "plan" else operation.kind
        return self.context.runner.run(task, told, seconds, self._progressed, self._stop)

    def _told_again(self) -> ChildResult | None:
        """An item's plan made of one for other names; None where there is none, or it cannot be told.

        Whoever asked for a plan by itself was given that one at once.
        """
        operation, (store, settings) = self.operation, (self.context.store, self.context.settings)
        try:
            own = item_key_scope(store, operation.id)
            told = own and relabel_payload(store, settings, str(operation.graph_id), operation.fields, own)
            found = told and self.context.runner.run("retell", told, settings.read_seconds, None, self._stop)
        except (AppError, ProblemDetails, CannotWrite) as error:
            log.warning("operation=%s event=not_told_again said=%r", operation.id, str(error))
            return None
        return found if found and found.result is not None else None

    def _progressed(self, told: Mapping[str, Any]) -> None:
        with self._lock:
            operation = self.operation
            operation.stage, operation.progress = told["stage"], wire_progress(told, operation.progress)
            self._pending.append(("progress", {"stage": operation.stage, **operation.progress}))

    def _keep(self, found: ChildResult | str) -> bool:
        """Keep what was found and the end of the operation: both, or neither."""
        self._go_on()
        if isinstance(found, str):
            return self._end("succeeded", result=found)
        operation, store, made = self.operation, self.context.store, found.result
        plans = [made] if operation.kind == "plan" else made["plans"]
        if any(solved["exit_code"] == EXIT_DIFFERENT for solved in plans):
            raise SolveFailed("the rewritten graph computed something else; the plan is not kept", code="different")
        state = "cancelled" if self._why == "cancelled" else "succeeded"
        key = None if found.hit_deadline or state == "cancelled" else operation.key

        def ends(connection: sa.Connection, id: str) -> None:
            repository.finish(connection, operation, self._told(), state, id)
            self._leave(connection, operation.id)

        def keep() -> str:
            with self._lock:
                if operation.kind == "plan":
                    return save_plan(store, made, str(operation.graph_id), key, ends)
                return save_result(store, operation.kind, made, operation.graph_id, key, ends)

        result = self._patiently(keep)
        log.info("operation=%s event=%s result=%s", operation.id, state, result)
        return True

    def _end(self, state: str, result: str | None = None, error: Mapping[str, Any] | None = None) -> bool:
        def end() -> None:
            with self._lock, self.context.store.writing() as connection:
                repository.finish(connection, self.operation, self._told(), state, result, error)
                self._leave(connection, self.operation.id)

        self._patiently(end, CannotWrite)
        log.info("operation=%s event=%s result=%s", self.operation.id, state, result)
        return True

    def _begin_again(self) -> bool:
        """Let it wait, for whoever begins it next: this very thread."""
        self._patiently(lambda: sync_attempts(self.context.store, [self], wait=True), CannotWrite)
        self._patiently(lambda: repository.requeue(self.context.store, self.operation), CannotWrite)
        return False

    def _go_on(self) -> None:
        """Raises Interrupted or Lost when what was found is not to be kept."""
        if self._why == "closing":
            raise Interrupted
        if self._why == "lost":
            raise repository.ClaimLost

    def _patiently(self, act: Callable[[], T], *also: type[Exception]) -> T:
        """What `act` gives, once the store answers: an hour's work is not lost to a minute without a database."""
        passing: tuple[type[Exception], ...] = (Unavailable, *also)
        while True:
            try:
                return act()
            except passing as error:
                self._go_on()
                log.warning("operation=%s event=not_saved said=%r", self.operation.id, str(error))
            time.sleep(RETRY_DELAY_S)


def sync_attempts(store: Store, attempts: Iterable[Attempt], wait: bool = False) -> None:
    """Keep what children have told, and end what is to end. Raises CannotWrite, Unavailable with nothing lost.

    Unless `wait`, one that is at its end, which may take long, is left to keep what was told by itself.
    """
    with contextlib.ExitStack() as held:
        looked = [attempt for attempt in attempts if held.enter_context(attempt.try_lock(wait))]
        told = [(attempt.operation, attempt._told()) for attempt in looked]
        ending = repository.save_progress(store, told) if told else {}
        for attempt, (operation, events) in zip(looked, told, strict=True):
            if operation.id not in ending:
                attempt.halt("lost")
                continue
            attempt._heard(events)
            if ending[operation.id]:
                attempt.halt("cancelled")


def wire_progress(told: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Progress as the wire contract says it; a stage that knows no incumbent or bound leaves the last one."""
    last = before or {"incumbent": None, "bound": None, "gap": None}
    if told["incumbent_peak_bytes"] is not None:
        incumbent = {"overhead": told["incumbent_overhead"], "peak_bytes": told["incumbent_peak_bytes"]}
        last = {**last, "incumbent": incumbent, "gap": told["gap"]}
    if told["bound_overhead"] is not None:
        last = {**last, "bound": {"overhead": told["bound_overhead"]}}
    return {"seconds": told["seconds"], **{name: last[name] for name in ("incumbent", "bound", "gap")}}
