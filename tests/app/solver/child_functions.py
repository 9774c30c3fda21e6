"""Functions that a child runs instead of a task. They stand by themselves because every such child imports this."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from app.solver.child_tasks import TASKS, SendMessage
from app.solver.child_tasks import main as real_main

GIB = 1 << 30


def sleeps(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> str:
    time.sleep(60)
    return "late"


def heeds(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> str:
    return "best so far" if stop.wait(60) else "late"


def dies(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def reserves(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> int:
    """As the stacks of threads: addresses that nobody writes to."""
    with mmap.mmap(-1, payload["mib"] * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as reserved:
        return len(reserved)


def devours(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> int:
    return len(bytearray(2 * GIB))


def fills(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> int:
    """Less than the addresses that a child may have; filled, and held for a while."""
    filled = bytearray(b"x") * (payload["mib"] * 2**20)
    stop.wait(payload["held_s"])
    return len(filled)


def nests(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> Any:
    return nests(payload, tell, stop)


def calls(payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> Any:
    """What the children below run: the function of this module that the payload names."""
    return globals()[payload["name"]](payload, tell, stop)


def main(pipe: Any, task: str, memory_bytes: int) -> None:
    """The child's entry point with one more task: the function of this module that the payload names."""
    TASKS["here"] = calls
    real_main(pipe, task, memory_bytes)
