"""Calls on a cluster, seen from the process that submits them: a future, messages, a stop, and lost workers."""

from __future__ import annotations

import logging
import math
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
LATE_S = 10.0  # for messages and results to cross the network
#: Without a message of a worker that has begun a call until another gets it: a worker that cannot send any stops the
#: call itself before.
SILENT_S = remote.LOST_S + LOST_S
REMEDY = "retry, or reduce the model size"

OnMessage = Callable[[Message], None]


class Call:
    """One call. `future` runs once a worker has begun; its errors are those of `app.errors`."""

    def __init__(
        self,
        work: Callable[..., Any],
        arguments: Sequence[Any],
        on_message: OnMessage,
        stop: threading.Event,
        retries: int,
        seconds: float,
    ):
        self.work, self.arguments = work, tuple(arguments)
        self.on_message, self.stop, self.retries, self.seconds = on_message, stop, retries, seconds
        self.future: Future[Any] = Future()
        self.runs: set[str] = set()  # identities of those that began
        self.renew()

    def renew(self) -> None:
        """Take another identity, so that messages and results of the last submission are ignored."""
        self.id = secrets.token_hex(8)
        self.submitted: Future[Any] = Future()
        self.began: float | None = None  # since when a worker has it
        self.heard = time.monotonic()  # last message
        self.is_told = False  # of the stop

    def abandon(self) -> None:
        """End the call on the cluster, where a call can be ended; its result is not wanted."""
        self.submitted.cancel()


