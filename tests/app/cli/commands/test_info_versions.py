"""Versions and passes on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import typer_app
from tests.app.models.test_transforms import mutable


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.json"
    path.write_text(json.dumps(mutable("a: x -> y", "b: y -> z", "c: y -> y", "d: y -> u", outputs=["y", "z"])))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = typer_app.run([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_info_shows_which_write_each_op_reads(capsys: pytest.CaptureFixture[str], program: Path) -> None:
    code, out, _ = run(capsys, "info", program, "--versions")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["c", "y@1", "y@2"] in lines
    assert ["undefined:", "x@0"] in lines and ["dead:", "d"] in lines
    code, out, _ = run(capsys, "info", program, "--versions", "--json")
    assert json.loads(out)["versions"]["final"]["y"] == 2


def test_convert_runs_passes_and_keeps_names_written_again(
    capsys: pytest.CaptureFixture[str], program: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.mutable.json"
    rename = json.dumps({"pass": "rename", "value": "y@1", "to": "q"})
    border = json.dumps({"pass": "boundary", "nodes": ["b"]})
    asked = ["--transform", '{"pass": "prune"}', "--transform", rename, "--transform", border]
    code, out, _ = run(capsys, "convert", program, target, *asked)
    assert code == 0
    assert json.loads(out)["inputs"] == [{"value": "q", "name": "q", "version": 1}]
    document = json.loads(target.read_text())
    assert document["naming"] == "mutable"
    assert [(node["inputs"], node["outputs"]) for node in document["nodes"]] == [
        (["x"], ["q"]),
        (["q"], ["z"]),
        (["q"], ["y"]),
    ]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("{", "--transform"),
        ('{"pass": "shuffle"}', "pass"),
        ('{"pass": "rename", "value": "nope", "to": "q"}', "'nope'"),
    ],
)
def test_a_pass_that_cannot_be_writes_nothing(
    capsys: pytest.CaptureFixture[str], program: Path, tmp_path: Path, asked: str, said: str
) -> None:
    target = tmp_path / "out.json"
    code, _, err = run(capsys, "convert", program, target, "--transform", asked)
    assert (code, target.exists()) == (2, False)
    assert said in err
