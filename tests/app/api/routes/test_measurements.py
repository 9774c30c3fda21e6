"""Measurements of plans: posted, listed, bounded, of one tenant, and shown on pages."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from app.api.wire.openapi import components
from app.client.blocking import Client
from app.store import measurements
from tests.app.api.auth.conftest import Gated, gated, tenant
from tests.app.clients import Recording
from tests.app.conftest import chain

__all__ = ["gated", "tenant"]
MIB = 2**20
STEPS = {
    "peak_bytes": 99 * MIB,
    "requested_bytes": None,
    "seconds": 0.25,
    "predicted_peak_bytes": 100 * MIB,
    "predicted_seconds": 0.2,
}
MEASURED: dict[str, Any] = {
    "format": "remat-measurement/1",
    "model": "Decoder",
    "device": "NVIDIA H100",
    "torch": "2.13.0",
    "counter": "max_memory_allocated",
    "steps": 5,
    "status": "found",
    "budget_bytes": None,
    "baseline": {**STEPS, "peak_bytes": 200 * MIB},
    "plan": STEPS,
    "overhead": 0.25,
    "overhead_error": 0.004,
    "predicted_overhead": 0.125,
}
SNAPSHOT = {
    "segments": [{"device": 0, "allocated_size": 4096}],
    "device_traces": [[{"action": "alloc", "size": size, "time_us": 10 * size} for size in (512, 1024)]],
}
BINARY = {"content-type": "application/octet-stream"}


def planned(client: Any, **fields: Any) -> str:
    asked = {"graph": chain(4, "measured"), "planner": "greedy", "iterations": 5, "budget": "80%", **fields}
    return str(client.post("/v1/plans", json=asked).json()["id"])


@pytest.fixture(scope="module")
def path(client: TestClient) -> str:
    return f"/v1/plans/{planned(client)}/measurements"


def test_steps_and_snapshots_are_stored_and_listed_newest_first(client: TestClient, path: str) -> None:
    schema = {"components": {"schemas": components()}}
    step = client.post(path, json=MEASURED)
    assert step.status_code == 201, step.text
    assert step.json()["step"] == MEASURED
    drawn = client.post(path, content=pickle.dumps(SNAPSHOT), headers=BINARY)
    assert drawn.status_code == 201, drawn.text
    assert drawn.json()["snapshot"]["curve"] == {"time_us": [0.0, 5120.0], "bytes": [3072, 4096]}
    listed = client.get(path).json()
    assert listed["measurements"] == [drawn.json(), step.json()]
    jsonschema_rs.validate({"$ref": "#/components/schemas/Measurements", **schema}, listed)
    assert client.post(path, json=MEASURED).json()["id"] == step.json()["id"]
    assert len(client.get(path).json()["measurements"]) == 2


def test_the_pages_show_measured_figures(client: TestClient, path: str) -> None:
    client.post(path, json=MEASURED)
    plan_id = path.split("/")[3]
    page = client.get(f"/plans/{plan_id}").text
    assert f'data-path="{path}"' in page and "NVIDIA H100" in page and "99.00 MiB" in page
    assert "25.0% ± 0.4" in page
    made = client.get(f"/plans/{plan_id}/trace.json")
    assert made.status_code == 200 and {"M", "X", "C"} == {event["ph"] for event in made.json()["traceEvents"]}
    (row,) = [row for row in client.get("/savings.csv").text.splitlines() if f"{99 * MIB},0.25" in row]
    assert row


def test_a_measurement_of_before_standard_errors_is_listed_and_shown(client: TestClient) -> None:
    path = f"/v1/plans/{planned(client, budget='70%')}/measurements"
    older = {name: figure for name, figure in MEASURED.items() if name != "overhead_error"}
    store = client.app.state.service.store  # type: ignore[attr-defined]
    measurements.save_measurement(store, path.split("/")[3], None, measurements.STEP, older)
    assert client.post(path, json={**older, "model": "of a client from before"}).status_code == 201
    listed = client.get(path).json()
    jsonschema_rs.validate(
        {"$ref": "#/components/schemas/Measurements", "components": {"schemas": components()}}, listed
    )
    assert [row["step"].get("overhead_error") for row in listed["measurements"]] == [None, None]
    page = client.get(f"/plans/{path.split('/')[3]}").text
    assert page.count("<td>25.0%</td>") == 2


def test_the_python_client_posts_and_lists(client: TestClient, path: str) -> None:
    with Client("http://testserver", transport=Recording(client)) as own:
        posted = own.add_measurement(path.split("/")[3], {**MEASURED, "model": "by the client"})
        drawn = own.add_measurement(path.split("/")[3], pickle.dumps(SNAPSHOT))
        assert {posted["id"], drawn["id"]} <= {row["id"] for row in own.measurements(path.split("/")[3])}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"overhead": "much"}, "overhead"),
        ({"steps": 0}, "steps"),
        ({"overhead_error": -0.1}, "overhead_error"),
        ({"other": 1}, "other"),
        ({"model": "m" * 201}, "model"),
        ({"plan": {**STEPS, "peak_bytes": 2**63}}, "plan.peak_bytes"),
        ({"plan": {**STEPS, "seconds": -1}}, "plan.seconds"),
    ],
)
def test_a_wrong_field_is_named(client: TestClient, path: str, change: dict[str, Any], place: str) -> None:
    answer = client.post(path, json={**copy.deepcopy(MEASURED), **change})
    assert answer.status_code == 422
    assert [finding["path"] for finding in answer.json()["errors"]] == [place]


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"cos\nsystem\n.", "unsafe_pickle"), (b"nothing", "not_a_snapshot"), (pickle.dumps({}), "not_a_snapshot")],
)
def test_a_hostile_pickle_is_refused_by_name(client: TestClient, path: str, data: bytes, code: str) -> None:
    answer = client.post(path, content=data, headers=BINARY)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert code != "unsafe_pickle" or "os.system" in answer.json()["detail"]


def test_other_bodies_and_plans_are_refused(client: TestClient, path: str) -> None:
    assert client.post(path, content=b"{", headers={"content-type": "application/json"}).status_code == 400
    assert client.post(path, content=b"x", headers={"content-type": "text/plain"}).status_code == 415
    missing = f"/v1/plans/{'0' * 64}/measurements"
    assert client.post(missing, json=MEASURED).status_code == client.get(missing).status_code == 404


def test_a_plan_keeps_its_newest_measurements(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "MAX_PER_PLAN", 2)
    path = f"/v1/plans/{planned(client, budget='90%')}/measurements"
    for steps in (1, 2, 3):
        assert client.post(path, json={**MEASURED, "steps": steps}).status_code == 201
    assert [row["step"]["steps"] for row in client.get(path).json()["measurements"]] == [3, 2]


def test_tenants_with_the_same_plan_see_their_own_measurements(
    gated: Gated, tenant: Callable[[str], dict[str, str]]
) -> None:
    first, second = tenant("one"), tenant("two")
    made = [gated.plan(headers, graph=chain(4, "measured"), budget="80%").json()["id"] for headers in (first, second)]
    assert made[0] == made[1]  # the same plan of the same graph
    path = f"/v1/plans/{made[0]}/measurements"
    get = gated.client.get
    assert gated.client.post(path, json=MEASURED, headers=first).status_code == 201
    for headers, sees in ((first, True), (second, False)):
        assert len(get(path, headers=headers).json()["measurements"]) == sees
        assert ("NVIDIA H100" in get(f"/plans/{made[0]}", headers=headers).text) is sees
        assert (str(99 * MIB) in get("/savings.csv", headers=headers).text) is sees
