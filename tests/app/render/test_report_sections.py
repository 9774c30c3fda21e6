"""Advice about checkpoints and shared buffers, asked for by the command line and over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from app import catalogue
from app.cli import typer_app
from tests.app.conftest import chain

ASKED = {
    "graph": chain(6),
    "budget": 0,
    "planner": "segments",
    "checkpoints": ["h0", "h1", "nobody"],
    "iterations": 500,
    "advise_checkpoints": True,
    "share_buffers": True,
}


@pytest.fixture(scope="module")
def report(client: TestClient) -> Any:
    answer = client.post("/v1/plans", json=ASKED)
    assert answer.status_code == 201, answer.text
    jsonschema_rs.validate(catalogue.schema("report"), answer.json())
    return answer.json()


def test_the_advice_is_about_the_plan_that_keeps_the_checkpoints(report: Any) -> None:
    advice = report["checkpoint_advice"]
    assert advice["given"]["checkpoints"] == ["h0", "h1"]
    assert advice["given"]["peak_bytes"] == report["plan"]["peak_bytes"]
    assert advice["best"]["peak_bytes"] <= advice["given"]["peak_bytes"]
    assert [row["value"] for row in advice["dropping"]] == ["h0", "h1"]
    assert {row["value"] for row in advice["adding"]} == {"h2", "h3", "h4", "h5"}
    for row in advice["dropping"] + advice["adding"]:
        assert row["peak_bytes"] - row["peak_bytes_more"] == advice["given"]["peak_bytes"]
    assert advice["complete"] and advice["all_tried"]


def test_a_set_that_is_advised_gives_the_peak_that_was_promised(client: TestClient, report: Any) -> None:
    best = report["checkpoint_advice"]["best"]
    plan = client.post("/v1/plans", json={**ASKED, "checkpoints": best["checkpoints"]}).json()["plan"]
    assert (plan["peak_bytes"], plan["overhead"]) == (best["peak_bytes"], best["overhead"])


def test_checkpoints_nobody_knows_are_told_or_refused(client: TestClient, report: Any) -> None:
    assert any("nobody" in warning for warning in report["warnings"])
    refused = client.post("/v1/plans", json={**ASKED, "unknown_checkpoints": "error"})
    assert refused.status_code == 422 and refused.json()["code"] == "unknown_value"
    assert "nobody" in refused.json()["detail"]


def test_buffers_are_shared_among_the_values_of_the_rewritten_graph(report: Any) -> None:
    sharing = report["sharing"]
    assert sharing["bound_bytes"] <= sharing["bytes"] < sharing["separate_bytes"]
    assert sharing["bytes"] == sum(buffer["bytes"] for buffer in sharing["buffers"])
    assert len(sharing["value"]) == len(report["plan"]["order"])  # every node writes one value
    lives: dict[str, list[tuple[int, int]]] = {}
    for name, first, last in zip(sharing["buffer"], sharing["from_step"], sharing["to_step"], strict=True):
        assert all(first > end for _, end in lives.setdefault(name, []))
        lives[name].append((first, last))


def test_people_read_the_advice(model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ["--checkpoint", "h0", "--planner", "segments", "--advise-checkpoints", "--share-buffers"]
    assert typer_app.run(["plan", str(model), "--budget", "0", *asked, "-o", str(tmp_path / "p.json")]) in (0, 1)
    said = capsys.readouterr().out
    assert typer_app.run(["explain", str(tmp_path / "p.json")]) == 0
    explained = capsys.readouterr().out
    for text in (said, explained):
        assert "without h0" in text and "with h1" in text and "proven minimum" in text
    assert json.loads((tmp_path / "p.json").read_text())["checkpoint_advice"]["given"]["checkpoints"] == ["h0"]


def test_a_rewritten_model_computes_the_same_whatever_differs(
    model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rewritten, other = tmp_path / "rewritten.json", tmp_path / "other.json"
    asked = ["--budget", "0", "--planner", "segments", "--checkpoint", "h0"]
    assert typer_app.run(["plan", str(model), *asked, "--graph", str(rewritten)]) in (0, 1)
    changed = json.loads(model.read_text())
    changed["nodes"][1]["op"] = "own::Other"
    other.write_text(json.dumps(changed))
    capsys.readouterr()
    assert typer_app.run(["diff", str(model), str(rewritten)]) == 1
    assert "both models compute the same" in capsys.readouterr().out
    assert typer_app.run(["diff", str(model), str(other), "--json"]) == 1
    assert "f1" in json.loads(capsys.readouterr().out)["computed_differently"]
    assert typer_app.run(["diff", str(model), str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["computed_differently"] is None
