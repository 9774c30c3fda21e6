"""An operation that has not finished, with its events and those who wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from app.jobs.port import Event, Operation

MOST_EVENTS = 1_000  # kept for who comes back; older ones are gone, the newest state is not


class Live:
    """Changed by one worker thread, watched from the event loop."""

    def __init__(self, operation: Operation):
        self.operation = operation
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._watchers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def happened(self, name: str, data: Mapping[str, Any]) -> None:
        """Add an event and wake everybody who watches."""
        with self.lock:
            self.operation.last_event += 1
            self._events.append(Event(self.operation.last_event, name, data))
        self.wake()

    def finish(self, operation: Operation) -> None:
        """Make `operation` the last state, in one step with its event: who sees the one sees the other."""
        with self.lock:
            self.operation = operation
            self._events.append(Event(operation.last_event, "state", operation.wire()))
        self.wake()

    def wake(self) -> None:
        with self.lock:
            watchers = tuple(self._watchers)
        for loop, event in watchers:
            with contextlib.suppress(RuntimeError):  # that loop has closed
                loop.call_soon_threadsafe(event.set)

    def since(self, after: int) -> list[Event]:
        """Events with ids above `after`, as far as they are kept."""
        with self.lock:
            return [event for event in self._events if event.id > after]

    @contextlib.contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        """An event of this loop that is set whenever something happens."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self.lock:
            self._watchers.add(entry)
        try:
            yield entry[1]
        finally:
            with self.lock:
                self._watchers.discard(entry)


async def woken(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event was set within `seconds`; it is cleared."""
    try:
        await asyncio.wait_for(event.wait(), max(0.0, seconds))
    except TimeoutError:
        return False
    event.clear()
    return True
