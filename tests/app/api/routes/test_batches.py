"""Batches over HTTP: every item ends by itself, and the whole when all have."""

from __future__ import annotations

import csv
import io
import sys
import time
from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from app.api.wire.openapi import components
from tests.app.conftest import chain, value

QUICK = {"planner": "greedy", "iterations": 5}


def posted(client: TestClient, *documents: dict[str, Any]) -> list[str]:
    return [client.post("/v1/graphs", json=document).json()["id"] for document in documents]


def begun(client: TestClient, graph_ids: list[str], **asked: Any) -> Any:
    fields = {"graph_ids": graph_ids, "planners": ["greedy"], "iterations": 5, **asked}
    return client.post("/v1/batches", json=fields)


def ended(client: TestClient, batch_id: str, headers: dict[str, str] | None = None) -> Any:
    """The batch, once all of it has ended."""
    until = time.monotonic() + 90
    while time.monotonic() < until:
        batch = client.get(f"/v1/batches/{batch_id}", headers=headers).json()
        if batch["ended_at"] is not None:
            return batch
        time.sleep(0.02)
    raise AssertionError(batch)


def items_of(
    client: TestClient, batch_id: str, headers: dict[str, str] | None = None, **asked: Any
) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/batches/{batch_id}/items", params=asked, headers=headers)
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def broken() -> dict[str, Any]:
    """A graph that is kept, and that no differentiation can be made of."""
    return {
        "format": "remat/1",
        "name": "broken",
        "values": [value("x", "input"), value("y")],
        "nodes": [{"name": "n", "op": "own::Block", "inputs": ["x"], "outputs": ["y"]}],
        "outputs": ["y"],
    }


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


def test_items_come_in_pages_and_as_tables(client: TestClient) -> None:
    from pyarrow import parquet

    graph_ids = posted(client, chain(3, "tables"), broken())
    asked = begun(client, graph_ids, budgets=[0.5, "90%"], seeds=[1, 2], differentiate=True, loss="h2")
    batch = ended(client, asked.json()["id"])
    place = f"/v1/batches/{batch['id']}/items"
    pages, cursor = [], None
    while True:
        page = client.get(place, params={"limit": 3} | ({} if cursor is None else {"cursor": cursor})).json()
        pages.append(page["items"])
        cursor = page["next"]
        if cursor is None:
            break
    items = items_of(client, batch["id"])
    assert [len(page) for page in pages] == [3, 3, 2]
    assert [item for page in pages for item in page] == items
    as_csv = client.get(place, params={"format": "csv"})
    assert as_csv.headers["content-type"].startswith("text/csv")
    assert client.get(place, headers={"Accept": "text/csv"}).text == as_csv.text
    rows = list(csv.DictReader(io.StringIO(as_csv.text)))
    as_parquet = client.get(place, headers={"Accept": "application/vnd.apache.parquet"})
    assert as_parquet.content == client.get(place, params={"format": "parquet"}).content
    table = parquet.read_table(io.BytesIO(as_parquet.content)).to_pylist()
    for item, row, typed in zip(items, rows, table, strict=True):
        assert list(row) == list(typed)
        assert row["budget"] == typed["budget"] == str(item["budget"])
        for name in ("graph_id", "state", "plan", "seed", "peak_bytes", "overhead", "cached"):
            assert typed[name] == item[name]
            assert row[name] == ("" if item[name] is None else str(item[name]))
        assert (typed["error"] is None) == (item["error"] is None)
    some = client.get(place, params={"format": "csv", "state": "failed", "limit": 1, "cursor": 0})
    assert len(list(csv.DictReader(io.StringIO(some.text)))) == 1


