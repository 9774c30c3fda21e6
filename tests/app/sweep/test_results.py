"""What was finished stays, however a batch ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.errors import BadUsage
from app.sweep.results import open_results


def row(key: str, state: str = "succeeded", **said: Any) -> dict[str, Any]:
    return {"key": key, "state": state, "error": None, **said}


def test_a_row_and_its_report_are_there_after_a_new_start(tmp_path: Path) -> None:
    with open_results(tmp_path, resume=False) as results:
        kept = results.add(row("a"), b'{"plan": 1}')
        assert kept["plan"] == "plans/a.json"
    with open_results(tmp_path, resume=True) as results:
        assert results.is_finished("a") and not results.is_finished("b")
        assert results.report(results.rows["a"]) == {"plan": 1}


@pytest.mark.parametrize("torn", [b"{", b'{"key": "b", "state": "succ', b'{"key": "b", "state": "succeeded"}', b"\0\0"])
def test_a_line_that_a_kill_cut_short_is_dropped(tmp_path: Path, torn: bytes) -> None:
    with open_results(tmp_path, resume=False) as results:
        results.add(row("a"), None)
    path = tmp_path / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with open_results(tmp_path, resume=True) as results:
        assert list(results.rows) == ["a"]
        results.add(row("b"), None)
    lines = path.read_bytes().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["a", "b"]


def test_a_line_in_the_middle_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"key": "a", "state": "succeeded"}\nrubbish\n{"key": "b"}\n')
    with pytest.raises(BadUsage, match="line 2"), open_results(tmp_path, resume=True):
        pass


def test_results_are_not_mixed_with_others_unasked(tmp_path: Path) -> None:
    with open_results(tmp_path, resume=False) as results:
        results.add(row("a"), None)
    with pytest.raises(BadUsage, match="--resume"), open_results(tmp_path, resume=False):
        pass


def test_two_batches_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with (
        open_results(tmp_path, False),
        pytest.raises(BadUsage, match="locked by another batch"),
        open_results(tmp_path, True),
    ):
        pass


@pytest.mark.parametrize(
    ("state", "status", "finished"),
    [("over_budget", None, True), ("failed", 422, True), ("failed", 500, False), ("stopped", None, False)],
)
def test_what_may_end_better_is_asked_again(tmp_path: Path, state: str, status: int | None, finished: bool) -> None:
    error = None if status is None else {"status": status}
    with open_results(tmp_path, False) as results:
        results.add(row("a") | {"state": state, "error": error}, None)
        assert results.is_finished("a") is finished


def test_a_report_half_written_by_a_killed_batch_goes(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / ".a.json.0123456789abcdef.part").write_bytes(b"{")
    with open_results(tmp_path, False):
        assert not list((tmp_path / "plans").iterdir())
