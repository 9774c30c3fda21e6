"""Who waits for operations is woken when something happens to them, in whichever process that is."""

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

POLL_S = 0.05  # between two looks; one query for all who wait
Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class OperationWatcher:
    """One thread that looks at the store while anybody waits; safe to use from many event loops."""

    def __init__(self, store: Store):
        self._store = store
        self._lock = threading.RLock()  # a signal handler may wake all in the middle of anything
        self._waiting: dict[str, set[Waiter]] = {}
        self._seen: dict[str, int] = {}
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def subscribe(self, id: str) -> Iterator[asyncio.Event]:
        """An event of this loop that is set whenever something happens to the operation, and now and then otherwise."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.setdefault(id, set()).add(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
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
        """Wake those who wait for these, or for any when none is named."""
        with self._lock:
            entries = [entry for id in ids or self._waiting for entry in self._waiting.get(id, ())]
        for loop, event in entries:
            with contextlib.suppress(RuntimeError):  # that loop has closed
                loop.call_soon_threadsafe(event.set)

    def _look(self) -> None:
        while True:
            time.sleep(POLL_S)
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                ids = list(self._waiting)
            try:
                latest = repository.last_event_ids(self._store, ids)
            except Exception as error:  # the store is away for a while
                log.log(
                    logging.DEBUG if isinstance(error, AppError) else logging.ERROR, "event=not_seen", exc_info=error
                )
                continue
            with self._lock:
                news = [id for id, last in latest.items() if self._seen.get(id) != last and id in self._waiting]
                self._seen.update({id: latest[id] for id in news})
            if news:
                self.notify(*news)


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event was set within `seconds`; it is cleared."""
    try:
        await asyncio.wait_for(event.wait(), max(0.0, seconds))
    except TimeoutError:
        return False
    event.clear()
    return True
