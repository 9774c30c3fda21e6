"""Jobs end in one state each, whatever happens to their children or to the service."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.atomic_files import CannotWrite
from app.errors import Busy, NotFound, SolveFailed, Unavailable
from app.jobs import repository, worker
from app.jobs.attempt import Attempt
from app.jobs.durable_jobs import DurableJobs
from app.jobs.interface import JobEvent, SolveRequest
from app.jobs.lease import host_id, process_start
from app.store.maintenance.integrity_check import check_integrity
from app.store.records import find_answer, report_of
from app.store.store import Store
from app.store.tables import operations
from tests.app.jobs.here import QUESTION, Here, Pretender, finished, until_stopped
from tests.app.stores import GRAPH_ID


def test_a_job_succeeds_and_its_answer_is_found_again(started: Any) -> None:
    jobs = started(Pretender())
    operation = finished(jobs, jobs.submit(QUESTION).id)
    assert (operation.state, operation.error) == ("succeeded", None)
    assert operation.result == find_answer(jobs.context.store, "k1")
    assert json.loads(report_of(jobs.context.store, operation.result))["id"] == operation.result
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
    runner.started.wait(90)
    jobs.cancel(id)
    operation = finished(jobs, id)
    assert operation.state == "cancelled"
    assert json.loads(report_of(jobs.context.store, str(operation.result)))["plan"]["order"] == "best so far"
    assert find_answer(jobs.context.store, "k1") is None


def test_a_waiting_job_is_cancelled_at_once(started: Any) -> None:
    runner = Pretender(until_stopped)
    jobs = started(runner)
    first = jobs.submit(QUESTION).id
    runner.started.wait(90)
    second = jobs.submit(SolveRequest("k2", GRAPH_ID, {})).id
    assert jobs.cancel(second).state in ("cancelled", "queued")
    assert jobs.status(second).state == "cancelled"
    assert jobs.status(first).state == "running"
    assert runner.runs == 1


def test_cancelling_what_has_ended_changes_nothing(started: Any) -> None:
    jobs = started(Pretender())
    done = finished(jobs, jobs.submit(QUESTION).id)
    assert jobs.cancel(done.id) == done


def test_a_tenant_leaves_half_of_the_queue_to_others(started: Any) -> None:
    jobs = started(Pretender(until_stopped), queue=3)
    for n in range(2):
        jobs.submit(replace(QUESTION, key=f"a{n}", owner="a"))
    with pytest.raises(Busy, match="as many solves of this tenant"):
        jobs.submit(replace(QUESTION, key="a2", owner="a"))
    other = jobs.submit(replace(QUESTION, key="b", owner="b"))
    for id in (other.id, *(jobs.submit(replace(QUESTION, key=f"a{n}", owner="a")).id for n in range(2))):
        jobs.cancel(id)
        finished(jobs, id)


def test_a_full_queue_says_when_to_come_back(started: Any) -> None:
    jobs = started(Pretender(until_stopped), queue=1)
    for key in ("k1", "k2"):
        jobs.submit(SolveRequest(key, GRAPH_ID, {}))
    with pytest.raises(Busy, match="REMAT_QUEUE") as caught:
        jobs.submit(SolveRequest("k3", GRAPH_ID, {}))
    assert caught.value.headers["Retry-After"]


def raising(error: Exception) -> Callable[..., str]:
    def act(stop: threading.Event, tell: Callable[..., None]) -> str:
        raise error

    return act


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (raising(SolveFailed("the child ended", code="killed")), "killed"),
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
    assert find_answer(jobs.context.store, "k1") is None
    runner.act = lambda stop, tell: "plan"
    assert finished(jobs, jobs.submit(SolveRequest("k2", GRAPH_ID, {})).id).state == "succeeded"


def test_a_full_disk_keeps_a_finished_solve_until_there_is_room(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, sync = iter([OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))] * 2), os.fsync

    def full(descriptor: int) -> None:
        for error in refused:
            raise error
        sync(descriptor)

    def fills(stop: threading.Event, tell: Callable[..., None]) -> str:
        monkeypatch.setattr(os, "fsync", full)
        return "plan"

    monkeypatch.setattr("app.jobs.attempt.RETRY_DELAY_S", 0.01)
    runner = Pretender(fills)
    jobs = started(runner)
    operation = finished(jobs, jobs.submit(QUESTION).id)
    assert (operation.state, operation.attempts, runner.runs) == ("succeeded", 1, 1)
    assert next(refused, None) is None
    assert not list(Path(jobs.context.settings.data).rglob("*.part"))


def test_a_failure_of_maintenance_that_lasts_is_logged_once(
    started: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs, rounds, sync = started(Pretender()), threading.Semaphore(0), worker.sync_attempts

    def full(store: Store, *running: Any) -> None:
        if store is not jobs.context.store:  # that of another worker of this process
            return sync(store, *running)
        rounds.release()
        raise CannotWrite("the disk is full")

    monkeypatch.setattr(worker, "POLL_S", 0.01)
    monkeypatch.setattr(worker, "sync_attempts", full)
    assert all(rounds.acquire(timeout=60) for _ in range(5))
    assert caplog.text.count("maintenance_failed") == 1


def test_what_a_stop_of_the_service_interrupts_runs_again_after_a_restart(started: Any) -> None:
    runner = Pretender(until_stopped)
    id = started(runner).submit(QUESTION).id
    runner.started.wait(90)
    jobs = started(Pretender())
    operation = finished(jobs, id)
    assert (operation.state, operation.attempts) == ("succeeded", 1)


def left_running(jobs: Here, id: str, **columns: Any) -> None:
    """Make the row what a worker leaves that is killed at once."""
    left = {"state": "running", "worker": "one that is gone", "ended_at": None, "result": None} | columns
    with jobs.context.store.writing() as connection:
        connection.execute(sa.update(operations).where(operations.c.id == id).values(left))


def test_a_job_whose_worker_keeps_dying_ends_as_failed(started: Any) -> None:
    jobs = started(Pretender(raising(SolveFailed("no plan"))))
    id = finished(jobs, jobs.submit(QUESTION).id).id
    left_running(jobs, id, attempts=4, child_deaths=1)
    runner = Pretender()
    operation = finished(started(runner, worker_losses=3), id)
    assert (operation.state, runner.runs) == ("failed", 0)
    assert operation.error is not None and operation.error["code"] == "poisoned"


def test_machines_that_are_lost_do_not_count_as_deaths_of_a_child(started: Any) -> None:
    jobs = started(Pretender(raising(SolveFailed("no plan"))))
    id = finished(jobs, jobs.submit(QUESTION).id).id
    left_running(jobs, id, attempts=3, error=None)  # three machines were reclaimed
    runner = Pretender()
    runner.act = lambda stop, tell: "plan" if runner.runs > 2 else died(stop, tell)
    operation = finished(started(runner, attempts=3), id)
    assert (operation.state, operation.attempts, operation.child_deaths, runner.runs) == ("succeeded", 6, 2, 3)


def test_a_plan_that_was_kept_before_the_service_died_is_not_made_again(started: Any) -> None:
    jobs = started(Pretender())
    done = finished(jobs, jobs.submit(QUESTION).id)
    left_running(jobs, done.id)
    runner = Pretender()
    operation = finished(started(runner), done.id)
    assert (operation.state, operation.result, runner.runs) == ("succeeded", done.result, 0)


def test_a_child_that_dies_once_is_started_again(started: Any) -> None:
    runner = Pretender()
    runner.act = lambda stop, tell: "plan" if runner.runs > 1 else died(stop, tell)
    jobs = started(runner)
    operation = finished(jobs, jobs.submit(QUESTION).id)
    assert (operation.state, operation.attempts, runner.runs) == ("succeeded", 2, 2)


def died(stop: threading.Event, tell: Callable[..., None]) -> str:
    tell(9)
    raise SolveFailed("the child process ended by itself (signal SIGKILL)", code="child_died")


def test_a_poisoned_job_keeps_its_last_incumbent_and_takes_nothing_with_it(started: Any) -> None:
    runner = Pretender(died)
    jobs = started(runner, attempts=2)
    operation = finished(jobs, jobs.submit(QUESTION).id)
    assert (operation.state, operation.attempts, runner.runs) == ("failed", 2, 2)
    assert operation.error is not None and operation.error["code"] == "child_died"
    assert operation.progress is not None and operation.progress["incumbent"]["peak_bytes"] == 9
    runner.act = lambda stop, tell: "plan"
    assert finished(jobs, jobs.ask("k2")).state == "succeeded"


def test_an_attempt_that_breaks_is_made_again(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, run = iter([RuntimeError("a defect")]), Attempt.run

    def breaks(attempt: Attempt) -> None:
        for error in broken:
            raise error
        run(attempt)

    monkeypatch.setattr(Attempt, "run", breaks)
    monkeypatch.setattr("app.jobs.worker.RETRY_DELAY_S", 0.01)
    jobs = started(Pretender())
    operation = finished(jobs, jobs.ask("k1"))
    assert (operation.state, operation.attempts) == ("succeeded", 2)


def test_a_claim_whose_reply_was_lost_is_made_again(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = repository.claim

    def loses(*given: Any) -> Any:
        if claim(*given) is not None:
            monkeypatch.undo()
            raise Unavailable("the connection broke")

    monkeypatch.setattr(repository, "claim", loses)
    jobs = started(Pretender())
    operation = finished(jobs, jobs.ask("k1"))
    assert (operation.state, operation.attempts) == ("succeeded", 2)


def test_what_another_worker_has_taken_over_is_not_kept_twice(started: Any) -> None:
    runner = Pretender(until_stopped)
    jobs = started(runner)
    id = jobs.submit(QUESTION).id
    runner.started.wait(90)
    left_running(jobs, id, worker="another", attempts=2)
    ended = Pretender()  # whoever has it now: it is not in the list of workers, so this one takes it back
    runner.act = ended.act
    operation = finished(jobs, id)
    assert (operation.state, operation.attempts) == ("succeeded", 3)
    assert check_integrity(jobs.context.store).plans == 1
    assert json.loads(report_of(jobs.context.store, str(operation.result)))["plan"]["order"] == "plan"


def test_what_waits_for_a_restart_does_not_begin_all_at_once(started: Any) -> None:
    lock, now, most, both = threading.Lock(), [0], [0], threading.Event()

    def counts(stop: threading.Event, tell: Callable[..., None]) -> str:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            if now[0] == 2:
                both.set()
        assert both.wait(90)
        time.sleep(0.05)  # for a third, if it were let in
        with lock:
            now[0] -= 1
        return "plan"

    jobs = started(Pretender(until_stopped))
    ids = [jobs.ask(f"k{n}") for n in range(8)]
    jobs = started(Pretender(counts), workers=2)
    assert {finished(jobs, id).state for id in ids} == {"succeeded"}
    assert most[0] == 2


def test_what_a_worker_could_not_give_back_is_taken_over_by_the_next_of_its_process(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> int:
        monkeypatch.undo()
        raise Unavailable("no store")

    runner = Pretender(until_stopped)
    jobs = started(runner)
    id = jobs.submit(QUESTION).id
    runner.started.wait(90)
    monkeypatch.setattr(repository, "requeue_of_workers", fails)
    operation = finished(started(Pretender()), id)
    assert (operation.state, operation.attempts) == ("succeeded", 2)


def test_those_of_lower_priority_go_first(started: Any) -> None:
    order: list[str] = []
    runner = Pretender(until_stopped)
    jobs = started(runner)
    first = jobs.ask("first")
    runner.started.wait(90)
    ids = {key: jobs.ask(key, priority=priority) for key, priority in (("last", 300), ("next", 1), ("then", 100))}
    runner.act = lambda stop, tell: "plan"
    jobs.cancel(first)
    for id in ids.values():
        finished(jobs, id)
    order = sorted(ids, key=lambda key: str(jobs.status(ids[key]).started_at))
    assert order == ["next", "then", "last"]


def test_one_owner_has_no_more_turns_than_settings_say(started: Any) -> None:
    runner = Pretender(until_stopped)
    jobs = started(runner, workers=3, solves_per_key=1)
    ids = [jobs.ask(f"a{n}", owner="a") for n in range(3)]
    other = jobs.ask("b", owner="b")
    while jobs.status(other).state != "running" or not any(jobs.status(id).state == "running" for id in ids):
        time.sleep(0.01)
    time.sleep(0.4)  # for the others, if they were claimed
    assert sorted(jobs.status(id).state for id in ids) == ["queued", "queued", "running"]
    for id in (*ids, other):
        jobs.cancel(id)


def test_a_process_without_workers_asks_follows_and_ends_what_another_runs(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.jobs.worker.QUEUE_POLL_S", 1e6)  # it is told
    runner = Pretender(until_stopped)
    here = started(runner)
    there = DurableJobs(replace(here.context, settings=here.context.settings.model_copy(update={"workers": 0})))
    there.start()
    id = there.submit(QUESTION).id
    runner.started.wait(90)
    assert here.submit(QUESTION).id == id
    seen = asyncio.run(follow(there, id, 0, most=3))
    assert [event.name for event in seen] == ["state", "state", "progress"]
    there.cancel(id)
    assert finished(there, id).state == here.status(id).state == "cancelled"
    there.close()


def test_every_end_leaves_rows_and_blobs_that_fit_together(started: Any) -> None:
    runner = Pretender(raising(SolveFailed("the child ended")))
    jobs = started(runner)
    finished(jobs, jobs.submit(QUESTION).id)
    runner.act = until_stopped
    stopped = jobs.submit(SolveRequest("k2", GRAPH_ID, {})).id
    jobs.cancel(stopped)
    finished(jobs, stopped)
    runner.act = lambda stop, tell: "plan"
    finished(jobs, jobs.submit(SolveRequest("k3", GRAPH_ID, {})).id)
    found = check_integrity(jobs.context.store)
    assert (found.faults, found.operations) == ([], 3)


def test_draining_refuses_new_work(started: Any) -> None:
    jobs = started(Pretender())
    jobs.drain()
    with pytest.raises(Unavailable):
        jobs.submit(QUESTION)


def test_pages_lead_through_every_operation_newest_first(started: Any) -> None:
    jobs = started(Pretender())
    ids = [finished(jobs, jobs.submit(SolveRequest(f"k{i}", GRAPH_ID, {})).id).id for i in range(5)]
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
        assert go.wait(90)
        return "plan"

    jobs = started(Pretender(improves))
    id = jobs.submit(QUESTION).id

    first = asyncio.run(follow(jobs, id, 0, most=3))
    go.set()
    finished(jobs, id)
    jobs = started(Pretender())  # a restart loses none of them
    rest = asyncio.run(follow(jobs, id, first[-1].id))
    assert [event.id for event in first + rest] == list(range(1, len(first + rest) + 1))
    peaks = [event.data["incumbent"]["peak_bytes"] for event in first + rest if event.name == "progress"]
    assert peaks == [9, 8, 7]
    assert rest[-1].name == "state" and rest[-1].data["state"] == "succeeded"
    assert asyncio.run(follow(jobs, id, rest[-1].id)) == []


async def follow(jobs: DurableJobs, id: str, after: int, most: int = 100) -> list[JobEvent]:
    seen = []
    async for event in jobs.stream(id, after):
        if event is not None:
            seen.append(event)
        if len(seen) == most:
            break
    return seen


def test_of_a_long_search_the_latest_events_are_kept(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.jobs.repository.MAX_EVENTS", 5)

    def improves(stop: threading.Event, tell: Callable[..., None]) -> str:
        for peak in range(100, 50, -1):
            tell(peak)
            time.sleep(0.01)
        return "plan"

    jobs = started(Pretender(improves))
    id = finished(jobs, jobs.submit(QUESTION).id).id
    seen = asyncio.run(follow(jobs, id, 0))
    assert seen[-1].id == jobs.status(id).last_event == 53
    assert [event.id for event in seen] == list(range(seen[0].id, 54)) and len(seen) < 40


def test_a_silent_worker_is_dead_wherever_it_is_and_one_here_at_once_without_its_process(started: Any) -> None:
    worker = started(Pretender(), lost_seconds=0.2)._worker
    here = {"id": "a", "host": host_id(), "pid": os.getppid(), "born": process_start(os.getppid()), "beats": 1}
    there = here | {"id": "b", "host": "elsewhere"}
    assert not worker._lease.is_expired(here) and not worker._lease.is_expired(there)
    time.sleep(0.3)
    assert worker._lease.is_expired(here) and worker._lease.is_expired(there)
    assert not worker._lease.is_expired(here | {"beats": 2}) and not worker._lease.is_expired(there | {"beats": 2})
    assert worker._lease.is_expired(here | {"beats": 3, "born": "0"})  # the number is another's by now
    own = {"pid": os.getpid(), "born": process_start(os.getpid()), "beats": 4}
    assert worker._lease.is_expired(here | own)  # its process has another
