"""Tags and notes of plans over HTTP: changed, listed, filtered, bounded, and each tenant's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.app.api.auth.conftest import Gated, gated, tenant
from tests.app.api.routes.test_measurements import planned
from tests.app.conftest import chain

__all__ = ["gated", "tenant"]


@pytest.fixture(scope="module")
def path(client: TestClient) -> str:
    return f"/v1/plans/{planned(client)}"


def in_list(client: TestClient, query: str = "", headers: Any = None) -> dict[str, Any]:
    """Plan id -> its row in the list."""
    listed = client.get(f"/v1/plans{query}", headers=headers)
    assert listed.status_code == 200, listed.text
    return {row["id"]: row for row in listed.json()["plans"]}


def test_a_field_that_is_left_out_stays_and_null_removes(client: TestClient, path: str) -> None:
    id = path.rpartition("/")[2]
    for change, tags, note in (
        ({"tags": ["prod", "a", "prod"], "note": "kept\nfor 3 May"}, ["a", "prod"], "kept\nfor 3 May"),
        ({"note": "new"}, ["a", "prod"], "new"),
        ({"tags": ["é"]}, ["é"], "new"),
        ({}, ["é"], "new"),
        ({"tags": None, "note": None}, [], None),
        ({"tags": [], "note": " \n"}, [], None),
        ({"note": "a\0b"}, [], "a\ufffdb"),
    ):
        answer = client.patch(path, json=change)
        assert (answer.status_code, answer.json()) == (200, {"id": id, "tags": tags, "note": note}), change
        row = in_list(client)[id]
        assert (row["tags"], row["note"]) == (tags, note)


def test_a_list_is_filtered_by_tag(client: TestClient, path: str) -> None:
    id, other = path.rpartition("/")[2], planned(client, seed=1)
    client.patch(path, json={"tags": ["one", "both"]})
    client.patch(f"/v1/plans/{other}", json={"tags": ["both"]})
    assert set(in_list(client, "?tag=one")) == {id}
    assert set(in_list(client, "?tag=both")) == {id, other}
    assert in_list(client, "?tag=ONE") == in_list(client, "?tag=none") == {}


def test_the_report_and_its_tag_stay_the_same(client: TestClient, path: str) -> None:
    before = client.get(path)
    client.patch(path, json={"tags": ["later"]})
    after = client.get(path)
    assert before.content == after.content and before.headers["etag"] == after.headers["etag"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tags": ["a b"]}, "tags.0"),
        ({"tags": ["a,b"]}, "tags.0"),
        ({"tags": ["fine", ""]}, "tags.1"),
        ({"tags": ["x" * 41]}, "tags.0"),
        ({"tags": [f"t{n}" for n in range(17)]}, "tags"),
        ({"tags": "one"}, "tags"),
        ({"note": "x" * 2001}, "note"),
        ({"note": 1}, "note"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_change_out_of_bounds_is_refused_whole(client: TestClient, path: str, change: Any, field: str) -> None:
    client.patch(path, json={"tags": ["before"], "note": "before"})
    answer = client.patch(path, json={"note": "after"} | change)
    assert answer.status_code == 422
    assert [error["path"] for error in answer.json()["errors"]] == [field]
    row = in_list(client)[path.rpartition("/")[2]]
    assert (row["tags"], row["note"]) == (["before"], "before")


def test_the_largest_change_is_stored(client: TestClient, path: str) -> None:
    change = {"tags": sorted(f"{n:040d}" for n in range(16)), "note": "é" * 2000}
    assert client.patch(path, json=change).json() == {"id": path.rpartition("/")[2]} | change


def test_what_is_no_change_is_refused(client: TestClient, path: str) -> None:
    assert client.patch(f"/v1/plans/{'0' * 64}", json={}).status_code == 404
    assert client.patch(path, content=b"{", headers={"content-type": "application/json"}).status_code == 400
    assert client.patch(path, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415


def test_tenants_that_share_a_plan_have_tags_and_notes_of_their_own(
    gated: Gated, tenant: Callable[[str], dict[str, str]]
) -> None:
    ids = {who: gated.plan(tenant(who), graph=chain(4, "tagged"), budget="80%").json()["id"] for who in ("a", "b")}
    assert ids["a"] == ids["b"]
    path = f"/v1/plans/{ids['a']}"
    for who in ("a", "b"):
        change = {"tags": [f"of-{who}"], "note": f"note of {who}"}
        assert gated.client.patch(path, json=change, headers=tenant(who)).status_code == 200
    for who, other in ("ab", "ba"):
        row = in_list(gated.client, f"?tag=of-{who}", tenant(who))[ids[who]]
        assert (row["tags"], row["note"]) == ([f"of-{who}"], f"note of {who}")
        assert in_list(gated.client, f"?tag=of-{other}", tenant(who)) == {}
        page = gated.client.get(f"/plans/{ids[who]}", headers=tenant(who)).text
        assert f"note of {who}" in page and f"note of {other}" not in page
    graph = in_list(gated.client, "", tenant("a"))[ids["a"]]["graph_id"]
    assert gated.client.delete(f"/v1/graphs/{graph}", headers=tenant("a")).status_code == 204
    assert in_list(gated.client, "", tenant("b"))[ids["b"]]["tags"] == ["of-b"]
    gated.plan(tenant("a"), graph=chain(4, "tagged"), budget="80%")  # plans the graph for a second time
    row = in_list(gated.client, "", tenant("a"))[ids["a"]]
    assert (row["tags"], row["note"]) == ([], None)


def test_a_key_that_may_only_read_changes_nothing(gated: Gated, tenant: Callable[[str], dict[str, str]]) -> None:
    id = gated.plan(tenant("c"), graph=chain(4, "tagged"), budget="70%").json()["id"]
    reader = gated.key("c", frozenset({"read"}))
    assert gated.client.patch(f"/v1/plans/{id}", json={"tags": ["x"]}, headers=reader).status_code == 403
