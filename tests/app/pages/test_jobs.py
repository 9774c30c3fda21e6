"""Pages of jobs: state, result, actions; retries of the same request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.api.main import create_app
from app.errors import problem_body
from app.jobs import repository
from app.jobs.interface import Operation
from app.settings import Settings
from app.store import records
from tests.app.pages.conftest import MARKUP
from tests.app.pages.html import Element, parsed
from tests.app.stores import add, graph_read, solved

GRAPH = graph_read(b"{}", MARKUP)
PROBLEM = problem_body(422, "unknown_value", f"About {MARKUP}", "keep: found nothing of that name")


def id_of(place: int) -> str:
    return f"op{place:026x}"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """One job of each state, one over budget, and a curve; no worker runs them."""
    app = create_app(Settings(data=tmp_path, workers=0, drain_seconds=1))
    store = app.state.service.store
    records.save_graph(store, GRAPH)
    over = records.save_plan(store, solved(1, status="over_budget", peak_bytes=60, gap=None), GRAPH["id"])
    plan = records.save_plan(store, solved(2), GRAPH["id"])
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
        {
            "state": "succeeded",
            "ended_at": now,
            "result": over,
            "progress": {"incumbent": {"peak_bytes": 60, "overhead": None}, "bound": {"overhead": 0.0}, "gap": None},
        },
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


def test_unfinished_jobs_can_be_cancelled_and_finished_jobs_retried(client: TestClient) -> None:
    buttons = [[one.text for one in page(client, place).all("section")[0].all("button")] for place in range(7)]
    cancel, again = ["Cancel and keep the best so far"], ["Retry"]
    assert buttons == [cancel, cancel, again, again, again, again, again]


def test_the_page_of_a_job_shows_its_outcome(client: TestClient) -> None:
    failed = page(client, 2)
    assert PROBLEM["title"] in failed.text and PROBLEM["detail"] in failed.text and not failed.all("img")
    assert "No plan was found before" in page(client, 3).text
    assert page(client, 4).all("a", id="plan")[0].attributes["href"].startswith("/plans/")
    over = page(client, 5).text
    assert "No plan within the budget was found" in over and "60 B" in over and "Increase the budget" in over


def test_a_plan_over_its_budget_is_marked_and_has_no_gap(client: TestClient) -> None:
    rows = parsed(client.get("/jobs").text).all("tbody")[0].all("tr")
    assert ["over budget" in row.text for row in rows] == [False, True, False, False, False, False, False]
    over = page(client, 5)
    assert "over budget" in over.all("span", id="state")[0].text
    assert over.all("p", id="gap")[0].text == "over budget"


def test_a_job_shows_the_times_that_have_come(client: TestClient) -> None:
    terms = [{term.text for term in page(client, place).all("dt")} & {"Started", "Finished"} for place in (0, 4)]
    assert terms == [set(), {"Finished"}]


def test_a_second_retry_returns_the_job_of_the_first(client: TestClient) -> None:
    first = client.post(f"/jobs/{id_of(3)}/retry")
    assert first.status_code == 201, first.text
    assert client.post(f"/jobs/{id_of(3)}/retry").json() == first.json()  # it waits already
    again = client.get(first.json()["page"])
    assert again.status_code == 200 and "greedy" in again.text


def put(client: TestClient, path: str, body: dict[str, Any]) -> str:
    """Id of an operation for the request, cancelled before a worker claimed it."""
    asked = client.post(path, json=body, headers={"Prefer": "wait=0"})
    assert asked.status_code == 202, asked.text
    assert client.post(f"{asked.headers['location']}:cancel").json()["state"] == "cancelled"
    return str(asked.json()["id"])


BUFFERS = [{"lower": 0, "upper": 2, "size": 64}, {"lower": 1, "upper": 3, "size": 32}]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "curve": ("/v1/curves", {"graph_id": GRAPH["id"], "budgets": ["90%", "50%"], "search_seconds": 7}),
    "fit": ("/v1/fits", {"graph_id": GRAPH["id"], "budget": "1GiB", "max_overhead": 0.2, "search_seconds": 7}),
    "fit of a document": ("/v1/fits", {"graph": {"name": "open"}, "budget": "1GiB", "search_seconds": 7}),
    "layout": ("/v1/layouts", {"buffers": BUFFERS, "capacity": 128, "search_seconds": 7}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_has_the_fields_of_the_original_request(client: TestClient, kind: str) -> None:
    first = put(client, *KINDS[kind])
    page = parsed(client.get(f"/jobs/{first}").text)
    assert [one.text for one in page.all("section")[0].all("button")] == ["Retry"]
    again = client.post(f"/jobs/{first}/retry")
    assert again.status_code == 201, again.text
    store = client.app.state.service.store  # type: ignore[attr-defined]
    old, new = (repository.find(store, id) for id in (first, again.json()["id"]))
    assert new.id != old.id and new.state == "queued"
    for name in ("key", "kind", "graph_id", "fields", "asked"):
        assert getattr(new, name) == getattr(old, name), name


def ended(client: TestClient, kind: str, document: dict[str, Any], *plans: dict[str, Any]) -> Element:
    """Page of a finished job with the given result."""
    store = client.app.state.service.store  # type: ignore[attr-defined]
    found = records.save_result(store, kind, {"document": document, "plans": plans}, GRAPH["id"])
    now, fields = records.now(), {"budget": "80B", "grow": "batch"}
    add(
        store, Operation(id_of(99), "found", None, fields, now, kind=kind, state="succeeded", ended_at=now, found=found)
    )
    assert client.get("/jobs").status_code == 200
    return page(client, 99)


MODEL = {"name": MARKUP, "hash": "0", "nodes": 1, "values": 1}


def test_the_page_of_a_curve_draws_it_and_links_its_plans(client: TestClient) -> None:
    common = {"budget": "50%", "budget_bytes": 50, "bound_overhead": 0.05}
    points = [
        common | {"status": "found", "overhead": 0.125, "peak_bytes": 50},
        common | {"budget": "10%", "budget_bytes": 10, "status": "over_budget", "overhead": 0.3, "peak_bytes": 40},
    ]
    document = {"points": points, "model": MODEL, "baseline": {"peak_bytes": 100}, "elapsed": {}}
    shown = ended(client, "curve", document, solved(7), solved(8))
    assert shown.all("svg") and not shown.all("style") and not shown.all("img")
    rows = shown.all("tbody")[0].all("tr")
    assert ["found" in rows[0].text, "12.50%" in rows[0].text, "not reached" in rows[1].text] == [True] * 3
    links = [row.all("a")[0].attributes["href"] for row in rows]
    assert len(set(links)) == 2 and all(client.get(f"/v1{link}").status_code == 200 for link in links)
    assert shown.all("h1")[0].text == MARKUP  # a question about no stored graph: its plans say whose it is


def tried(size: int, fits: bool) -> dict[str, Any]:
    said = "" if fits else "the minimum peak is 99 bytes"
    return {
        "size": size,
        "fits": fits,
        "why": "" if fits else "proven",
        "said": said,
        "peak_bytes": 60 + size,
        "needed_bytes": 70 + size,
        "overhead": 0.0,
        "bound_peak_bytes": 10,
        "bound_overhead": 0.0,
    }


def fit_document(size: int | None) -> dict[str, Any]:
    rows = [tried(1, size is not None), tried(13, False)]
    return {
        "model": MODEL,
        "grow": "batch",
        "dimension": None,
        "size": size,
        "budget_bytes": 80,
        "max_overhead": 0.1,
        "next": rows[1],
        "tried": rows,
        "plan": None,
        "stopped": False,
        "elapsed": {},
    }


def test_the_page_of_a_fit_shows_the_size_and_the_sizes_tried(client: TestClient) -> None:
    shown = ended(client, "fit", fit_document(12), solved(7))
    assert shown.all("strong", id="size")[0].text == "12"
    assert "13 does not fit: proven, the minimum peak is 99 bytes" in shown.text
    assert "73 B" in shown.text and "83 B" in shown.text  # peak within the 80 bytes, memory needed above them
    (plan,) = [one for one in shown.all("a") if one.text == "Open the plan"]
    assert client.get(f"/v1{plan.attributes['href']}").status_code == 200


def test_the_page_of_a_fit_without_a_fitting_size_shows_what_to_change(client: TestClient) -> None:
    shown = ended(client, "fit", fit_document(None))
    assert "Even batch 1 does not fit" in shown.text and "Increase the memory" in shown.text


@pytest.mark.parametrize(("status", "words"), [("proven", "proven optimal"), ("over_capacity", "over capacity")])
def test_the_page_of_a_layout_shows_the_arena_size(client: TestClient, status: str, words: str) -> None:
    found = {"offsets": [0, 64], "arena_bytes": 96, "bound_bytes": 90, "status": status}
    shown = ended(client, "layout", found)
    assert shown.all("p", id="arena")[0].text == "96 B" and "90 B" in shown.text and words in shown.text
    (link,) = [one for one in shown.all("a") if one.text.startswith("Offsets")]
    assert client.get(link.attributes["href"]).json()["offsets"] == [0, 64]


@pytest.mark.parametrize(
    ("place", "headers", "status"), [(3, {"Origin": "https://elsewhere.example"}, 403), (99, {}, 404)]
)
def test_a_retry_from_another_site_or_of_an_unknown_job_is_refused(
    client: TestClient, place: int, headers: dict[str, str], status: int
) -> None:
    assert client.post(f"/jobs/{id_of(place)}/retry", headers=headers).status_code == status
