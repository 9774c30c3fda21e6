"""`remat layout`: the rows come back with offsets, exit codes say whether they fit, faults name their row."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from app.cli import typer_app

ROWS = "id,lower,upper,size,note\na,0,2,4,first\nb,1,3,4,\n"


def written(folder: Path, text: str) -> str:
    file = folder / "buffers.csv"
    file.write_text(text)
    return str(file)


def test_every_row_comes_back_with_its_offset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.csv"
    assert typer_app.run(["layout", written(tmp_path, ROWS), "-o", str(out)]) == 0
    rows = list(csv.DictReader(out.open()))
    assert [(row["id"], row["note"]) for row in rows] == [("a", "first"), ("b", "")]
    assert sorted(row["offset"] for row in rows) == ["0", "4"]
    assert "2 buffers in 8 B, proven" in capsys.readouterr().out


def test_a_capacity_that_is_too_small_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, ROWS)
    assert typer_app.run(["layout", file, "--capacity", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["arena_bytes"] == 8
    assert typer_app.run(["layout", file, "--capacity", "7", "--seconds", "0.1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["status"] == "over_capacity"


def test_offsets_and_alignments_of_a_file_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    text = "lower,upper,size,alignment,offset\n0,2,4,,8\n0,2,4,16,\n0,2,4,,\n"
    assert (
        typer_app.run(["layout", written(tmp_path, text), "--alignment", "4", "--seconds", "0.1", "-o", str(out)]) == 0
    )
    first, second, third = (int(row["offset"]) for row in csv.DictReader(out.open()))
    assert first == 8 and second % 16 == 0 and third % 4 == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found nothing"),
        ("id,size\n", "lower, upper and size"),
        ("lower,upper,size\n0,1\n", "buffers[0]: found a different number of cells"),
        ("lower,upper,size\n0,1,big\n1,1,1\n", "buffers[0].size: found 'big'"),
        ("lower,upper,size\n0,1,\n", "buffers[0].size: found nothing"),
        ("lower,upper,size\n0,1,--5\n", "buffers[0].size: found '--5'"),
        (f"lower,upper,size\n0,1,{'9' * 5000}\n", "buffers[0].size: found '999"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typer_app.run(["layout", written(tmp_path, text), "-o", str(tmp_path / "out.csv")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()
