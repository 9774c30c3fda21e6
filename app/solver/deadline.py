"""A deadline for a task that runs in this process, where nobody else requests its best plan in time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

POLL_S = 0.1  # between looks at the stop


@contextlib.contextmanager
def stop_or_deadline(stop: threading.Event, seconds: float) -> Iterator[threading.Event]:
    """An event that is set soon after `stop` is, or after `seconds`."""
    hurry, ended = threading.Event(), threading.Event()

    def watch() -> None:
        until = time.monotonic() + seconds
        while not (stop.is_set() or time.monotonic() > until):
            if ended.wait(POLL_S):
                return
        hurry.set()

    threading.Thread(target=watch, name="deadline", daemon=True).start()
    try:
        yield hurry
    finally:
        ended.set()
