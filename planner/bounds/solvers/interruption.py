"""OR-Tools solvers that can be interrupted."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

#: Seconds between two looks whether to end.
POLL_SECONDS = 0.02

T = TypeVar("T")


def interruptible(solve: Callable[[], T], interrupt: Callable[[], object], should_end: Callable[[], bool]) -> T:
    """The result of `solve`, which runs in a thread of its own and gets an `interrupt` once `should_end()`."""
    with ThreadPoolExecutor(1, "remat-solver") as threads:
        running = threads.submit(solve)
        try:
            while not wait([running], POLL_SECONDS).done:
                if should_end():
                    interrupt()
        except BaseException:
            interrupt()
            raise
        return running.result()
