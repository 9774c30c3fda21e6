"""Kills, full disks, read-only folders and databases that go away are told in words, and nothing breaks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from app.atomic_files import CannotWrite
from app.errors import SolveFailed, Unavailable
from app.jobs import repository
from app.jobs.interface import SolveRequest
from app.settings import Settings
from app.store import records
from app.store.maintenance.garbage_collection import collect
from app.store.maintenance.integrity_check import check_integrity
from tests.app.jobs.here import Here, Pretender, finished
from tests.app.stores import GRAPH_ID, opened, solved
from tests.postgres import Cluster

ROOT = Path(__file__).parents[3]
START = """
import os, resource, sys
from pathlib import Path
from app.store import records
from app.atomic_files import CannotWrite
from app.store.maintenance.integrity_check import check_integrity
from tests.app.stores import GRAPH_ID, opened, solved

store = opened(Path(sys.argv[1]), **({"database_url": sys.argv[2]} if sys.argv[2:] else {}))
"""


def started(code: str, settings: dict[str, Any]) -> subprocess.Popen[str]:
    """A process that opens the store and runs `code`."""
    arguments = [str(settings["data"]), *([settings["database_url"]] if "database_url" in settings else [])]
    return subprocess.Popen(
        [sys.executable, "-c", START + code, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def output_of(code: str, settings: dict[str, Any]) -> list[str]:
    process = started(code, settings)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return said.splitlines()


KEEPING = """
for n in range(10**6):
    print(records.save_plan(store, solved(n), GRAPH_ID), flush=True)
"""


@pytest.mark.parametrize("kept", [7, *(pytest.param(n, marks=pytest.mark.heavy) for n in (1, 40, 300))])
def test_what_was_kept_before_a_kill_is_there_and_nothing_is_half_there(
    store_settings: dict[str, Any], kept: int
) -> None:
    process = started(KEEPING, store_settings)
    assert process.stdout is not None
    ids = [process.stdout.readline().strip() for _ in range(kept)]
    process.kill()
    ids += process.stdout.read().split()  # said before the kill, so kept
    process.wait()
    process.stdout.close()
    store = opened(**store_settings)
    for id in ids:
        records.report_of(store, id)
    found = check_integrity(store)
    assert found.faults == []
    assert found.plans in (len(ids), len(ids) + 1)  # the last one may have been kept and not said
    store.close()


FULL = """
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

before = records.save_plan(store, solved(), GRAPH_ID)
for size in (0, 4096, 40_000, 200_000):
    limit(size)
    try:
        for n in range(1000):
            records.save_plan(store, solved([size, n, os.urandom(5000).hex()]), GRAPH_ID)
        print("never full")
    except CannotWrite as error:
        limit(resource.RLIM_INFINITY)
        print(error)
    print(check_integrity(store).faults, list(store.blobs.folder.rglob("*#*")))
after = records.save_plan(store, solved("after"), GRAPH_ID)
print(len(records.report_of(store, before)) > 0 < len(records.report_of(store, after)))
"""


def test_a_full_disk_is_told_breaks_nothing_and_is_forgotten_once_there_is_room(tmp_path: Path) -> None:
    *tries, fine = output_of(FULL, {"data": tmp_path})
    for told, state in zip(tries[::2], tries[1::2], strict=True):
        assert "cannot write" in told and "no partial" in told
        assert state == "[] []"
    assert fine == "True"


READ_ONLY = """
folder = Path(sys.argv[1])
before = records.save_plan(store, solved(), GRAPH_ID)
for path in (folder, *folder.rglob("*")):
    path.chmod(0o555 if path.is_dir() else 0o444)
store.close()
if os.getuid() == 0:
    os.setuid(65534)
from app.settings import Settings
from app.store.store import Store
try:
    Store.open_for_serving(Settings(data=folder))
    print("served")
except CannotWrite as error:
    print(error)
"""


@pytest.mark.heavy
def test_a_folder_that_may_not_be_written_to_is_told(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == tmp_path.owner() and parent.name.startswith(("pytest-", "test_")):
            parent.chmod(0o755)
    assert output_of(READ_ONLY, {"data": tmp_path}) == [
        f"cannot use {tmp_path} as data folder: Permission denied; choose a writable path, with --data"
    ]


def test_rows_and_blobs_fit_together_while_others_write_and_collect(store_settings: dict[str, Any]) -> None:
    store = opened(**store_settings)
    stop, broken = threading.Event(), []

    def repeat(act: Any) -> None:
        while not stop.is_set():
            try:
                act()
            except Exception as error:
                broken.append(error)

    def read() -> None:
        records.report_of(store, records.save_plan(store, solved("read"), GRAPH_ID))

    acts = [lambda: records.save_plan(store, solved(time.time_ns()), GRAPH_ID), read, lambda: collect(store, 1e-6, 1)]
    threads = [threading.Thread(target=repeat, args=(act,)) for act in acts for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    stop.set()
    for thread in threads:
        thread.join()
    assert [error for error in broken if not _row_has_gone(error)] == []
    assert check_integrity(store).faults == []
    store.close()


def _row_has_gone(error: Exception) -> bool:
    """A row that was collected between being kept and being read, or whose graph was: nothing is broken by that."""
    return "no plan" in str(error) or "FOREIGN KEY" in str(error).upper()


@pytest.mark.heavy
@pytest.mark.parametrize("store_settings", ["postgresql"], indirect=True)
def test_a_database_that_crashes_is_told_and_used_again_by_itself(
    postgres: Cluster, store_settings: dict[str, Any]
) -> None:
    gone = threading.Event()

    def crashes(stop: threading.Event, tell: Any) -> str:
        postgres.stop()
        gone.set()
        return "plan"

    store = opened(**store_settings)
    kept = [records.save_plan(store, solved(n), GRAPH_ID) for n in range(5)]
    jobs = Here(store, Pretender(crashes), Settings(workers=1, drain_seconds=0, **store_settings))
    try:
        id = jobs.submit(SolveRequest("k1", GRAPH_ID, {})).id
        while True:
            try:
                records.report_of(store, kept[0])
            except Unavailable as error:
                assert "Retry-After" in error.headers and "unreachable" in str(error)
                break
        with pytest.raises(Unavailable):
            store.check()
        assert gone.wait(60)  # who stops it waits for its end, and would for that of a new one
        postgres.start()
        operation = finished(jobs, id)
        assert (operation.state, records.find_answer(store, "k1")) == ("succeeded", operation.result)
        for plan_id in kept:
            records.report_of(store, plan_id)
        assert check_integrity(store).faults == []
    finally:
        jobs.close()
        store.close()


def test_an_end_that_cannot_be_saved_is_saved_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, refused, end = threading.Event(), threading.Event(), repository.finish
    full.set()

    def ends(*said: Any) -> None:
        if full.is_set():
            refused.set()
            raise CannotWrite("no room")
        end(*said)

    def fails(stop: threading.Event, tell: Any) -> str:
        raise SolveFailed("no plan")

    monkeypatch.setattr("app.jobs.repository.finish", ends)
    monkeypatch.setattr("app.jobs.attempt.RETRY_DELAY_S", 0.01)
    jobs = Here(opened(tmp_path), Pretender(fails), Settings(data=tmp_path, workers=1, drain_seconds=0))
    id = jobs.ask("k1")
    assert refused.wait(90)
    assert jobs.status(id).state == "running"
    full.clear()
    assert finished(jobs, id).state == "failed"
    assert check_integrity(jobs.context.store).faults == []
    jobs.close()
