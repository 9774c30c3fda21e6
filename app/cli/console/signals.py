"""Stop event set by the first SIGINT or SIGTERM; the second signal ends the process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_STOPPED = 3  # exit code; the best plan so far is written


@contextlib.contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Event set by the first signal; previous handlers are restored on exit. Outside the main thread: never set."""
    stop = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(EXIT_STOPPED)
        stop.set()
        # os.write is reentrant; print is not.
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, b"\nstopping; the best plan so far will be kept\n")

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
