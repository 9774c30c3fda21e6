"""What `/metrics` says of a service, and what it never says."""

from __future__ import annotations

import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from app.api.main import create_app
from app.api.service.stored_bytes import StoredBytes
from app.errors import BadUsage, Unavailable
from app.settings import Settings
from app.store.database import translate_errors
from app.store.records import save_plan
from app.telemetry import export, metrics
from tests.app.api.auth.conftest import Gated
from tests.app.conftest import chain
from tests.app.stores import GRAPH_ID, opened, solved

DOCS = Path(__file__).parents[3] / "docs" / "guides" / "monitor-the-service.md"
Labels = dict[str, str]


def samples(client: TestClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, labels) -> value."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.text)
    return {(row.name, frozenset(row.labels.items())): row.value for family in families for row in family.samples}


def value(client: TestClient, name: str, **labels: str) -> float:
    """The sum of what is counted under that name with these labels, and any others."""
    wanted = set(labels.items())
    return sum(found for (said, has), found in samples(client).items() if said == name and wanted <= has)


def test_requests_are_counted_by_the_template_of_their_path(client: TestClient) -> None:
    name, labels = "http_server_request_duration_seconds_count", {"http_request_method": "GET"}
    labels |= {"http_route": "/v1/plans/{plan_id}", "http_response_status_code": "404"}
    before = value(client, name, **labels)
    for n in range(3):
        assert client.get(f"/v1/plans/{n}").status_code == 404
    assert value(client, name, **labels) == before + 3


def test_paths_methods_and_versions_of_strangers_make_no_series(client: TestClient) -> None:
    client.get("/metrics")
    before = len(samples(client))
    for n in range(20):
        client.request(f"M{n}", f"/nothing/{n}")
        client.get(f"/v1/graphs/{n}", headers={"x-request-id": f"r{n}", "user-agent": f"agent {n}"})
    grown = len(samples(client)) - before
    assert grown <= 3 * 17  # of one unknown method, one known route, and no route: their buckets, count and sum


def test_every_bucket_is_in_seconds(client: TestClient) -> None:
    client.get("/livez")
    ends = {
        float(dict(labels)["le"])
        for name, labels in samples(client)
        if name.endswith("_duration_seconds_bucket") and dict(labels)["le"] != "+Inf"
    }
    assert min(ends) <= 0.01 and max(ends) <= 3600


def test_a_plan_is_counted_with_its_planner_its_seconds_and_what_it_saves(client: TestClient, tmp_path: Path) -> None:
    told = "remat_solve_duration_seconds_sum", "remat_plan_saved_bytes_total"
    before = [value(client, name, planner="min_cut") for name in told]
    store = opened(tmp_path)
    save_plan(store, solved(planner="min_cut"), GRAPH_ID)
    store.close()
    after = [value(client, name, planner="min_cut") for name in told]
    assert [now - then for now, then in zip(after, before, strict=True)] == pytest.approx([2.0, 50.0])


def test_a_question_asked_again_is_a_hit(client: TestClient) -> None:
    question = {"graph": chain(3, "metrics"), "budget": "90%", "planner": "greedy", "iterations": 3}
    hits, reads = ("remat_cache_lookups_total", {"result": "hit"}), ("remat_child_duration_seconds_count", {})
    assert client.post("/v1/plans", json=question).status_code == 201
    before, read = value(client, hits[0], **hits[1]), value(client, reads[0], task="solve", outcome="done")
    assert client.post("/v1/plans", json=question).status_code == 201
    assert value(client, hits[0], **hits[1]) == before + 1
    assert value(client, reads[0], task="solve", outcome="done") == read


def test_jobs_are_counted_by_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.telemetry.metrics.JOB_COUNTS_TTL_S", 0.0)
    app = create_app(Settings(data=tmp_path, workers=1, wait_seconds=60, drain_seconds=0))
    with TestClient(app) as client:
        before = value(client, "remat_jobs", state="succeeded")
        question = {"graph": chain(3), "budget": "90%", "planner": "greedy", "iterations": 3}
        assert client.post("/v1/plans", json=question).status_code == 201
        assert value(client, "remat_jobs", state="succeeded") == before + 1
    assert value(client, "remat_jobs", state="succeeded") == before  # a service that is closed shows none


def test_an_ended_job_is_counted_with_its_wait_and_time_and_workers_with_their_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.telemetry.metrics.JOB_COUNTS_TTL_S", 0.0)
    app = create_app(Settings(data=tmp_path, workers=3, wait_seconds=60, drain_seconds=0))
    ended = {"kind": "plan", "state": "succeeded", "code": ""}
    with TestClient(app) as client:
        before = value(client, "remat_job_duration_seconds_count", **ended)
        waited = value(client, "remat_job_wait_seconds_count", kind="plan")
        slots = value(client, "remat_workers", what="slots")
        question = {"graph": chain(3), "budget": "90%", "planner": "greedy", "iterations": 3}
        assert client.post("/v1/plans", json=question).status_code == 201
        assert value(client, "remat_job_duration_seconds_count", **ended) == before + 1
        assert value(client, "remat_job_wait_seconds_count", kind="plan") == waited + 1
        assert value(client, "remat_workers", what="slots") == slots + 3
        assert value(client, "remat_workers", what="busy_slots") == 0
        assert value(client, "remat_build_info") == 1
        assert value(client, "remat_streams") >= app.state.service.streams() == 0  # other services have some


