"""`remat check`: exit codes, and what a team reads in its CI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import typer_app
from tests.app.conftest import chain


@pytest.fixture
def plan(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "plan.json"
    budget = ["--budget", "80%", "--iterations", "20", "--planner", "greedy"]
    assert typer_app.run(["plan", str(model), *budget, "-o", str(path)]) == 0
    capsys.readouterr()
    return path


def check(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = typer_app.run(["check", *(str(argument) for argument in arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def changed(model: Path, shape: list[int]) -> Path:
    document = chain()
    document["values"][3]["shape"] = shape
    model.write_text(json.dumps(document))
    return model


def test_the_same_model_holds(plan: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, plan, model, "--max-drift", "0%")
    assert code == 0
    assert out.startswith("holds: nothing grew by more than 0.0%")
    assert "blame" not in out and "differs" not in out


def test_a_grown_value_exits_1_and_names_its_op(plan: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, plan, changed(model, [128, 64]))
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("over budget: the plan peaks at ") and "baseline peak grew by 16.67%" in lines[0]
    assert "nodes to blame: f2" in lines
    assert [line.split()[0] for line in lines if line.split()[-2:] == ["f2", "grew"]] == ["h2", "h2"]
    assert "the training graph differs in 1 place" in lines


def test_a_small_growth_is_told_and_passes(plan: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(model, [65, 64])
    code, out, _ = check(capsys, plan, model, "--max-drift", "50%")
    assert code == 0 and "differs in 1 place" in out and "blame" not in out
    assert check(capsys, plan, model, "--max-drift", "0.0001")[0] == 1


def test_json_has_figures_blame_and_differences(plan: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, plan, changed(model, [128, 64]), "--json")
    found: dict[str, Any] = json.loads(out)
    assert (code, found["format"], found["within"], found["blame"]) == (1, "remat-check/1", False, ["f2"])
    assert [row["what"] for row in found["figures"]] == [
        "baseline.peak_bytes",
        "baseline.seconds",
        "plan.peak_bytes",
        "plan.seconds",
    ]
    assert [row["where"] for row in found["differences"]] == ["h2"]
    (row,) = found["holds_more"]["plan"]
    assert (row["op"], row["type_was"], row["type_now"]) == ("own::Block", "float32[64,64]", "float32[128,64]")


def test_a_plan_that_cannot_run_exits_1_and_blames_what_differs(
    plan: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = chain()
    for node in document["nodes"]:
        node["recompute"] = "never"
    model.write_text(json.dumps(document))
    code, out, _ = check(capsys, plan, model)
    assert code == 1
    assert out.startswith("drifted: the plan does not run on this model: step ")
    assert "cannot run" in out and "nodes to blame: f0" in out


def test_the_result_is_written_as_markdown_and_as_a_picture(
    plan: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, picture = tmp_path / "comment.md", tmp_path / "memory.svg"
    output = ("--markdown", text, "--plot", picture, "--fits", "8MiB")
    code, out, _ = check(capsys, plan, changed(model, [128, 64]), *output)
    assert code == 1 and "largest batch that fits 8MiB with this plan: unknown → unknown (nodes[0]: " in out
    assert text.read_text().startswith("**remat check failed** · ") and "`memory.svg`" in text.read_text()
    assert "| `own::Block` | `f2` | `h2` | `float32[64,64] → float32[128,64]` | " in text.read_text()
    assert picture.read_text().startswith("<svg ")
    assert "own::Block  f2           grew" in out


@pytest.mark.parametrize("content", ["", "{}", '{"format": "remat-report/1"}'])
def test_what_is_no_plan_exits_2(plan: Path, model: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    plan.write_text(content)
    code, out, err = check(capsys, plan, model)
    assert (code, out) == (2, "") and "Traceback" not in err
    assert json.loads(check(capsys, plan, model, "--json")[1])["code"] == "not_a_report"


def test_bad_usage_exits_2(plan: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(check(capsys, plan, model, "--max-drift", "soon", "--json")[1])["code"] == "bad_fraction"
    said = json.loads(check(capsys, plan, model, "--max-drift", "2", "--json")[1])
    assert (said["code"], "write 2%" in said["detail"]) == ("bad_flag", True)
    assert check(capsys, "-", "-")[0] == 2
    assert "give the memory with --fits" in check(capsys, plan, model, "--before", model)[2]
    assert check(capsys, plan, model, "--fits", "warp-drive")[0] == 2
    assert check(capsys, plan, model, "--plot", "memory.txt")[0] == 2
    assert check(capsys, plan, model, "--markdown", model)[0] == 2
    assert model.read_text().startswith("{")
    assert check(capsys, plan, plan.with_name("nowhere"))[0] == 2
    model.write_text("{")
    assert check(capsys, plan, model)[0] == 2
