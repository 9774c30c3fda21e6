"""One call of the service: sent, sent again where that may help, and answered or raised.

ClientError
├── Unreachable         nobody answered
├── TimedOut            the time is over; the operation goes on, and may be waited for again
├── ServiceProblem      the service said no: code, findings with paths and remedies
│   └── OperationFailed the operation came to a bad end
└── Cancelled           somebody stopped it; `best` is its best answer so far, or None
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import anyio
import httpx2
import msgspec

from graph.errors import Finding

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
MAX_RETRY_AFTER_S = 600.0  # who is told to wait longer is told so
#: The service, or what stands before it, will answer later.
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
#: No second try mends these.
PERMANENT_ERRORS = (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)

Parameters = list[tuple[str, str | int | float | bool | None]]


class ClientError(Exception):
    """Root of what a client raises."""


class Unreachable(ClientError):
    """Nobody answered, however often it was asked."""


class TimedOut(ClientError):
    """The caller's time is over. `operation` is the id of what goes on, None when nothing was begun."""

    def __init__(self, message: str, operation: str | None = None):
        self.operation = operation
        super().__init__(message)


class ServiceProblem(ClientError):
    """A problem object of the service: `status`, `code`, `title`, `detail`, `findings`, `limit`."""

    def __init__(self, problem: Mapping[str, Any]):
        self.problem = dict(problem)
        self.status = int(problem.get("status") or 0)
        self.code = str(problem.get("code") or "")
        self.title, self.detail = str(problem.get("title") or ""), str(problem.get("detail") or "")
        self.limit = problem.get("limit")
        self.findings = tuple(
            Finding(**{name: str(said.get(name, "")) for name in ("code", "path", "found", "expected", "remedy")})
            for said in problem.get("errors") or ()
        )
        said = "\n".join(map(str, self.findings)) or self.detail
        super().__init__(f"{self.status} {self.code}: {self.title}\n{said}")


class OperationFailed(ServiceProblem):
    """The operation ended without an answer. `operation` is its id."""

    def __init__(self, problem: Mapping[str, Any], operation: str):
        self.operation = operation
        super().__init__(problem)


class OperationCancelled(ClientError):
    """Somebody stopped the operation; `best` is its best answer so far, of a plan the report, or None."""

    def __init__(self, operation: str, best: Any):
        self.operation, self.best = operation, best
        super().__init__(f"operation {operation} was cancelled" + ("" if best is None else "; .best is what it found"))


