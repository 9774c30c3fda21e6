"""What a process takes on at a time: requests, bytes of bodies, children, and memory that has to stay free.

What is too much is refused with 429 and Retry-After before anything of it is kept: who is being served still is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from anyio import CapacityLimiter
from starlette.requests import Request

from app.api.service.free_memory import free_bytes
from app.errors import Busy, TooLarge
from app.settings import Settings
from app.telemetry import metrics

REQUEST_MEMORY = "remat.held"  # in the scope of a request
RETRY_SOON_S, RETRY_LATER_S = 1, 5  # Retry-After of what passes at once, and of what takes a while
PARSER_THREADS = 2  # threads that decompress and parse: each may hold the interpreter while others wait to be answered
FREE_MEMORY_TTL_S = 0.2  # free memory is asked for again after that


class Admission:
    """Counts of one serving process. Safe for many threads."""

    def __init__(self, settings: Settings, free: Callable[[], int] = free_bytes):
        self.settings, self._free = settings, free
        self.requests = self.bytes = 0
        self.parsers = CapacityLimiter(PARSER_THREADS)
        self._lock = threading.Lock()
        self._seen = (float("-inf"), 0)

    def free_bytes(self) -> int:
        """Memory that may still be taken, as of a moment ago."""
        now = time.monotonic()
        if now - self._seen[0] > FREE_MEMORY_TTL_S:
            self._seen = now, self._free()
        return self._seen[1]

    def require_memory(self, more: int = 0) -> None:
        """Raises Busy unless so many bytes can be taken and the spare ones are left."""
        spare = self.settings.spare_bytes
        if spare and self.free_bytes() - more < spare:
            raise busy_error("REMAT_SPARE_BYTES", spare, "memory runs low", RETRY_LATER_S)

    def require_request_slot(self) -> None:
        """Raises Busy when as many requests are being answered as may be."""
        if self.requests >= self.settings.requests:
            raise busy_error("REMAT_REQUESTS", self.settings.requests, f"{self.requests} requests are being answered")

    def take(self, more: int, own: int) -> None:
        """Count bytes of a body whose request holds `own` already. Raises Busy, TooLarge."""
        most = self.settings.bodies_bytes
        if own + more > most:
            metrics.count_refused("REMAT_BODIES_BYTES")
            said = f"the request needs more than the {most} bytes that all may hold"
            raise TooLarge(
                f"{said}; send less, or raise REMAT_BODIES_BYTES", limit={"name": "REMAT_BODIES_BYTES", "value": most}
            )
        self.require_memory(more)
        with self._lock:
            if self.bytes + more > most:
                raise busy_error("REMAT_BODIES_BYTES", most, f"bodies of {self.bytes} bytes are being read")
            self.bytes += more

    def give(self, bytes: int) -> None:
        with self._lock:
            self.bytes -= bytes


def busy_error(setting: str, value: int, said: str, seconds: int = RETRY_SOON_S) -> Busy:
    """The refusal for that limit, counted."""
    metrics.count_refused(setting)
    headers = {"Retry-After": str(seconds)}
    detail = f"{said}; ask again in {seconds} s, or raise {setting}"
    return Busy(detail, limit={"name": setting, "value": value}, headers=headers)


class RequestMemory:
    """Bytes in memory for one request."""

    def __init__(self, admission: Admission):
        self.admission, self.bytes = admission, 0

    def take(self, more: int) -> None:
        """Raises Busy, TooLarge."""
        self.admission.take(more, self.bytes)
        self.bytes += more

    def give(self, bytes: int) -> None:
        self.bytes -= bytes
        self.admission.give(bytes)


def request_memory(request: Request) -> RequestMemory:
    """What the request holds, counted by the door it came through."""
    held: RequestMemory = request.scope[REQUEST_MEMORY]
    return held


class SlotPool:
    """So many at a time, so many that wait, and none of those for ever."""

    def __init__(self, at_a_time: int, queue: int, seconds: float, setting: str):
        self.queue, self.seconds, self.setting = queue, seconds, setting
        self.waiting = 0
        self._free = asyncio.Semaphore(at_a_time)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises Busy when too many wait already, or when it takes too long."""
        if self._free.locked() and self.waiting >= self.queue:
            raise busy_error(self.setting, self.queue, f"{self.waiting} wait already")
        self.waiting += 1
        try:
            async with asyncio.timeout(self.seconds):
                await self._free.acquire()
        except TimeoutError:
            raise busy_error(
                self.setting, self.queue, f"no turn came within {self.seconds:g} s", RETRY_LATER_S
            ) from None
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._free.release()
