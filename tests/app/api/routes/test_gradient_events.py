"""How gradients were made, asked for over HTTP and by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from app import catalogue
from app.cli import typer_app

#   x ── MatMul ── h ── acme::Norm ── n ── ReduceSum ── loss
#        w ╯                    scale ╯
FORWARD: dict[str, Any] = {
    "format": "remat/1",
    "values": [
        {"name": "x", "shape": [4, 3], "dtype": "float32", "role": "input"},
        {"name": "w", "shape": [3, 2], "dtype": "float32", "role": "parameter"},
        {"name": "scale", "shape": [2], "dtype": "float32", "role": "parameter"},
        {"name": "n", "shape": [4, 2], "dtype": "float32"},
    ],
    "nodes": [
        {"name": "fc", "op": "MatMul", "inputs": ["x", "w"], "outputs": ["h"]},
        {"name": "norm", "op": "acme::Norm", "inputs": ["h", "scale"], "outputs": ["n"]},
        {"name": "sum", "op": "ReduceSum", "inputs": ["n"], "outputs": ["loss"], "attributes": {"keepdims": 0}},
    ],
    "outputs": ["loss"],
}
RULES = {"acme::Norm": {"op": "acme::NormBackward", "reads": ["incoming", "inputs", "outputs"]}}
ASKED = {
    "graph": FORWARD,
    "budget": "100%",
    "loss": "loss",
    "gradient_events": True,
    "iterations": 10,
    "differentiate": {"gradient_rules": RULES},
}


@pytest.fixture(scope="module")
def report(client: TestClient) -> Any:
    answer = client.post("/v1/plans", json=ASKED)
    assert answer.status_code == 201, answer.text
    jsonschema_rs.validate(catalogue.schema("request"), {k: v for k, v in ASKED.items() if k != "graph"})
    jsonschema_rs.validate(catalogue.schema("report"), answer.json())
    return answer.json()


def test_every_parameter_has_a_pair(report: Any) -> None:
    pairs = {pair["value"]: pair for pair in report["gradients"]["pairs"]}
    assert list(pairs) == ["w", "scale"]
    assert (pairs["w"]["finalised_by"], pairs["w"]["shape"], pairs["w"]["dtype"]) == ("grad/fc", [3, 2], "float32")
    assert pairs["scale"]["finalised_by"] == "grad/norm"


def test_events_come_in_the_order_things_happened(report: Any) -> None:
    events = report["gradients"]["events"]
    assert [(event["event"], event["node"]) for event in events] == [
        ("added", "grad/sum"),
        ("added", "grad/norm"),
        ("finalised", "grad/norm"),
        ("added", "grad/fc"),
        ("finalised", "grad/fc"),
    ]
    norm = events[1]
    assert norm["op"] == "acme::NormBackward" and norm["gradient_of"] == "norm"
    assert norm["gradients"] == {"grad/norm:0": "h", "grad/norm:1": "scale"}


def test_nothing_is_told_unasked(client: TestClient) -> None:
    asked = {name: field for name, field in ASKED.items() if name != "gradient_events"}
    assert "gradients" not in client.post("/v1/plans", json=asked).json()


@pytest.mark.parametrize("name", ["loss", "recipe", "graph", "callbacks", "options"])
def test_a_field_differentiate_does_not_have_is_refused(client: TestClient, name: str) -> None:
    refused = client.post("/v1/plans", json={**ASKED, "differentiate": {"gradient_rules": RULES, name: "loss"}})
    assert refused.status_code == 422
    assert [fault["code"] for fault in refused.json()["errors"]] == ["unknown_field"]


def test_the_command_line_asks_the_same(tmp_path: Path, report: Any) -> None:
    (tmp_path / "request.json").write_text(json.dumps({"differentiate": {"gradient_rules": RULES}, "iterations": 10}))
    (tmp_path / "model.json").write_text(json.dumps(FORWARD))
    asked = ["--request", str(tmp_path / "request.json"), "--loss", "loss", "--budget", "100%", "--gradient-events"]
    written = tmp_path / "plan.json"
    assert typer_app.run(["plan", str(tmp_path / "model.json"), *asked, "-o", str(written)]) == 0
    assert json.loads(written.read_text())["gradients"] == report["gradients"]
