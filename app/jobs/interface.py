"""What the service asks of whoever runs its jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.store.states import RESULT_PATHS

FINISHED = frozenset({"succeeded", "failed", "cancelled"})
DEFAULT_PRIORITY = 100  # priority of what somebody waits for; lower ones go first
RETRY_S = 5
EXIT_DIFFERENT = 4  # exit code of a solve whose rewritten graph computes something else


@dataclass(frozen=True, slots=True)
class SolveRequest:
    """One thing to be found out. `key` names the question: two with one key are one job."""

    key: str
    graph_id: str | None
    fields: Mapping[str, Any]
    owner: str = ""  # whose turns are shared out, where settings limit them
    priority: int = DEFAULT_PRIORITY
    kind: str = "plan"
    data: bytes | None = None  # what is asked about, where that is no stored graph


@dataclass(slots=True)
class Operation:
    """State of one job, as the wire contract says it, and what a restart needs."""

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
    asked: str | None = None  # id of what is asked about, where that is no stored graph
    result: str | None = None  # id of the plan
    found: str | None = None  # id of what is no plan: a curve, a fit, a layout
    error: Mapping[str, Any] | None = None  # a problem object
    worker: str | None = None  # that runs it
    attempts: int = 0
    last_event: int = 0
    cancel_requested: bool = False
    wanted: bool = False  # somebody has asked for it by itself, not in a batch alone
    model: str | None = None  # name of the graph

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    @property
    def answer(self) -> str | None:
        """Id of what was found, among those of its kind."""
        return self.result if self.kind == "plan" else self.found

    def wire(self) -> dict[str, Any]:
        """The operation as people see it."""
        return {
            "id": self.id,
            "kind": self.kind,
            "model": self.model,
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
    """One thing that happened to an operation; ids count from 1."""

    id: int
    name: str  # "state" or "progress"
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list, newest first; `after` continues it."""

    operations: tuple[Operation, ...]
    after: str | None


class Scheduler(Protocol):
    """Feeds items of batches into the queue; one in every worker, given a turn now and then."""

    def nudge(self) -> bool:
        """Count an operation that ended in this process; True when that calls for a turn."""

    def turn(self) -> bool:
        """True when items were queued, so that another turn may queue more. Raises CannotWrite, Unavailable."""


class Jobs(Protocol):
    """Runs questions. Every method is safe from any thread; those that wait are async."""

    def start(self) -> None:
        """Begin with what is there already; the first question begins as well. Raises CannotWrite, Unavailable."""

    def submit(self, question: SolveRequest) -> Operation:
        """The operation that answers the question, a running one when there is one. Raises Busy, Unavailable."""

    def status(self, id: str) -> Operation:
        """The operation as it stands. Raises NotFound."""

    async def wait(self, id: str, seconds: float) -> Operation:
        """The operation once it has finished, or as it stands after `seconds`."""

    def stream(self, id: str, after: int) -> AsyncIterator[JobEvent | None]:
        """Events with ids above `after`, until the operation has finished or the service drains; None: still there."""

    def cancel(self, id: str) -> Operation:
        """The operation; a running one is asked to stop and keeps its best so far as result."""

    def list(self, after: str | None, limit: int, state: str | None) -> Page:
        """A page of operations, newest first, older than `after`."""

    def drain(self) -> None:
        """Refuse new work and let everybody who waits go; what runs goes on."""

    def close(self) -> None:
        """End soon; what has not finished runs again after a restart."""
