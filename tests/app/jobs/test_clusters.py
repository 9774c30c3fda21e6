"""Jobs of a service that a cluster of Dask or of Ray solves, through a worker of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from app.cli import typer_app
from app.store.database import DATABASE_FILE
from tests.app.cli.admin.test_serve import PATIENCE_S, begun, ended, started, state
from tests.app.cli.admin.test_serve import stop as stop_process
from tests.app.clusters import ENGINES, LocalCluster, cluster_of, until
from tests.app.conftest import chain

SECRET = "postgresql-password-of-the-service"
QUICK = {"graph": chain(), "budget": "80%", "planner": "anneal", "iterations": 50}


@pytest.fixture(scope="module", params=ENGINES)
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    pytest.importorskip("distributed" if request.param == "dask" else "ray")
    with cluster_of(request.param) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def data(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store for each cluster, so that none answers from what the other solved."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def url(cluster: LocalCluster, data: Path) -> Iterator[str]:
    """A service that solves on the cluster only."""
    service, url = started(data, REMAT_WORKERS="0")
    worker, _ = worked(data, cluster.url)
    try:
        yield url
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0
    finally:
        stop_process(worker)
        stop_process(service)


def worked(data: Path, solve_on: str) -> tuple[subprocess.Popen[str], list[str]]:
    """A worker that takes jobs, and what it said before."""
    process = subprocess.Popen(
        [sys.executable, "-m", "remat", "worker", "--data", str(data), "--slots", "2", "--solve-on", solve_on],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"REMAT_LOG_LEVEL": "warning", "REMAT_KILL_SECONDS": "5", "REMAT_BLOBS_TOKEN": SECRET},
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("working as"):
            return process, said
    raise AssertionError("".join(said))


def counts(data: Path, id: str) -> tuple[int, int]:
    """How often the job was begun, and how often what solved it died."""
    with contextlib.closing(sqlite3.connect(data / DATABASE_FILE)) as connection:
        found = connection.execute("SELECT attempts, child_deaths FROM operations WHERE id = ?", [id])
        attempts, deaths = found.fetchone()
        return attempts, deaths


def searching(url: str, id: str) -> None:
    """Return once the job has a plan that could be kept."""
    until(lambda: (state(url, id)["progress"] or {}).get("incumbent"))


@pytest.mark.clusters
def test_a_job_is_solved_on_the_cluster_as_it_is_here(url: str) -> None:
    there = httpx2.post(f"{url}/v1/plans", json=QUICK, headers={"prefer": "wait=60"}, timeout=90).json()
    from tests.app.solver.test_child_process import RUNNER, payload

    here = RUNNER.run("solve", payload(**{name: QUICK[name] for name in ("budget", "planner", "iterations")}), 60)
    assert json.loads(here.result["report"])["plan"]["order"] == there["plan"]["order"]


@pytest.mark.clusters
def test_a_cancelled_job_keeps_the_best_plan_of_the_cluster(url: str) -> None:
    id = begun(url)
    searching(url, id)
    httpx2.post(f"{url}/v1/operations/{id}:cancel", timeout=PATIENCE_S)
    operation = ended(url, id)
    assert operation["state"] == "cancelled"
    report = httpx2.get(url + operation["result"], timeout=PATIENCE_S).json()
    assert report["checked"] is True and report["plan"]["stopped"]


@pytest.mark.clusters
def test_a_job_whose_cluster_worker_dies_is_tried_again_and_finished_once(
    url: str, data: Path, cluster: LocalCluster
) -> None:
    id = begun(url, search_seconds=12, seed=1)
    searching(url, id)
    before = cluster.calls()
    for pid in before:
        cluster.kill_worker(pid)
    operation = ended(url, id)
    assert (operation["state"], *counts(data, id)) == ("succeeded", 2, 1)


@pytest.mark.clusters
@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_outlives_its_cluster_and_secrets_stay_with_the_worker(engine: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        service, url = started(tmp_path / "data", REMAT_WORKERS="0")
        stack.callback(stop_process, service)
        with cluster_of(engine) as cluster:
            worker, said = worked(tmp_path / "data", cluster.url)
            stack.callback(stop_process, worker)
            assert re.search(rf"solving on {engine.title()} at .*{cluster.port}", "".join(said))
            id = begun(url, search_seconds=12)
            searching(url, id)
            for pid in cluster.calls():
                assert SECRET not in Path(f"/proc/{pid}/environ").read_text()
            cluster.kill()
            time.sleep(1)
            cluster.start()
            operation = ended(url, id)
            assert (operation["state"], *counts(tmp_path / "data", id)) == ("succeeded", 1, 0)


@pytest.mark.parametrize(
    ("solve_on", "message"),
    [
        pytest.param("dask://127.0.0.1:1", "nothing answers there", marks=pytest.mark.heavy),  # needs Dask
        ("spark://127.0.0.1:1", "use dask://HOST:8786 or ray://HOST:10001"),
        ("ray://auto", "use ray://HOST:10001"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], solve_on: str, message: str
) -> None:
    assert typer_app.run(["worker", "--data", str(tmp_path), "--solve-on", solve_on]) == 2
    assert message in capsys.readouterr().err
