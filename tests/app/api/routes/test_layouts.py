"""`POST /v1/layouts`: packed, within the capacity or not; faults are problems that name the buffer."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.api.schemas.layouts import PackedLayout

TWO = [{"id": "a", "lower": 0, "upper": 2, "size": 4}, {"id": 7, "lower": 1, "upper": 3, "size": 4}]


def test_buffers_get_offsets(client: TestClient) -> None:
    answer = client.post("/v1/layouts", json={"buffers": TWO, "capacity": 8})
    assert answer.status_code == 201
    made = PackedLayout.model_validate(answer.json())
    assert sorted(made.offsets) == [0, 4]
    assert (made.arena_bytes, made.bound_bytes, made.status) == (8, 8, "proven")


def test_what_does_not_fit_is_told(client: TestClient) -> None:
    asked = {"buffers": TWO, "capacity": 7, "search_seconds": 0.1}
    assert client.post("/v1/layouts", json=asked).json()["status"] == "over_capacity"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"buffers": [{"lower": 1, "upper": 1, "size": 1}]}, "buffers[0].upper"),
        ({"buffers": TWO, "search_seconds": 1e6}, "search_seconds"),
        ({"buffers": TWO, "search_seconds": "long"}, "search_seconds"),
        ({"buffers": TWO, "arena": 8}, "arena"),
        ({}, "buffers"),
    ],
)
def test_bad_questions_are_told_as_problems(client: TestClient, body: Any, path: str) -> None:
    answer = client.post("/v1/layouts", json=body)
    assert answer.status_code == 422
    assert [finding["path"] for finding in answer.json()["errors"]] == [path]
