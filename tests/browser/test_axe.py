"""Accessibility of every page by axe: light and dark, wide and narrow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from app.api.auth.tenant_view import AccessControl
from app.api.main import create_app
from app.settings import Settings
from tests.app.conftest import chain, one_layer
from tests.app.pages.conftest import MARKUP
from tests.app.pages.seeded import fill
from tests.browser.conftest import NARROW, Watched, running

pytestmark = pytest.mark.browser

PAGES = (
    "/",
    "/?model=none",
    "/jobs",
    "/jobs?state=failed",
    "/batches",
    "/upload",
    "/compare",
    "/nothing",
    "/plans/nothing",
    "{done}",
    "{over}",
    "{plan}",
    "{plan}?embed=1",
    "{curve}",
    "{fit}",
    "{failed}",
    "{batch}",
    "/docs",
    "/compare?a={a}&b={b}",
    "/compare?plan={a}&plan={b}&plan={c}",
    "{gated}/login",
)
WIDE = {"width": 1440, "height": 900}
#: Swagger UI has markup of its own, with another main element.
SWAGGER = {
    "context": {"exclude": [[".swagger-ui"]]},
    "options": {"rules": {"landmark-no-duplicate-main": {"enabled": False}}},
}
LOOKS = [(size, colours) for size in (WIDE, NARROW) for colours in ("light", "dark")]


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("gated")
    yield from running(create_app(Settings(data=folder, workers=1, drain_seconds=1), AccessControl))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = Settings(data=tmp_path_factory.mktemp("data"), workers=1, wait_seconds=60, drain_seconds=1)
    app = create_app(settings)
    fill(app.state.service.store, 20, (MARKUP,))
    yield from running(app)


@pytest.fixture(scope="module")
def places(url: str, gated: str) -> dict[str, str]:
    """Values of the placeholders in PAGES."""
    asked = {"graph": chain(6, "six blocks"), "planner": "greedy", "iterations": 10}
    ids = []
    with httpx2.Client(base_url=url, timeout=300) as client:
        older = asked | {"graph": chain(4, "six blocks"), "budget": "60%"}  # so that the dashboard has an alert
        assert client.post("/v1/plans", json=older, headers={"Prefer": "wait=300"}).status_code == 201
        for budget in ("60%", "80%", "1%"):
            answer = client.post("/v1/plans", json=asked | {"budget": budget}, headers={"Prefer": "wait=300"})
            assert answer.status_code == 201, answer.text
            ids.append(answer.json()["id"])
        change = {"tags": ["prod", "x" * 40], "note": "y" * 400}
        assert client.patch(f"/v1/plans/{ids[0]}", json=change).status_code == 200
        jobs = [f"/jobs/{one['id']}" for one in client.get("/v1/operations").json()["operations"]]
        others = results_of_other_kinds(client, asked)
    return others | {
        "over": jobs[0],
        "done": jobs[-2],
        "plan": f"/plans/{ids[0]}",
        "a": ids[0],
        "b": ids[1],
        "c": ids[2],
        "gated": gated,
    }


def results_of_other_kinds(client: httpx2.Client, asked: dict[str, Any]) -> dict[str, str]:
    """Pages of the jobs of a curve, of a fit and of a plan that failed, and of a batch of which items failed."""
    fit = asked | {"graph": one_layer(), "loss": "loss", "budget": "64KiB"}
    failing = asked | {"budget": "70%", "keep": ["no_such_value"]}
    pages = {}
    for name, kind, body in (
        ("curve", "curves", asked | {"budgets": ["80%", "1%"]}),
        ("fit", "fits", fit),
        ("failed", "plans", failing),
    ):
        client.post(f"/v1/{kind}", json=body, headers={"Prefer": "wait=300"})
        pages[name] = f"/jobs/{client.get('/v1/operations?limit=1').json()['operations'][0]['id']}"
    graph_id = client.post("/v1/graphs", json=asked["graph"]).json()["id"]
    body = {"graph_ids": [graph_id], "budgets": ["80%"], "planners": ["greedy"], "iterations": 5, "loss": "none"}
    batch = f"/v1/batches/{client.post('/v1/batches', json=body).json()['id']}"
    while client.get(batch).json()["ended_at"] is None:
        time.sleep(0.2)
    return pages | {"batch": batch.removeprefix("/v1")}


@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_no_violation(url: str, places: dict[str, str], opened: Callable[..., Watched], page: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    place = page.format(**places)
    watched = opened(place if place.startswith("http") else url + place)
    watched.expect("404|401")
    if page == "/docs":
        watched.page.wait_for_selector(".opblock")
    if "/plans/" in place and "nothing" not in place:
        watched.page.wait_for_selector("html[data-read]", state="attached")
    assert page != "/" or watched.page.locator(".grown").count() == watched.page.locator(".tag").count() - 1 == 1
    for size, colours in LOOKS:
        watched.page.set_viewport_size(size)
        watched.page.emulate_media(color_scheme=colours)
        found = Axe().run(watched.page, **(SWAGGER if page == "/docs" else {}))
        assert not found.response["violations"], (size, colours, found.generate_report())
        assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (size, colours)
