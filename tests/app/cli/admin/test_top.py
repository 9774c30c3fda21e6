"""`remat top`: jobs as rows, and what is said where nobody answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli import typer_app
from app.cli.admin import top
from app.client.blocking import ServiceProblem, Unreachable


def job(id: str, state: str, **said: Any) -> dict[str, Any]:
    at = "2026-01-01T00:00:00.000Z"
    return {
        "id": id,
        "kind": "plan",
        "model": "resnet50",
        "state": state,
        "stage": "plan",
        "created_at": at,
        "started_at": at,
        "ended_at": None,
        "progress": None,
        "result": None,
        "error": None,
        **said,
    }


PROGRESS = {
    "seconds": 3.0,
    "incumbent": {"overhead": 0.031, "peak_bytes": 5 << 30},
    "bound": {"overhead": 0.02},
    "gap": 0.011,
}
ENDED = job("op3", "succeeded", ended_at="2026-01-01T00:01:07.000Z", result="/v1/plans/p", progress=PROGRESS)
JOBS = [
    ENDED,
    job("op2", "running", progress=PROGRESS),
    job("op1", "queued", started_at=None, stage=None, model=None, kind="batch"),
]


class Service:
    """A client of a service with these jobs, or with the errors it is given, one a look."""

    def __init__(self, *errors: Exception):
        self.errors = list(errors)

    def __call__(self, url: str, **given: Any) -> Service:
        return self

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def operations(self, state: str | None = None) -> Iterator[dict[str, Any]]:
        if self.errors:
            raise self.errors.pop(0)
        yield from (one for one in JOBS if state in (None, one["state"]))


def test_a_snapshot_has_what_runs_waits_and_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top, "Client", Service())
    assert typer_app.run(["top", "--once", "--server", "http://here"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "http://here: 1 running, 1 queued"
    assert [line.split()[0] for line in lines[1:]] == ["job", "op2", "op1", "op3"]
    assert " ".join(lines[2].split()[1:10]) == "plan running plan resnet50 5.00 GiB 3.1% 2.0% 1.1%"
    assert "resnet50" not in lines[3]
    assert lines[4].split()[-1] == "67" and "resnet50" in lines[4]


def test_who_does_not_answer_is_told_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) >= 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(top, "Client", Service(Unreachable("refused"), ServiceProblem({"status": 503})))
    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=wait))  # only there: other threads sleep too
    assert typer_app.run(["top", "--server", "http://here"]) == 0
    said = capsys.readouterr().out
    assert said.count("http://here does not answer") == 2 and "retrying" in said
    assert "1 running, 1 queued" in said


def test_a_snapshot_of_a_dead_server_ends_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert typer_app.run(["top", "--once", "--server", "http://127.0.0.1:1"]) == 2
    assert "start it with `remat serve`" in capsys.readouterr().err


def test_it_ends_once_its_reader_has_left() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "remat", "top", "--server", "http://127.0.0.1:1"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_service_that_refuses_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = ServiceProblem({"status": 401, "code": "no_key", "title": "A key is needed", "detail": "send one"})
    monkeypatch.setattr(top, "Client", Service(refused))
    assert typer_app.run(["top", "--server", "http://here"]) == 2
    assert "A key is needed" in capsys.readouterr().err
