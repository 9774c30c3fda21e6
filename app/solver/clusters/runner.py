"""Run the tasks of `child_tasks` on a cluster instead of on this machine, with the same results and errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from typing import Any

import msgspec

from app.errors import BadUsage, ClusterLost, ProblemDetails, SolveFailed
from app.solver.child_process import NO_PLAN_GRACE_S, ChildResult, OnProgress
from app.solver.clusters import remote
from app.solver.clusters.calls import LATE_S, Call, ClusterCalls
from app.solver.clusters.interface import Cluster, Message
from app.telemetry import metrics
from graph.cancellation import CancellationError

log = logging.getLogger(__name__)

POLL_S = 0.1  # between checks for stop and deadline
RETRY_S = 2.0  # between attempts to connect


class ClusterRunner:
    """Runs tasks on one cluster; thread-safe. A cluster that goes away is connected anew, and its tasks start again."""

    def __init__(self, connect: Callable[[], Cluster], memory_bytes: int, kill_seconds: float):
        """`memory_bytes` and `kill_seconds` as of `Runner`. Raises BadUsage if the cluster does not answer."""
        self.memory_bytes, self.kill_seconds = memory_bytes, kill_seconds
        self._connect = connect
        self._lock = threading.Lock()
        self._calls: ClusterCalls | None = ClusterCalls(connect())
        self.description = self._calls.cluster.description

    def run(
        self,
        task: str,
        payload: Mapping[str, Any],
        seconds: float,
        on_progress: OnProgress | None = None,
        stop: threading.Event | None = None,
    ) -> ChildResult:
        """As `Runner.run`. A dead worker of the cluster raises SolveFailed (`child_died`), as a dead child does.

        A cluster that is away for more than `seconds` raises ClusterLost.
        """
        request = {
            "task": task,
            "payload": msgspec.msgpack.encode(payload),
            "seconds": seconds,
            "memory_bytes": self.memory_bytes,
            "kill_seconds": self.kill_seconds,
        }
        stop = stop or threading.Event()
        with metrics.measure_child(task) as at:

            def received(message: Message) -> None:
                at(str(message["progress"]["stage"]))
                if on_progress is not None:
                    on_progress(message["progress"])

            until: float | None = None  # since the cluster was first lost
            while True:
                calls = self._connected(stop, until)
                try:
                    limit = seconds + self.kill_seconds
                    return self._follow(calls.start(remote.run_task, [request], received, stop, seconds=limit), stop)
                except ClusterLost as error:
                    log.warning("event=cluster_lost error=%r", str(error))
                    self._drop(calls)
                    until = until or time.monotonic() + seconds
                    if time.monotonic() > until:
                        raise

    def close(self) -> None:
        """Disconnect; the cluster goes on."""
        if self._calls is not None:
            self._drop(self._calls)

    def _follow(self, call: Call, stop: threading.Event) -> ChildResult:
        """The end of the call. The worker obeys the stop itself; one that does not is not waited for."""
        stopped: float | None = None
        while not call.future.done():
            wait([call.future], POLL_S)
            now = time.monotonic()
            stopped = stopped or (now if stop.is_set() else None)
            if stopped is not None and call.future.cancel():  # no worker has begun
                raise CancellationError
            if stopped is not None and now > stopped + self.kill_seconds + LATE_S + NO_PLAN_GRACE_S:
                if now < call.heard + LATE_S:  # else `calls` ends it
                    call.abandon()
                message = f"the cluster's worker did not return within {self.kill_seconds:g} s after the stop request"
                raise SolveFailed(f"{message}; reduce search_seconds or the model size", code="killed")
        return _result(call.future.result())

    def _connected(self, stop: threading.Event, until: float | None) -> ClusterCalls:
        """The connection, made anew if need be. Raises CancellationError once `stop` is set, ClusterLost `until`."""
        while True:
            with self._lock:
                if self._calls is not None:
                    return self._calls
                try:
                    self._calls = ClusterCalls(self._connect())
                    log.warning("event=cluster_connected address=%s", self._calls.cluster.address)
                    return self._calls
                except BadUsage as error:
                    reason = str(error)
            if until is not None and time.monotonic() > until:
                raise ClusterLost(reason)
            if stop.wait(RETRY_S):
                raise CancellationError

    def _drop(self, calls: ClusterCalls) -> None:
        with self._lock:
            if self._calls is not calls:
                return
            self._calls = None
        calls.close()


def _result(end: bytes) -> ChildResult:
    """The result in the answer of `remote.run_task`, or its error raised."""
    answer = msgspec.msgpack.decode(end)
    if "cancelled" in answer:
        raise CancellationError
    if "failed" in answer:
        raise SolveFailed(answer["failed"]["message"], code=answer["failed"]["code"])
    if "problem" in answer:
        raise ProblemDetails(answer["problem"])
    return ChildResult(answer["result"], answer["hit_deadline"])
