"""Interface between the service and its job system: the `Jobs` protocol and its records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from app.store.states import RESULT_PATHS

FINISHED = frozenset({"succeeded", "failed", "cancelled"})
DEFAULT_PRIORITY = 100  # of interactive requests; lower values run first
RETRY_S = 5
COMPLETE = (0, 1)  # exit codes of a solve that was not stopped: done, over budget
EXIT_DIFFERENT = 4  # exit code of a solve whose rewritten graph computes different results


@dataclass(frozen=True, slots=True)
class SolveRequest:
    """One solve to run. Requests with equal `key` share one operation."""

    key: str
    graph_id: str | None
    fields: Mapping[str, Any]
    owner: str = ""  # tenant whose concurrent solves are limited by REMAT_SOLVES_PER_KEY
    priority: int = DEFAULT_PRIORITY
    kind: str = "plan"
    data: bytes | None = None  # input document, if it is not a stored graph


@dataclass(slots=True)
class Operation:
    """State of one job: the fields of the wire contract and the fields needed to restart it."""

    id: str
    key: str
    graph_id: str | None
    fields: Mapping[str, Any]
    created_at: str
    kind: str = "plan"
    state: str = "queued"
    stage: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    progress: Mapping[str, Any] | None = None
    asked: str | None = None  # id of the input document, if it is not a stored graph
    result: str | None = None  # id of the plan
    found: str | None = None  # id of the curve, fit or layout
    error: Mapping[str, Any] | None = None  # a problem object
    worker: str | None = None  # id of the worker that runs it
    attempts: int = 0
    child_deaths: int = 0  # attempts whose child process died; the others lost their worker
    last_event: int = 0
    cancel_requested: bool = False
    wanted: bool = False  # requested directly, not only by a batch
    tenant: str | None = None  # None: requested without authentication
    priority: int = DEFAULT_PRIORITY  # lower values run first
    trace: str | None = None  # traceparent of the request that submitted it
    model: str | None = None  # name of the graph
    graph_batch: int | None = None  # batch of the graph as stored

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    @property
    def answer(self) -> str | None:
        """Id of the result: the plan, or the curve, fit or layout."""
        return self.result if self.kind == "plan" else self.found

    def seconds(self) -> tuple[float, float]:
        """(time in the queue before the latest attempt, time of that attempt until its end or now)."""
        created, started = (datetime.fromisoformat(str(at)) for at in (self.created_at, self.started_at))
        ended = datetime.now(UTC) if self.ended_at is None else datetime.fromisoformat(self.ended_at)
        return max(0.0, (started - created).total_seconds()), max(0.0, (ended - started).total_seconds())

    def wire(self) -> dict[str, Any]:
        """The operation in the wire format."""
        return {
            "id": self.id,
            "kind": self.kind,
            "model": self.model,
            "batch": self.fields.get("batch") or self.graph_batch,
            "state": self.state,
            "stage": self.stage,
            "created_at": self.created_at,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "progress": self.progress,
            "result": None if self.answer is None else f"{RESULT_PATHS[self.kind]}/{self.answer}",
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event of an operation; ids count from 1."""

    id: int
    name: str  # "state" or "progress"
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of operations, newest first; `after` is the cursor of the next page."""

    operations: tuple[Operation, ...]
    after: str | None


class Scheduler(Protocol):
    """Queues the items of batches; each worker has one and calls `turn` periodically."""

    def nudge(self) -> bool:
        """Count an operation that ended in this process; True if a turn is due."""

    def wake(self) -> None:
        """Work may have been queued by another process; a turn is due soon."""

    def turn(self) -> bool:
        """True if items were queued, so that another turn may queue more. Raises CannotWrite, Unavailable."""


class Jobs(Protocol):
    """Job system. Every method is thread-safe; blocking waits are async."""

    def start(self) -> None:
        """Start running queued operations; `submit` starts implicitly. Raises CannotWrite, Unavailable."""

    def submit(self, question: SolveRequest) -> Operation:
        """The operation of the request: an unfinished one of the same key, or a new one. Raises Busy, Unavailable."""

    def status(self, id: str) -> Operation:
        """Current state of the operation. Raises NotFound."""

    async def wait(self, id: str, seconds: float) -> Operation:
        """The operation once finished, or its current state after `seconds`."""

    def stream(self, id: str, after: int) -> AsyncIterator[JobEvent | None]:
        """Events with ids above `after`, until the operation finishes or the service drains; None: keep-alive."""

    def cancel(self, id: str) -> Operation:
        """The operation after a cancel request; a running one stops soon and keeps its best plan as result."""

    def list(
        self, after: str | None, limit: int, state: str | None, tenant: str | None = None, by_items: bool = False
    ) -> Page:
        """A page of operations, newest first, older than `after`; of that tenant unless None.

        `by_items`: an ended batch with failed items counts as failed, which its own state never is.
        """

    def drain(self) -> None:
        """Reject new work and end all waits and streams; running operations continue."""

    def close(self) -> None:
        """Shut down; unfinished operations are requeued."""
