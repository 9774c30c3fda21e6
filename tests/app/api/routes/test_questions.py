"""Plans, curves, fits and layouts are asked for alike: waited for or followed, answered once, cancelled, kept."""

from __future__ import annotations

import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from bench.generators import layered
from tests.app.api.auth.test_tenants import OPEN
from tests.app.conftest import chain

QUICK: dict[str, Any] = {"planner": "greedy", "iterations": 5}
BUFFERS = [{"lower": 0, "upper": 2, "size": 4}, {"lower": 1, "upper": 3, "size": 4}]
#: Kind -> a question; `said` makes it another.
ASKED: dict[str, Any] = {
    "plan": lambda said: {"graph": chain(3, said), "budget": "90%", **QUICK},
    "curve": lambda said: {"graph": chain(3, said), "budgets": ["90%"], **QUICK},
    "fit": lambda said: {"graph": OPEN | {"name": said}, "budget": "64KiB", "grow": "N", "search_seconds": 1},
    "layout": lambda said: {"buffers": [{**BUFFERS[0], "id": said}, BUFFERS[1]], "search_seconds": 1},
}
KINDS = list(ASKED)


def ended(client: TestClient, path: str) -> Any:
    """The operation once it has ended."""
    until = time.monotonic() + 120
    while (operation := client.get(path).json())["state"] in ("queued", "running"):
        assert time.monotonic() < until
        time.sleep(0.02)
    return operation


def begun(client: TestClient, path: str, asked: Any, **headers: str) -> str:
    """The place of the operation that was started and not waited for, however fast it is."""
    answer = client.post(path, json=asked, headers=headers | {"Prefer": "wait=0"})
    assert answer.status_code in (201, 202), answer.text
    return f"/v1/operations/{client.get('/v1/operations?limit=1').json()['operations'][0]['id']}"


def operations(client: TestClient) -> int:
    return len(client.get("/v1/operations?limit=1000").json()["operations"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_is_followed_to_its_place_and_answered_from_there(client: TestClient, kind: str) -> None:
    path, asked = f"/v1/{kind}s", ASKED[kind]("followed")
    place = begun(client, path, asked)
    operation = ended(client, place)
    assert operation["kind"] == kind
    assert operation["state"] == "succeeded" and operation["result"].startswith(f"{path}/")
    events = client.get(f"{place}/events").text
    assert '"state":"succeeded"' in events and "event: progress" in events
    kept = client.get(operation["result"])
    assert kept.status_code == 200 and "immutable" in kept.headers["cache-control"]
    assert client.get(operation["result"], headers={"if-none-match": kept.headers["etag"]}).status_code == 304
    before = operations(client)
    again = client.post(path, json=asked)
    assert (again.status_code, again.headers["location"]) == (201, operation["result"])
    assert again.json() == kept.json()
    assert operations(client) == before
    for other in set(KINDS) - {kind}:
        assert client.get(operation["result"].replace(path, f"/v1/{other}s")).status_code == 404


@pytest.mark.parametrize("kind", KINDS)
def test_an_idempotency_key_starts_one_operation(client: TestClient, kind: str) -> None:
    path, key = f"/v1/{kind}s", {"Idempotency-Key": f"once {kind}"}
    before = operations(client)
    found = ended(client, begun(client, path, ASKED[kind]("once"), **key))["result"]
    for _ in range(2):
        assert client.post(path, json=ASKED[kind]("once"), headers=key).headers["location"] == found
    assert operations(client) == before + 1
    other = client.post(path, json=ASKED[kind]("other"), headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")


def test_a_fault_that_a_child_finds_is_told_as_the_questions_own(client: TestClient) -> None:
    asked = {"buffers": [{"lower": 1, "upper": 1, "size": 1}]}
    for wait in (60, 0):
        answer = client.post("/v1/layouts", json=asked, headers={"Prefer": f"wait={wait}"})
        if answer.status_code == 202:
            assert ended(client, answer.headers["location"])["error"]["code"] == "bad_field"
        else:
            assert (answer.status_code, answer.json()["instance"]) == (422, "/v1/layouts")


def test_a_cancelled_curve_keeps_its_best_so_far_and_answers_nobody_else(client: TestClient) -> None:
    asked = {"graph": layered(100), "budgets": ["70%", "60%"], "search_seconds": 100, "planner": "anneal"}
    place = client.post("/v1/curves", json=asked, headers={"Prefer": "wait=0"}).headers["location"]
    until = time.monotonic() + 120
    while not (client.get(place).json()["progress"] or {}).get("incumbent"):
        assert time.monotonic() < until
        time.sleep(0.02)
    client.post(f"{place}:cancel")
    operation = ended(client, place)
    assert operation["state"] == "cancelled"
    points = client.get(operation["result"]).json()["points"]
    assert [point["budget"] for point in points] == ["70%", "60%"]
    assert all(client.get(point["plan"]).json()["checked"] for point in points)
    again = client.post("/v1/curves", json=asked, headers={"Prefer": "wait=0"})
    assert again.status_code == 202
    client.post(f"{again.headers['location']}:cancel")
    ended(client, again.headers["location"])
