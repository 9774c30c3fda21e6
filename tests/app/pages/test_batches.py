"""Pages of batches: progress, outcome of every item, actions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.api.main import create_app
from app.errors import problem_body
from app.jobs.batches import repository
from app.pages import batches as pages
from app.pages.shell import format_values
from app.settings import Settings
from app.store import records
from app.store.batch_tables import items
from app.store.store import Store
from app.store.tables import to_timestamp
from tests.app.pages.conftest import MARKUP
from tests.app.pages.html import Element, parsed
from tests.app.stores import graph_read, solved

GRAPHS = [graph_read(b"{}", MARKUP), graph_read(b"{ }", "second")]
PROBLEM = problem_body(422, "unknown_value", f"About {MARKUP}", "keep: found nothing of that name")
PERSON = {"Accept": "text/html"}


class Shown:
    """A service without workers, and batches in given states."""

    def __init__(self, client: TestClient, store: Store):
        self.client, self.store = client, store
        self.plan = records.save_plan(store, solved(1), GRAPHS[0]["id"])

    def batch(self, *states: str, **asked: Any) -> str:
        """Id of a batch of two graphs at two budgets, started a minute ago, with items in the given states."""
        fields = {"graph_ids": [graph["id"] for graph in GRAPHS], "budgets": ["90%", "50%"], **asked}
        id = str(self.client.post("/v1/batches", json=fields).json()["id"])
        began, now = (to_timestamp(datetime.now(UTC) - timedelta(seconds=ago)) for ago in (60, 0))
        ends: dict[str, dict[str, Any]] = {
            "queued": {},
            "running": {},
            "cancelled": {"ended_at": now},
            "failed": {"ended_at": now, "error": PROBLEM},
            "succeeded": {"ended_at": now, "plan_id": self.plan},
        }
        over = not {"queued", "running"} & set(states)
        with self.store.writing() as connection:
            for number, state in enumerate(states):
                which = items.c.batch_id == id, items.c.number == number
                connection.execute(sa.update(items).where(*which).values(state=state, started_at=began, **ends[state]))
            if states:
                state = ("cancelled" if "cancelled" in states else "succeeded") if over else "running"
                repository.update_batches(
                    connection, [id], state=state, started_at=began, ended_at=now if over else None
                )
        return id

    def page(self, path: str) -> Element:
        answer = self.client.get(path, headers=PERSON)
        assert answer.status_code == 200, answer.text
        return parsed(answer.text)


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    app = create_app(Settings(data=tmp_path, workers=0, drain_seconds=1))
    for graph in GRAPHS:
        records.save_graph(app.state.service.store, graph)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Shown(client, app.state.service.store)


def cells(page: Element) -> list[list[str]]:
    lines = page.all("tbody")[0].all("tr")
    return [[cell.text for cell in line.inside if not isinstance(cell, str)] for line in lines]


def buttons(page: Element) -> list[tuple[str, ...]]:
    found = [one.attributes for one in page.all("button")]
    return [tuple(name for name in one if name.startswith("data-")) for one in found if any("data-" in n for n in one)]


def test_an_empty_list_shows_how_to_create_a_batch(shown: Shown) -> None:
    page = shown.page("/batches")
    assert "No batches yet" in page.text and "remat batch" in page.text
    assert [one.text for one in page.all("a", **{"aria-current": "page"})] == ["Batches"]


def test_each_batch_has_a_row_with_its_progress(shown: Shown) -> None:
    shown.batch("succeeded", "failed", "running", "queued")
    shown.batch("succeeded", "succeeded", "succeeded", "failed")
    first, second = cells(shown.page("/batches"))
    assert [first[2], first[3], first[4]] == ["1 of 4 failed", "4 of 4", "1"]
    assert second[0] == f"{MARKUP} and 1 more" and second[1] == "90%, 50%"
    assert [second[2], second[3], second[4]] == ["running", "2 of 4", "1"]
    assert first[5] == "—" and re.fullmatch(r"\d+ (s|min)", second[5])
    assert len(cells(shown.page("/batches?state=running"))) == 1
    assert "No batches match" in shown.page("/batches?state=cancelled").text
    assert not shown.page("/batches").all("img")


def test_time_left_is_estimated_from_the_items_finished_since_the_start() -> None:
    batch = repository.BatchRecord(
        "ba0", None, None, None, None, "", {"budgets": ["90%", "50%"]}, {}, 8, "", state="running"
    )
    batch.started_at, batch.counts = (
        to_timestamp(datetime.now(UTC) - timedelta(seconds=600)),
        {"succeeded": 5, "queued": 3},
    )
    left = pages._row(batch, "net", 2)["left"]  # three were there before it was begun again
    assert 900 <= left <= 1200
    assert pages._row(batch, "net", 0)["left"] is None
    assert pages._row(batch, "net", 0)["name"] == "net and 3 more"
    assert (
        format_values.format_estimate(900),
        format_values.format_estimate(50.4),
        format_values.format_estimate(9000),
    ) == ("15 min", "50 s", "2.5 h")


@pytest.mark.parametrize(
    ("states", "offered"),
    [
        (("succeeded", "queued", "queued", "queued"), [("data-cancel-batch",)]),
        (("failed", "queued", "queued", "queued"), [("data-cancel-batch",), ("data-retry-batch",)]),
        (("succeeded", "succeeded", "succeeded", "failed"), [("data-retry-batch",)]),
        (("succeeded", "succeeded", "succeeded", "cancelled"), [("data-retry-batch",)]),
        (("succeeded", "succeeded", "succeeded", "succeeded"), []),
    ],
)
def test_unfinished_batches_can_be_cancelled_and_failed_items_retried(
    shown: Shown, states: tuple[str, ...], offered: list[tuple[str, ...]]
) -> None:
    id = shown.batch(*states)
    assert buttons(shown.page("/batches")) == buttons(shown.page(f"/batches/{id}")) == offered


def test_the_page_of_a_batch_shows_every_item_and_its_error(shown: Shown) -> None:
    id = shown.batch("succeeded", "failed", "running", "queued", planners=["greedy"], seeds=[7])
    page = shown.page(f"/batches/{id}")
    found = cells(page)
    assert [(row[0], row[2], row[3], row[4]) for row in found] == [
        (f"{MARKUP} batch 4", "90%", "greedy", "7"),
        (f"{MARKUP} batch 4", "50%", "greedy", "7"),
        ("second batch 4", "90%", "greedy", "7"),
        ("second batch 4", "50%", "greedy", "7"),
    ]
    assert found[0][6:10] == ["100 B", "50 B", "50.0%", "10.00%"] and found[1][6:10] == ["—"] * 4
    assert PROBLEM["title"] in found[1][5] and PROBLEM["detail"] in found[1][5] and not page.all("img")
    assert page.all("a", href=f"/plans/{shown.plan}")
    (failed,) = cells(shown.page(f"/batches/{id}?state=failed"))
    assert failed[1] == "1"
    assert "No items match" in shown.page(f"/batches/{id}?state=cancelled").text


@pytest.mark.parametrize(
    ("states", "words"),
    [(("failed", "failed", "succeeded", "succeeded"), "2 of 4 failed"), (("succeeded", "cancelled"), "Cancelled")],
)
def test_the_page_of_a_batch_shows_its_outcome(shown: Shown, states: tuple[str, ...], words: str) -> None:
    id = shown.batch(*states, *(states[-1:] * (4 - len(states))))
    (notice,) = shown.page(f"/batches/{id}").all("div", class_="notice") + shown.page(f"/batches/{id}").all(
        "div", class_="notice bad"
    )
    assert words in notice.text and "etry" in notice.text


@pytest.mark.parametrize(
    ("states", "text", "mark", "listed_as"),
    [
        (("failed",) * 4, "all failed", "failed", "failed"),
        (("failed", "succeeded", "failed", "succeeded"), "2 of 4 failed", "partly", "failed"),
        (("succeeded",) * 4, "succeeded", "succeeded", "succeeded"),
        (("failed", "cancelled", "cancelled", "cancelled"), "cancelled", "cancelled", "cancelled"),
    ],
)
def test_the_state_of_a_batch_follows_its_items(
    shown: Shown, states: tuple[str, ...], text: str, mark: str, listed_as: str
) -> None:
    id = shown.batch(*states)
    assert shown.client.get(f"/v1/batches/{id}").json()["state"] in ("succeeded", "cancelled")  # of the wire, as before
    for path in ("/batches", f"/batches/{id}", "/jobs"):
        state = next(one for one in shown.page(path).all("span") if "state" in one.attributes.get("class", "").split())
        assert (state.text, state.attributes["class"]) == (text, f"state {mark}"), path
    for state_filter in ("succeeded", "failed", "cancelled"):
        for path in ("/batches", "/jobs"):
            listed = shown.page(f"{path}?state={state_filter}").all("a", href=f"/batches/{id}")
            assert bool(listed) == (state_filter == listed_as), path


def test_items_are_paged(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ITEMS_PER_PAGE", 3)
    id = shown.batch()
    first = shown.page(f"/batches/{id}")
    (next,) = first.all("a", rel="next")
    second = shown.page(next.attributes["href"])
    assert [row[1] for row in cells(first) + cells(second)] == ["0", "1", "2", "3"]
    assert not second.all("a", rel="next")


def test_the_filtered_items_can_be_downloaded(shown: Shown) -> None:
    id = shown.batch("succeeded", "failed", "running", "queued")
    links = {
        one.text: one.attributes["href"] for one in shown.page(f"/batches/{id}?state=failed").all("a", download="")
    }
    assert "CSV" in links
    table = shown.client.get(links["CSV"])
    assert len(table.text.splitlines()) == 2 and "unknown_value" in table.text
    (whole,) = shown.page(f"/batches/{id}").all("a", download=f"{id}.json")
    assert len(shown.client.get(whole.attributes["href"]).json()["items"]) == 4


def test_a_batch_is_listed_among_the_jobs_and_links_to_its_own_page(shown: Shown) -> None:
    id = shown.batch("succeeded", "failed", "running", "queued")
    (row,) = cells(shown.page("/jobs"))
    assert row[2] == "batch: 4 plans" and "2 of 4 finished, 1 failed" in row[4]
    answer = shown.client.get(f"/jobs/{repository.operation_id_of(id)}", headers=PERSON, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/batches/{id}")
    assert shown.client.post(f"/jobs/{repository.operation_id_of(id)}/retry").status_code == 409


@pytest.mark.parametrize(
    ("path", "status"),
    [("/batches/ba0", 404), ("/batches/x:cancel", 404), ("/batches?cursor=1", 422), ("/batches?state=lost", 422)],
)
def test_an_unknown_batch_is_an_error_page(shown: Shown, path: str, status: int) -> None:
    answer = shown.client.get(path, headers=PERSON)
    assert answer.status_code == status and parsed(answer.text).all("h1")
