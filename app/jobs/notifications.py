"""Wake-ups for waits and streams of operations, whichever process changes the operation."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterator

from app.errors import AppError
from app.jobs import repository
from app.store.store import Store

log = logging.getLogger(__name__)

POLL_S = 0.05  # between polls; one query for all waiters
Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class OperationWatcher:
    """One thread that polls the store while there are waiters; safe for several event loops."""

    def __init__(self, store: Store):
        self._store = store
        self._lock = threading.RLock()  # reentrant: a signal handler may call `notify` at any point
        self._waiting: dict[str, set[Waiter]] = {}
        self._seen: dict[str, int] = {}
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def subscribe(self, id: str) -> Iterator[asyncio.Event]:
        """An asyncio event that is set when the operation changes; spurious wake-ups are possible."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.setdefault(id, set()).add(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._poll, name="watch", daemon=True)
                self._thread.start()
        try:
            yield entry[1]
        finally:
            with self._lock:
                self._waiting[id].discard(entry)
                if not self._waiting[id]:
                    del self._waiting[id]
                    self._seen.pop(id, None)

    def notify(self, *ids: str) -> None:
        """Wake the waiters of these operations, or all waiters without arguments."""
        with self._lock:
            entries = [entry for id in ids or self._waiting for entry in self._waiting.get(id, ())]
        for loop, event in entries:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(event.set)

    def _poll(self) -> None:
        while True:
            time.sleep(POLL_S)
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                ids = list(self._waiting)
            try:
                latest = repository.last_event_ids(self._store, ids)
            except Exception as error:  # the store is temporarily unavailable
                level = logging.DEBUG if isinstance(error, AppError) else logging.ERROR
                log.log(level, "event=poll_failed", exc_info=error)
                continue
            with self._lock:
                changed = [id for id, last in latest.items() if self._seen.get(id) != last and id in self._waiting]
                self._seen.update({id: latest[id] for id in changed})
            if changed:
                self.notify(*changed)


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event was set within `seconds`; clears it."""
    try:
        await asyncio.wait_for(event.wait(), max(0.0, seconds))
    except TimeoutError:
        return False
    event.clear()
    return True
