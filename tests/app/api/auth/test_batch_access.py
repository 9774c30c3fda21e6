"""Batches of tenants: seen by their own, and counted against their key."""

from __future__ import annotations

from typing import Any

from tests.app.api.auth.conftest import Gated
from tests.app.api.routes.test_batches import ended, items_of
from tests.app.conftest import chain

QUICK = {"planners": ["greedy"], "iterations": 5, "search_seconds": 2}


def graph_of(gated: Gated, headers: dict[str, str], name: str) -> str:
    return str(gated.client.post("/v1/graphs", json=chain(3, name), headers=headers).json()["id"])


def begun(gated: Gated, headers: dict[str, str], graph_id: str, count: int, **more: Any) -> Any:
    asked = {"graph_ids": [graph_id], "seeds": list(range(count)), **QUICK, **more}
    return gated.client.post("/v1/batches", json=asked, headers=headers)


def test_a_tenant_sees_and_follows_what_solves_their_items_and_nobody_elses(gated: Gated) -> None:
    mine, other = gated.key("of batches"), gated.key("somebody else")
    batch = begun(gated, mine, graph_of(gated, mine, "a batch"), 2).json()
    ended(gated.client, batch["id"], mine)
    for item in items_of(gated.client, batch["id"], mine):
        assert gated.client.get(item["operation"], headers=mine).json()["result"] == item["plan"]
        assert gated.client.get(item["operation"], headers=other).status_code == 404
        assert gated.client.get(item["plan"], headers=other).status_code == 404
    assert [one["id"] for one in gated.client.get("/v1/batches", headers=mine).json()["batches"]] == [batch["id"]]
    assert gated.client.get("/v1/batches", headers=other).json()["batches"] == []
    kinds = [one["kind"] for one in gated.client.get("/v1/operations", headers=mine).json()["operations"]]
    assert sorted(kinds) == ["batch", "plan", "plan"]
    assert gated.client.get("/v1/operations", headers=other).json()["operations"] == []
    (row,) = gated.client.get("/v1/savings", headers=mine).json()["rows"]
    assert row["plans"] >= 1
    assert gated.client.get("/v1/savings", headers=other).json()["rows"] == []


def test_a_graph_of_another_tenant_is_in_no_batch(gated: Gated) -> None:
    theirs = graph_of(gated, gated.key("owner"), "not shared")
    answer = begun(gated, gated.key("asks for it"), theirs, 1)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_batch_counts_against_the_day_as_long_as_it_may_take_then_as_long_as_it_took(gated: Gated) -> None:
    key = gated.key("with a budget", solver_seconds=500)
    graph_id = graph_of(gated, key, "dear")
    refused = begun(gated, key, graph_id, 6, search_seconds=100)
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_seconds")
    batch = begun(gated, key, graph_id, 4, search_seconds=100).json()
    ended(gated.client, batch["id"], key)
    # Most of four hundred seconds has come back.
    again = begun(gated, key, graph_id, 4, budgets=["90%"], search_seconds=100)
    assert again.status_code == 202, again.text
    ended(gated.client, again.json()["id"], key)


def test_items_in_the_queue_count_among_the_solves_of_the_key(gated: Gated) -> None:
    key = gated.key("a few at a time", solves=1)
    graph_id = graph_of(gated, key, "one at a time")
    slow = {"search_seconds": 30, "planners": ["anneal"], "iterations": None}
    batch = begun(gated, key, graph_id, 5, **slow).json()
    while gated.client.get(f"/v1/batches/{batch['id']}", headers=key).json()["items"]["running"] == 0:
        pass
    refused = gated.plan(key, graph_id=graph_id, budget="95%")
    stopped = gated.client.post(f"/v1/batches/{batch['id']}:cancel", headers=key).json()
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_solves")
    assert stopped["items"]["running"] <= 1
    ended(gated.client, batch["id"], key)
    assert gated.plan(key, graph_id=graph_id, budget="95%").status_code == 201
