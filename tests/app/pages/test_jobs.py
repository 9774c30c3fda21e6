"""Pages of jobs say how they go and what to do, whatever became of them; the same question can be asked again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app import records
from app.errors import problem
from app.jobs.port import Operation
from app.main import create_app
from app.settings import Settings
from tests.app.pages.conftest import MARKUP
from tests.app.pages.html import Element, parsed
from tests.app.stores import add, graph_read, solved

GRAPH = graph_read(b"{}", MARKUP)
PROBLEM = problem(422, "unknown_value", f"About {MARKUP}", "keep: found nothing of that name")


def id_of(place: int) -> str:
    return f"op{place:026x}"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """One job of each state, one over budget, and a curve; nothing runs them."""
    app = create_app(Settings(data=tmp_path, workers=0, drain_seconds=1))
    store = app.state.service.store
    records.keep_graph(store, GRAPH)
    over = records.keep_plan(store, solved(1, status="over_budget", peak_bytes=60, gap=None), GRAPH["id"])
    plan = records.keep_plan(store, solved(2), GRAPH["id"])
    now, fields = records.now(), {"budget": "50%", "planner": "greedy"}
    rows: list[dict[str, Any]] = [
        {"state": "queued"},
        {
            "state": "running",
            "stage": "plan",
            "progress": {"seconds": 1.0, "incumbent": None, "bound": None, "gap": None},
        },
        {"state": "failed", "ended_at": now, "error": PROBLEM},
        {"state": "cancelled", "ended_at": now},
        {"state": "succeeded", "ended_at": now, "result": plan},
        {"state": "succeeded", "ended_at": now, "result": over},
        {"state": "failed", "ended_at": now, "error": PROBLEM, "kind": "curve"},
    ]
    for place, row in enumerate(rows):
        add(store, Operation(id_of(place), f"key{place}", GRAPH["id"], fields, now, **row))
    with TestClient(app, raise_server_exceptions=False) as running:
        yield running


def page(client: TestClient, place: int) -> Element:
    return parsed(client.get(f"/jobs/{id_of(place)}", headers={"Accept": "text/html"}).text)


def test_every_job_is_listed_and_filtered_by_state(client: TestClient) -> None:
    assert len(parsed(client.get("/jobs").text).all("tbody")[0].all("tr")) == 7
    failed = parsed(client.get("/jobs?state=failed").text)
    assert len(failed.all("tbody")[0].all("tr")) == 2
    assert not failed.all("img") and MARKUP in failed.text


def test_only_what_runs_can_be_cancelled_and_only_what_ended_asked_again(client: TestClient) -> None:
    buttons = [[one.text for one in page(client, place).all("section")[0].all("button")] for place in range(7)]
    cancel, again = ["Cancel, keep the best so far"], ["Ask again"]
    assert buttons == [cancel, cancel, again, again, again, again, []]


def test_a_page_says_what_became_of_the_job(client: TestClient) -> None:
    failed = page(client, 2)
    assert PROBLEM["title"] in failed.text and PROBLEM["detail"] in failed.text and not failed.all("img")
    assert "There was no plan yet" in page(client, 3).text
    assert page(client, 4).all("a", id="plan")[0].attributes["href"].startswith("/plans/")
    over = page(client, 5).text
    assert "No plan within the budget was found" in over and "60 B" in over and "Ask for a larger budget" in over


def test_the_same_question_is_asked_again_once(client: TestClient) -> None:
    first = client.post(f"/jobs/{id_of(3)}/retry")
    assert first.status_code == 201, first.text
    assert client.post(f"/jobs/{id_of(3)}/retry").json() == first.json()  # it waits already
    again = client.get(first.json()["page"])
    assert again.status_code == 200 and "greedy" in again.text


@pytest.mark.parametrize(("place", "headers", "status"), [
    (6, {}, 409), (3, {"Origin": "https://elsewhere.example"}, 403), (99, {}, 404),
])  # fmt: skip
def test_what_cannot_be_asked_again_is_refused(
    client: TestClient, place: int, headers: dict[str, str], status: int
) -> None:
    assert client.post(f"/jobs/{id_of(place)}/retry", headers=headers).status_code == status
