"""`remat serve` as a process: its first words, its end, and what survives a kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app import cli
from tests.app.conftest import chain

Started = tuple["subprocess.Popen[str]", str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> Started:
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve", "--port", "0", "--data", str(tmp_path / "data"), *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"REMAT_LOG_LEVEL": "warning", "REMAT_WORKERS": "1", "OMP_NUM_THREADS": "1"} | environment,
        )
        running.append(process)
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", said)
        assert found is not None, said
        return process, found[1]

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_sigterm_drains_and_what_was_stored_is_there_after_a_restart(serve: Any) -> None:
    process, url = serve()
    answer = httpx2.post(f"{url}/v1/plans", json={"graph": chain(), "budget": "80%"}, timeout=60)
    assert answer.status_code == 201
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    _, url = serve()
    again = httpx2.get(url + answer.headers["location"], timeout=60)
    assert again.json()["plan"] == answer.json()["plan"]


def test_a_killed_service_finishes_its_operations_after_a_restart_and_leaves_no_child(serve: Any) -> None:
    process, url = serve()
    slow = {"graph": chain(40), "budget": "50%", "search_seconds": 30, "execute": "no"}
    ids = [
        httpx2.post(f"{url}/v1/plans", json=slow | {"seed": seed}, headers={"prefer": "wait=0"}, timeout=60).json()[
            "id"
        ]
        for seed in range(3)
    ]
    children = _children(process.pid)
    process.kill()
    process.wait()
    _, url = serve()
    for id in ids:
        with httpx2.stream("GET", f"{url}/v1/operations/{id}/events", timeout=120) as stream:
            stream.read()
        operation = httpx2.get(f"{url}/v1/operations/{id}", timeout=60).json()
        assert operation["state"] == "succeeded", operation
        assert httpx2.get(url + operation["result"], timeout=60).json()["checked"] is True
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def _children(pid: int) -> list[int]:
    """Every process below `pid`."""
    below = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return below + [grandchild for child in below for grandchild in _children(child)]


def test_event_streams_end_when_the_service_drains(serve: Any) -> None:
    process, url = serve(REMAT_DRAIN_SECONDS="0", REMAT_KILL_SECONDS="1")
    slow = {"graph": chain(200), "budget": "30%", "search_seconds": 60, "planner": "greedy"}
    id = httpx2.post(f"{url}/v1/plans", json=slow, headers={"prefer": "wait=0"}, timeout=60).json()["id"]
    with httpx2.stream("GET", f"{url}/v1/operations/{id}/events", timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        list(lines)  # the stream ends by itself
    assert process.wait(30) == 0


def test_an_address_that_strangers_reach_needs_a_word(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "example.org"):
        code = cli.run(["serve", "--host", host, "--port", "0", "--data", str(tmp_path)])
        assert code == 2
        assert "--no-auth" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(serve: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, url = serve()
    port = url.rpartition(":")[2]
    assert cli.run(["serve", "--port", port, "--data", str(tmp_path / "other")]) == 2
    assert "cannot listen" in capsys.readouterr().err


def test_a_folder_that_another_process_serves_is_told(
    serve: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    serve()
    assert cli.run(["serve", "--port", "0", "--data", str(tmp_path / "data")]) == 2
    assert "another process" in capsys.readouterr().err


def test_a_cancelled_solve_keeps_a_plan_that_is_checked(serve: Any) -> None:
    _, url = serve()
    slow = {"graph": chain(300), "budget": "10%", "search_seconds": 100}
    id = httpx2.post(f"{url}/v1/plans", json=slow, headers={"prefer": "wait=0"}, timeout=60).json()["id"]
    httpx2.post(f"{url}/v1/operations/{id}:cancel", timeout=60)
    with httpx2.stream("GET", f"{url}/v1/operations/{id}/events", timeout=60) as stream:
        stream.read()
    operation = httpx2.get(f"{url}/v1/operations/{id}", timeout=60).json()
    assert operation["state"] in ("cancelled", "succeeded")
    if operation["result"] is not None:
        assert httpx2.get(url + operation["result"], timeout=60).json()["checked"] is True


@pytest.mark.heavy
@pytest.mark.parametrize("store_settings", ["postgresql"], indirect=True)
def test_a_service_on_postgresql_that_is_killed_goes_on_where_it_was(
    serve: Any, store_settings: dict[str, Any]
) -> None:
    place = {"REMAT_DATABASE_URL": store_settings["database_url"]}
    process, url = serve(**place)
    quick = {"graph": chain(), "budget": "80%", "search_seconds": 1}
    answer = httpx2.post(f"{url}/v1/plans", json=quick, headers={"prefer": "wait=60"}, timeout=90)
    slow = {"graph": chain(40), "budget": "50%", "search_seconds": 30, "execute": "no"}
    id = httpx2.post(f"{url}/v1/plans", json=slow, headers={"prefer": "wait=0"}, timeout=60).json()["id"]
    process.kill()
    process.wait()
    _, url = serve(**place)
    again = httpx2.get(url + answer.headers["location"], timeout=60)
    assert again.json()["plan"] == answer.json()["plan"]
    with httpx2.stream("GET", f"{url}/v1/operations/{id}/events", timeout=120) as stream:
        stream.read()
    assert httpx2.get(f"{url}/v1/operations/{id}", timeout=60).json()["state"] == "succeeded"
    rows = httpx2.get(f"{url}/v1/savings", params={"group_by": "budget"}, timeout=60).json()["rows"]
    assert [(row["budget"], row["plans"]) for row in rows] == [("50%", 1), ("80%", 1)]
