"""No name that a caller chose is computed by the spreadsheet that opens a table."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.app.conftest import chain

NAME = "=cmd|'/C calc'!A0"


@pytest.fixture
def plan(client: TestClient) -> dict[str, Any]:
    document = {**chain(3), "name": NAME}
    node = document["nodes"][0]
    node["name"] = "@SUM(A1)"
    answer = client.post("/v1/plans", json={"graph": document, "budget": "100%", "iterations": 5})
    assert answer.status_code == 201, answer.text
    return answer.json()  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", ["/v1/savings?group_by=model&format=csv", "/savings.csv"])
def test_a_model_s_name_is_text(client: TestClient, plan: dict[str, Any], path: str) -> None:
    rows = list(csv.DictReader(io.StringIO(client.get(path).text)))
    models = {row["model"] for row in rows}  # of the service that all tests share
    assert f"'{NAME}" in models and NAME not in models


def test_a_node_s_name_is_text(client: TestClient, plan: dict[str, Any]) -> None:
    rows = list(csv.DictReader(io.StringIO(client.get(f"/plans/{plan['id']}/timeline.csv").text)))
    assert rows[0]["node"] == "'@SUM(A1)"
    assert int(rows[0]["bytes"]) == plan["timeline"]["step_bytes"][0]
