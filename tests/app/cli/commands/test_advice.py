"""Advice on the command line: levers that fit, those left out, the node that binds."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest

from app import catalogue
from app.cli.typer_app import run

pytestmark = pytest.mark.usefixtures("quick_bounds")

MODEL = str(Path(__file__).parents[3] / "models" / "decoder.onnx")
FLAGS = ["--batch", "8", "--dim", "sequence=8", "--budget", "80%", "--iterations", "10", "--execute", "no"]


def test_the_command_tells_what_else_would_lower_the_peak(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", MODEL, *FLAGS, "--layout", "none", "--advise"]) == 0
    said = capsys.readouterr().out
    assert "2 micro-batches" in said and "fits" in said
    assert "not early weight updates: there is no update to move" in said
    assert "proven minimum peak" in said


def test_the_section_is_what_its_schema_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", MODEL, *FLAGS, "--layout", "none", "--advise", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    jsonschema_rs.validate(catalogue.schema("report"), report)
    assert report["advice"]["levers"][0]["lever"] == "micro_batches"


def test_explain_says_what_would_be_without_a_repeat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    assert run(["plan", MODEL, *FLAGS, "-o", str(path)]) == 0
    capsys.readouterr()
    assert run(["explain", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    rows = said["recomputed"]
    assert rows and all(row["if_kept"]["peak_bytes"] > 0 for row in rows)
    assert all(row["runs"] > 1 and row["seconds"] > 0 for row in rows)
    assert rows[0]["byte_steps"] >= rows[0]["freed_bytes"] > 0
    assert said["binding"]["node"] and said["binding"]["next_bytes"] <= said["binding"]["bytes"]
    assert sum(row["bytes"] for row in said["holders"]) <= json.loads(path.read_text())["plan"]["peak_bytes"]
    assert run(["explain", str(path)]) == 0
    text = capsys.readouterr().out
    assert "peak if kept" in text and f"limiting op: {said['binding']['node']}" in text
