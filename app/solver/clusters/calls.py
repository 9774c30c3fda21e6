"""Calls on a cluster, seen from the process that submits them: a future, messages, a stop, and lost workers."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from app.catalogue import versions
from app.errors import ClusterLost, ProblemDetails, SolveFailed
from app.solver.clusters import remote
from app.solver.clusters.interface import Cluster, Message

log = logging.getLogger(__name__)

POLL_S = 0.2  # between looks at messages and stop requests
LOST_S = 30.0  # without an answer of the cluster until its calls have failed

OnMessage = Callable[[Message], None]


class Call:
    """One call. `future` runs once a worker has begun; its errors are those of `app.errors`."""

    def __init__(self, on_message: OnMessage, stop: threading.Event, retries: int):
        self.id = secrets.token_hex(8)
        self.future: Future[Any] = Future()
        self.submitted: Future[Any] = Future()
        self.on_message, self.stop, self.retries = on_message, stop, retries
        self.starts = 0
        self.is_told = False  # of the stop

    def abandon(self) -> None:
        """End the call on the cluster, where a call can be ended; its result is not wanted."""
        self.submitted.cancel()


class ClusterCalls:
    """Calls on one cluster; a thread delivers their messages. Thread-safe."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self._calls: dict[str, Call] = {}
        self._answers: deque[tuple[Call, dict[str, Any]]] = deque()  # of calls whose last messages are to be taken
        self._lock, self._closed, self._woken = threading.Lock(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._deliver, name="cluster", daemon=True)
        self._thread.start()

    def start(
        self,
        work: Callable[..., Any],
        arguments: Sequence[Any],
        on_message: OnMessage,
        stop: threading.Event,
        retries: int = 0,
    ) -> Call:
        """Call `work(*arguments, send, stop)` on a worker; it is called once more for each of `retries` lost workers.

        The future raises SolveFailed (`child_died`) after the last one, ClusterLost, or ProblemDetails.
        """
        call = Call(on_message, stop, retries)
        with self._lock:
            self._calls[call.id] = call
        given = work, tuple(arguments), call.id, self.cluster.mailbox, versions()
        try:
            call.submitted = self.cluster.submit(remote.call, given, retries)
        except Exception as error:
            self._fail(call, self.cluster.explain(error))
            return call
        call.future.add_done_callback(lambda future: self._cancel(call) if future.cancelled() else None)
        call.submitted.add_done_callback(lambda done: self._complete(call, done))
        return call

    def close(self) -> None:
        """Disconnect; calls that have not ended fail."""
        self._closed.set()
        self._woken.set()
        self._thread.join()
        self._fail_all("the connection was closed")
        self.cluster.close()

    def _deliver(self) -> None:
        answered = time.monotonic()
        while not self._closed.is_set():
            self._woken.wait(POLL_S)
            self._woken.clear()
            answers = [self._answers.popleft() for _ in range(len(self._answers))]
            with self._lock:
                calls = list(self._calls.values())
            if not calls:
                answered = time.monotonic()
                continue
            try:
                self._exchange(calls)
                answered = time.monotonic()
            except Exception as error:  # of Dask, of Ray or of a socket
                log.debug("cluster=%s event=no_answer error=%r", self.cluster.address, str(error))
                if time.monotonic() > answered + LOST_S:
                    self._fail_all(f"no answer for {LOST_S:g} s")
            for call, answer in answers:
                self._succeed(call, answer)

    def _exchange(self, calls: Sequence[Call]) -> None:
        for call in calls:
            if call.stop.is_set() and call.future.running() and not call.is_told:
                self.cluster.request_stop(call.id)
                call.is_told = True
        for id, messages in self.cluster.take():
            for message in messages:
                with self._lock:
                    receiver = self._calls.get(id)
                if receiver is not None:
                    self._receive(receiver, message)

    def _receive(self, call: Call, message: Message) -> None:
        if "started" not in message:
            call.on_message(message)
            return
        call.starts += 1
        if call.starts == 1:
            call.future.set_running_or_notify_cancel()  # one that has just been cancelled is no longer in the list
        elif call.starts > call.retries + 1:  # Dask repeats the calls of a lost worker by itself
            why = "the cluster's worker died; retry, or reduce the model size"
            self._fail(call, SolveFailed(why, code="child_died"))
            call.abandon()

    def _pop(self, call: Call) -> bool:
        """Whether the call had not ended; it has now."""
        with self._lock:
            return self._calls.pop(call.id, None) is not None

    def _cancel(self, call: Call) -> None:
        if self._pop(call):
            call.abandon()

    def _fail(self, call: Call, error: BaseException) -> None:
        if self._pop(call) and (call.future.running() or call.future.set_running_or_notify_cancel()):
            call.future.set_exception(error)

    def _fail_all(self, why: str) -> None:
        with self._lock:
            calls = list(self._calls.values())
        for call in calls:
            self._fail(call, self._lost(why))

    def _lost(self, why: str) -> ClusterLost:
        return ClusterLost(f"the cluster at {self.cluster.address} went away ({why})")

    def _complete(self, call: Call, done: Future[Any]) -> None:
        error = CancelledError() if done.cancelled() else done.exception()
        if isinstance(error, CancelledError):
            return self._fail(call, self._lost("its calls were cancelled"))
        if error is not None:
            return self._fail(call, self.cluster.explain(error))
        answer = done.result()
        if "problem" in answer:
            return self._fail(call, ProblemDetails(answer["problem"]))
        self._answers.append((call, answer))
        self._woken.set()
        return None

    def _succeed(self, call: Call, answer: dict[str, Any]) -> None:
        if self._pop(call) and (call.future.running() or call.future.set_running_or_notify_cancel()):
            try:
                for message in answer["messages"]:
                    if "started" not in message:
                        call.on_message(message)
            except Exception:  # of the receiver; the result is kept
                log.exception("call=%s event=message_failed", call.id)
            call.future.set_result(answer["value"])
