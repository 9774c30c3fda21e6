"""Two services with different data folders on one PostgreSQL and shared blobs, and workers of which one hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.settings import Settings
from app.store.store import Store
from app.store.tables import operations
from tests.app.cli.admin.test_serve import PATIENCE_S, started, stop
from tests.app.conftest import chain
from tests.postgres import Cluster

pytestmark = pytest.mark.heavy

SOLVE = {"graph": chain(60), "budget": "30%", "search_seconds": 5, "planner": "anneal", "execute": "no"}


class Hosts:
    """Environment and processes of several hosts."""

    def __init__(self, url: str, folder: Path):
        self.folder = folder
        self.environment = {
            "REMAT_DATABASE_URL": url,
            "REMAT_BLOBS_URL": f"file://{folder}/blobs",
            "REMAT_LOST_SECONDS": "3",
            "REMAT_WORKERS": "0",
        }
        self.running: list[subprocess.Popen[str]] = []

    def serve(self, name: str) -> str:
        """Address of a service that requires keys, on a host of that name."""
        process, url = started(self.folder / name, "--auth", **self.environment)
        self.running.append(process)
        return url

    def run(self, *arguments: str) -> str:
        command, environment = [sys.executable, "-m", "remat", *arguments], os.environ | self.environment
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    def worker(self) -> subprocess.Popen[str]:
        command, environment = [sys.executable, "-m", "remat", "worker", "--slots", "1"], os.environ | self.environment
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.running.append(process)
        return process


@pytest.fixture
def hosts(tmp_path: Path, postgres: Cluster, migrated: str) -> Iterator[Hosts]:
    (tmp_path / "blobs").mkdir()
    made = Hosts(postgres.database(tmp_path.name, like=migrated), tmp_path)
    yield made
    for process in made.running:
        process.send_signal(signal.SIGCONT)
        stop(process)


def until(condition: Any) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return found


def test_one_key_sees_its_graph_on_both_and_a_job_of_a_hung_worker_ends_once(hosts: Hosts) -> None:
    headers = {"authorization": f"Bearer {hosts.run('keys', 'create', 'alice')}"}
    one, two = hosts.serve("one"), hosts.serve("two")

    def ask(method: str, url: str, **more: Any) -> Any:
        return httpx2.request(method, url, headers=headers | more.pop("headers", {}), timeout=PATIENCE_S, **more)

    graph = ask("POST", f"{one}/v1/graphs", json=chain(60)).json()["id"]
    assert ask("GET", f"{two}/v1/graphs/{graph}").status_code == 200
    assert [row["id"] for row in ask("GET", f"{two}/v1/graphs").json()["graphs"]] == [graph]
    assert httpx2.get(f"{two}/v1/graphs/{graph}", timeout=PATIENCE_S).status_code == 401

    id = ask("POST", f"{one}/v1/plans", json=SOLVE, headers={"prefer": "wait=0"}).json()["id"]
    first = hosts.worker()
    until(lambda: ask("GET", f"{two}/v1/operations/{id}").json()["state"] == "running")
    first.send_signal(signal.SIGSTOP)
    hosts.worker()
    until(lambda: ask("GET", f"{two}/v1/operations/{id}").json()["state"] == "succeeded")
    first.send_signal(signal.SIGCONT)
    time.sleep(3)  # the first worker finds that its claim is lost
    events = ask("GET", f"{one}/v1/operations/{id}/events").text
    assert events.count('"state":"succeeded"') == 1
    assert events.count('"state":"running"') >= 2
    store = Store(Settings(database_url=hosts.environment["REMAT_DATABASE_URL"], blobs_url="file:///tmp"))
    assert store.row(operations, id)["attempts"] == 2
    store.close()
    assert "POST    /v1/plans" in hosts.run("audit", "--tenant", "alice")
