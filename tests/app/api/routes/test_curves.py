"""Curves over HTTP and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from app.api.wire.openapi import components
from app.cli.typer_app import run
from app.settings import Settings
from tests.app.conftest import chain, one_layer

BUDGETS = ["100%", "60%", 1]


def curve(client: TestClient, **fields: Any) -> Any:
    return client.post("/v1/curves", json={"budgets": BUDGETS, "search_seconds": 1, **fields})


def test_a_curve_names_plans_that_are_kept(client: TestClient) -> None:
    answer = curve(client, graph=chain(5))
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert [point["budget"] for point in found["points"]] == BUDGETS
    assert [point["status"] for point in found["points"]][2] == "over_budget"
    assert found["violations"] == 0
    for point in found["points"]:
        report = client.get(point["plan"]).json()
        assert report["request"]["budget"] == point["budget"]
        assert "budgets" not in report["request"]
        for name in ("budget_bytes", "status", "overhead", "peak_bytes"):
            assert report["plan"][name] == point[name]
        bound = report["plan"]["bound"]["overhead"]
        if point["status"] == "over_budget":  # the bound of the next looser budget holds too
            bound = max(bound, found["points"][1]["bound_overhead"])
        assert point["bound_overhead"] == bound
        assert client.get(f"{point['plan']}/graph").status_code == 200
        assert client.get(f"{point['plan']}/layout").status_code == 200


def test_the_answer_is_what_its_schema_says(client: TestClient) -> None:
    schema = {"$ref": "#/components/schemas/Curve", "components": {"schemas": components()}}
    found = curve(client, graph=one_layer(), loss="loss").json()
    jsonschema_rs.validate(schema, found)
    del found["points"][0]["status"]
    assert not jsonschema_rs.is_valid(schema, found)


def test_a_stored_graph_has_a_curve_too(client: TestClient) -> None:
    graph_id = client.post("/v1/graphs", json=chain(5)).json()["id"]
    inline, stored = curve(client, graph=chain(5)).json(), curve(client, graph_id=graph_id).json()
    assert stored["model"] == inline["model"]


BAD: list[tuple[dict[str, Any], int, str, int]] = [
    ({"budgets": []}, 422, "bad_budgets", 1),
    ({"budgets": ["50%", "50%", "200%"]}, 422, "duplicate_budget", 2),
    ({"budget": "50%", "max_overhead": 0.1}, 422, "conflicting_goals", 2),
    ({"return": ["graph"]}, 422, "unknown_field", 1),
    ({"search_seconds": 80000}, 422, "too_long", 1),
    ({"graph_id": "0" * 64}, 422, "one_graph", 1),
]


@pytest.mark.parametrize(("fields", "status", "code", "findings"), BAD)
def test_bad_questions_are_told_as_problems(
    client: TestClient, fields: dict[str, Any], status: int, code: str, findings: int
) -> None:
    answer = curve(client, graph=chain(), **fields)
    said = answer.json()
    assert (answer.status_code, said["code"], len(said["errors"])) == (status, code, findings)
    assert said["instance"] == "/v1/curves"


def test_a_graph_nobody_posted_is_not_found(client: TestClient) -> None:
    answer = curve(client, graph_id="0" * 64)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_more_solves_than_may_wait_are_sent_away(tmp_path: Path) -> None:
    from app.api.main import create_app

    app = create_app(Settings(data=tmp_path, workers=1, queue=0, drain_seconds=0))
    with TestClient(app) as client:
        slow = {"graph": chain(200), "budgets": ["10%"], "search_seconds": 100}
        runs = client.post("/v1/curves", json=slow, headers={"Prefer": "wait=0"})
        assert runs.status_code == 202
        answer = curve(client, graph=chain())
        assert (answer.status_code, answer.json()["code"]) == (429, "busy")
        assert answer.headers["retry-after"]
        client.post(f"{runs.headers['location']}:cancel")
        app.state.service.drain()
        answer = curve(client, graph=chain())
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


def test_the_command_prints_a_line_a_budget(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["curve", str(model), "--budgets", "100%, 60%", "--iterations", "20"]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["budget", "peak", "overhead", "bound", "status", "planner"]
    assert [line.split()[0] for line in lines[3:]] == ["100%", "60%"]


def test_the_command_prints_the_document(model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps({"budgets": ["100%", 0], "iterations": 20}))
    assert run(["curve", str(model), "--request", str(asked), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    schema = {"$ref": "#/components/schemas/Curve", "components": {"schemas": components()}}
    jsonschema_rs.validate(schema, found)
    assert found["points"][0]["plan"]["order"]


def test_the_command_tells_every_fault(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["curve", str(model), "--budgets", "50%,50%,x", "--seed", "-1"]) == 2
    said = capsys.readouterr().err
    assert all(path in said for path in ("budgets[1]", "budgets[2]", "seed"))
    assert run(["curve", str(model)]) == 2
