"""Several sets of shapes over HTTP and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from app import catalogue
from app.cli.typer_app import run
from tests.planner.pipeline.fits.test_largest_fit import layers

SETS: list[dict[str, Any]] = [{"batch": 4}, {"batch": 32}]


def document() -> dict[str, Any]:
    """Four products and a mean of [8, 16]; the batch may be another one."""
    values = [
        {"name": "x", "shape": [8, 16], "dtype": "float32", "role": "input"},
        {"name": "w", "shape": [16, 16], "dtype": "float32", "role": "parameter"},
    ]
    nodes: list[dict[str, Any]] = []
    for i in range(4):
        nodes.append(
            {"name": f"m{i}", "op": "MatMul", "inputs": [f"r{i - 1}" if i else "x", "w"], "outputs": [f"m{i}"]}
        )
        nodes.append({"name": f"r{i}", "op": "Relu", "inputs": [f"m{i}"], "outputs": [f"r{i}"]})
    nodes.append(
        {"name": "mean", "op": "ReduceMean", "inputs": ["r3"], "outputs": ["loss"], "attributes": {"keepdims": 0}}
    )
    return {"format": "remat/1", "values": values, "nodes": nodes, "outputs": ["loss"]}


def test_a_plan_for_several_shapes_over_http(client: TestClient):
    asked = {"graph": document(), "shapes": SETS, "budget": "95%", "loss": "loss", "iterations": 20, "execute": "yes"}
    answer = client.post("/v1/plans", json=asked, headers={"Prefer": "wait=60"})
    assert answer.status_code == 201, answer.text
    report = answer.json()
    jsonschema_rs.validate(catalogue.schema("report"), report)
    section = report["shapes"]
    assert section["within"] and section["worst"] == 1
    assert [row["inputs"]["x"] for row in section["sets"]] == [[4, 16], [32, 16]]
    assert [row["executed"]["status"] for row in section["sets"]] == ["equal", "equal"]


@pytest.mark.parametrize("shape", [[4, 16], "4x16"])
def test_a_plan_for_other_input_shapes_over_http(client: TestClient, shape: Any):
    asked = {"graph": document(), "inputs": {"x": shape}, "budget": "95%", "loss": "loss", "iterations": 20}
    answer = client.post("/v1/plans", json=asked, headers={"Prefer": "wait=60"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["model"]["inputs"] == [{"name": "x", "dtype": "float32", "shape": [4, 16]}]


@pytest.mark.parametrize("path", ["/v1/curves", "/v1/fits"])
def test_curves_and_fits_have_no_shapes(client: TestClient, path: str):
    goal: dict[str, Any] = {"budgets": ["50%"]} if path == "/v1/curves" else {"budget": "1MiB"}
    answer = client.post(path, json={"graph": document(), "shapes": SETS, **goal})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "shapes"


def test_a_plan_for_several_shapes_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, plan = tmp_path / "model.onnx", tmp_path / "plan.json"
    model.write_bytes(layers())
    flags = ["--budget", "80%", "--iterations", "20", *(f for one in SETS for f in ("--shapes", json.dumps(one)))]
    assert run(["plan", str(model), *flags, "-o", str(plan)]) == 0
    shown = capsys.readouterr().out
    assert "x 4x16" in shown and "x 32x16" in shown and "of set 2" in shown
    assert run(["verify", str(plan)]) == 0
    assert run(["verify", str(plan), "--certificate"]) == 0
    assert run(["plan", str(model), "--shapes", "batch=4"]) == 2
    assert "--shapes" in capsys.readouterr().err
