"""An event that the first SIGINT or SIGTERM sets; the second ends the process at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_STOPPED = 3  # exit code: the best so far is written


@contextlib.contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Set once somebody asks the process to stop; the handlers before are put back at the end."""
    stop = threading.Event()

    def asked(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(EXIT_STOPPED)
        stop.set()
        # os.write: a handler may run in the middle of a print.
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, b"\nstopping; the best plan so far will be kept\n")

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
