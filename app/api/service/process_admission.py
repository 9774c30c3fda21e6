"""Admission control of one process: concurrent requests, memory of bodies, child processes, and free memory.

Excess load is rejected with 429 and Retry-After before it uses memory, so that accepted requests complete.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from anyio import CapacityLimiter
from starlette.requests import Request

from app.errors import Busy, TooLarge
from app.settings import Settings
from app.telemetry import metrics
from graph.execution.free_memory import free_bytes

REQUEST_MEMORY = "remat.held"  # key of the ASGI scope
RETRY_SOON_S, RETRY_LATER_S = 1, 5  # Retry-After for short and long shortages
PARSER_THREADS = 2  # threads that parse; few, as each may hold the GIL
UNPACKER_THREADS = 2  # threads that decompress, so that bombs do not hold up bodies that are sent as they are
FREE_MEMORY_TTL_S = 0.2  # cache of the free memory


class Admission:
    """Counters and limits of one serving process. Thread-safe."""

    def __init__(self, settings: Settings, free: Callable[[], int] = free_bytes):
        self.settings, self._free = settings, free
        self.requests = self.bytes = 0
        self.streams: Counter[str] = Counter()  # event streams and waits of each tenant, which are no `requests`
        self.parsers = CapacityLimiter(PARSER_THREADS)
        self.unpackers = CapacityLimiter(UNPACKER_THREADS)
        self._lock = threading.Lock()
        self._seen = (float("-inf"), 0)

    def free_bytes(self) -> int:
        """Bytes of free memory, cached for FREE_MEMORY_TTL_S."""
        now = time.monotonic()
        if now - self._seen[0] > FREE_MEMORY_TTL_S:
            self._seen = now, self._free()
        return self._seen[1]

    def require_memory(self, more: int = 0) -> None:
        """Raises Busy unless REMAT_SPARE_BYTES remain free after taking `more` bytes."""
        spare = self.settings.spare_bytes
        if spare and self.free_bytes() - more < spare:
            raise busy_error("REMAT_SPARE_BYTES", spare, "free memory is low", RETRY_LATER_S)

    def require_request_slot(self) -> None:
        """Raises Busy if REMAT_REQUESTS requests are being processed."""
        if self.requests >= self.settings.requests:
            raise busy_error("REMAT_REQUESTS", self.settings.requests, f"{self.requests} requests are being processed")

    def take(self, more: int, own: int) -> None:
        """Count `more` bytes of a request that holds `own` bytes. Raises Busy, TooLarge."""
        limit = self.settings.bodies_bytes
        if own + more > limit:
            metrics.count_refused("REMAT_BODIES_BYTES")
            raise TooLarge(
                f"the request needs more than {limit:,} bytes, the limit for all bodies; "
                "send less, or raise REMAT_BODIES_BYTES",
                limit={"name": "REMAT_BODIES_BYTES", "value": limit},
            )
        self.require_memory(more)
        with self._lock:
            if self.bytes + more > limit:
                raise busy_error("REMAT_BODIES_BYTES", limit, f"bodies of {self.bytes:,} bytes are in memory")
            self.bytes += more

    def give(self, bytes: int) -> None:
        with self._lock:
            self.bytes -= bytes


def busy_error(setting: str, value: int, reason: str, seconds: int = RETRY_SOON_S) -> Busy:
    """The Busy error of a limit, counted."""
    metrics.count_refused(setting)
    headers = {"Retry-After": str(seconds)}
    detail = f"{reason}; retry in {seconds} s, or raise {setting}"
    return Busy(detail, limit={"name": setting, "value": value}, headers=headers)


class RequestMemory:
    """Memory held by one request, and its place among the streams once it waits."""

    def __init__(self, admission: Admission):
        self.admission, self.bytes = admission, 0
        self._streams_of: str | None = None

    def require_stream(self, tenant: str) -> None:
        """Count the request as a stream of the tenant from now on; "" without authentication. Raises Busy."""
        admission, settings = self.admission, self.admission.settings
        if admission.streams.total() >= settings.streams:
            raise busy_error("REMAT_STREAMS", settings.streams, f"{settings.streams} streams and waits are open")
        if tenant and admission.streams[tenant] >= settings.streams_per_key:
            limit = settings.streams_per_key
            raise busy_error("REMAT_STREAMS_PER_KEY", limit, f"{limit} streams and waits of this tenant are open")
        self._streams_of = tenant
        admission.streams[tenant] += 1
        admission.requests -= 1

    def end(self) -> None:
        """Give back everything at the end of the request."""
        self.give(self.bytes)
        if self._streams_of is not None:
            self.admission.requests += 1
            self.admission.streams[self._streams_of] -= 1
            self.admission.streams += Counter()  # drops zeros

    def take(self, more: int) -> None:
        """Raises Busy, TooLarge."""
        self.admission.take(more, self.bytes)
        self.bytes += more

    def give(self, bytes: int) -> None:
        self.bytes -= bytes
        self.admission.give(bytes)


def request_memory(request: Request) -> RequestMemory:
    """The memory counter of the request, set by `AdmissionMiddleware`."""
    memory: RequestMemory = request.scope[REQUEST_MEMORY]
    return memory


class SlotPool:
    """Slots with a bounded queue and a timeout, shared between owners. For one event loop.

    A free slot goes to the waiting owner that holds the fewest slots, then to the one that was served longest ago.
    """

    def __init__(self, slots: int, queue: int, seconds: float, setting: str):
        self.queue, self.seconds, self.setting = queue, seconds, setting
        self.waiting = 0
        self._free = slots
        self._held: Counter[str] = Counter()
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # of the owners that wait, served longest ago first

    @asynccontextmanager
    async def turn(self, owner: str = "") -> AsyncIterator[None]:
        """Hold a slot. Raises Busy if the queue, or half of it by this owner, is full, or after the timeout."""
        if self._free:
            self._free -= 1
            self._held[owner] += 1
        else:
            await self._wait(owner)
        try:
            yield
        finally:
            self._release(owner)

    async def _wait(self, owner: str) -> None:
        line = self._lines.get(owner, ())
        if self.waiting >= self.queue or (owner and len(line) >= max(1, self.queue // 2)):
            raise busy_error(self.setting, self.queue, f"{self.waiting} tasks are waiting")
        slot = asyncio.get_running_loop().create_future()
        self._lines.setdefault(owner, deque()).append(slot)
        self.waiting += 1
        try:
            async with asyncio.timeout(self.seconds):
                await slot
        except BaseException as error:
            if slot.done() and not slot.cancelled():  # the slot came together with the cancellation
                self._release(owner)
            elif slot in self._lines.get(owner, ()):
                self._leave(owner, slot)
            if not isinstance(error, TimeoutError):
                raise
            reason = f"no slot became free within {self.seconds:g} s"
            raise busy_error(self.setting, self.queue, reason, RETRY_LATER_S) from None

    def _release(self, owner: str) -> None:
        """Hand the slot of `owner` on."""
        self._held[owner] -= 1
        self._held += Counter()  # drops zeros
        while self._lines:
            next_owner = min(self._lines, key=lambda waiting: self._held[waiting])
            slot = self._lines[next_owner][0]
            self._leave(next_owner, slot)
            if slot.cancelled():
                continue
            if next_owner in self._lines:
                self._lines[next_owner] = self._lines.pop(next_owner)  # behind the others
            self._held[next_owner] += 1
            slot.set_result(None)
            return
        self._free += 1

    def _leave(self, owner: str, slot: asyncio.Future[None]) -> None:
        """Remove a waiting slot from the line of its owner."""
        self.waiting -= 1
        self._lines[owner].remove(slot)
        if not self._lines[owner]:
            del self._lines[owner]
