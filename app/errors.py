"""Exceptions of the application, and the table that maps each to an HTTP status, a code, a title and an exit code.

AppError
├── Unauthenticated  missing or invalid API key
├── OutOfScope       the scopes of the API key do not cover the request
├── UnknownHost      Host header that the service does not answer to
├── OverQuota        quota of the API key exhausted
├── NotFound         no resource of that id
├── Unparseable      body does not match its content type
├── TooLarge         size limit exceeded; names the limit
├── TooSlow          body not received in time
├── Unsupported      unsupported content type or content encoding
├── NotAcceptable    no representation matches Accept
├── Conflict         contradicts an earlier request, as of the same idempotency key
├── InUse            resource with unfinished work
├── Gone             section that the plan was made without
├── Busy             queue full
├── Unavailable      draining, or the store is not writable
├── BadUsage         command line that cannot be carried out
└── SolveFailed      child process crashed or timed out
    ├── ClusterLost  the cluster that solves went away
    └── OutOfMemory  the model needs more memory than a solve may have
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
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
    """Root of the exceptions of `app`. `limit` is {"name", "value"} if a limit was exceeded."""

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
    """Missing or invalid API key."""


class OutOfScope(AppError):
    """The scopes of the API key do not cover the request."""


class UnknownHost(AppError):
    """The Host header names a host that the service does not answer to."""


class OverQuota(AppError):
    """Quota of the API key exhausted."""


class NotFound(AppError):
    """No resource of that id."""


class Unparseable(AppError):
    """The body does not match its content type."""


class TooLarge(AppError):
    """A size limit is exceeded."""


class TooSlow(AppError):
    """The body was not received in time."""


class Unsupported(AppError):
    """Unsupported content type or content encoding."""


class NotAcceptable(AppError):
    """No representation matches the Accept header."""


class Conflict(AppError):
    """The request contradicts an earlier one, such as that of the same idempotency key."""


class InUse(AppError):
    """The resource has unfinished work."""

    code = "in_use"


class Gone(AppError):
    """The plan was made without this section."""


class Busy(AppError):
    """The queue is full; retry later."""


class Unavailable(AppError):
    """The service is draining, or the store is not writable."""


class BadUsage(AppError):
    """A command line that cannot be carried out; `code` says why."""


class SolveFailed(AppError):
    """A child process crashed or timed out."""


class ClusterLost(SolveFailed):
    """The cluster that solves went away."""


class OutOfMemory(SolveFailed):
    """The model needs more memory than REMAT_SOLVE_MEMORY_BYTES."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """HTTP status, code, title and exit code of one kind of exception."""

    error: type[BaseException]
    status: int
    code: str
    title: str
    exit_code: int = 2


#: The first match wins, so a subclass precedes its base class.
ERROR_TABLE: tuple[ErrorRow, ...] = (
    ErrorRow(NoGradient, 422, "no_gradient", "An op on the gradient path cannot be differentiated"),
    ErrorRow(BadGraph, 422, "bad_graph", "Invalid or unsupported model"),
    ErrorRow(BadRequest, 422, "bad_request", "Invalid request"),
    ErrorRow(CannotExecute, 422, "cannot_execute", "The graph cannot be executed"),
    ErrorRow(IllegalPlan, 422, "illegal_plan", "Invalid plan"),
    ErrorRow(Unparseable, 400, "unparseable", "The body cannot be parsed"),
    ErrorRow(Unauthenticated, 401, "no_key", "API key required"),
    ErrorRow(OutOfScope, 403, "out_of_scope", "Insufficient scope"),
    ErrorRow(NotFound, 404, "not_found", "Not found"),
    ErrorRow(Gone, 404, "no_such_section", "The plan was made without this section"),
    ErrorRow(NotAcceptable, 406, "not_acceptable", "Not acceptable"),
    ErrorRow(TooSlow, 408, "too_slow", "Request timeout"),
    ErrorRow(Conflict, 409, "idempotency_conflict", "Conflict with an earlier request"),
    ErrorRow(InUse, 409, "in_use", "Unfinished work"),
    ErrorRow(TooLarge, 413, "too_large", "Size limit exceeded"),
    ErrorRow(Unsupported, 415, "unsupported_media_type", "Unsupported content type"),
    ErrorRow(UnknownHost, 421, "unknown_host", "Unknown host"),
    ErrorRow(OverQuota, 429, "over_quota", "Quota exhausted"),
    ErrorRow(Busy, 429, "busy", "Too many requests"),
    ErrorRow(Unavailable, 503, "unavailable", "Service unavailable"),
    ErrorRow(CannotWrite, 503, "cannot_write", "The output could not be written"),
    ErrorRow(ClusterLost, 503, "cluster_lost", "The cluster went away", 4),
    ErrorRow(OutOfMemory, 422, "out_of_memory", "The model needs too much memory", 4),
    ErrorRow(SolveFailed, 500, "solve_failed", "The solve failed", 4),
    ErrorRow(BadUsage, 422, "usage", "Cannot do that"),
    ErrorRow(CancellationError, 409, "stopped", "Stopped before a plan was found", 3),
    ErrorRow(FileNotFoundError, 404, "file_not_found", "File not found"),
    ErrorRow(OSError, 500, "cannot_read", "The file cannot be read"),
    ErrorRow(BaseException, 500, "internal", "Internal error", 4),
)


def error_row(error: BaseException) -> ErrorRow:
    """The first row of ERROR_TABLE that matches `error`."""
    return next(row for row in ERROR_TABLE if isinstance(error, row.error))


class ProblemDetails(Exception):
    """An RFC 9457 problem object from a child process or a stored operation."""

    def __init__(self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None):
        self.body = body
        self.headers = dict(headers or {})
        super().__init__(str(body.get("detail", "")))


def to_problem(error: BaseException, instance: str | None = None) -> dict[str, Any]:
    """The RFC 9457 problem object of `error`."""
    if isinstance(error, ProblemDetails):
        return {**error.body, "instance": instance or error.body.get("instance")}
    row = error_row(error)
    findings: Sequence[Finding] = getattr(error, "findings", ())
    own = error.code if isinstance(error, AppError) else ""
    code = own or (findings[0].code if findings else row.code)
    internal = row.error is BaseException
    detail = "see the log of the service; the request can be retried" if internal else _text_of(error)
    return problem_body(
        row.status, code, row.title, detail, instance, findings=findings, limit=getattr(error, "limit", None)
    )


def _text_of(error: BaseException) -> str:
    """The message; of a failed file operation the file, the reason and the remedy, without the error number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        allow = "allow this user to read it, or " if isinstance(error, PermissionError) else ""
        return f"{error.filename}: {error.strerror.lower()}; {allow}name another file"
    return str(error)


@contextlib.contextmanager
def about_file(name: str | os.PathLike[str]) -> Iterator[None]:
    """Let errors of the operating system name the file: those of opening it do, those of reading it do not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(name)
        raise


_EXPECTED = {"Field required": "a value for this field", "Extra inputs are not permitted": "no such field"}


def expected_by(message: str) -> str:
    """What a message of Pydantic expects, without its subject: of "Input should be 'a' or 'b'" the two words."""
    if message in _EXPECTED:
        return _EXPECTED[message]
    return re.sub(r"^(?:Input|String|List) should (?:be |have |match )|^Input tag .* tags: ", "", message)[:300]


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
    """A problem object with all its members, in display order."""
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
    """Headers of the response to `error`, such as Retry-After."""
    return dict(getattr(error, "headers", None) or {})


async def send_problem(error: Exception, path: str, send: Send) -> None:
    """Send the problem object as the response of an ASGI middleware."""
    problem = to_problem(error, path)
    body = msgspec.json.encode(problem)
    headers = {"Content-Type": PROBLEM_TYPE, "Content-Length": str(len(body)), **headers_of(error)}
    raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(str(problem["status"])), "headers": raw})
    await send({"type": "http.response.body", "body": body})
