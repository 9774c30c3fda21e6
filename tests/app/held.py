"""Children that wait or end where a test wants it. They stand by themselves because every such child imports this."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from app.solver.child_tasks import TASKS, SendMessage
from app.solver.child_tasks import main as real_main

#: Longer than any test: who waits so long was not stopped.
NEVER_S = 600.0


@dataclass(frozen=True, slots=True)
class Held:
    """Where a child waits: at the first progress of a stage, with an incumbent or without one."""

    stage: str
    improved: bool
    deaf: bool = False  # goes on waiting when it is told to stop

    def main(self, pipe: Connection, task: str, memory_bytes: int) -> None:
        """The child's entry point."""
        TASKS[task] = functools.partial(self.run, TASKS[task])
        real_main(pipe, task, memory_bytes)

    def run(self, task: Any, payload: Mapping[str, Any], tell: SendMessage, stop: threading.Event) -> Any:
        def told(message: Mapping[str, Any]) -> None:
            tell(message)
            progress = message["progress"]
            if progress["stage"] == self.stage and self.improved <= (progress["incumbent_peak_bytes"] is not None):
                if self.deaf:
                    time.sleep(NEVER_S)
                assert stop.wait(NEVER_S), "nobody said stop"

        return task(payload, told, stop)


def killed(begun: Path, times: int, pipe: Connection, task: str, memory_bytes: int) -> None:
    """The child's entry point; the first so many that read a graph are killed."""
    if task == "read":
        with begun.open("a") as file:
            file.write("x")
        if begun.stat().st_size <= times:
            os.kill(os.getpid(), signal.SIGKILL)
    real_main(pipe, task, memory_bytes)
