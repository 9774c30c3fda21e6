"""The first frame of a large plan: the map it will be, kept with the plan and served with it."""

from __future__ import annotations

import base64
import gzip
import re
import threading
from math import floor
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from app.render import axes
from app.render.plan import preview
from app.render.plan.columns import decode_columns, memory
from app.solver import child_tasks
from app.store.records import save_plan
from tests.app.conftest import chain


@pytest.fixture(scope="module")
def solved(client: TestClient) -> tuple[dict[str, Any], str]:
    """A plan that was large enough for a sketch as it was made, and its id."""
    graph = client.post("/v1/graphs", json=chain(30, "of the sketch")).json()["id"]
    fields = {"budget": "60%", "planner": "greedy", "iterations": 20}
    data = client.get(f"/v1/graphs/{graph}").content
    told = {"data": data, "fields": fields, "limits": {}}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(preview, "MIN_RECTANGLES", 5)
        made = child_tasks.solve(told, lambda _: None, threading.Event())
    return made, save_plan(client.app.state.service.store, made, graph)  # type: ignore[attr-defined]


def read(made: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return columns_of(preview.inline_preview(made["sections"]["sketch"]))


def columns_of(said: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return decode_columns(gzip.decompress(base64.b64decode(said)))


def test_the_map_has_every_rectangle_where_the_columns_have_it(solved: tuple[dict[str, Any], str]) -> None:
    meta, columns = read(solved[0])
    full, rects = decode_columns(memory(solved[0]["report"], solved[0]["sections"]))
    steps, arena = len(rects["after"]), full["arena_bytes"]
    shown = columns["map"].reshape(meta["high"], meta["wide"])
    wanted = np.full_like(shown, preview.CLEAR)
    for k in range(len(rects["first"])):
        left, right = (floor(at * preview.WIDTH / steps + 0.5) for at in (rects["first"][k], rects["last"][k] + 1))
        low, high = rects["offset"][k], rects["offset"][k] + rects["bytes"][k]
        above, below = (preview.HEIGHT - floor(at * preview.HEIGHT / arena + 0.5) for at in (high, low))
        tone = 2 * rects["kind"][k] + rects["value"][k] % 2
        for y in range(min(above, below - 1), below):
            for x in range(left, max(right, left + 1)):
                edge = right - left >= 4 and below - above >= 4 and (x == right - 1 or y == above)
                wanted[y, x] = tone + preview.EDGE * edge
    assert (shown == wanted).all()
    assert (wanted != preview.CLEAR).any() and (wanted == preview.CLEAR).any()


def test_lines_keep_their_peaks(solved: tuple[dict[str, Any], str]) -> None:
    meta, columns = read(solved[0])
    _, full = decode_columns(memory(solved[0]["report"], solved[0]["sections"]))
    for name in ("after", "before"):
        assert meta["steps"][name] == len(full[name])
        assert columns[name].tolist() == full[name].tolist()  # fewer steps than parts
    steps = np.arange(10_007) * 7919 % 10_007
    parts = axes.column_maxima(steps.tolist(), preview.WIDTH)
    assert len(parts) == preview.WIDTH and max(parts) == steps.max()
    ends = (np.arange(1, preview.WIDTH + 1) * len(steps)) // preview.WIDTH
    assert parts == [steps[a:b].max() for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def test_the_page_of_a_plan_has_its_sketch(client: TestClient, solved: tuple[dict[str, Any], str]) -> None:
    made, id = solved
    (said,) = re.findall(r' data-preview="([^"]+)"', client.get(f"/plans/{id}").text)
    meta, columns = columns_of(said)
    assert meta == read(made)[0] and (columns["map"] == read(made)[1]["map"]).all()
    assert client.get(f"/v1/plans/{id}").json()["id"] == id


def test_a_small_plan_has_none(client: TestClient) -> None:
    asked = {"graph": chain(8, "small"), "planner": "greedy", "iterations": 5, "budget": "80%"}
    id = client.post("/v1/plans", json=asked).json()["id"]
    assert "data-preview" not in client.get(f"/plans/{id}").text
