"""The largest size that fits, over HTTP and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from app.api.wire.openapi import components
from app.cli.typer_app import run
from tests.app.conftest import one_layer

pytestmark = pytest.mark.usefixtures("bounds")

MODEL = str(Path(__file__).parents[3] / "models" / "decoder.onnx")


def open_layer() -> dict[str, Any]:
    """The example of the wire contract, with the batch left open under the name N."""
    document = one_layer()
    document["values"][0]["shape"] = ["N", 16]
    del document["values"][2]["shape"]
    return document


def fit(client: TestClient, **fields: Any) -> Any:
    asked = {"budget": "64KiB", "iterations": 20, "loss": "loss", **fields}
    return client.post("/v1/fits", json={name: given for name, given in asked.items() if given is not None})


@pytest.mark.parametrize("grow", ["batch", "N"])
def test_an_open_document_grows_to_the_memory(client: TestClient, grow: str) -> None:
    answer = fit(client, graph=open_layer(), grow=grow)
    assert answer.status_code == 201, answer.text
    found = answer.json()
    report = client.get(found["plan"]).json()
    assert report["plan"]["peak_bytes"] <= found["budget_bytes"] == 64 * 1024
    assert found["next"]["size"] == found["size"] + 1
    source = client.get(f"{found['plan']}/source").json()
    assert [value["shape"] for value in source["values"] if value["name"] == "x"] == [[found["size"], 16]]


def test_a_stored_graph_grows_by_its_batch(client: TestClient) -> None:
    graph_id = client.post("/v1/graphs", json=one_layer()).json()["id"]
    stored, inline = fit(client, graph_id=graph_id).json(), fit(client, graph=open_layer()).json()
    assert stored["size"] == inline["size"]


def test_the_answer_is_what_its_schema_says(client: TestClient) -> None:
    schema = {"$ref": "#/components/schemas/Fit", "components": {"schemas": components()}}
    for fields in ({}, {"budget": 1}):
        found = fit(client, graph=open_layer(), **fields).json()
        jsonschema_rs.validate(schema, found)
        assert (found["plan"] is None) == bool(fields)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"budget": "50%"}, "bad_budget"),
    ({"budget": None}, "no_memory"),
    ({"grow": "sequence_of_words"}, "unknown_dimension"),
    ({"grow": "batch", "batch": 3}, "conflicting_sizes"),
    ({"grow": "N", "dims": {"N": 3}}, "conflicting_sizes"),
    ({"search_seconds": 80000}, "too_long"),
]


@pytest.mark.parametrize(("fields", "code"), BAD)
def test_bad_questions_are_told_as_problems(client: TestClient, fields: dict[str, Any], code: str) -> None:
    answer = fit(client, graph=open_layer(), **fields)
    said = answer.json()
    assert (answer.status_code, said["code"], said["instance"]) == (422, code, "/v1/fits")


def test_the_command_writes_a_plan_that_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    flags = ["--budget", "600KB", "--dim", "sequence=8", "--max-overhead", "20%", "--iterations", "20"]
    assert run(["fit", MODEL, *flags, "-o", str(path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("batch ") and "fits 585.94 KiB within 20.0% overhead" in shown[0]
    assert run(["verify", str(path)]) == 0
    assert capsys.readouterr().out.startswith("valid")


def test_the_command_prints_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", MODEL, "--budget", "1KB", "--dim", "sequence=8", "--iterations", "5", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    jsonschema_rs.validate({"$ref": "#/components/schemas/Fit", "components": {"schemas": components()}}, found)
    assert found["size"] is None


def test_the_command_tells_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", MODEL, "--budget", "50%", "--seed", "-1"]) == 2
    said = capsys.readouterr().err
    assert "seed" in said
    assert run(["fit", MODEL]) == 2
    assert "budget: found nothing" in capsys.readouterr().err
