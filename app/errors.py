"""What can go wrong on the way to people, and the one table that says how it is told.

AppError
├── Unauthenticated  a request without a good key
├── OutOfScope       a key that is not good for this
├── OverQuota        a key that has used up what it may
├── NotFound         nothing is stored under that name
├── Unparseable      a body that is not what its content type says
├── TooLarge         more bytes than a limit allows; names the limit
├── TooSlow          a body that does not come
├── Unsupported      a content type or encoding nobody reads
├── NotAcceptable    no form the caller accepts
├── Conflict         an idempotency key that came with another body
├── Gone             a section the plan was made without
├── Busy             the queue is full
├── Unavailable      draining, or the store cannot be written
├── BadUsage         a command line that asks for what cannot be done
└── SolveFailed      a child process that died, ran out of memory or time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from app.atomic_files import CannotWrite
from graph.cancellation import CancellationError
from graph.errors import MAX_FINDINGS, BadGraph, CannotExecute, Finding, NoGradient
from planner.errors import BadRequest, IllegalPlan

if TYPE_CHECKING:
    from starlette.types import Send

PROBLEM_TYPE = "application/problem+json"


class AppError(Exception):
    """Root of what this room raises on purpose. `limit` is {"name", "value"} where one was passed."""

    code = ""

    def __init__(
        self,
        message: str,
        findings: Sequence[Finding] = (),
        *,
        code: str = "",
        limit: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        self.findings = tuple(findings)
        self.code = code or self.code
        self.limit = limit
        self.headers = dict(headers or {})
        super().__init__(message)


class Unauthenticated(AppError):
    """A request without a good key."""


class OutOfScope(AppError):
    """A key that is not good for this."""


class OverQuota(AppError):
    """A key that has used up what it may."""


class NotFound(AppError):
    """Nothing is stored under that name."""


class Unparseable(AppError):
    """A body that is not what its content type says."""


class TooLarge(AppError):
    """More bytes than a limit allows."""


class TooSlow(AppError):
    """A body that does not come."""


class Unsupported(AppError):
    """A content type or encoding nobody reads."""


class NotAcceptable(AppError):
    """No form of the answer is among those the caller accepts."""


class Conflict(AppError):
    """An idempotency key that came with another body before."""


class Gone(AppError):
    """A section the plan was made without."""


class Busy(AppError):
    """The queue is full; come back later."""


class Unavailable(AppError):
    """Draining, or the store cannot be written."""


class BadUsage(AppError):
    """A command line that asks for what cannot be done; `code` says what."""


class SolveFailed(AppError):
    """A child process that died, ran out of memory or out of time."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How one kind of exception is told: over HTTP, and as exit code of the command."""

    error: type[BaseException]
    status: int
    code: str
    title: str
    exit_code: int = 2


#: First match counts, so a child stands before its parent.
ERROR_TABLE: tuple[ErrorRow, ...] = (
    ErrorRow(NoGradient, 422, "no_gradient", "An op on the gradient path cannot be differentiated"),
    ErrorRow(BadGraph, 422, "bad_graph", "The model breaks a rule"),
    ErrorRow(BadRequest, 422, "bad_request", "The question cannot be answered as put"),
    ErrorRow(CannotExecute, 422, "cannot_execute", "The graph cannot be executed here"),
    ErrorRow(IllegalPlan, 422, "illegal_plan", "The plan cannot run"),
    ErrorRow(Unparseable, 400, "unparseable", "The body cannot be read"),
    ErrorRow(Unauthenticated, 401, "no_key", "A key is needed"),
    ErrorRow(OutOfScope, 403, "out_of_scope", "The key is not good for this"),
    ErrorRow(NotFound, 404, "not_found", "There is no such thing"),
    ErrorRow(Gone, 404, "no_such_section", "The plan was made without this section"),
    ErrorRow(NotAcceptable, 406, "not_acceptable", "No acceptable form of the answer"),
    ErrorRow(TooSlow, 408, "too_slow", "The body did not come in time"),
    ErrorRow(Conflict, 409, "idempotency_conflict", "The key came with another body before"),
    ErrorRow(TooLarge, 413, "too_large", "More was sent than the limit allows"),
    ErrorRow(Unsupported, 415, "unsupported_media_type", "The body comes in a form nobody reads"),
    ErrorRow(OverQuota, 429, "over_quota", "The key has used up what it may"),
    ErrorRow(Busy, 429, "busy", "Too much is waiting already"),
    ErrorRow(Unavailable, 503, "unavailable", "The service cannot take this now"),
    ErrorRow(CannotWrite, 503, "cannot_write", "The answer could not be written"),
    ErrorRow(SolveFailed, 500, "solve_failed", "The solve did not come to an end", 4),
    ErrorRow(BadUsage, 422, "usage", "The command line cannot be obeyed"),
    ErrorRow(CancellationError, 409, "stopped", "Stopped before there was a plan", 3),
    ErrorRow(FileNotFoundError, 404, "file_not_found", "There is no such file"),
    ErrorRow(OSError, 500, "cannot_read", "The file cannot be read"),
    ErrorRow(BaseException, 500, "internal", "A fault of ours", 4),
)


def error_row(error: BaseException) -> ErrorRow:
    """The line of the table that speaks for `error`."""
    return next(row for row in ERROR_TABLE if isinstance(error, row.error))


class ProblemDetails(Exception):
    """A problem that was already put into words, by a child process or a stored operation."""

    def __init__(self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None):
        self.body = body
        self.headers = dict(headers or {})
        super().__init__(str(body.get("detail", "")))


def to_problem(error: BaseException, instance: str | None = None) -> dict[str, Any]:
    """The RFC 9457 object that says what `error` says."""
    if isinstance(error, ProblemDetails):
        return {**error.body, "instance": instance or error.body.get("instance")}
    row = error_row(error)
    findings: Sequence[Finding] = getattr(error, "findings", ())
    code = getattr(error, "code", "") or (findings[0].code if findings else row.code)
    ours = row.error is BaseException
    detail = "see the log of the service; the question can be asked again" if ours else str(error)
    return problem_body(
        row.status, code, row.title, detail, instance, findings=findings, limit=getattr(error, "limit", None)
    )


def problem_body(
    status: int,
    code: str,
    title: str,
    detail: str,
    instance: str | None = None,
    *,
    findings: Sequence[Finding] = (),
    limit: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One problem object with every member, in the order people read them."""
    return {
        "type": f"/problems/{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": instance,
        "code": code,
        "errors": [asdict(finding) for finding in findings[:MAX_FINDINGS]],
        "limit": dict(limit) if limit else None,
    }


def headers_of(error: BaseException) -> dict[str, str]:
    """Headers the answer must carry, such as Retry-After."""
    return dict(getattr(error, "headers", None) or {})


async def send_problem(error: Exception, path: str, send: Send) -> None:
    """Answer with the problem, where there is no route to do so."""
    body = to_problem(error, path)
    headers = {"Content-Type": PROBLEM_TYPE, **headers_of(error)}
    raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(str(body["status"])), "headers": raw})
    await send({"type": "http.response.body", "body": msgspec.json.encode(body)})
