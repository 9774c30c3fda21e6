"""What `remat plan` and `remat curve` draw, and the pictures they write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli import typer_app
from app.cli.commands import curve as curve_command
from app.cli.commands import plan as plan_command

CURVE = ["--budgets", "100%,70%", "--iterations", "20"]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = typer_app.run([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_timeline_is_drawn_where_asked_and_not_where_nobody_looks(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["plan", model, "--budget", "80%", "--iterations", "20"]
    code, out, _ = run(capsys, *plan, "--draw")
    assert code == 0
    assert "memory over steps" in out and "▼" in out and "\x1b" not in out
    report = json.loads(run(capsys, *plan, "--json")[1])
    holder, peak = report["timeline"]["baseline_holder"], max(report["timeline"]["baseline_step_bytes"])
    step = report["timeline"]["baseline_step_bytes"].index(peak)
    assert f"at step {step} of 8; largest value {holder['value']}, 16.00 KiB" in out
    for quiet in ([], ["--no-draw"]):
        assert "memory over steps" not in run(capsys, *plan, *quiet)[1]


def test_a_curve_is_drawn_where_asked(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "overhead over budget" in run(capsys, "curve", model, *CURVE, "--draw")[1]
    assert "overhead over budget" not in run(capsys, "curve", model, *CURVE)[1]


def test_json_is_not_drawn_upon(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["plan", model], ["curve", model, *CURVE]):
        code, out, _ = run(capsys, *command, "--json", "--draw")
        assert (code, json.loads(out)["code"]) == (2, "conflicting_flags")


def test_the_holder_is_one_that_counts(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(model.read_text())
    document["values"].append({"name": "huge", "bytes": 10**9, "role": "parameter"})
    model.write_text(json.dumps(document))
    for counts, expected in (("everything", True), ("activations", False)):
        out = run(capsys, "plan", model, "--budget", "0", "--counts", counts, "--draw")[1]
        assert ("largest value huge" in out) == expected


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_plot_is_written_beside_the_answer(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    for command in (["plan", model, "--budget", "80%", "--iterations", "20"], ["curve", model, *CURVE]):
        target = tmp_path / f"{command[0]}.{suffix}"
        _, out, err = run(capsys, *command, "--plot", target, "--json")
        assert f"written: {target}" in err
        json.loads(out)
        assert target.read_bytes()[:4] in (b"<svg", b"\x89PNG")


@pytest.mark.parametrize(("name", "code"), [("out.pdf", "unknown_extension"), ("out.png", "missing_extra")])
def test_a_picture_that_cannot_be_written_is_told_before_the_search(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    code: str,
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr("app.render.svg.importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(plan_command, "solve", never)
    monkeypatch.setattr(curve_command, "curve", never)
    for command in (["plan", model, "-o", tmp_path / "p.json"], ["curve", model, *CURVE]):
        exit_code, out, _ = run(capsys, *command, "--plot", tmp_path / name, "--json")
        assert (exit_code, json.loads(out)["code"]) == (2, code)
    assert {path.name for path in tmp_path.iterdir()} == {model.name}


def test_a_name_in_letters_the_terminal_has_not_is_printed_all_the_same(model: Path) -> None:
    document = json.loads(model.read_text())
    document["name"] = "d\u00e9j\u00e0 \U0001f4be"
    model.write_text(json.dumps(document))
    done = subprocess.run(
        [sys.executable, "-m", "remat", "plan", str(model), "--draw"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert b"d\\xe9j\\xe0 \\U0001f4be: 8 nodes" in done.stdout
    assert b"memory over steps" in done.stdout and done.stdout.isascii()