def test_jobs_of_dead_workers_are_counted(client: TestClient) -> None:
    before = value(client, "remat_job_takeovers_total")
    metrics.count_takeovers(2)
    assert value(client, "remat_job_takeovers_total") == before + 2


def test_who_looks_often_does_not_ask_the_store_as_often(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    service, asked = client.app.state.service, []  # type: ignore[attr-defined]
    monkeypatch.setattr("app.telemetry.metrics.JOB_COUNTS_TTL_S", 0.0)
    monkeypatch.setattr(service, "jobs_by_state", lambda: asked.append(1) or {})
    samples(client)
    monkeypatch.setattr("app.telemetry.metrics.JOB_COUNTS_TTL_S", 1e9)
    for _ in range(5):
        samples(client)
    assert len(asked) == 1


def test_a_store_that_fails_is_counted(client: TestClient, tmp_path: Path) -> None:
    before = value(client, "remat_store_errors_total", part="blobs", code="damaged")
    store = opened(tmp_path)
    path = next((tmp_path / "blobs").glob("*/*.zst"))
    path.write_bytes(b"broken")
    with pytest.raises(Unavailable):
        store.blobs.get(path.stem)
    assert value(client, "remat_store_errors_total", part="blobs", code="damaged") == before + 1
    with pytest.raises(sa.exc.OperationalError), translate_errors(store.engine), store.engine.begin() as connection:
        connection.exec_driver_sql("SELECT * FROM nothing")
    store.close()
    assert value(client, "remat_store_errors_total", part="database") >= 1


def test_metrics_are_for_operators_and_name_no_tenant(gated: Gated, tenant: Any) -> None:
    headers = tenant("rivals-of-ours")
    assert gated.client.get("/v1/operations", headers=headers).status_code == 200
    assert gated.plan(headers, graph=chain(2, "secret-net"), budget="90%").status_code == 201
    assert gated.client.get("/metrics").status_code == 401
    assert gated.client.get("/metrics", headers=headers).status_code == 403
    operator = gated.key("the-house", frozenset({"operator"}))
    answer = gated.client.get("/metrics", headers=operator)
    assert answer.status_code == 200
    key = headers["Authorization"].split("_")[1]
    assert not [word for word in ("rivals-of-ours", "secret-net", key, "the-house") if word in answer.text]


def test_a_worker_shows_its_metrics_where_it_is_told_to(client: TestClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        with pytest.raises(BadUsage, match="REMAT_METRICS_ADDRESS"):
            export.start().listen(f"127.0.0.1:{port}")  # it is taken
    for wrong in ("nowhere", "127.0.0.1:99999", "127.0.0.1:x"):
        with pytest.raises(BadUsage, match="REMAT_METRICS_ADDRESS"):
            export.start().listen(wrong)
    export.start().listen(f"127.0.0.1:{port}")
    assert "remat_jobs" in httpx2.get(f"http://127.0.0.1:{port}/metrics").text


def test_every_metric_is_documented_and_every_documented_one_exists(client: TestClient) -> None:
    documented = set(re.findall(r"`((?:remat|http|process)_\w+)`", DOCS.read_text()))
    documented -= {"http_request_method", "http_route", "http_response_status_code"}
    metrics.count_takeovers(1)  # and a solve, which counts the others, so that no other test has to
    question = {"graph": chain(4, "counted"), "budget": "90%", "planner": "greedy", "iterations": 3}
    assert client.post("/v1/plans", json=question).status_code == 201
    declared = set(re.findall(r"^# TYPE (\w+) (\w+)", client.get("/metrics").text, re.MULTILINE))
    there = {name + ("_total" if kind == "counter" else "") for name, kind in declared}
    assert {name for name in there if name.startswith(("remat", "http"))} <= documented
    assert not [name for name in documented if name not in there and name not in _not_yet_counted()]


def _not_yet_counted() -> set[str]:
    """Counters have no line until they have counted something."""
    return {"remat_refused_total", "remat_store_errors_total"}


def test_stored_bytes_are_those_of_the_database_and_of_the_blobs(tmp_path: Path) -> None:
    store, closed = opened(tmp_path), threading.Event()
    try:
        key = store.blobs.put(bytes(1000))
        stored = StoredBytes(store, closed)
        until = time.monotonic() + 30
        while "blobs" not in stored.read() and time.monotonic() < until:
            time.sleep(0.01)
        on_disk = sum(file.stat().st_size for file in (tmp_path / "blobs").glob("*/*.zst"))
        assert key and stored.read()["blobs"] == on_disk > 0
        assert stored.read()["database"] >= 4096
    finally:
        closed.set()
        store.close()