def test_without_pyarrow_nobody_gets_parquet(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = ended(client, begun(client, posted(client, chain(3, "no parquet"))).json()["id"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = client.get(f"/v1/batches/{batch['id']}/items?format=parquet")
    assert (answer.status_code, answer.json()["code"]) == (406, "no_parquet")


def test_the_same_key_and_body_are_the_same_batch(client: TestClient) -> None:
    graph_ids, key = posted(client, chain(3, "once")), {"Idempotency-Key": "a batch"}
    asked = {"graph_ids": graph_ids, "planners": ["greedy"], "iterations": 5}
    first, second = (client.post("/v1/batches", json=asked, headers=key) for _ in range(2))
    assert first.status_code == second.status_code == 202
    assert first.json()["id"] == second.json()["id"]
    other = client.post("/v1/batches", json=asked | {"seeds": [1]}, headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    ended(client, first.json()["id"])
    retried = client.post(f"{first.json()['operation']}:retry")
    assert (retried.status_code, retried.json()["code"]) == (409, "not_retryable")
    assert "Idempotency" not in retried.json()["title"] and "/v1/batches/ID:retry" in retried.json()["detail"]


ZEROS = "0" * 64
BAD: list[tuple[dict[str, Any], int, str, int]] = [
    ({}, 422, "bad_field", 1),
    ({"graph_ids": []}, 422, "bad_field", 1),
    ({"graph_ids": ["x", 3]}, 422, "bad_field", 2),
    ({"graph_ids": [ZEROS, ZEROS]}, 422, "duplicate", 1),
    ({"graph_ids": [ZEROS], "budget": "50%", "graph": {}, "return": ["plan"]}, 422, "unknown_field", 3),
    ({"graph_ids": [ZEROS], "budgets": ["50%", 0.5]}, 422, "duplicate", 1),
    ({"graph_ids": [ZEROS], "budgets": ["x"], "planners": ["y"], "seeds": [-1]}, 422, "bad_budget", 3),
    ({"graph_ids": [ZEROS], "budgets": ["50%"], "max_overhead": 0.1}, 422, "conflicting_goals", 1),
    ({"graph_ids": [ZEROS], "nonsense": 1}, 422, "unknown_field", 1),
    ({"graph_ids": [ZEROS], "search_seconds": 9999}, 422, "too_long", 1),
    ({"graph_ids": [ZEROS], "seeds": list(range(256)), "budgets": list(range(200))}, 413, "too_many_items", 1),
    ({"graph_ids": [ZEROS]}, 404, "not_found", 0),
]


@pytest.mark.parametrize(("asked", "status", "code", "findings"), BAD)
def test_what_is_no_batch_is_refused(
    client: TestClient, asked: dict[str, Any], status: int, code: str, findings: int
) -> None:
    answer = client.post("/v1/batches", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert len(answer.json()["errors"]) == findings


@pytest.mark.parametrize(("seeds", "remedy"), [(300, "start several batches"), (0, "give at least one")])
def test_too_many_and_none_have_remedies_of_their_own(client: TestClient, seeds: int, remedy: str) -> None:
    (said,) = client.post("/v1/batches", json={"graph_ids": [ZEROS], "seeds": list(range(seeds))}).json()["errors"]
    assert remedy in said["remedy"]


def test_the_ids_of_graphs_are_not_omitted(client: TestClient) -> None:
    (said,) = client.post("/v1/batches", json={"graph_ids": ZEROS}).json()["errors"]
    assert "as a list" in said["remedy"] and "omit" not in said["remedy"]


def test_an_unknown_field_suggests_one_of_a_batch(client: TestClient) -> None:
    (said,) = client.post("/v1/batches", json={"graph_ids": [ZEROS], "plannerz": ["auto"]}).json()["errors"]
    assert said["remedy"] == "did you mean 'planners'?" and "budgets" in said["expected"]


def test_a_batch_is_followed_listed_cancelled_and_tried_again(client: TestClient) -> None:
    (graph_id,) = posted(client, chain(6, "long"))
    asked = {"graph_ids": [graph_id], "planners": ["anneal"], "seeds": [0, 1, 2], "search_seconds": 60}
    batch = client.post("/v1/batches", json=asked).json()
    assert client.get(batch["operation"]).json()["kind"] == "batch"
    assert client.get("/v1/batches", params={"limit": 1}).json()["batches"][0]["id"] == batch["id"]
    assert client.get("/v1/operations", params={"limit": 1000}).json()["operations"][0]["kind"] in ("batch", "plan")
    assert client.post(f"{batch['operation']}:cancel").status_code == 200
    ended(client, batch["id"])
    events = client.get(f"{batch['operation']}/events").text
    assert '"state":"cancelled"' in events
    assert client.get(f"{batch['operation']}/events", headers={"Last-Event-ID": "9999"}).status_code == 204
    again = client.post(f"/v1/batches/{batch['id']}:retry").json()
    assert again["items"]["queued"] + again["items"]["running"] >= 2
    assert client.post(f"/v1/batches/{batch['id']}:cancel").json()["id"] == batch["id"]
    ended(client, batch["id"])
    assert client.get(f"/v1/batches/{batch['id']}:retry").status_code == 405
