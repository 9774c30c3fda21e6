"""A clock that jumps loses nothing: it says when something was, and nothing else rests on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.store import records
from app.store.maintenance.garbage_collection import collect
from app.store.maintenance.integrity_check import check_integrity
from app.store.store import Store
from tests.app.jobs.here import Here, Pretender, finished, until_stopped
from tests.app.stores import GRAPH_ID, opened, solved

DAY = timedelta(days=1)


class Clock:
    """The machine's, set wrong by so much wherever the room asks for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.wrong = timedelta()
        of_files = datetime.fromtimestamp  # which are as old as they are
        wrong = SimpleNamespace(now=lambda zone=UTC: datetime.now(zone) + self.wrong, fromtimestamp=of_files)
        for place in ("app.store.records", "app.store.maintenance.garbage_collection", "app.store.blobs"):
            monkeypatch.setattr(f"{place}.datetime", wrong)
        ids = SimpleNamespace(
            time_ns=lambda: time.time_ns() + int(self.wrong.total_seconds()) * 10**9, monotonic=time.monotonic
        )
        monkeypatch.setattr("app.jobs.durable_jobs.time", ids)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = opened(tmp_path)
    yield made
    made.close()


def listed(jobs: Here) -> list[str]:
    """Ids of every operation, two a page."""
    found, after = list[str](), None
    while True:
        page = jobs.list(after, 2, None)
        found += [operation.id for operation in page.operations]
        if (after := page.after) is None:
            return found


def test_operations_asked_for_under_a_jumping_clock_all_end_and_are_all_listed(started: Any, clock: Clock) -> None:
    runner = Pretender()
    jobs, ids = started(runner), []
    for n, wrong in enumerate((0, 10, -10, 3650, -3650)):
        clock.wrong = wrong * DAY
        ids.append(jobs.ask(f"k{n}"))
        assert finished(jobs, ids[-1]).state == "succeeded"
    jobs = started(runner)
    assert sorted(listed(jobs)) == sorted(ids) and runner.runs == len(ids)
    assert check_integrity(jobs.context.store).faults == []


def test_a_clock_that_jumps_while_a_solve_runs_ends_it_neither_sooner_nor_twice(
    started: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.jobs.lease.HEARTBEAT_S", 0.05)
    runner = Pretender(until_stopped)
    jobs = started(runner, lost_seconds=1)
    id = jobs.ask("k1")
    assert runner.started.wait(60)
    beats = worker_beats(jobs)
    for wrong in (10, -10, 0):
        clock.wrong = wrong * DAY
        until = time.monotonic() + 60
        while worker_beats(jobs) == beats and time.monotonic() < until:
            time.sleep(0.02)
        assert worker_beats(jobs) > beats  # it lives, and whoever looks after the dead has looked
        beats = worker_beats(jobs)
        assert jobs.status(id).state == "running"
    jobs.cancel(id)
    operation = finished(jobs, id)
    assert (operation.state, operation.attempts, runner.runs) == ("cancelled", 1, 1)


def worker_beats(jobs: Here) -> int:
    with jobs.context.store.reading() as connection:
        return int(connection.exec_driver_sql("SELECT max(beats) FROM workers").scalar() or 0)


@pytest.mark.parametrize("wrong", [3650, -3650])
def test_a_wrong_clock_takes_no_blob_that_a_row_names(store: Store, clock: Clock, wrong: int) -> None:
    before = records.save_plan(store, solved("before"), GRAPH_ID)
    clock.wrong = wrong * DAY
    during = records.save_plan(store, solved("during"), GRAPH_ID)
    taken = collect(store, None, 7.0)
    assert (taken.plans, taken.graphs, taken.blobs) == (0, 0, 0)
    clock.wrong = timedelta()
    for plan_id in (before, during):
        assert records.report_of(store, plan_id)
    assert check_integrity(store).faults == []
