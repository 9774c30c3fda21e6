"""Smaller and earlier responses: preferences, summaries, certificates, content codings, error codes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import zstandard
from starlette.testclient import TestClient

from tests.app.conftest import chain

SMALL = {"planner": "greedy", "iterations": 5}


def post(client: TestClient, prefer: str = "", **fields: Any) -> Any:
    return client.post("/v1/plans", json={**SMALL, **fields}, headers={"prefer": prefer} if prefer else {})


def test_respond_async_is_answered_with_the_operation_at_once(client: TestClient) -> None:
    answer = post(client, "respond-async", graph=chain(5, "async"), budget="90%")
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "respond-async"
    path = answer.headers["location"]
    assert re.fullmatch("/v1/operations/op[0-9a-f]{26}", path)
    assert client.get(f"{path}/events").text.count("event: state") >= 2  # ends with the operation


def test_applied_preferences_are_named(client: TestClient) -> None:
    answer = post(client, "wait=30, return=minimal, colour=blue", graph=chain(5, "applied"), budget="90%")
    assert answer.status_code == 201
    assert answer.headers["preference-applied"] == "return=minimal, wait=30"
    assert "preference-applied" not in post(client, graph=chain(5, "applied"), budget="90%").headers


def test_a_summary_has_figures_and_neither_order_nor_names_nor_proof(client: TestClient) -> None:
    asked = {"graph": chain(5, "summary"), "budget": "90%"}
    full, minimal = post(client, **asked).json(), post(client, "return=minimal", **asked).json()
    path = f"/v1/plans/{full['id']}"
    assert (
        minimal
        == client.get(path, params={"return": "summary"}).json()
        == post(client, **asked, **{"return": "summary"}).json()
    )
    assert not {"order", "kept", "recomputed", "choices", "offloaded"} & set(minimal["plan"])
    assert "timeline" not in minimal
    for name in ("peak_bytes", "overhead", "gap", "status"):
        assert minimal["plan"][name] == full["plan"][name]


def test_the_certificate_has_a_path_and_stands_in_reports_with_their_source_only(client: TestClient) -> None:
    report = post(client, graph=chain(5, "certified"), budget="90%").json()
    path = f"/v1/plans/{report['id']}"
    assert "certificate" not in report["plan"]["bound"]
    whole = client.get(path, params={"return": ["source"]}).json()
    answer = client.get(f"{path}/certificate")
    assert answer.json() == whole["plan"]["bound"]["certificate"]
    assert answer.json()["claims"]
    assert client.get(f"{path}/certificate", headers={"if-none-match": answer.headers["etag"]}).status_code == 304


@pytest.mark.parametrize("coding", ["gzip", "zstd", "identity"])
def test_answers_are_compressed_as_the_client_accepts(client: TestClient, coding: str) -> None:
    id = client.post("/v1/graphs", json=chain(40, "compressed")).json()["id"]
    with client.stream("GET", f"/v1/graphs/{id}", headers={"accept-encoding": coding}) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.headers.get("content-encoding", "identity") == coding
    assert int(answer.headers["content-length"]) == len(raw)
    assert answer.headers["vary"] == "Accept, Accept-Encoding"
    if coding == "zstd":
        raw = zstandard.ZstdDecompressor().decompress(raw)
    if coding != "gzip":
        assert json.loads(raw)["name"] == "compressed"


def test_pages_and_event_streams_are_not_compressed(client: TestClient) -> None:
    post(client, graph=chain(4, "compressed by nobody"), budget="90%")
    operation = client.get("/v1/operations", params={"limit": 1}).json()["operations"][0]["id"]
    for path in ("/", f"/v1/operations/{operation}/events"):
        assert "content-encoding" not in client.get(path, headers={"accept-encoding": "gzip, zstd"}).headers


def test_the_type_of_a_problem_is_a_page_and_a_record(client: TestClient) -> None:
    problem = client.post("/v1/plans", json={"graph_id": "0" * 64}).json()
    record = client.get(problem["type"])
    assert record.json() == {"code": "not_found", "status": 404, "meaning": record.json()["meaning"], "remedy": None}
    page = client.get("/problems/undefined_value", headers={"accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")
    assert "undefined_value" in page.text
    assert client.get("/problems/undefined_value").json()["remedy"]
    assert client.get("/problems/no_such_code").status_code == 404


def test_me_is_without_key_where_none_is_needed(client: TestClient) -> None:
    assert client.get("/v1/me").json()["key"] is None


def test_the_same_inline_graph_is_answered_without_a_child_process(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"graph": chain(5, "sent twice"), "budget": "90%"}
    first = post(client, **asked)
    service = client.app.state.service  # type: ignore[attr-defined]
    monkeypatch.setattr(service, "run_in_child", lambda *_: pytest.fail("a child process ran"))
    second = post(client, **asked)
    assert second.status_code == 201
    assert second.headers["location"] == first.headers["location"]
