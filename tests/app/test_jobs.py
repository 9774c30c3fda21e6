"""Jobs end in one state each, whatever happens to their children or to the service."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.errors import Busy, NotFound, SolveFailed, Unavailable
from app.jobs import stored
from app.jobs.local import LocalJobs, Means
from app.jobs.port import Operation, Question
from app.records import answer_of, report_of
from app.runner import Answer
from app.settings import Settings
from app.store.walk import walk
from tests.app.stores import GRAPH_ID, opened, solved

QUESTION = Question("k1", GRAPH_ID, {"budget": "50%"})


class Pretender:
    """In the place of the runner: a child that does what the test says."""

    def __init__(self, act: Callable[[threading.Event, Callable[..., None]], str] | None = None):
        self.act = act or (lambda stop, tell: "plan")
        self.started = threading.Event()
        self.runs = 0

    def run(
        self,
        task: str,
        payload: Mapping[str, Any],
        seconds: float,
        on_progress: Callable[[Mapping[str, Any]], None],
        stop: threading.Event,
    ) -> Answer:
        def tell(peak: int) -> None:
            on_progress({
                "stage": "plan", "seconds": 0.1, "incumbent_overhead": 0.1, "incumbent_peak_bytes": peak,
                "bound_overhead": 0.0, "gap": 0.1,
            })  # fmt: skip

        self.runs += 1
        self.started.set()
        order = self.act(stop, tell)
        return Answer(solved(order) | {"exit_code": 4 if order == "different" else 0}, hurried=False)


def until_stopped(stop: threading.Event, tell: Callable[..., None]) -> str:
    tell(7)
    assert stop.wait(20)
    return "best so far"


@pytest.fixture
def started(tmp_path: Path) -> Any:
    """Starts jobs on one folder; those of before are closed, as a restart would."""
    running: list[LocalJobs] = []

    def start(runner: Pretender, **settings: Any) -> LocalJobs:
        close()
        store = opened(tmp_path)
        given = {"workers": 1, "drain_seconds": 0, "kill_seconds": 1} | settings
        running.append(LocalJobs(Means(store, runner, Settings(data=tmp_path, **given))))  # type: ignore[arg-type]
        return running[0]

    def close() -> None:
        for jobs in running:
            jobs.close()
            jobs.means.store.close()
        running.clear()

    yield start
    close()


def finished(jobs: LocalJobs, id: str) -> Operation:
    operation = asyncio.run(jobs.wait(id, 20))
    assert operation.finished
    return operation


def test_a_job_succeeds_and_its_answer_is_found_again(started: Any) -> None:
    jobs = started(Pretender())
    operation = finished(jobs, jobs.submit(QUESTION).id)
    assert (operation.state, operation.error) == ("succeeded", None)
    assert operation.result == answer_of(jobs.means.store, "k1")
    assert json.loads(report_of(jobs.means.store, operation.result))["id"] == operation.result
    assert operation.created_at <= str(operation.started_at) <= str(operation.ended_at)


def test_the_same_question_joins_the_job_that_runs(started: Any) -> None:
    runner = Pretender(until_stopped)
    jobs = started(runner)
    assert jobs.submit(QUESTION).id == jobs.submit(QUESTION).id
    jobs.cancel(jobs.submit(QUESTION).id)
    assert runner.runs <= 1


def test_a_cancelled_job_keeps_its_best_so_far_and_answers_nobody_else(started: Any) -> None:
    runner = Pretender(until_stopped)
    jobs = started(runner)
    id = jobs.submit(QUESTION).id
    runner.started.wait(20)
    jobs.cancel(id)
    operation = finished(jobs, id)
    assert operation.state == "cancelled"
    assert json.loads(report_of(jobs.means.store, str(operation.result)))["plan"]["order"] == "best so far"
    assert answer_of(jobs.means.store, "k1") is None


def test_a_waiting_job_is_cancelled_at_once(started: Any) -> None:
    runner = Pretender(until_stopped)
    jobs = started(runner)
    first = jobs.submit(QUESTION).id
    runner.started.wait(20)
    second = jobs.submit(Question("k2", GRAPH_ID, {})).id
    assert jobs.cancel(second).state in ("cancelled", "queued")
    assert jobs.status(second).state == "cancelled"
    assert jobs.status(first).state == "running"
    assert runner.runs == 1


def test_cancelling_what_has_ended_changes_nothing(started: Any) -> None:
    jobs = started(Pretender())
    done = finished(jobs, jobs.submit(QUESTION).id)
    assert jobs.cancel(done.id) == done


def test_a_full_queue_says_when_to_come_back(started: Any) -> None:
    jobs = started(Pretender(until_stopped), queue=1)
    for key in ("k1", "k2"):
        jobs.submit(Question(key, GRAPH_ID, {}))
    with pytest.raises(Busy, match="REMAT_QUEUE") as caught:
        jobs.submit(Question("k3", GRAPH_ID, {}))
    assert caught.value.headers["Retry-After"]


def raising(error: Exception) -> Callable[..., str]:
    def act(stop: threading.Event, tell: Callable[..., None]) -> str:
        raise error

    return act


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (raising(SolveFailed("the child ended", code="child_died")), "child_died"),
        (raising(RuntimeError("a defect")), "internal"),
        (lambda stop, tell: "different", "different"),
    ],
)
def test_a_child_that_fails_fails_its_job_and_no_other(started: Any, act: Any, code: str) -> None:
    runner = Pretender(act)
    jobs = started(runner)
    operation = finished(jobs, jobs.submit(QUESTION).id)
    assert (operation.state, operation.result) == ("failed", None)
    assert operation.error is not None and operation.error["code"] == code
    assert answer_of(jobs.means.store, "k1") is None
    runner.act = lambda stop, tell: "plan"
    assert finished(jobs, jobs.submit(Question("k2", GRAPH_ID, {})).id).state == "succeeded"


def test_a_full_disk_fails_the_job_and_the_operation_says_so(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fills(stop: threading.Event, tell: Callable[..., None]) -> str:
        monkeypatch.setattr(os, "fsync", full)
        return "plan"

    jobs = started(Pretender(fills))
    id = jobs.submit(QUESTION).id
    operation = finished(jobs, id)
    monkeypatch.undo()
    assert operation.state == "failed"
    assert "No space left" in str(operation.error)
    assert not list(Path(jobs.means.settings.data).rglob("*.part"))


def test_what_a_stop_of_the_service_interrupts_runs_again_after_a_restart(started: Any) -> None:
    runner = Pretender(until_stopped)
    id = started(runner).submit(QUESTION).id
    runner.started.wait(20)
    jobs = started(Pretender())
    operation = finished(jobs, id)
    assert (operation.state, operation.attempts) == ("succeeded", 1)


def test_a_job_whose_service_keeps_dying_ends_as_failed(started: Any, tmp_path: Path) -> None:
    jobs = started(Pretender())
    done = finished(jobs, jobs.submit(QUESTION).id)
    stored.save(jobs.means.store, replace(done, state="running", attempts=3, ended_at=None))
    operation = started(Pretender()).status(done.id)
    assert operation.state == "failed"
    assert operation.error is not None and operation.error["code"] == "poisoned"


def test_a_plan_that_was_kept_before_the_service_died_is_not_made_again(started: Any) -> None:
    jobs = started(Pretender())
    done = finished(jobs, jobs.submit(QUESTION).id)
    stored.save(jobs.means.store, replace(done, state="running", result=None, ended_at=None))
    runner = Pretender()
    operation = started(runner).status(done.id)
    assert (operation.state, operation.result, runner.runs) == ("succeeded", done.result, 0)


def test_every_end_leaves_rows_and_blobs_that_fit_together(started: Any) -> None:
    runner = Pretender(raising(SolveFailed("the child ended")))
    jobs = started(runner)
    finished(jobs, jobs.submit(QUESTION).id)
    runner.act = until_stopped
    stopped = jobs.submit(Question("k2", GRAPH_ID, {})).id
    jobs.cancel(stopped)
    finished(jobs, stopped)
    runner.act = lambda stop, tell: "plan"
    finished(jobs, jobs.submit(Question("k3", GRAPH_ID, {})).id)
    found = walk(jobs.means.store)
    assert (found.faults, found.operations) == ([], 3)


def test_draining_refuses_new_work(started: Any) -> None:
    jobs = started(Pretender())
    jobs.drain()
    with pytest.raises(Unavailable):
        jobs.submit(QUESTION)


def test_pages_lead_through_every_operation_newest_first(started: Any) -> None:
    jobs = started(Pretender())
    ids = [finished(jobs, jobs.submit(Question(f"k{i}", GRAPH_ID, {})).id).id for i in range(5)]
    seen: list[str] = []
    after = None
    while True:
        page = jobs.list(after, 2, None)
        seen += [operation.id for operation in page.operations]
        if (after := page.after) is None:
            break
    assert seen == ids[::-1]
    assert jobs.list(None, 10, "failed").operations == ()


def test_an_operation_nobody_knows_is_not_found(started: Any) -> None:
    jobs = started(Pretender())
    for ask in (jobs.status, jobs.cancel):
        with pytest.raises(NotFound):
            ask("op123")


def test_a_stream_resumes_after_the_last_event_seen_and_ends_with_the_state(started: Any) -> None:
    go = threading.Event()

    def improves(stop: threading.Event, tell: Callable[..., None]) -> str:
        for peak in (9, 8, 7):
            tell(peak)
        assert go.wait(20)
        return "plan"

    jobs = started(Pretender(improves))
    id = jobs.submit(QUESTION).id

    async def follow(after: int, most: int = 100) -> list[tuple[int, str, Any]]:
        seen = []
        async for event in jobs.stream(id, after):
            if event is not None:
                seen.append((event.id, event.name, event.data))
            if len(seen) == most:
                break
        return seen

    first = asyncio.run(follow(0, 3))
    go.set()
    rest = asyncio.run(follow(first[-1][0]))
    assert [id for id, _, _ in first + rest] == list(range(1, len(first + rest) + 1))
    peaks = [data["incumbent"]["peak_bytes"] for _, name, data in first + rest if name == "progress"]
    assert peaks == [9, 8, 7]
    assert rest[-1][1] == "state" and rest[-1][2]["state"] == "succeeded"
    assert asyncio.run(follow(rest[-1][0])) == []
