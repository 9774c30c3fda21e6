"""`remat batch` from the command line: to its end, over budget, stopped, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from app.atomic_files import write_atomic
from app.cli import typer_app
from app.cli.commands import batch as batch_command
from app.sweep import executors
from tests.app.sweep.conftest import answer


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answers that nobody searched for; the keys that were asked."""
    asked: list[str] = []

    def work(question: dict[str, Any], **given: Any) -> dict[str, Any]:
        asked.append(question["key"])
        return answer(status="over_budget" if question["fields"]["budget"] == "1%" else "found")

    monkeypatch.setattr(executors, "solve_locally", work)
    return asked


def batch(folder: Path, *more: str) -> int:
    return typer_app.run(["batch", str(folder), "-o", str(folder.parent / "out"), *more])


def test_a_batch_is_a_table_lines_csv_and_a_page(
    folder: Path, made_up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    page = folder.parent / "page.html"
    assert batch(folder, "--budgets", "80%,1%", "--planners", "auto,greedy", "--seeds", "0,1", "--html", str(page)) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "16 plans: 8 within budget, 8 over budget"
    assert said.err.count("\n") == 16 + 2 and "[16/16] " in said.err
    out = folder.parent / "out"
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {(row["model"], row["planner"], row["seed"]) for row in rows} == {
        (model, planner, seed) for model in ("one", "two") for planner in ("auto", "greedy") for seed in (0, 1)
    }
    assert all((out / row["plan"]).is_file() for row in rows)
    assert len((out / "summary.csv").read_text().splitlines()) == 17
    assert "16 plans" in page.read_text()


def test_the_page_is_written_as_items_end(
    folder: Path, made_up: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, written = folder.parent / "page.html", []

    def write(path: Path, data: bytes) -> None:
        write_atomic(path, data)
        if path == page:
            written.append(data.decode())

    monkeypatch.setattr(batch_command, "write_atomic", write)
    monkeypatch.setattr(batch_command, "WRITE_SHARE", 0.0)
    assert batch(folder, "--budgets", "80%,70%", "--workers", "1", "--html", str(page)) == 0
    assert [text.partition("</title>")[0].rpartition("remat: ")[2] for text in written] == [
        f"{count} plans: {count} within budget" for count in (1, 2, 3, 4, 4)
    ]
    assert "3 not finished" in written[0] and "not finished" not in written[-1]


def test_what_is_there_is_not_made_again(folder: Path, made_up: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert batch(folder, "--budgets", "80%") == 0
    assert batch(folder, "--budgets", "80%") == 2
    assert "--resume" in capsys.readouterr().err
    assert batch(folder, "--budgets", "80%,70%", "--resume", "--json") == 0
    assert len(made_up) == len(set(made_up)) == 4
    said = json.loads(capsys.readouterr().out)
    assert (said["format"], said["asked"], said["succeeded"]) == ("remat-batch/1", 4, 4)
    assert [row["budget"] for row in said["items"]] == ["80%", "70%", "80%", "70%"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "--budgets"),
        (["--budgets", "80%", "--planners", "nobody"], "nobody"),
        (["--budgets", "80%", "--seeds", "x"], "--seeds"),
        (["--budgets", "80%", "--engine", "cloud"], "local, server, dask or ray"),
        (["--budgets", "80%", "--server", "http://127.0.0.1:1"], "--engine server"),
        (["--budgets", "80%", "--engine", "server", "--workers", "2"], "--workers applies to --engine local"),
    ],
)
def test_a_wrong_question_is_told_and_nothing_begins(
    folder: Path, more: list[str], said: str, made_up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch(folder, *more) == 2
    assert said in capsys.readouterr().err
    assert not made_up


def test_a_model_that_is_none_is_a_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.json").write_text("{}")
    (folder / "two.json").unlink()
    assert batch(folder, "--budgets", "80%", "--planners", "greedy", "--iterations", "20", "--workers", "1") == 2
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "2 plans: 1 within budget, 1 failed"


def test_a_dead_server_fails_each_item_and_a_resume_asks_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.client.transport.FIRST_PAUSE_S", 0.001)
    words = ["--budgets", "80%", "--engine", "server", "--server", "http://127.0.0.1:1"]
    assert batch(folder, *words) == 4
    assert "failed: unreachable" in capsys.readouterr().out
    assert batch(folder, *words, "--resume") == 4
    assert "already finished" not in capsys.readouterr().err


def started(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    words = ["batch", str(folder), "-o", str(folder.parent / "out"), "--planners", "anneal", "--workers", "1", *more]
    code = "import sys, app.cli.typer_app; sys.argv[0] = 'remat'; app.cli.typer_app.main()"
    return subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.DEVNULL, start_new_session=True)


def lines(folder: Path) -> list[bytes]:
    path = folder.parent / "out" / "results.jsonl"
    return path.read_bytes().splitlines() if path.exists() else []


def once_there_are(count: int, folder: Path) -> None:
    deadline = time.monotonic() + 120
    while len(lines(folder)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.heavy
def test_a_killed_batch_goes_on_where_it_was(folder: Path) -> None:
    budgets = ",".join(f"{share}%" for share in range(40, 100, 10))
    words = ["--budgets", budgets, "--iterations", "300"]
    process = started(folder, *words)
    once_there_are(3, folder)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = lines(folder)
    assert 3 <= len(before) < 12
    with (folder.parent / "out" / "results.jsonl").open("ab") as file:
        file.write(b'{"key": "torn')
    assert started(folder, *words, "--resume").wait(300) in (0, 1)
    after = lines(folder)
    assert after[: len(before)] == before
    assert len({json.loads(line)["key"] for line in after}) == len(after) == 12


@pytest.mark.heavy
def test_a_stopped_batch_keeps_what_it_has(folder: Path) -> None:
    process = started(folder, "--budgets", ",".join(f"{share}%" for share in range(20, 100, 4)))
    once_there_are(1, folder)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 3
    rows = [json.loads(line) for line in lines(folder)]
    assert len(rows) < 40 and {row["state"] for row in rows} <= {"succeeded", "over_budget", "stopped"}
