"""A batch on clusters of Dask and of Ray that run on this machine, and what becomes of it when they do not."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli import typer_app
from app.solver.clusters import calls
from app.sweep import cluster_executor, executors
from app.sweep.items import SweepItem, expand_items, find_models
from app.sweep.run import run_items
from app.sweep.tasks import task_of
from bench.generators import layered
from tests.app.clusters import ENGINES, LocalCluster, cluster_of, until

HARD = "50%"  # of the models of `slow`: no bound comes near, so no proof ends a search before its time
SLOW = ["--budgets", HARD, "--planners", "anneal", "--seconds", "100", "--execute", "no"]


@pytest.fixture(scope="module", params=ENGINES)
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    pytest.importorskip("distributed" if request.param == "dask" else "ray")
    with cluster_of(request.param) as cluster:
        yield cluster


@pytest.fixture
def slow(folder: Path) -> Path:
    """Two models whose searches take as long as they may."""
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text(json.dumps(layered(400, seed=3) | {"name": name}))
    return folder


def batch(folder: Path, *more: str) -> int:
    return typer_app.run(["batch", str(folder), "-o", str(folder.parent / "out"), *more])


def started(folder: Path, cluster: LocalCluster, *more: str) -> subprocess.Popen[str]:
    words = ["batch", str(folder), "-o", str(folder.parent / "out"), "--engine", cluster.engine]
    command = [sys.executable, "-m", "remat", *words, "--cluster", cluster.address, *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    path = folder.parent / "out" / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--engine", "dask"], "--cluster tcp://HOST:8786"),
        (["--engine", "ray"], "or auto for a cluster on this machine"),
        (["--cluster", "tcp://127.0.0.1:8786"], "--cluster requires --engine dask or --engine ray"),
        (["--engine", "dask", "--cluster", "tcp://127.0.0.1:8786", "--workers", "2"], "--workers applies to"),
        (["--engine", "dask", "--cluster", "scheduler"], "use tcp://HOST:8786"),
        (["--engine", "ray", "--cluster", "tcp://127.0.0.1:8786"], "use ray://HOST:10001"),
        (
            ["--engine", "dask", "--cluster", "tcp://127.0.0.1:1"],
            "tcp://127.0.0.1:1: nothing answers there (connection",
        ),
        (["--engine", "ray", "--cluster", "ray://127.0.0.1:1"], "ray://127.0.0.1:1: nothing answers there"),
    ],
)
def test_a_wrong_address_is_one_message_and_nothing_begins(
    folder: Path, more: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert batch(folder, "--budgets", "80%", *more) == 2
    assert said in capsys.readouterr().err
    assert not (folder.parent / "out").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_package_is_named_with_its_extra(
    folder: Path, engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    address = "tcp://127.0.0.1:1" if engine == "dask" else "auto"
    assert batch(folder, "--budgets", "80%", "--engine", engine, "--cluster", address) == 2
    assert f"pip install 'remat[{engine}]'" in capsys.readouterr().err


def test_a_file_that_a_worker_cannot_read_is_named_and_asked_for_again(folder: Path) -> None:
    item, *_ = expand_items(find_models(folder), ["80%"])
    Path(item.file).unlink()
    problem = executors.solve_on_cluster(task_of(item), lambda message: None, threading.Event())["problem"]
    assert problem["detail"].startswith(f"{item.file}: no such file or directory on the cluster's worker ")
    assert problem["status"] == 500  # so that --resume tries it again


@pytest.mark.clusters
def test_plans_on_a_cluster_are_those_made_here(folder: Path, cluster: LocalCluster) -> None:
    items = expand_items(find_models(folder), ["80%", "60%"], ["greedy", "anneal"], fields={"iterations": 50})
    here = outcomes(items, executors.local_engine(1, None, threading.Event()))
    told: list[str] = []
    there = outcomes(items, engine_on(cluster, told))
    assert len(there) == 8 and set(told) <= {item.key for item in items} and told
    for key, report in here.items():
        assert [report[part] for part in ("plan", "layout", "source")] == [
            there[key][part] for part in ("plan", "layout", "source")
        ]


def engine_on(cluster: LocalCluster, told: list[str], stop: threading.Event | None = None) -> executors.SweepEngine:
    from app.solver.clusters.connect import connect  # needs the extras

    connected = connect(cluster.engine, cluster.address, "--cluster")
    return executors.cluster_engine(connected, lambda key, progress: told.append(key), stop or threading.Event())


def outcomes(items: list[SweepItem], engine: executors.SweepEngine) -> dict[str, Any]:
    try:
        found = list(run_items(items, engine, threading.Event()))
    finally:
        engine.executor.shutdown()
    assert not [outcome.row["error"] for outcome in found if outcome.row["error"]]
    return {outcome.item.key: json.loads(outcome.report or b"{}") for outcome in found}


@pytest.mark.clusters
def test_a_stopped_batch_keeps_the_best_plans_and_a_resume_makes_the_rest(slow: Path, cluster: LocalCluster) -> None:
    process = started(slow, cluster, *SLOW)
    assert process.stderr is not None
    assert f"{cluster.address}: " in process.stderr.readline()
    until(lambda: len(cluster.calls()) == 2)
    threading.Event().wait(12)  # until there are plans
    process.send_signal(signal.SIGTERM)
    said = process.stderr.read()
    assert process.wait() == 3, said
    assert "stopped; continue with --resume" in said and "Traceback" not in said
    rows = rows_of(slow)
    assert rows and {row["state"] for row in rows} <= {"stopped", "succeeded", "over_budget"}
    assert any(row["plan"] is not None for row in rows)
    words = ["--budgets", HARD, "--planners", "anneal", "--seconds", "2", "--execute", "no", "--resume"]
    assert batch(slow, *words, "--engine", cluster.engine, "--cluster", cluster.address) in (0, 1)
    assert {row["model"] for row in rows_of(slow) if row["state"] in ("succeeded", "over_budget")} == {"one", "two"}


@pytest.mark.clusters
@pytest.mark.parametrize(
    ("sent", "retries", "said"),
    [(signal.SIGKILL, 0, "worker died"), (signal.SIGSTOP, 0, "was silent for 20 s"), (signal.SIGSTOP, 1, "")],
)
def test_an_item_whose_worker_dies_or_stands_still_fails_alone_or_goes_to_the_other(
    slow: Path, cluster: LocalCluster, sent: signal.Signals, retries: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_executor, "RETRIES", retries)
    monkeypatch.setattr(calls, "SILENT_S", 20.0)
    fields = {"search_seconds": 30, "execute": "no"}
    items = expand_items(find_models(slow), [HARD], ["anneal"], fields=fields)
    engine = engine_on(cluster, told := [])
    both = len(items)  # have been heard of: a worker that dies before is not known to have begun one
    victims: list[int] = []

    def strike() -> None:
        until(lambda: len(set(told)) == both)
        victims.append(until(cluster.calls)[0])
        os.kill(victims[0], sent)

    killer = threading.Thread(target=strike)
    killer.start()
    try:
        rows = [outcome.row for outcome in run_items(items, engine, threading.Event())]
    finally:
        killer.join()
        engine.executor.shutdown()
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)  # one that stands still
    ended = [(row["state"], row["error"]) for row in rows]
    assert sorted(row["state"] for row in rows) == ["succeeded" if retries else "failed", "succeeded"], ended
    for error in (row["error"] for row in rows if row["error"]):
        assert error["code"] == "child_died" and said in error["detail"]


@pytest.mark.clusters
@pytest.mark.parametrize("engine", ENGINES)
def test_a_cluster_that_goes_away_ends_the_batch_with_one_line(slow: Path, engine: str) -> None:
    with cluster_of(engine) as cluster:
        process = started(slow, cluster, *SLOW)
        assert process.stderr is not None
        process.stderr.readline()
        until(lambda: len(cluster.calls()) == 2)
        threading.Event().wait(5)
        cluster.kill()
        said = process.stderr.read()
        assert process.wait() == 4, said
    assert "went away" in said and "--resume" in said and "Traceback" not in said
