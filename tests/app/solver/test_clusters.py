"""Calls on a cluster that is threads of this process, with what it may do wrong."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.errors import BadUsage, ClusterLost, ProblemDetails, SolveFailed
from app.solver import child_tasks, in_process
from app.solver.child_process import ChildResult
from app.solver.clusters import calls, remote, runner
from app.solver.clusters.calls import ClusterCalls
from app.solver.clusters.connect import split_url
from app.solver.clusters.interface import Message, Post
from app.solver.clusters.runner import ClusterRunner
from graph.cancellation import CancellationError
from tests.app.clusters import until
from tests.app.solver.test_child_process import RUNNER, payload


@dataclass
class Box:
    """Mailbox, and what was said of the calls."""

    messages: list[tuple[str, Sequence[Message]]] = field(default_factory=list)
    stopped: set[str] = field(default_factory=set)

    def open(self, call: str) -> Post:
        def post(messages: Sequence[Message]) -> bool:
            self.messages.append((call, messages))
            return call in self.stopped

        return post


class Threads:
    """A cluster of threads. `acts` replaces what is submitted, if it is given."""

    address, description = "threads", "threads"

    def __init__(self, acts: Callable[[Box, str], Any] | None = None, slots: int = 2):
        self.mailbox, self.acts, self.slots = Box(), acts, slots
        self.executor, self.submitted, self.closed = ThreadPoolExecutor(slots), list[tuple[Any, ...]](), False

    def submit(self, work: Callable[..., Any], arguments: Sequence[Any], retries: int) -> Future[Any]:
        self.submitted.append(tuple(arguments))
        if self.acts is not None:
            return self.executor.submit(self.acts, self.mailbox, arguments[2])
        return self.executor.submit(work, *arguments)

    def take(self) -> Sequence[tuple[str, Sequence[Message]]]:
        taken, self.mailbox.messages = self.mailbox.messages, []
        return taken

    def request_stop(self, call: str) -> None:
        self.mailbox.stopped.add(call)

    def explain(self, error: BaseException) -> Exception:
        return error if isinstance(error, Exception) else SolveFailed(repr(error))

    def close(self) -> None:
        self.closed = True


def work(send: remote.Send, stop: threading.Event) -> str:
    send({"at": 1})
    return "stopped" if stop.wait(60) else "late"


def test_a_call_reports_and_is_stopped_while_it_runs() -> None:
    told: list[Message] = []
    stop, connected = threading.Event(), ClusterCalls(Threads())

    def heard(message: Message) -> None:
        told.append(message)
        stop.set()

    assert connected.start(work, (), heard, stop).future.result(30) == "stopped"
    assert told == [{"at": 1}]
    connected.close()


def test_a_call_that_begins_once_more_than_it_may_has_lost_its_worker() -> None:
    def act(box: Box, call: str) -> dict[str, Any]:
        box.messages += [(call, [{"run": "a"}]), (call, [{"run": "b"}])]
        return {"value": threading.Event().wait(4 * calls.POLL_S), "messages": []}

    connected = ClusterCalls(Threads(act))
    error = connected.start(work, (), print, threading.Event(), retries=0).future.exception(30)
    assert isinstance(error, SolveFailed) and error.code == "child_died"
    assert connected.start(work, (), print, threading.Event(), retries=1).future.result(30) is False
    connected.close()


class Reporting(Threads):
    """Its calls end once `ended` is set. Until then they report every tenth of a second; the first `silent` do not."""

    def __init__(self, silent: int = 0, slots: int = 2):
        super().__init__(self.act, slots)
        self.silent, self.ended, self.begun = silent, threading.Event(), list[str]()

    def act(self, box: Box, call: str) -> dict[str, Any]:
        self.begun.append(call)
        run = len(self.begun)
        box.messages.append((call, [{"run": call}]))
        while not self.ended.wait(0.1):
            if run > self.silent:
                box.messages.append((call, [{"run": call}]))
        return {"value": run, "messages": []}


def test_a_call_of_a_silent_worker_goes_to_another_and_what_the_first_says_later_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "SILENT_S", 1.0)
    monkeypatch.setattr(calls, "LATE_S", 0.5)  # a pause of this process that is longer counts against no worker
    cluster = Reporting(silent=1)
    connected = ClusterCalls(cluster)
    call = connected.start(work, (), print, threading.Event(), retries=1)
    until(lambda: len(cluster.begun) == 2)
    first, second = cluster.begun
    until(lambda: first in cluster.mailbox.stopped)
    assert not call.future.done()
    cluster.ended.set()
    assert call.future.result(30) == 2 and second not in cluster.mailbox.stopped
    connected.close()


def test_a_call_whose_workers_are_all_silent_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SILENT_S", 1.0)
    monkeypatch.setattr(calls, "LATE_S", 0.5)  # a pause of this process that is longer counts against no worker
    cluster = Reporting(silent=1)
    connected = ClusterCalls(cluster)
    silent = connected.start(work, (), print, threading.Event())
    until(lambda: cluster.begun)
    other = connected.start(work, (), print, threading.Event())
    error = silent.future.exception(30)
    assert isinstance(error, SolveFailed) and error.code == "child_died" and "silent for 1 s" in str(error)
    assert not other.future.done()
    cluster.ended.set()
    assert other.future.result(30) == 2
    connected.close()


def test_a_call_that_takes_longer_than_it_may_is_ended_though_its_worker_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "LATE_S", 0.5)
    cluster = Reporting()
    connected = ClusterCalls(cluster)
    call = connected.start(work, (), print, threading.Event(), retries=1, seconds=0.5)
    error = call.future.exception(30)
    assert isinstance(error, SolveFailed) and error.code == "killed" and "within 0.5 s" in str(error)
    until(lambda: cluster.mailbox.stopped)
    assert cluster.mailbox.stopped == set(cluster.begun) and len(cluster.begun) == 1
    cluster.ended.set()
    connected.close()


@pytest.mark.parametrize(("slots", "said"), [(2, "silent for 1 s"), (1, "stopped after the cluster's worker was lost")])
def test_a_stopped_call_that_lost_its_worker_ends(slots: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SILENT_S", 1.0)
    monkeypatch.setattr(calls, "LATE_S", 0.5)  # a pause of this process that is longer counts against no worker
    cluster, stop = Reporting(silent=2, slots=slots), threading.Event()
    connected = ClusterCalls(cluster)
    call = connected.start(work, (), print, stop, retries=3)
    until(lambda: len(cluster.submitted) == 2)  # with one slot, no worker is left to begin it
    until(lambda: len(cluster.begun) == slots)
    stop.set()
    error = call.future.exception(30)
    assert isinstance(error, SolveFailed) and error.code == "killed" and said in str(error)
    cluster.ended.set()
    connected.close()


def test_a_result_that_has_arrived_counts_though_its_worker_was_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Threads):
        def take(self) -> Sequence[tuple[str, Sequence[Message]]]:
            threading.Event().wait(0.6)
            return super().take()

    def act(box: Box, call: str) -> dict[str, Any]:
        box.messages.append((call, [{"run": call}]))
        until(lambda: not box.messages)
        threading.Event().wait(0.1)
        return {"value": "found", "messages": []}

    monkeypatch.setattr(calls, "SILENT_S", 0.3)
    connected = ClusterCalls(Slow(act))
    assert connected.start(work, (), print, threading.Event()).future.result(30) == "found"
    connected.close()


def test_silence_of_the_whole_cluster_is_not_that_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    class Resting(Reporting):
        answers = 0  # since a call has been heard of

        def take(self) -> Sequence[tuple[str, Sequence[Message]]]:
            taken = super().take()
            self.answers += bool(self.answers or taken)
            if self.answers == 2:
                threading.Event().wait(1.5)  # as long as this process or the scheduler stands still
                return []
            if self.answers == 4:
                self.ended.set()
            return taken

    monkeypatch.setattr(calls, "SILENT_S", 1.0)
    monkeypatch.setattr(calls, "LATE_S", 0.5)
    connected = ClusterCalls(Resting())
    assert connected.start(work, (), print, threading.Event()).future.result(30) == 1
    connected.close()


def test_a_receiver_that_raises_changes_nothing_for_its_call() -> None:
    def act(box: Box, call: str) -> dict[str, Any]:
        box.messages.append((call, [{"run": call}, {"at": 1}]))
        until(lambda: not box.messages)
        return {"value": "found", "messages": [{"at": 2}]}

    def fail(message: Message) -> None:
        raise BrokenPipeError

    connected = ClusterCalls(Threads(act))
    failing = connected.start(work, (), fail, threading.Event())
    assert failing.future.result(30) == "found"
    connected.close()


def test_a_task_in_a_process_that_may_have_no_children_is_told_to_return_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(task: str, payload: Any, send: Any, stop: threading.Event, memory_bytes: int) -> dict[str, Any]:
        send({"progress": {"stage": "plan"}})
        assert stop.wait(30)
        return {"result": task} if payload["has_plan"] else {"problem": {"code": "stopped"}}

    monkeypatch.setattr(child_tasks, "answer", answer)
    solver, told = in_process.InProcessRunner(1), list[Any]()
    assert solver.run("solve", {"has_plan": True}, 0.2, told.append) == ChildResult("solve", hit_deadline=True)
    assert told == [{"stage": "plan"}]
    with pytest.raises(SolveFailed, match="no plan was found before the deadline"):
        solver.run("solve", {"has_plan": False}, 0.2)
    (stopped := threading.Event()).set()
    assert solver.run("solve", {"has_plan": True}, 60, stop=stopped) == ChildResult("solve", hit_deadline=False)
    with pytest.raises(CancellationError):
        solver.run("solve", {"has_plan": False}, 60, stop=stopped)


def test_a_connection_that_was_closed_takes_no_call() -> None:
    connected = ClusterCalls(Threads())
    connected.close()
    error = connected.start(work, (), print, threading.Event()).future.exception(30)
    assert isinstance(error, ClusterLost) and "was closed" in str(error)


def test_other_versions_are_an_error_that_names_them() -> None:
    answer = remote.call(work, (), "call", Box(), {"remat": "0", "numpy": "1.0"})
    assert answer["problem"]["code"] == "version_mismatch"
    assert ", not 1.0" in answer["problem"]["detail"]


def test_calls_of_a_cluster_that_does_not_answer_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Threads):
        def take(self) -> Sequence[tuple[str, Sequence[Message]]]:
            raise TimeoutError

    monkeypatch.setattr(calls, "LOST_S", 0.5)
    stop, connected = (
        threading.Event(),
        ClusterCalls(Silent(lambda box, call: {"value": stop.wait(30), "messages": []})),
    )
    assert isinstance(connected.start(work, (), print, threading.Event()).future.exception(30), ClusterLost)
    stop.set()
    connected.close()


def test_a_task_on_a_cluster_ends_as_in_a_child_and_its_secrets_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_DATABASE_URL", "postgresql://remat:secret-of-the-service@db/remat")
    cluster = Threads()
    solver = ClusterRunner(lambda: cluster, RUNNER.memory_bytes, RUNNER.kill_seconds)
    told: list[Any] = []
    fields = {"budget": "60%", "iterations": 50}
    there, here = solver.run("solve", payload(**fields), 60, told.append), RUNNER.run("solve", payload(**fields), 60)
    assert there.result["sections"].keys() == here.result["sections"].keys() and not there.hit_deadline
    assert told and {"stage", "incumbent_peak_bytes"} <= told[0].keys()
    assert b"secret-of-the-service" not in pickle.dumps(cluster.submitted)
    with pytest.raises(ProblemDetails) as caught:
        solver.run("solve", payload(loss="nothing"), 60)
    assert caught.value.body["status"] == 422
    solver.close()
    assert cluster.closed


def test_a_task_that_waits_for_a_worker_ends_at_once_when_stopped() -> None:
    cluster, stop = Threads(lambda box, call: {"value": threading.Event().wait(1), "messages": []}), threading.Event()
    stop.set()
    with pytest.raises(CancellationError):
        ClusterRunner(lambda: cluster, 1, 1.0).run("solve", payload(), 60, stop=stop)


def test_a_lost_cluster_is_connected_anew_and_given_up_after_the_time_of_a_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "RETRY_S", 0.05)

    def lost(box: Box, call: str) -> None:
        raise ClusterLost("gone")

    clusters: list[Any] = [Threads(lost), BadUsage("not yet"), Threads()]

    def connect() -> Threads:
        found = clusters.pop(0) if clusters else BadUsage("nothing answers there")
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    assert ClusterRunner(connect, RUNNER.memory_bytes, 1.0).run("solve", payload(budget="60%", iterations=5), 60)
    assert not clusters
    clusters.append(Threads(lost))
    with pytest.raises(ClusterLost, match="nothing answers there"):
        ClusterRunner(connect, RUNNER.memory_bytes, 1.0).run("solve", payload(), 0.2)


def test_an_address_names_its_engine() -> None:
    assert split_url("dask://a:1", "--solve-on") == ("dask", "tcp://a:1")
    assert split_url("tls://a:1", "--solve-on") == ("dask", "tls://a:1")
    assert split_url("ray://a:1", "--solve-on") == ("ray", "ray://a:1")
