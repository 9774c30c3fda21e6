"""Run a task of `child_tasks` in this process: a daemon process, such as a worker of Dask, may have no children."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import ProblemDetails, SolveFailed
from app.solver import child_tasks
from app.solver.child_process import ChildResult, OnProgress, Runner, TaskRunner
from graph.cancellation import CancellationError

POLL_S = 0.1  # between looks at the stop


def runner_for_this_process(memory_bytes: int, kill_seconds: float) -> TaskRunner:
    """Runs tasks in children if this process may have some, else in itself; limits as of `Runner`."""
    if multiprocessing.current_process().daemon:
        return InProcessRunner(memory_bytes)
    return Runner(memory_bytes, kill_seconds)


@dataclass(frozen=True, slots=True)
class InProcessRunner:
    """Runs tasks in the calling thread. Nobody kills one that does not return, and memory is limited elsewhere."""

    memory_bytes: int  # that messages name

    def run(
        self,
        task: str,
        payload: Mapping[str, Any],
        seconds: float,
        on_progress: OnProgress | None = None,
        stop: threading.Event | None = None,
    ) -> ChildResult:
        """As `Runner.run`."""
        stop = stop or threading.Event()

        def send(message: Mapping[str, Any]) -> None:
            if on_progress is not None:
                on_progress(message["progress"])

        with stop_or_deadline(stop, seconds) as hurry:
            end = child_tasks.answer(task, payload, send, hurry, self.memory_bytes)
        if "problem" not in end:
            return ChildResult(end["result"], hurry.is_set() and not stop.is_set())
        if end["problem"]["code"] != "stopped":
            raise ProblemDetails(end["problem"])
        if stop.is_set():
            raise CancellationError
        raise SolveFailed("no plan was found before the deadline; reduce the model size", code="killed")


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
