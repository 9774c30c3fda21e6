"""Every model is worked on in a child process that can be stopped, limited and killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from app.errors import ProblemDetails, SolveFailed
from app.solver import child_tasks
from app.telemetry import metrics
from graph.cancellation import CancellationError

POLL_S = 0.1  # between two looks whether to stop
#: Stages at which there is no plan yet, unless an incumbent was told of before.
NO_PLAN_STAGES = frozenset({"read", "differentiate", "plan"})
NO_PLAN_GRACE_S = 0.5  # given to a child that is stopped at one of these
OnProgress = Callable[[Mapping[str, Any]], None]

# forkserver: children of a process that has imported everything and serves nobody; 20-40 ms each.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["__main__", f"{__package__}.preload"])


@dataclass(frozen=True, slots=True)
class ChildResult:
    """What a child gave back, and whether it was hurried by its deadline."""

    result: Any
    hit_deadline: bool


@dataclass(frozen=True, slots=True)
class Runner:
    """Starts children; safe to use from many threads."""

    memory_bytes: int
    kill_seconds: float

    def run(
        self,
        task: str,
        payload: Mapping[str, Any],
        seconds: float,
        on_progress: OnProgress | None = None,
        stop: threading.Event | None = None,
    ) -> ChildResult:
        """Result of one task of `child_tasks`. Blocks. Raises Problem, or SolveFailed when the child ends without one.

        At the deadline, or once `stop` is set, the child is asked for its best so far, and killed when that takes
        longer than `kill_seconds`; where `stop` found it without a plan, than `NO_PLAN_GRACE_S`. Raises Stopped where
        it ends without one.
        """
        with metrics.measure_child(task) as at:

            def progressed(told: Mapping[str, Any]) -> None:
                at(str(told["stage"]))
                if on_progress is not None:
                    on_progress(told)

            return self._run(task, payload, seconds, progressed, stop or threading.Event())

    def _run(
        self, task: str, payload: Mapping[str, Any], seconds: float, on_progress: OnProgress, stop: threading.Event
    ) -> ChildResult:
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=child_tasks.main, args=(theirs, task, self.memory_bytes), daemon=True)
        try:
            process.start()
        except (OSError, EOFError) as error:  # the process that children are forked from has just died
            ours.close()
            raise SolveFailed(f"no child process was started ({error!r}); ask again", code="child_died") from error
        finally:
            theirs.close()
        try:
            _send(ours, msgspec.msgpack.encode(payload))
            return self._follow(ours, process, time.monotonic() + seconds, on_progress, stop)
        finally:
            process.kill()
            process.join()
            process.close()
            ours.close()

    def _follow(
        self, pipe: Connection, process: BaseProcess, deadline: float, on_progress: OnProgress, stop: threading.Event
    ) -> ChildResult:
        asked_at: float | None = None
        has_plan = is_empty = False
        heard = select.poll()  # of the pipe alone, which `pipe.poll` would set up anew each time
        heard.register(pipe, select.POLLIN)
        while True:
            if heard.poll(1000 * POLL_S):
                message = _received(pipe, process)
                if "problem" in message:
                    if message["problem"]["code"] == "stopped":
                        raise _stopped(stop)
                    raise ProblemDetails(message["problem"])
                if "result" in message:
                    return ChildResult(message["result"], asked_at is not None and not stop.is_set())
                told = message["progress"]
                on_progress(told)
                has_plan |= told["incumbent_peak_bytes"] is not None
                is_empty = not has_plan and told["stage"] in NO_PLAN_STAGES
            now = time.monotonic()
            if asked_at is None and (stop.is_set() or now > deadline):
                asked_at = now
                _send(pipe, b"stop")
            if asked_at is not None and stop.is_set() and is_empty and now > asked_at + NO_PLAN_GRACE_S:
                raise CancellationError
            if asked_at is not None and now > asked_at + self.kill_seconds:
                raise SolveFailed(
                    f"nothing came within {self.kill_seconds:g} s after the stop, so the process was killed; "
                    "ask for less search time or a smaller model",
                    code="killed",
                )


def _stopped(stop: threading.Event) -> CancellationError | SolveFailed:
    """What a child that ended without a plan is: stopped, or at its deadline too slow."""
    if stop.is_set():
        return CancellationError()
    return SolveFailed("there was no plan when its time was over; send a smaller model", code="killed")


def _send(pipe: Connection, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the child has gone; reading says how
        pipe.send_bytes(data)


def _received(pipe: Connection, process: BaseProcess) -> dict[str, Any]:
    try:
        return msgspec.msgpack.decode(pipe.recv_bytes(), type=dict[str, Any])
    except (EOFError, OSError):
        process.join(POLL_S)
        raise SolveFailed(
            f"the child process ended by itself ({_ending(process.exitcode)}); ask again, or send a smaller model",
            code="child_died",
        ) from None


def _ending(exitcode: int | None) -> str:
    if exitcode is None:
        return "it closed its pipe"
    if exitcode < 0:
        return f"signal {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"
