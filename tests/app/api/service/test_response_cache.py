"""What is kept in memory is bounded, and no longer true than a minute."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from app.api.main import create_app
from app.api.service.response_cache import TTL_S, ResponseCache
from app.settings import Settings
from app.store import records
from tests.app.api.auth.conftest import Gated, gated, tenant
from tests.app.conftest import chain

__all__ = ["gated", "tenant"]


def test_the_least_used_goes_first_and_no_more_is_held_than_may_be() -> None:
    kept = ResponseCache(100)
    for key in "abcd":
        kept.put(key, bytes(25))
    assert kept.get("a") is not None
    kept.put("e", bytes(25))
    assert [key for key in "abcde" if kept.get(key) is not None] == ["a", "c", "d", "e"]
    kept.put("f", bytes(26))  # more than a quarter
    kept.put("a", bytes(10))
    assert kept.get("f") is None and kept.bytes == 85


def test_what_is_old_is_read_again() -> None:
    now = [0.0]
    kept = ResponseCache(100, lambda: now[0])
    kept.put("a", b"1")
    now[0] = TTL_S
    assert kept.get("a") == b"1"
    now[0] += 1
    assert kept.get("a") is None and kept.bytes == 0


def test_a_plan_is_read_once_however_often_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    report_of = records.report_of
    monkeypatch.setattr("app.store.records.report_of", lambda *asked: read.append(1) or report_of(*asked))
    with TestClient(create_app(Settings(data=tmp_path, workers=1, wait_seconds=60, drain_seconds=0))) as client:
        question = {"graph": chain(3), "budget": "90%", "planner": "greedy", "iterations": 3}
        place = client.post("/v1/plans", json=question).headers["location"]
        first, second = client.get(place), client.get(place)
        assert (first.content, first.headers["etag"]) == (second.content, second.headers["etag"])
        assert client.get(place, headers={"if-none-match": first.headers["etag"]}).status_code == 304
        assert len(read) == 1
        assert "layout" in client.get(place, params={"return": "layout"}).json() and "layout" not in second.json()


def test_what_one_tenant_has_read_another_does_not_see(gated: Gated, tenant: object) -> None:
    headers = gated.key("reader")
    plan = gated.plan(headers, graph=chain(3, "kept"), budget="90%")
    assert gated.client.get(plan.headers["location"], headers=headers).status_code == 200
    assert gated.client.get(plan.headers["location"], headers=gated.key("another")).status_code == 404
