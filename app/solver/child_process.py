"""Parent side: run a task of `child_tasks` in a child process with memory limit, deadline and cancellation."""

from __future__ import annotations

import contextlib
import resource
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import msgspec

from app.errors import ProblemDetails, SolveFailed
from app.solver import child_tasks
from app.solver.forkserver import CONTEXT, start_forkserver
from app.telemetry import metrics
from graph.cancellation import CancellationError

POLL_S = 0.1  # between checks for stop, deadline and memory in use
#: Stages without a plan, unless an incumbent was reported before.
NO_PLAN_STAGES = frozenset({"read", "differentiate", "plan", "compile"})
NO_PLAN_GRACE_S = 0.5  # time for a child that is stopped in one of these stages to end
OnProgress = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class ChildResult:
    """Result of a child, and whether the deadline cut its search short."""

    result: Any
    hit_deadline: bool


class TaskRunner(Protocol):
    """Runs tasks of `child_tasks` in other processes; thread-safe."""

    def run(
        self,
        task: str,
        payload: Mapping[str, Any],
        seconds: float,
        on_progress: OnProgress | None = None,
        stop: threading.Event | None = None,
    ) -> ChildResult:
        """Result of one task, as `Runner.run` describes."""
        ...


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs child processes; thread-safe."""

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
        """Result of one task of `child_tasks`. Blocks. Raises ProblemDetails, or SolveFailed if the child crashes.

        A child that uses more than `memory_bytes` beyond what it began with is killed (`out_of_memory`). Python code
        that requests SPARE_ADDRESSES more at once gets the same answer; native code may end the child instead.

        At the deadline, or once `stop` is set, the child is requested to return its best plan. It is killed after
        `kill_seconds`, or after NO_PLAN_GRACE_S if `stop` was set before a plan was found. Raises CancellationError
        if `stop` was set and the child ends without a plan.
        """
        with metrics.measure_child(task) as at:

            def progressed(progress: Mapping[str, Any]) -> None:
                at(str(progress["stage"]))
                if on_progress is not None:
                    on_progress(progress)

            return self._run(task, payload, seconds, progressed, stop or threading.Event())

    def _run(
        self, task: str, payload: Mapping[str, Any], seconds: float, on_progress: OnProgress, stop: threading.Event
    ) -> ChildResult:
        parent_end, child_end = CONTEXT.Pipe()
        process = CONTEXT.Process(target=child_tasks.main, args=(child_end, task, self.memory_bytes), daemon=True)
        start_forkserver()
        try:
            process.start()
        except (OSError, EOFError) as error:  # the forkserver has just died
            parent_end.close()
            raise SolveFailed(f"cannot start a child process ({error!r}); retry", code="child_died") from error
        finally:
            child_end.close()
        try:
            memory_limit = _bytes_in_use(process.pid) + self.memory_bytes
            _send(parent_end, msgspec.msgpack.encode(payload))
            return self._follow(parent_end, process, time.monotonic() + seconds, memory_limit, on_progress, stop)
        finally:
            process.kill()
            process.join()
            process.close()
            parent_end.close()

    def _follow(
        self,
        pipe: Connection,
        process: BaseProcess,
        deadline: float,
        memory_limit: int,
        on_progress: OnProgress,
        stop: threading.Event,
    ) -> ChildResult:
        stopped_at: float | None = None
        has_plan = no_plan = False
        poller = select.poll()  # reused; `pipe.poll` would create one per call
        poller.register(pipe, select.POLLIN)
        while True:
            if poller.poll(1000 * POLL_S):
                message = _receive(pipe, process)
                if "problem" in message:
                    if message["problem"]["code"] == "stopped":
                        raise _ended_without_plan(stop)
                    raise ProblemDetails(message["problem"])
                if "result" in message:
                    return ChildResult(message["result"], stopped_at is not None and not stop.is_set())
                progress = message["progress"]
                on_progress(progress)
                has_plan |= progress["incumbent_peak_bytes"] is not None
                no_plan = not has_plan and progress["stage"] in NO_PLAN_STAGES
            if _bytes_in_use(process.pid) > memory_limit:
                raise ProblemDetails(child_tasks.too_much_memory(self.memory_bytes))
            now = time.monotonic()
            if stopped_at is None and (stop.is_set() or now > deadline):
                stopped_at = now
                _send(pipe, b"stop")
            if stopped_at is not None and stop.is_set() and no_plan and now > stopped_at + NO_PLAN_GRACE_S:
                raise CancellationError
            if stopped_at is not None and now > stopped_at + self.kill_seconds:
                raise SolveFailed(
                    f"the child process did not return within {self.kill_seconds:g} s after the stop request and was "
                    "killed; reduce search_seconds or the model size",
                    code="killed",
                )


def _ended_without_plan(stop: threading.Event) -> CancellationError | SolveFailed:
    """Error of a child that ended without a plan: cancelled, or out of time."""
    if stop.is_set():
        return CancellationError()
    return SolveFailed("no plan was found before the deadline; reduce the model size", code="killed")


def _bytes_in_use(pid: int | None) -> int:
    """Resident memory of a process that is neither shared nor backed by a file; 0 once the process has ended."""
    try:
        with open(f"/proc/{pid}/statm") as statm:
            _, resident, of_files = statm.read().split()[:3]
    except OSError:
        return 0
    return (int(resident) - int(of_files)) * resource.getpagesize()


def _send(pipe: Connection, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the child has exited; `_receive` reports how
        pipe.send_bytes(data)


def _receive(pipe: Connection, process: BaseProcess) -> dict[str, Any]:
    try:
        return msgspec.msgpack.decode(pipe.recv_bytes(), type=dict[str, Any])
    except (EOFError, OSError):
        process.join(POLL_S)
        raise SolveFailed(
            f"the child process died ({_exit_description(process.exitcode)}); retry, or reduce the model size",
            code="child_died",
        ) from None


def _exit_description(exitcode: int | None) -> str:
    if exitcode is None:
        return "pipe closed"
    if exitcode < 0:
        return f"signal {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"
