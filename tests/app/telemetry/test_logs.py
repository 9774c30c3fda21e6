"""Logs are one JSON object a line, about a request that its answer names."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.store.schema import require_current_schema
from app.telemetry import logs


@pytest.fixture
def lines() -> Iterator[Any]:
    """What was logged so far, each line parsed."""
    root, to = logging.getLogger(), io.StringIO()
    before, level = root.handlers[:], root.level
    for handler in before:  # `start` closes those it finds
        root.removeHandler(handler)
    logs.start("debug", to)
    yield lambda logger: [row for row in map(json.loads, to.getvalue().splitlines()) if row["logger"] == logger]
    root.handlers[:], root.level = before, level


def test_pairs_become_fields(lines: Any) -> None:
    log = logging.getLogger("test.pairs")
    log.info("operation=%s event=%s attempts=%s seconds=%.3f", "op1", "succeeded", 2, 0.12345678)
    log.error("path=%s event=failed", '/a "b"\n')
    first, second = lines("test.pairs")
    assert first | {"time": ""} == {
        "operation": "op1",
        "event": "succeeded",
        "attempts": 2,
        "seconds": 0.123457,
        "level": "info",
        "logger": "test.pairs",
        "time": "",
    }
    assert (second["path"], second["event"], second["level"]) == ('/a "b"\n', "failed", "error")


def test_sentences_of_libraries_stay_whole(lines: Any) -> None:
    log = logging.getLogger("test.words")
    log.warning("Invalid HTTP request received.")
    log.warning("retry in %d s, url=%s", 3, "http://x/?a=b")
    log.info("event=collected %s", "plans=3")
    assert [row["event"] for row in lines("test.words")] == [
        "Invalid HTTP request received.",
        "retry in 3 s, url=http://x/?a=b",
        "event=collected plans=3",
    ]


def test_a_traceback_stays_in_its_line(lines: Any) -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        logging.getLogger("test.fault").exception("event=broken")
    (row,) = lines("test.fault")
    assert row["event"] == "broken" and "ValueError: a\nb" in row["exception"]


def test_a_request_is_named_in_its_answer_and_in_its_lines(lines: Any, client: TestClient) -> None:
    answer = client.get("/v1/plans/none", headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    row = lines("app.api.middleware.request_id")[-1]
    assert (row["request"], row["event"], row["status"], row["path"]) == ("mine-1", "answered", 404, "/v1/plans/none")


@pytest.mark.parametrize("id", ["a b", "x" * 65, "", 'q"', "a\tb"])
def test_a_request_id_that_is_no_plain_word_is_replaced(id: str, client: TestClient) -> None:
    told = client.get("/livez", headers={"x-request-id": id}).headers["x-request-id"]
    assert told != id and len(told) == 16


def test_two_request_ids_are_none(client: TestClient) -> None:
    told = client.get("/livez", headers=[("x-request-id", "a"), ("x-request-id", "b")]).headers["x-request-id"]
    assert told not in ("a", "b")


def test_a_probe_of_readiness_adds_no_line_about_the_schema(lines: Any, client: TestClient) -> None:
    require_current_schema(client.app.state.service.store.engine)  # type: ignore[attr-defined]
    assert lines("alembic.runtime.migration") == []
