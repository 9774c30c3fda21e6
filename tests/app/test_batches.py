"""Batches over HTTP: every item ends by itself, and the whole when all have."""

from __future__ import annotations

import time
from typing import Any

import jsonschema_rs
from starlette.testclient import TestClient

from app.openapi import components
from tests.app.conftest import chain, value

QUICK = {"planner": "greedy", "iterations": 5}


def posted(client: TestClient, *documents: dict[str, Any]) -> list[str]:
    return [client.post("/v1/graphs", json=document).json()["id"] for document in documents]


def begun(client: TestClient, graph_ids: list[str], **asked: Any) -> Any:
    fields = {"graph_ids": graph_ids, "planners": ["greedy"], "iterations": 5, **asked}
    return client.post("/v1/batches", json=fields)


def ended(client: TestClient, batch_id: str) -> Any:
    """The batch, once all of it has ended."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        batch = client.get(f"/v1/batches/{batch_id}").json()
        if batch["ended_at"] is not None:
            return batch
        time.sleep(0.02)
    raise AssertionError(batch)


def items_of(client: TestClient, batch_id: str, **asked: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/v1/batches/{batch_id}/items", params=asked).json()["items"]
    return found


def broken() -> dict[str, Any]:
    """A graph that is kept, and that no differentiation can be made of."""
    return {
        "format": "remat/1", "name": "broken", "values": [value("x", "input"), value("y")],
        "nodes": [{"name": "n", "op": "own::Block", "inputs": ["x"], "outputs": ["y"]}], "outputs": ["y"],
    }  # fmt: skip


def valid(name: str, said: Any) -> None:
    jsonschema_rs.validate({"$ref": f"#/components/schemas/{name}", "components": {"schemas": components()}}, said)


def test_every_combination_is_an_item_with_a_plan_of_its_own(client: TestClient) -> None:
    graph_ids = posted(client, chain(3, "first"), chain(4, "second"))
    answer = begun(client, graph_ids, budgets=["90%", 0.6], seeds=[0, 7])
    assert answer.status_code == 202, answer.text
    batch = answer.json()
    assert answer.headers["location"] == f"/v1/batches/{batch['id']}"
    valid("Batch", batch)
    batch = ended(client, batch["id"])
    assert (batch["state"], batch["total"], batch["done"]) == ("succeeded", 8, 8)
    assert batch["items"] == {"queued": 0, "running": 0, "succeeded": 8, "failed": 0, "cancelled": 0}
    items = items_of(client, batch["id"])
    valid("Items", {"items": items, "next": None})
    asked = [(item["graph_id"], item["budget"], item["planner"], item["seed"]) for item in items]
    assert asked == [(g, b, "greedy", s) for g in graph_ids for b in ("90%", 0.6) for s in (0, 7)]
    for item in items:
        report = client.get(item["plan"]).json()
        assert report["request"]["budget"] == item["budget"]
        assert report["plan"]["seed"] == item["seed"]
        assert (report["model"]["name"], report["plan"]["peak_bytes"]) == (item["model"], item["peak_bytes"])
        assert client.get(item["operation"]).json()["result"] == item["plan"]


def test_what_was_asked_before_is_answered_from_the_store(client: TestClient) -> None:
    (graph_id,) = posted(client, chain(3, "known"))
    plan = client.post("/v1/plans", json={"graph_id": graph_id, "budget": "80%", **QUICK})
    batch = ended(client, begun(client, [graph_id], budgets=["80%", "70%"]).json()["id"])
    items = items_of(client, batch["id"])
    assert [item["cached"] for item in items] == [True, False]
    assert items[0]["plan"] == plan.headers["location"]
    again = ended(client, begun(client, [graph_id], budgets=["80%", "70%"]).json()["id"])
    assert [item["cached"] for item in items_of(client, again["id"])] == [True, True]
    assert again["solver_seconds"] == 0


def test_an_item_that_fails_ends_nothing_else(client: TestClient) -> None:
    graph_ids = posted(client, chain(3, "well"), broken())
    batch = ended(client, begun(client, graph_ids, budgets=["90%"], differentiate=True, loss="h2").json()["id"])
    assert batch["state"] == "succeeded"
    failed = items_of(client, batch["id"], state="failed")
    assert batch["items"]["failed"] == len(failed) >= 1
    assert failed[-1]["graph_id"] == graph_ids[1]
    assert failed[-1]["error"]["status"] == 422
    assert failed[-1]["plan"] is None
