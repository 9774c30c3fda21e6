"""Lists of graphs, plans and results; deletion of a graph; retry of an operation."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from app.store.tables import plans, results
from tests.app.conftest import chain, one_layer, onnx_file

SMALL = {"planner": "greedy", "iterations": 5}


def made(client: TestClient, name: str) -> dict[str, str]:
    """Ids of a graph, and of a plan, a curve and a fit of it."""
    graph_id = client.post("/v1/graphs", json={**one_layer(), "name": name}).json()["id"]
    ids = {"graph": graph_id}
    goals: dict[str, dict[str, Any]] = {
        "plan": {"budget": "90%"},
        "curve": {"budgets": ["90%"]},
        "fit": {"budget": "1MiB", "grow": "batch"},
    }
    for kind, goal in goals.items():
        answer = client.post(f"/v1/{kind}s", json={"graph_id": graph_id, **SMALL, **goal})
        assert answer.status_code == 201, answer.text
        ids[kind] = answer.headers["location"].rpartition("/")[2]
    return ids


@pytest.fixture(scope="module")
def listed(client: TestClient) -> dict[str, str]:
    return made(client, "listed")


@pytest.mark.parametrize("kind", ["graph", "plan", "curve", "fit"])
def test_lists_are_paged_newest_first_without_gap_or_repeat(
    client: TestClient, listed: dict[str, str], kind: str
) -> None:
    every = client.get(f"/v1/{kind}s", params={"limit": 1000}).json()
    rows = every[f"{kind}s"]
    assert every["next"] is None
    assert listed[kind] in {row["id"] for row in rows}
    assert rows == sorted(rows, key=lambda row: (row["created_at"], row["id"]), reverse=True)
    paged, cursor = [], {}
    while True:
        page = client.get(f"/v1/{kind}s", params={"limit": 2, **cursor}).json()
        paged += page[f"{kind}s"]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert paged == rows


def test_lists_are_filtered(client: TestClient, listed: dict[str, str]) -> None:
    def ids(path: str, **filters: Any) -> set[str]:
        rows = client.get(path, params=filters).json()
        return {row["id"] for row in next(iter(rows.values()))}

    of_graph = ids("/v1/plans", graph_id=listed["graph"])
    assert listed["plan"] in of_graph
    assert ids("/v1/plans", model="listed") > of_graph  # with that of the fit, whose graph is another
    assert ids("/v1/plans", graph_id=listed["graph"], status="proven") == set()
    assert listed["graph"] in ids("/v1/graphs", name="listed")
    assert ids("/v1/graphs", name="listen") == set()
    assert ids("/v1/graphs", format="onnx", name="listed") == set()
    assert ids("/v1/curves", graph_id=listed["graph"]) == {listed["curve"]}
    assert ids("/v1/fits", graph_id=listed["graph"], created_after="2999-01-01") == set()
    assert client.get("/v1/plans", params={"colour": "blue"}).status_code == 422
    assert client.get("/v1/plans", params={"cursor": "9999-99-99T99:99:99.999Z~" + "0" * 64}).status_code == 422


def test_a_model_is_called_as_it_was_named_everywhere(client: TestClient) -> None:
    headers = {"content-type": "application/onnx"}
    record = client.post("/v1/graphs", content=onnx_file(4), params={"name": "encoder é"}, headers=headers).json()
    taken = {"inputs": [{"name": "x", "dtype": "float32", "shape": [4, 16]}], "batch": 4}
    assert record["name"] == "encoder é" and record["graph_name"] == "main_graph"
    assert {name: record[name] for name in taken} == taken
    [listed] = client.get("/v1/graphs", params={"name": "encoder é"}).json()["graphs"]
    assert listed == record
    asked = {"graph_id": record["id"], "budget": "90%", **SMALL}
    report = client.post("/v1/plans", json=asked).json()
    assert report["model"]["name"] == "encoder é" and report["model"]["graph_name"] == "main_graph"
    [plan] = client.get("/v1/plans", params={"model": "encoder é"}).json()["plans"]
    assert {name: plan[name] for name in taken} == taken
    wider = client.post("/v1/plans", json={**asked, "batch": 6}).json()
    assert wider["model"]["batch"] == 6
    rows = {row["id"]: row["batch"] for row in client.get("/v1/plans", params={"model": "encoder é"}).json()["plans"]}
    assert rows == {report["id"]: 4, wider["id"]: 6}
    batches = [
        operation["batch"]
        for operation in client.get("/v1/operations").json()["operations"]
        if operation["model"] == "encoder é"
    ]
    assert batches == [6, 4]
    client.post("/v1/curves", json={"graph_id": record["id"], "budgets": ["90%"], **SMALL})
    [curve] = client.get("/v1/curves", params={"graph_id": record["id"]}).json()["curves"]
    assert {name: curve[name] for name in taken} == taken and curve["model"] == "encoder é"


def test_a_name_does_not_change_the_hash_of_a_model(client: TestClient) -> None:
    headers = {"content-type": "application/onnx"}
    ids = [
        client.post("/v1/graphs", content=onnx_file(5), params=params, headers=headers).json()["id"]
        for params in ({}, {"name": "one"}, {"name": "other"}, {"name": "main_graph"})
    ]
    assert ids[0] == ids[3] and len(set(ids)) == 3
    asked = {"budget": "90%", **SMALL}
    hashes = {client.post("/v1/plans", json={"graph_id": id, **asked}).json()["model"]["hash"] for id in ids}
    assert len(hashes) == 1


@pytest.mark.parametrize("note", [{"a": 1}, ["main"], 3, None, "x" * 5_000])
def test_an_annotation_that_is_no_name_is_no_name(client: TestClient, note: Any) -> None:
    record = client.post("/v1/graphs", json={**one_layer(), "annotations": {"graph_name": note}})
    assert record.status_code == 201, record.text
    assert (record.json()["name"], record.json()["graph_name"]) == ("one layer", None)
    asked = {"graph_id": record.json()["id"], "budget": "90%", **SMALL}
    assert "graph_name" not in client.post("/v1/plans", json=asked).json()["model"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/plans?limit=0", "greater than or equal to 1"),
        ("/v1/operations?state=lost", "'queued', 'running', 'succeeded', 'failed' or 'cancelled'"),
        (f"/v1/graphs?cursor={'x' * 65}", "pattern '^[0-9TZ:.-]{24}~[0-9a-f]{64}$'"),
    ],
)
def test_a_refused_parameter_says_what_is_expected(client: TestClient, path: str, expected: str) -> None:
    assert [finding["expected"] for finding in client.get(path).json()["errors"]] == [expected]


@pytest.mark.parametrize("name", ["", "a\nb", "a\0b", "x" * 201])
def test_a_name_is_one_printable_line(client: TestClient, name: str) -> None:
    refused = client.post("/v1/graphs", json=one_layer(), params={"name": name})
    assert refused.status_code == 422 and refused.json()["errors"][0]["path"] == "query.name"


def test_a_deleted_graph_is_gone_with_all_that_was_made_of_it(client: TestClient) -> None:
    store = client.app.state.service.store  # type: ignore[attr-defined]
    ids = made(client, "confidential")
    batch = {"graph_ids": [ids["graph"]], "budgets": ["90%"], "planners": ["greedy"], "iterations": 5}
    batch_id = client.post("/v1/batches", json=batch).json()["id"]
    client.get(f"/v1/operations/op{batch_id[2:]}/events")  # until it ends
    assert client.get(f"/v1/plans/{ids['plan']}").status_code == 200  # cached
    blobs = [ids["graph"], store.row(plans, ids["plan"])["figures"], store.row(results, ids["curve"])["blob"]]
    assert all(map(store.blobs.has, blobs))
    assert client.delete(f"/v1/graphs/{ids['graph']}").status_code == 204
    assert not any(map(store.blobs.has, blobs))
    for kind, id in ids.items():
        assert client.get(f"/v1/{kind}s/{id}").status_code == 404, kind
    assert client.get(f"/v1/batches/{batch_id}").status_code == 404
    assert "confidential" not in client.get("/v1/operations", params={"limit": 1000}).text
    assert client.delete(f"/v1/graphs/{ids['graph']}").status_code == 404
    assert client.get("/v1/graphs", params={"name": "confidential"}).json()["graphs"] == []  # that of the fit neither
    assert made(client, "confidential") == ids  # made anew


def test_a_graph_with_unfinished_work_is_not_deleted(client: TestClient) -> None:
    asked = {"graph": chain(6, "at work"), "budget": "60%", "search_seconds": 30, "planner": "anneal"}
    operation = client.post("/v1/plans", json=asked, headers={"prefer": "respond-async"}).json()["id"]
    (graph,) = client.get("/v1/graphs", params={"name": "at work"}).json()["graphs"]
    refused = client.delete(f"/v1/graphs/{graph['id']}")
    assert (refused.status_code, refused.json()["code"]) == (409, "in_use")
    assert operation in refused.json()["detail"]
    client.post(f"/v1/operations/{operation}:cancel")
    client.get(f"/v1/operations/{operation}/events")
    assert client.delete(f"/v1/graphs/{graph['id']}").status_code == 204


def test_an_operation_is_retried(client: TestClient) -> None:
    asked = {"graph": chain(3, "retried"), "budget": "90%", **SMALL}
    first = client.post("/v1/plans", json=asked, headers={"prefer": "respond-async"}).json()["id"]
    client.get(f"/v1/operations/{first}/events")
    answer = client.post(f"/v1/operations/{first}:retry")
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/operations/{answer.json()['id']}"
    assert answer.json()["id"] != first
    assert client.get(f"/v1/operations/{first}:retry").headers["allow"] == "POST"
