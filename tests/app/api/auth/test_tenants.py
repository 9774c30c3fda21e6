"""A tenant sees their own things only, and takes no more than the key may."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from app.store.access_tables import graph_owners
from app.store.records import now
from app.store.tables import operations
from tests.app.api.auth.conftest import Gated
from tests.app.api.routes.test_measurements import MEASURED
from tests.app.conftest import chain
from tests.app.renames import under

Tenant = Callable[[str], dict[str, str]]


QUICK = {"planner": "greedy", "iterations": 5}
OPEN = {
    "format": "remat/1",
    "values": [{"name": "x", "shape": ["N", 64], "dtype": "float32", "role": "input"}],
    "nodes": [{"name": "n", "op": "Relu", "inputs": ["x"], "outputs": ["y"]}],
    "outputs": ["y"],
}
#: Body of a question that is answered with each, about a graph or about nothing that is stored.
OTHERS: dict[str, dict[str, Any]] = {
    "curve": {"graph": chain(3, "private"), "budgets": ["90%"], **QUICK},
    "fit": {"graph": OPEN, "budget": "64KiB", "grow": "N", "search_seconds": 1},
    "layout": {"buffers": [{"lower": 0, "upper": 1, "size": 8}], "search_seconds": 1},
}


def ids_of(gated: Gated, headers: dict[str, str]) -> dict[str, str]:
    """A graph, a plan, an operation and what else may be found, all of the tenant."""
    answer = gated.plan(headers, graph=chain(3, "private"), budget="90%")
    assert answer.status_code == 201, answer.text
    operation = gated.client.get("/v1/operations", headers=headers).json()["operations"][0]
    graph = gated.client.post("/v1/graphs", json=chain(3, "private"), headers=headers).json()
    ids = {"graph_id": graph["id"], "plan_id": answer.json()["id"], "operation_id": operation["id"]}
    for kind, question in OTHERS.items():
        found = gated.client.post(f"/v1/{kind}s", json=question, headers=headers)
        assert found.status_code == 201, found.text
        ids[f"{kind}_id"] = found.headers["location"].rpartition("/")[2]
    batch = {"graph_ids": [graph["id"]], "budgets": ["90%"], "planners": ["greedy"], "iterations": 5}
    ids["batch_id"] = gated.client.post("/v1/batches", json=batch, headers=headers).json()["id"]
    return ids


UNKNOWN = dict.fromkeys(("graph_id", "plan_id", "curve_id", "fit_id", "layout_id"), "0" * 64)
UNKNOWN |= {"operation_id": "op" + "0" * 26, "batch_id": "ba" + "0" * 26}
BODIES = {"transform_graph": {"pass": "prune"}, "post_measurement": MEASURED, "patch_plan": {"note": "mine"}}


def test_what_is_anothers_is_answered_as_what_is_not_there_on_every_path(gated: Gated, tenant: Tenant) -> None:
    ids = ids_of(gated, tenant("a"))
    asked = 0
    for template, methods in gated.client.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            named = re.findall(r"\{(\w+)\}", template)
            assert set(named) <= {*ids, "name"}, (
                "say in app/api/auth/tenant_view.py whose these are, and ask for one here"
            )
            if not (names := [name for name in named if name in ids]):
                continue
            body, (name,) = BODIES.get(operation["operationId"]), names

            def ask(id: str, who: str, method: str = method, template: str = template, body: Any = body) -> Any:
                path = re.sub(r"\{\w+\}", id, template)
                return gated.client.request(method, path, json=body, headers=tenant(who))

            foreign, unknown = ask(ids[name], "b"), ask(UNKNOWN[name], "b")
            assert foreign.status_code == unknown.status_code == 404, (method, template)
            assert foreign.text.replace(ids[name], "ID") == unknown.text.replace(UNKNOWN[name], "ID")
            asked += 1
            if method == "delete":  # what is asked next is still needed
                continue
            assert ask(ids[name], "a").status_code in (200, 201, 202, 204, 409), (method, template)
    assert asked >= 10


def test_a_foreign_graph_is_not_there_to_be_asked_about(gated: Gated, tenant: Tenant) -> None:
    id = ids_of(gated, tenant("a"))["graph_id"]
    for graph_id in (id, UNKNOWN["graph_id"]):
        assert gated.plan(tenant("b"), graph_id=graph_id).status_code == 404
        for path in ("/v1/curves", "/v1/fits"):
            fields = (
                {"graph_id": graph_id, "budget": "4MiB"}
                if path == "/v1/fits"
                else {"graph_id": graph_id, "budgets": [1]}
            )
            assert gated.client.post(path, json=fields, headers=tenant("b")).status_code == 404
    own = gated.client.post("/v1/graphs", json=chain(2), headers=tenant("b")).json()["id"]
    assert gated.client.get(f"/v1/graphs/{own}/analysis?before={id}", headers=tenant("b")).status_code == 404
    assert gated.client.get(f"/v1/graphs/{own}/analysis?before={own}", headers=tenant("b")).status_code == 200


def test_a_list_has_the_tenants_own_page_by_page(gated: Gated, tenant: Tenant) -> None:
    made = {"lists": [], "others": []}  # type: dict[str, list[str]]
    for n in range(6):
        name = "lists" if n % 2 else "others"
        gated.plan(tenant(name), graph=chain(2, "listed"), seed=n)
        page = gated.client.get("/v1/operations?limit=1", headers=tenant(name)).json()
        made[name].insert(0, page["operations"][0]["id"])
    for name, ids in made.items():
        found, cursor = list[str](), ""
        while cursor is not None:
            asked = f"/v1/operations?limit=2{cursor and f'&cursor={cursor}'}"
            page = gated.client.get(asked, headers=tenant(name)).json()
            found += [operation["id"] for operation in page["operations"]]
            cursor = page["next"]
        assert found == ids
    assert not set(made["lists"]) & set(made["others"])


def test_operations_of_other_tenants_make_a_list_no_slower(gated: Gated, tenant: Tenant) -> None:
    service = gated.client.app.state.service  # type: ignore[attr-defined]
    row = {"key": "", "fields": {}, "created_at": now(), "kind": "plan", "state": "succeeded", "ended_at": now()}
    row |= {"attempts": 1, "child_deaths": 0, "last_event": 1, "cancel_requested": False, "wanted": True}
    with service.store.writing() as connection:
        connection.execute(sa.insert(operations), [row | {"id": f"op{n:026x}", "tenant": "busy"} for n in range(2_500)])
    asked = list[str]()
    headers = tenant("quiet")

    def note(*given: Any) -> None:
        if "tenant" in given[2] and "batches.ended_at IS NULL" not in given[2]:  # the worker looks for open batches
            asked.append(given[2])

    listener = service.store.engine, "before_cursor_execute", note
    sa.event.listen(*listener)
    assert gated.client.get("/v1/operations?limit=1", headers=headers).json() == {"operations": [], "next": None}
    sa.event.remove(*listener)
    assert len(asked) < 10
    (listing,) = [query for query in asked if "operations.tenant = " in query and "ORDER BY" in query]
    with service.store.reading() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {listing}", ("quiet", 2, 0)).all()
    assert any("ix_operations_tenant_id" in row.detail for row in plan)


def test_an_answer_kept_for_one_tenant_is_made_anew_for_another(gated: Gated, tenant: Tenant) -> None:
    def solves(who: str) -> int:
        return len(gated.client.get("/v1/operations", headers=tenant(who)).json()["operations"])

    asked = {"graph": chain(4, "cached"), "budget": "80%"}
    first = gated.plan(tenant("cached a"), **asked).json()
    assert gated.plan(tenant("cached a"), **asked).json()["id"] == first["id"]
    assert solves("cached a") == 1  # the second came from what is kept
    assert gated.client.get(f"/v1/plans/{first['id']}", headers=tenant("cached b")).status_code == 404
    other = gated.plan(tenant("cached b"), **asked).json()
    assert solves("cached b") == 1
    assert gated.client.get(f"/v1/plans/{other['id']}", headers=tenant("cached b")).status_code == 200


def test_two_keys_of_one_tenant_see_the_same(gated: Gated) -> None:
    one, two = gated.key("shared"), gated.key("shared")
    id = gated.client.post("/v1/graphs", json=chain(2), headers=one).json()["id"]
    assert gated.client.get(f"/v1/graphs/{id}", headers=two).status_code == 200


def test_idempotency_keys_of_two_tenants_do_not_meet(gated: Gated, tenant: Tenant) -> None:
    said = {"Idempotency-Key": "the same"}
    for who, length in (("a", 2), ("b", 3)):
        answer = gated.client.post("/v1/graphs", json=chain(length, "mine"), headers=tenant(who) | said)
        assert answer.status_code == 201
    again = gated.client.post("/v1/graphs", json=chain(5, "other"), headers=tenant("a") | said)
    assert (again.status_code, again.json()["code"]) == (409, "idempotency_conflict")
    assert "the idempotency key was used" in again.json()["detail"]  # what it is called here is of no use to anybody


def test_a_curve_and_its_plans_are_their_askers(gated: Gated, tenant: Tenant) -> None:
    asked = {"graph": chain(3, "curve"), "budgets": ["90%"], "planner": "greedy", "iterations": 5}
    answer = gated.client.post("/v1/curves", json=asked, headers=tenant("a"))
    assert answer.status_code == 201, answer.text
    path = answer.json()["points"][0]["plan"]
    assert gated.client.get(path, headers=tenant("a")).status_code == 200
    assert gated.client.get(path, headers=tenant("b")).status_code == 404


def test_a_fit_and_its_plan_are_their_askers(gated: Gated, tenant: Tenant) -> None:
    asked = {"graph": OPEN, "budget": "64KiB", "grow": "N", "search_seconds": 1}
    answer = gated.client.post("/v1/fits", json=asked, headers=tenant("a"))
    assert answer.status_code == 201, answer.text
    path = answer.json()["plan"]
    assert gated.client.get(path, headers=tenant("a")).status_code == 200
    assert gated.client.get(path, headers=tenant("b")).status_code == 404


def test_a_graph_a_pass_makes_is_its_makers(gated: Gated, tenant: Tenant) -> None:
    id = gated.client.post("/v1/graphs", json=chain(2, "passed"), headers=tenant("a")).json()["id"]
    made = gated.client.post(
        f"/v1/graphs/{id}:transform",
        json={"pass": "rename", "node": "f0", "output": 0, "to": "new"},
        headers=tenant("a"),
    )
    assert made.status_code == 201, made.text
    for who, status in (("a", 200), ("b", 404)):
        assert gated.client.get(made.headers["location"], headers=tenant(who)).status_code == status


def test_a_key_takes_graphs_and_bodies_as_large_as_it_may(gated: Gated) -> None:
    small = gated.key("small", nodes=6, bytes=20_000)
    assert gated.client.post("/v1/graphs", json=chain(3), headers=small).status_code == 201
    refused = gated.client.post("/v1/graphs", json=chain(4), headers=small)
    assert refused.status_code == 422 and "6" in refused.json()["detail"]
    assert refused.json()["limit"] == {"name": "nodes", "value": 6}
    large = gated.client.post("/v1/graphs", json=chain(2, "x" * 20_000), headers=small)
    assert (large.status_code, large.json()["limit"]["value"]) == (413, 20_000)
    assert large.json()["limit"]["name"] == "bytes" and "REMAT_" not in large.json()["detail"]
    assert "keys create NAME --bytes" in large.json()["detail"]
    assert gated.client.post("/v1/graphs", json=chain(4), headers=gated.key("small")).status_code == 201


def test_a_key_runs_as_many_solves_at_a_time_as_it_may(gated: Gated) -> None:
    headers = gated.key("one at a time", solves=1)
    slow = {"graph": chain(200), "budget": "10%", "search_seconds": 100}
    waiting = gated.client.post("/v1/plans", json=slow, headers=headers | {"Prefer": "wait=0"})
    assert waiting.status_code == 202
    for path, more in (("/v1/plans", {"seed": 1}), ("/v1/curves", {"budgets": ["50%"], "budget": None})):
        fields = {name: said for name, said in (slow | more).items() if said is not None}
        refused = gated.client.post(path, json=fields, headers=headers | {"Prefer": "wait=0"})
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_solves"), path
        assert refused.json()["limit"] == {"name": "solves", "value": 1}
        assert int(refused.headers["retry-after"]) > 0
    id = waiting.json()["id"]
    gated.client.post(f"/v1/operations/{id}:cancel", headers=headers)
    list(gated.client.get(f"/v1/operations/{id}/events", headers=headers).iter_lines())
    assert gated.plan(headers, graph=chain(2)).status_code == 201


def test_a_key_spends_the_solver_seconds_of_its_day_and_no_more(gated: Gated) -> None:
    headers = gated.key("spender", solver_seconds=60)
    refused = gated.plan(headers, graph=chain(2, "spent"), search_seconds=60.5)
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_seconds")
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert gated.plan(headers, graph=chain(2, "spent"), search_seconds=40).status_code == 201
    # what it took is counted now, not what it might have taken
    assert gated.plan(headers, graph=chain(2, "spent"), search_seconds=40, seed=1).status_code == 201
    key_id = headers["Authorization"].split("_")[1]
    gated.access.key_store.charge(key_id, "direct/earlier", 40, gated.clock())
    gated.access.key_store.settle(key_id, "direct/earlier", 40)
    assert gated.plan(headers, graph=chain(2, "spent"), search_seconds=40, seed=2).status_code == 429
    gated.clock.after += 86_400
    assert gated.plan(headers, graph=chain(2, "spent"), search_seconds=40, seed=2).status_code == 201


def test_an_answer_is_told_under_other_names_to_its_own_tenant_alone(gated: Gated, tenant: Tenant) -> None:
    def operations(who: str) -> int:
        return len(gated.client.get("/v1/operations", headers=tenant(who)).json()["operations"])

    graph = chain(4, "renamed")
    assert gated.plan(tenant("teller"), graph=graph, budget="90%").status_code == 201
    other = under(graph, "own {}".format)
    for who, made in (("teller", 0), ("stranger", 1)):
        before = operations(who)
        answer = gated.plan(tenant(who), graph=other, budget="90%")
        assert operations(who) == before + made
        assert {name for name, _ in answer.json()["plan"]["order"]} == {node["name"] for node in other["nodes"]}


@pytest.mark.parametrize("answered", [True, False])
def test_what_is_kept_already_costs_no_quota(answered: bool, gated: Gated) -> None:
    headers = gated.key("frugal", solver_seconds=10.5)
    asked = {"graph": chain(2, "frugal"), "search_seconds": 10}
    assert gated.plan(headers, **asked).status_code == 201
    key_id = headers["Authorization"].split("_")[1]
    gated.access.key_store.charge(key_id, "direct/earlier", 10, gated.clock())
    gated.access.key_store.settle(key_id, "direct/earlier", 10)
    again = gated.plan(headers, **asked, **({} if answered else {"seed": 9}))
    assert again.status_code == (201 if answered else 429)


def test_savings_are_of_the_tenants_own_plans_even_of_a_graph_that_others_plan(gated: Gated, tenant: Tenant) -> None:
    def plans(who: str) -> int:
        rows = gated.client.get("/v1/savings", headers=tenant(who)).json()["rows"]
        return sum(row["plans"] for row in rows if row["model"] == "shared by two")

    graph = chain(3, "shared by two")
    for budget in ("95%", "90%"):
        assert gated.plan(tenant("saver"), graph=graph, budget=budget).status_code == 201
    assert (plans("saver"), plans("other saver")) == (2, 0)
    assert gated.plan(tenant("other saver"), graph=graph, budget="85%").status_code == 201
    assert (plans("saver"), plans("other saver")) == (2, 1)
    curve = {"graph": graph, "budgets": ["80%"], "planner": "greedy", "iterations": 5}
    assert gated.client.post("/v1/curves", json=curve, headers=tenant("other saver")).status_code == 201
    assert (plans("saver"), plans("other saver")) == (2, 2)


def test_me_has_the_scopes_and_the_use_of_the_key(gated: Gated) -> None:
    headers = gated.key("introspective", solver_seconds=50.0)
    assert gated.plan(headers, graph=chain(2, "introspective")).status_code == 201
    me = gated.client.get("/v1/me", headers=headers).json()
    assert (me["tenant"], me["key"]["scopes"], me["quotas"]["solver_seconds"]) == (
        "introspective",
        ["plan", "read"],
        50,
    )
    assert me["used"]["solves"] == 0
    assert 0 < me["used"]["solver_seconds"] < 50
    assert headers["Authorization"].rpartition("_")[2] not in str(me)


@pytest.mark.parametrize("kind", ["graphs", "plans", "curves", "fits"])
def test_lists_have_the_resources_of_the_tenant_only(kind: str, gated: Gated, tenant: Tenant) -> None:
    def listed(who: str) -> set[str]:
        rows = gated.client.get(f"/v1/{kind}", headers=tenant(who), params={"limit": 1000}).json()[kind]
        return {row["id"] for row in rows}

    ids = ids_of(gated, tenant("lister"))
    assert ids[f"{kind[:-1]}_id"] in listed("lister")
    assert listed("other lister") == set()


def test_a_tenant_deletes_a_graph_and_another_keeps_the_same_content(gated: Gated, tenant: Tenant) -> None:
    shared = {"graph": chain(3, "held by two"), "budget": "90%"}
    ids = {who: gated.plan(tenant(who), **shared).json() for who in ("leaver", "stayer")}
    graph_id = gated.client.post("/v1/graphs", json=shared["graph"], headers=tenant("leaver")).json()["id"]
    path, plan = f"/v1/graphs/{graph_id}", f"/v1/plans/{ids['stayer']['id']}"

    def status(who: str, path: str) -> int:
        return int(gated.client.get(path, headers=tenant(who)).status_code)

    assert gated.client.delete(path, headers=gated.key("leaver", frozenset({"read"}))).status_code == 403
    assert gated.client.delete(path, headers=tenant("leaver")).status_code == 204
    assert (status("leaver", path), status("leaver", plan)) == (404, 404)
    assert (status("stayer", path), status("stayer", plan)) == (200, 200)
    assert gated.client.get("/v1/operations", headers=tenant("leaver")).json()["operations"] == []
    assert gated.client.delete(path, headers=tenant("stayer")).status_code == 204
    assert status("stayer", path) == 404
    with gated.client.app.state.service.store.reading() as connection:  # type: ignore[attr-defined]
        owners = connection.scalars(sa.select(graph_owners.c.tenant).where(graph_owners.c.graph_id == graph_id)).all()
    assert owners == []