@dataclass(frozen=True, slots=True)
class HttpCall:
    """What is asked of the service."""

    method: str
    path: str
    parameters: Parameters = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    seconds: float = 0.0  # the service may take before it answers, beside the usual

    def to(self, http: httpx2.Client | httpx2.AsyncClient, timeout: float) -> httpx2.Request:
        limits = httpx2.Timeout(timeout, read=timeout + self.seconds)
        return http.build_request(
            self.method, self.path, params=self.parameters, headers=self.headers, content=self.content, timeout=limits
        )


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Transport(Protocol):
    """What goes over the wire and waits. Of a blocking one nothing ever suspends."""

    async def send(self, call: HttpCall) -> HttpResponse: ...

    def stream(self, call: HttpCall) -> Any:
        """Async context manager: (answer without its body, async iterator of events)."""

    async def pause(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


class BlockingTransport:
    """Over a blocking client: its coroutines run to their end in one go."""

    def __init__(self, http: httpx2.Client, timeout: float):
        self.http, self.timeout = http, timeout

    async def send(self, call: HttpCall) -> HttpResponse:
        answer = self.http.send(call.to(self.http, self.timeout))
        return HttpResponse(answer.status_code, answer.headers, answer.content)

    @asynccontextmanager
    async def stream(self, call: HttpCall) -> AsyncIterator[tuple[HttpResponse, AsyncIterator[httpx2.ServerSentEvent]]]:
        answer = self.http.send(call.to(self.http, self.timeout), stream=True)
        try:
            body = b"" if answer.status_code == 200 else answer.read()
            yield HttpResponse(answer.status_code, answer.headers, body), _as_async(httpx2.EventSource(answer))
        finally:
            answer.close()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        self.http.close()


async def _as_async(events: httpx2.EventSource) -> AsyncIterator[httpx2.ServerSentEvent]:
    for event in events:
        yield event


class AsyncTransport:
    """Over an async client."""

    def __init__(self, http: httpx2.AsyncClient, timeout: float):
        self.http, self.timeout = http, timeout

    async def send(self, call: HttpCall) -> HttpResponse:
        answer = await self.http.send(call.to(self.http, self.timeout))
        return HttpResponse(answer.status_code, answer.headers, answer.content)

    @asynccontextmanager
    async def stream(self, call: HttpCall) -> AsyncIterator[tuple[HttpResponse, AsyncIterator[httpx2.ServerSentEvent]]]:
        answer = await self.http.send(call.to(self.http, self.timeout), stream=True)
        try:
            body = b"" if answer.status_code == 200 else await answer.aread()
            yield HttpResponse(answer.status_code, answer.headers, body), aiter(httpx2.EventSource(answer))
        finally:
            await answer.aclose()

    async def pause(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def close(self) -> None:
        await self.http.aclose()


class Deadline:
    """When the caller's time is over; None: never."""

    def __init__(self, seconds: float | None):
        self._until = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float:
        return float("inf") if self._until is None else self._until - time.monotonic()


class Retries:
    """Pauses between tries: twice as long each time, by chance a little less, and never less than told."""

    def __init__(self, most: int, deadline: Deadline):
        self.most, self.deadline = most, deadline
        self.tries = 0

    def reset(self) -> None:
        self.tries = 0

    def pause(self, told: float | None = None) -> float | None:
        """Seconds until the next try; None when there is none."""
        if self.tries >= self.most:
            return None
        seconds = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**self.tries) * random.uniform(0.5, 1.0)
        self.tries += 1
        if told is not None:
            seconds = max(told, told + seconds / 10)  # not everybody at the same moment
        return seconds if seconds < min(self.deadline.left(), MAX_RETRY_AFTER_S) else None


async def send_with_retries(wire: Transport, call: HttpCall, retries: Retries) -> HttpResponse:
    """The good answer. Raises ServiceProblem, Unreachable. What may be sent again must mean the same twice."""
    while True:
        try:
            answer = await wire.send(call)
        except PERMANENT_ERRORS as error:
            raise Unreachable(f"{call.method} {call.path}: {error}") from error
        except httpx2.TransportError as error:
            pause = retries.pause()
            if pause is None:
                raise unreachable_error(call, retries, error) from error
        else:
            if answer.status < 400:
                return answer
            pause = retries.pause(retry_after(answer.headers)) if answer.status in RETRYABLE_STATUSES else None
            if pause is None:
                raise service_problem(answer)
        await wire.pause(pause)


def unreachable_error(call: HttpCall, retries: Retries, error: Exception) -> Unreachable:
    said = str(error) or type(error).__name__
    return Unreachable(f"{call.method} {call.path}: no answer in {retries.tries + 1} tries, at last: {said}")


def service_problem(answer: HttpResponse) -> ServiceProblem:
    """The problem in an answer; one in other words when something before the service answered."""
    try:
        problem = answer.json()
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = None
    if not isinstance(problem, Mapping) or "code" not in problem:
        said = answer.body[:200].decode(errors="replace")
        problem = {"status": answer.status, "code": "no_problem", "title": "No answer of the service", "detail": said}
    return ServiceProblem({"status": answer.status, **problem})


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that `Retry-After` asks for, as a number or a date; None where it asks for nothing."""
    said = headers.get("retry-after", "").strip()
    if said.isascii() and said.isdigit():
        return float(said[:9])
    try:
        date = parsedate_to_datetime(said)
    except ValueError:
        return None
    date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
