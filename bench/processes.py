"""What runs below a process, as Linux tells it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children(pid: int) -> list[int]:
    """Of every thread of the process: a child is of the thread that started it."""
    found = []
    for told in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # that thread has ended
            found += [int(child) for child in told.read_text().split()]
    return found


def below(pid: int) -> list[int]:
    """Every process that the process has started, and those that they have."""
    return [found for child in children(pid) for found in (child, *below(child))]
