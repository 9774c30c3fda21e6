"""`remat serve` as a process: its first words, its end, and what survives a kill."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import uvicorn

from app.api.middleware.trusted_host import LOOPBACK_HOSTS
from app.cli import typer_app
from app.cli.admin.serve import DrainingServer, _hosts, _listener
from app.settings import Settings
from bench.processes import below
from tests.app.conftest import chain

Started = tuple["subprocess.Popen[str]", str]


PATIENCE_S = 120.0


def started(data: Path, *arguments: str, cwd: Path | None = None, **environment: str) -> Started:
    """A service of its own, once it listens, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "remat", "serve", "--port", "0", "--data", str(data), *arguments],
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | {"REMAT_LOG_LEVEL": "warning", "REMAT_WORKERS": "1", "OMP_NUM_THREADS": "1"} | environment,
    )
    assert process.stderr is not None
    said = list[str]()  # lines before it: a worker tells of operations it took over
    for line in process.stderr:
        if found := re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", line):
            return process, found[1]
        said.append(line)
    stop(process)
    raise AssertionError("".join(said))


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stderr is not None
    process.stderr.close()


def test_answers_are_sent_without_waiting_for_acknowledgements() -> None:
    with _listener("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_hosts_are_checked_where_no_key_is_required(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    assert _hosts("127.0.0.1", settings, requires_key=False) == LOOPBACK_HOSTS
    assert (
        _hosts("127.0.0.1", settings, requires_key=True) is None
        and _hosts("0.0.0.0", settings, requires_key=False) is None
    )
    named = settings.model_copy(update={"allowed_hosts": "plans.example, localhost"})
    assert _hosts("0.0.0.0", named, requires_key=True) == {"plans.example", "localhost"}


def test_the_line_with_the_address_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two writes, a line of another thread would end up within it."""

    class Recorder(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    async def started(self: uvicorn.Server, sockets: object = None) -> None:
        self.started = True

    written: list[str] = []
    server = DrainingServer.__new__(DrainingServer)
    server.service, server.url = SimpleNamespace(jobs=SimpleNamespace(start=lambda: None)), "http://127.0.0.1:1"
    monkeypatch.setattr(uvicorn.Server, "startup", started)
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr(sys, "stderr", Recorder())
    asyncio.run(server.startup())
    assert written == ["listening on http://127.0.0.1:1\n"]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    """Starts services over one folder."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> Started:
        process, url = started(tmp_path / "data", *arguments, **environment)
        running.append(process)
        return process, url

    yield start
    for process in running:
        stop(process)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address and folder of a service that nobody ends."""
    data = tmp_path_factory.mktemp("served")
    process, url = started(data)
    yield url, data
    stop(process)


SLOW = {"graph": chain(300), "budget": "10%", "search_seconds": 100, "planner": "anneal", "execute": "no"}


def begun(url: str, **fields: Any) -> str:
    """Id of an operation that nobody waits for."""
    headers = {"prefer": "wait=0"}
    answer = httpx2.post(f"{url}/v1/plans", json=SLOW | fields, headers=headers, timeout=PATIENCE_S)
    return str(answer.json()["id"])


def state(url: str, id: str) -> Any:
    return httpx2.get(f"{url}/v1/operations/{id}", timeout=PATIENCE_S).json()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def ended(url: str, id: str) -> Any:
    """The operation, once its stream of events has ended."""
    with httpx2.stream("GET", f"{url}/v1/operations/{id}/events", timeout=PATIENCE_S) as stream:
        stream.read()
    return state(url, id)


def test_sigterm_ends_streams_and_what_was_stored_or_asked_is_there_after_a_restart(serve: Any) -> None:
    process, url = serve(REMAT_DRAIN_SECONDS="0", REMAT_KILL_SECONDS="1")
    quick = {"graph": chain(), "budget": "80%", "planner": "greedy", "iterations": 5}
    answer = httpx2.post(f"{url}/v1/plans", json=quick, timeout=PATIENCE_S)
    assert answer.status_code == 201
    id = begun(url)
    with httpx2.stream("GET", f"{url}/v1/operations/{id}/events", timeout=PATIENCE_S) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        list(lines)  # the stream ends by itself
    assert process.wait(PATIENCE_S) == 0
    _, url = serve()
    again = httpx2.get(url + answer.headers["location"], timeout=PATIENCE_S)
    assert again.json()["plan"] == answer.json()["plan"]
    assert state(url, id)["state"] in ("queued", "running")


def test_a_killed_service_finishes_its_operations_after_a_restart_and_leaves_no_child(serve: Any) -> None:
    process, url = serve()
    slow = begun(url)
    ids = [begun(url, graph=chain(), planner="greedy", iterations=5, seed=seed) for seed in range(2)]
    until(lambda: state(url, slow)["stage"] not in (None, "read"))  # its child searches
    children = below(process.pid)
    assert len(children) >= 3  # what tracks resources, what forks, and what was forked
    process.kill()
    process.wait()
    _, url = serve()
    until(lambda: bool(state(url, slow)["state"] == "running"))
    httpx2.post(f"{url}/v1/operations/{slow}:cancel", timeout=PATIENCE_S)
    assert ended(url, slow)["state"] == "cancelled"
    for id in ids:
        operation = ended(url, id)
        assert operation["state"] == "succeeded", operation
        assert httpx2.get(url + operation["result"], timeout=PATIENCE_S).json()["checked"] is True
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def test_an_address_that_strangers_reach_needs_a_word(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "example.org"):
        code = typer_app.run(["serve", "--host", host, "--port", "0", "--data", str(tmp_path)])
        assert code == 2
        assert "--no-auth" in capsys.readouterr().err


def test_an_invalid_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("REMAT_WORKERS", "-1")
    monkeypatch.setenv("REMAT_LOG_LEVEL", "loud")
    assert typer_app.run(["serve", "--data", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert "REMAT_WORKERS: found '-1', expected greater than or equal to 0\n" in shown
    assert "REMAT_LOG_LEVEL: found 'loud', expected 'debug', 'info', 'warning' or 'error'\n" in shown


def test_a_port_that_is_taken_is_told(
    served: tuple[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    port = served[0].rpartition(":")[2]
    assert typer_app.run(["serve", "--port", port, "--data", str(tmp_path / "other")]) == 2
    assert "cannot listen" in capsys.readouterr().err


def test_a_folder_that_another_process_serves_is_told(
    served: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert typer_app.run(["serve", "--port", "0", "--data", str(served[1])]) == 2
    assert "another process" in capsys.readouterr().err


def test_a_cancelled_solve_keeps_a_plan_that_is_checked(served: tuple[str, Path]) -> None:
    url, _ = served
    id = begun(url)
    until(lambda: state(url, id)["stage"] not in (None, "read"))
    httpx2.post(f"{url}/v1/operations/{id}:cancel", timeout=PATIENCE_S)
    operation = ended(url, id)
    assert operation["state"] == "cancelled"
    if operation["result"] is not None:
        assert httpx2.get(url + operation["result"], timeout=PATIENCE_S).json()["checked"] is True


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


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_bodies_return_to_the_system_while_small_blocks_lie_between_them() -> None:
    script = """
import asyncio
import io
import os
from app.cli.admin.serve import _return_large_blocks

def resident_mib() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

def grown_mib() -> int:
    bytes(8 << 20)  # freed at once: by default glibc keeps blocks of this size from now on
    before = resident_mib()
    bodies = [(b"x" * (8 << 20), small.append([bytearray(5000) for _ in range(10)])) for _ in range(40)]
    del bodies
    return resident_mib() - before

small = []
_return_large_blocks()
print(grown_mib())
"""
    command = [sys.executable, "-c", script]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) < 32
    kept = [sys.executable, "-c", script.replace("\n_return_large_blocks()\n", "\n")]
    assert int(subprocess.run(kept, capture_output=True, text=True, check=True).stdout) > 200  # what it is for