class ClusterCalls:
    """Calls on one cluster; a thread delivers their messages. Thread-safe."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self._calls: dict[str, Call] = {}  # those that have not ended, by their present identity
        self._answers: deque[tuple[str, dict[str, Any]]] = deque()  # of calls whose last messages are to be taken
        self._lock, self._closed, self._woken = threading.Lock(), threading.Event(), threading.Event()
        self._answered = self._attentive = time.monotonic()  # last answer; since when there is one every few seconds
        self._thread = threading.Thread(target=self._deliver, name="cluster", daemon=True)
        self._thread.start()

    def start(
        self,
        work: Callable[..., Any],
        arguments: Sequence[Any],
        on_message: OnMessage,
        stop: threading.Event,
        retries: int = 0,
        seconds: float = math.inf,
    ) -> Call:
        """Call `work(*arguments, send, stop)` on a worker; it is called once more for each of `retries` lost workers.

        A worker is lost when it dies, or when it has begun and sends no message for SILENT_S. The future raises
        SolveFailed: `child_died` after the last one, `killed` once a worker that still sends messages has the call for
        more than `seconds` and LATE_S, or a stopped call has lost its worker; ClusterLost, or ProblemDetails.
        """
        call = Call(work, arguments, on_message, stop, retries, seconds)
        call.future.add_done_callback(lambda future: self._cancel(call) if future.cancelled() else None)
        with self._lock:
            self._calls[call.id] = call
        self._submit(call)
        if self._closed.is_set():  # meanwhile
            self._fail(call.id, self._lost("the connection was closed"))
        return call

    def _submit(self, call: Call) -> None:
        id, retries = call.id, call.retries - len(call.runs)
        try:
            given = call.work, call.arguments, id, self.cluster.mailbox, versions()
            call.submitted = self.cluster.submit(remote.call, given, retries)
        except Exception as error:
            self._fail(id, self.cluster.explain(error))
        else:
            call.submitted.add_done_callback(lambda done: self._complete(id, done))

    def close(self) -> None:
        """Disconnect; calls that have not ended fail."""
        self._closed.set()
        self._woken.set()
        self._thread.join()
        self._fail_all("the connection was closed")
        self.cluster.close()

    def _deliver(self) -> None:
        while not self._closed.is_set():
            self._woken.wait(POLL_S)
            self._woken.clear()
            answers = [self._answers.popleft() for _ in range(len(self._answers))]
            with self._lock:
                calls = list(self._calls.values())
            if not calls:
                self._answered = time.monotonic()
                continue
            try:
                self._exchange(calls)
            except Exception as error:  # of Dask, of Ray or of a socket
                log.debug("cluster=%s event=no_answer error=%r", self.cluster.address, str(error))
                if time.monotonic() > self._answered + LOST_S:
                    self._fail_all(f"no answer for {LOST_S:g} s")
            for id, answer in answers:
                self._succeed(id, answer)

    def _exchange(self, calls: Sequence[Call]) -> None:
        for call in calls:
            if call.stop.is_set() and call.future.running() and not call.is_told:
                self.cluster.request_stop(call.id)
                call.is_told = True
        taken, now = self.cluster.take(), time.monotonic()
        if now > self._answered + LATE_S:
            self._attentive = now  # the cluster or this process stood still, no worker
        self._answered = now
        for id, messages in taken:
            self._receive(id, messages)
        for call in calls:
            self._end_if_late(call)

    def _receive(self, id: str, messages: Sequence[Message]) -> None:
        with self._lock:
            call = self._calls.get(id)
            if call is None:
                return
            call.heard = time.monotonic()
            if runs := {message["run"] for message in messages if "run" in message} - call.runs:
                call.began, call.runs = call.heard, call.runs | runs
            if not (call.future.running() or call.future.cancelled()):
                call.future.set_running_or_notify_cancel()
        self._tell(call, messages)
        if len(call.runs) > call.retries + 1:  # Dask repeats the calls of a lost worker by itself
            self._give_up(call, SolveFailed(f"the cluster's worker died; {REMEDY}", code="child_died"))

    def _tell(self, call: Call, messages: Sequence[Message]) -> None:
        try:
            for message in messages:
                if "run" not in message:
                    call.on_message(message)
        except Exception:  # of the receiver; other calls go on, and the result is kept
            log.exception("call=%s event=message_failed", call.id)

    def _end_if_late(self, call: Call) -> None:
        """Fail a call that takes too long, and give one of a silent worker to another, if it may be retried."""
        now, is_stopped = time.monotonic(), call.stop.is_set()
        if call.submitted.done():
            return
        if call.began is None:
            if call.runs and is_stopped:
                self._give_up(call, SolveFailed("stopped after the cluster's worker was lost", code="killed"))
        elif call.heard > max(call.began + call.seconds, self._attentive) + LATE_S:
            why = f"the cluster's worker did not return within {call.seconds:g} s"
            self._give_up(call, SolveFailed(f"{why}; reduce search_seconds or the model size", code="killed"))
        elif now > max(call.heard, self._attentive) + SILENT_S:
            if len(call.runs) <= call.retries and not is_stopped:
                self._resubmit(call)
            else:
                why = f"the cluster's worker was silent for {SILENT_S:g} s; {REMEDY}"
                self._give_up(call, SolveFailed(why, code="killed" if is_stopped else "child_died"), is_silent=True)

    def _resubmit(self, call: Call) -> None:
        """Submit the call once more. What the silent worker has is not cancelled: it would get other calls instead."""
        silent = call.id
        with self._lock:
            if self._calls.pop(silent, None) is None:
                return
            call.renew()
            self._calls[call.id] = call
        self._submit(call)
        self._stop_worker(silent)

    def _give_up(self, call: Call, error: SolveFailed, is_silent: bool = False) -> None:
        """Fail the call, and end it on the cluster; what a silent worker has is not cancelled, as in `_resubmit`."""
        self._fail(call.id, error)
        if not is_silent:
            call.abandon()
        self._stop_worker(call.id)

    def _stop_worker(self, id: str) -> None:
        """Request a stop of what may still run of a call that has ended or was submitted once more."""
        try:
            self.cluster.request_stop(id)
        except Exception as error:  # of Dask, of Ray or of a socket
            log.debug("call=%s event=stop_failed error=%r", id, str(error))

    def _pop(self, id: str) -> Call | None:
        """The call, which has ended now; None if it had before."""
        with self._lock:
            call = self._calls.pop(id, None)
        if call is not None:
            call.arguments = ()  # large, and in a cycle with the future
        return call

    def _cancel(self, call: Call) -> None:
        self._pop(call.id)
        call.abandon()

    def _end(self, id: str) -> Call | None:
        """As `_pop`, for a call that is to get its result or its error."""
        call = self._pop(id)
        if call is None or call.future.cancelled():
            return None
        return call if call.future.running() or call.future.set_running_or_notify_cancel() else None

    def _fail(self, id: str, error: BaseException) -> None:
        if (call := self._end(id)) is not None:
            call.future.set_exception(error)

    def _fail_all(self, why: str) -> None:
        with self._lock:
            ids = list(self._calls)
        for id in ids:
            self._fail(id, self._lost(why))

    def _lost(self, why: str) -> ClusterLost:
        return ClusterLost(f"the cluster at {self.cluster.address} went away ({why})")

    def _complete(self, id: str, done: Future[Any]) -> None:
        error = CancelledError() if done.cancelled() else done.exception()
        if isinstance(error, CancelledError):
            return self._fail(id, self._lost("its calls were cancelled"))
        if error is not None:
            return self._fail(id, self.cluster.explain(error))
        answer = done.result()
        if "problem" in answer:
            return self._fail(id, ProblemDetails(answer["problem"]))
        self._answers.append((id, answer))
        self._woken.set()
        return None

    def _succeed(self, id: str, answer: dict[str, Any]) -> None:
        if (call := self._end(id)) is not None:
            self._tell(call, answer["messages"])
            call.future.set_result(answer["value"])
