"""HTTP transport: one call with retries, which returns a response or raises a ClientError.

ClientError
├── InvalidUrl             the URL of the service cannot be used
├── Unreachable            no response after all retries
├── TimedOut               timeout of the caller; the operation continues and can be awaited later
├── ServiceProblem         error response: code, findings with paths and remedies
│   └── OperationFailed    the operation failed
└── OperationCancelled     the operation was cancelled; `best` is its best result so far, or None
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

import anyio
import httpx2
import msgspec

from app.errors import BadUsage
from graph.errors import Finding

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
MAX_RETRY_AFTER_S = 600.0  # a longer Retry-After is raised as an error
#: Temporary errors of the service or of a proxy in front of it.
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
#: Errors that a retry cannot correct.
PERMANENT_ERRORS = (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)

Parameters = list[tuple[str, str | int | float | bool | None]]


class ClientError(Exception):
    """Root of the exceptions of a client."""


class InvalidUrl(ClientError, BadUsage):
    """The URL of the service has another scheme than HTTP, no host, or a wrong port."""


class Unreachable(ClientError):
    """No response after all retries."""


class TimedOut(ClientError):
    """Timeout of the caller. `operation` is the id of the operation that continues; None if none was started."""

    def __init__(self, message: str, operation: str | None = None):
        self.operation = operation
        super().__init__(message)


class ServiceProblem(ClientError):
    """Problem object of the service: `status`, `code`, `title`, `detail`, `findings`, `limit`."""

    def __init__(self, problem: Mapping[str, Any]):
        self.problem = dict(problem)
        self.status = int(problem.get("status") or 0)
        self.code = str(problem.get("code") or "")
        self.title, self.detail = str(problem.get("title") or ""), str(problem.get("detail") or "")
        self.limit = problem.get("limit")
        self.findings = tuple(
            Finding(**{name: str(error.get(name, "")) for name in ("code", "path", "found", "expected", "remedy")})
            for error in problem.get("errors") or ()
        )
        details = "\n".join(map(str, self.findings)) or self.detail
        super().__init__(f"{self.status} {self.code}: {self.title}\n{details}")


class OperationFailed(ServiceProblem):
    """The operation failed. `operation` is its id."""

    def __init__(self, problem: Mapping[str, Any], operation: str):
        self.operation = operation
        super().__init__(problem)


class OperationCancelled(ClientError):
    """The operation was cancelled; `best` is its best result so far (the report, for a plan), or None."""

    def __init__(self, operation: str, best: Any):
        self.operation, self.best = operation, best
        remark = "" if best is None else "; its best result is in .best"
        super().__init__(f"operation {operation} was cancelled{remark}")


def checked_url(given: str, source: str) -> str:
    """The URL of a service as it was given in `source`. Raises InvalidUrl."""
    scheme, _, place = given.rpartition("://")
    try:
        parts = urlsplit(given)
        fault = "" if parts.hostname else "no host"
        _ = parts.port, httpx2.URL(given)
    except (ValueError, httpx2.InvalidURL) as error:
        fault = str(error)
    remedy = f"{fault}; give a URL such as http://127.0.0.1:8000"
    if scheme.lower() not in ("http", "https"):
        fault, remedy = "scheme", f"expected a URL; did you mean http://{place}?"
    if fault:
        raise InvalidUrl(f"{source}: found {given}, {remedy}", code="invalid_url")
    return given


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One HTTP request."""

    method: str
    path: str
    parameters: Parameters = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    seconds: float = 0.0  # added to the read timeout: the wait that the request allows the service

    def build(self, http: httpx2.Client | httpx2.AsyncClient, timeout: float) -> httpx2.Request:
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
    """Sends calls and pauses. Coroutines of a blocking transport never suspend."""

    async def send(self, call: HttpCall) -> HttpResponse: ...

    def stream(self, call: HttpCall) -> Any:
        """Async context manager: (response without its body, async iterator of events)."""

    async def pause(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


class BlockingTransport:
    """Transport over a blocking HTTP client; its coroutines never suspend."""

    def __init__(self, http: httpx2.Client, timeout: float):
        self.http, self.timeout = http, timeout

    async def send(self, call: HttpCall) -> HttpResponse:
        response = self.http.send(call.build(self.http, self.timeout))
        return HttpResponse(response.status_code, response.headers, response.content)

    @asynccontextmanager
    async def stream(self, call: HttpCall) -> AsyncIterator[tuple[HttpResponse, AsyncIterator[httpx2.ServerSentEvent]]]:
        response = self.http.send(call.build(self.http, self.timeout), stream=True)
        try:
            body = b"" if response.status_code == 200 else response.read()
            yield HttpResponse(response.status_code, response.headers, body), _as_async(httpx2.EventSource(response))
        finally:
            response.close()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        self.http.close()


async def _as_async(events: httpx2.EventSource) -> AsyncIterator[httpx2.ServerSentEvent]:
    for event in events:
        yield event


class AsyncTransport:
    """Transport over an async HTTP client."""

    def __init__(self, http: httpx2.AsyncClient, timeout: float):
        self.http, self.timeout = http, timeout

    async def send(self, call: HttpCall) -> HttpResponse:
        response = await self.http.send(call.build(self.http, self.timeout))
        return HttpResponse(response.status_code, response.headers, response.content)

    @asynccontextmanager
    async def stream(self, call: HttpCall) -> AsyncIterator[tuple[HttpResponse, AsyncIterator[httpx2.ServerSentEvent]]]:
        response = await self.http.send(call.build(self.http, self.timeout), stream=True)
        try:
            body = b"" if response.status_code == 200 else await response.aread()
            yield HttpResponse(response.status_code, response.headers, body), aiter(httpx2.EventSource(response))
        finally:
            await response.aclose()

    async def pause(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def close(self) -> None:
        await self.http.aclose()


class Deadline:
    """Deadline of the caller; None: no limit."""

    def __init__(self, seconds: float | None):
        self._until = None if seconds is None else time.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds until the deadline, negative after it; infinite without one."""
        return float("inf") if self._until is None else self._until - time.monotonic()


class Retries:
    """Exponential backoff with jitter, at least the server's Retry-After."""

    def __init__(self, limit: int, deadline: Deadline):
        self.limit, self.deadline = limit, deadline
        self.tries = 0

    def reset(self) -> None:
        self.tries = 0

    def pause(self, minimum: float | None = None) -> float | None:
        """Seconds until the next try, at least `minimum`; None if no try is left."""
        if self.tries >= self.limit:
            return None
        seconds = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**self.tries) * random.uniform(0.5, 1.0)
        self.tries += 1
        if minimum is not None:
            seconds = minimum + seconds / 10  # jitter spreads the retries of many clients
        return seconds if seconds < min(self.deadline.remaining(), MAX_RETRY_AFTER_S) else None


async def send_with_retries(wire: Transport, call: HttpCall, retries: Retries) -> HttpResponse:
    """The successful response. Raises ServiceProblem, Unreachable. The call must be idempotent."""
    while True:
        try:
            response = await wire.send(call)
        except PERMANENT_ERRORS as error:
            raise Unreachable(f"{call.method} {call.path}: {error}") from error
        except httpx2.TransportError as error:
            pause = retries.pause()
            if pause is None:
                raise unreachable_error(call, retries, error) from error
        else:
            if response.status < 400:
                return response
            pause = retries.pause(retry_after(response.headers)) if response.status in RETRYABLE_STATUSES else None
            if pause is None:
                raise service_problem(response)
        await wire.pause(pause)


def unreachable_error(call: HttpCall, retries: Retries, error: httpx2.TransportError) -> Unreachable:
    tries = "1 try" if not retries.tries else f"{retries.tries + 1} tries"
    message = f"{call.method} {call.path}: no response in {tries}; last error: {str(error) or type(error).__name__}"
    with suppress(RuntimeError):  # an error without its request
        url = error.request.url.copy_with(userinfo=b"", path="/", query=None)
        message += f"; check that the service runs at {str(url).rstrip('/')}"
    return Unreachable(message)


def service_problem(response: HttpResponse) -> ServiceProblem:
    """The problem object of an error response; a generic one for a response of a proxy."""
    try:
        problem = response.json()
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = None
    if not isinstance(problem, Mapping) or "code" not in problem:
        text = response.body[:200].decode(errors="replace")
        problem = {"code": "no_problem", "title": "Response without a problem object", "detail": text}
    return ServiceProblem({"status": response.status, **problem})


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of the `Retry-After` header, a number or a date; None without a valid one."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
