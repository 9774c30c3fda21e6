"""The requests that the OpenAPI document shows save memory, sent as they are."""

from __future__ import annotations

import time
from typing import Any

from starlette.testclient import TestClient

LARGEST = 4096  # bytes of an example; people read them


def sent_example(client: TestClient, path: str) -> Any:
    body = client.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    [example] = body["examples"].values()
    answer = client.post(path, json=example["value"], headers={"Prefer": "wait=60"})
    assert len(answer.request.content) < LARGEST
    while answer.status_code == 202 or answer.json().get("state") in ("queued", "running"):  # on a busy machine
        time.sleep(1)
        answer = client.get(answer.headers.get("location") or answer.request.url.path)
    found = answer.json()
    return client.get(found["result"]).json() if "state" in found else found


def test_a_plan(client: TestClient) -> None:
    plan = sent_example(client, "/v1/plans")["plan"]
    assert plan["within_budget"] and plan["saved"] > 0.2


def test_a_curve(client: TestClient) -> None:
    loose, tight = sent_example(client, "/v1/curves")["points"]
    assert "over_budget" not in (loose["status"], tight["status"])
    assert tight["peak_bytes"] < loose["peak_bytes"]


def test_a_fit(client: TestClient) -> None:
    found = sent_example(client, "/v1/fits")
    assert found["size"] > 1
    assert client.get(found["plan"]).json()["plan"]["saved"] > 0.2
