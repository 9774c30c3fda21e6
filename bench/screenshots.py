"""A picture of every page: wide and narrow, light and dark, and what is too wide for its screen.

    python bench/screenshots.py FOLDER [--plans 200] [--only job]

Two services run in processes of their own, one with plans and jobs of every outcome, one with nothing; a third, which
asks for keys, runs in this process. `--only` draws the pages with this text in their names. Needs the extra `browser`
and Chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from app.api.auth.tenant_view import AccessControl  # noqa: E402
from app.api.main import create_app  # noqa: E402
from app.settings import Settings  # noqa: E402
from app.store.store import Store  # noqa: E402
from bench.generators import layered  # noqa: E402
from tests.app.api.routes.test_batches import broken  # noqa: E402
from tests.app.conftest import chain, one_layer  # noqa: E402
from tests.app.pages.seeded import NETWORKS, PLANS_PER_MODEL, fill, fit  # noqa: E402
from tests.browser.conftest import ARGUMENTS, CHROMIUM, Served, running  # noqa: E402

SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
SECTIONS = ["plan", "timeline", "layout", "explain", "source", "graph"]
PATIENCE_S = 300.0
SETTLED_MS = 1200  # after a page is there, for charts
#: Pixels of the page beyond the screen, and tables that are wider than their place.
TOO_WIDE = """[document.documentElement.scrollWidth - innerWidth,
  [...document.querySelectorAll(".wide")].filter((box) => box.scrollWidth > box.clientWidth).length]"""
DRAWN = {"plan": "read", "compare": "drawn"}  # what a page says of itself once its data are there


def asked(url: str, document: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The operation of a question, once it has ended."""
    with httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        graph = client.post("/v1/graphs", json=document).json()
        question = {"graph_id": graph["id"], "return": SECTIONS, "search_seconds": 1, **fields}
        client.post("/v1/plans", json=question, headers={"Prefer": "wait=0"})
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found: dict[str, Any] = client.get("/v1/operations?limit=1").json()["operations"][0]
            if found["ended_at"]:
                return found
            time.sleep(0.2)
    raise AssertionError(f"no answer in {PATIENCE_S:g} s")


def ended(client: httpx2.Client, path: str) -> dict[str, Any]:
    """What is there once it has ended: an operation or a batch."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found: dict[str, Any] = client.get(path).json()
        if found["ended_at"]:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{path} has not ended in {PATIENCE_S:g} s")


def others_of(url: str) -> dict[str, str]:
    """Name -> path of what came of questions that are no plan: a curve, a fit, a layout, a batch of which some fail."""
    buffers = [{"lower": k, "upper": k + 3, "size": 4096 * (1 + k % 5)} for k in range(40)]
    questions: dict[str, dict[str, Any]] = {
        "curve": {"graph": chain(16, "sixteen blocks"), "budgets": ["90%", "70%", "50%", "30%", "1%"]},
        "fit": {"graph": one_layer(), "loss": "loss", "budget": "64KiB", "planner": "greedy", "iterations": 20},
        "layout": {"buffers": buffers, "capacity": 65536},
    }
    places = {}
    with httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        for kind, question in questions.items():
            posted = client.post(f"/v1/{kind}s", json=question | {"search_seconds": 1}, headers={"Prefer": "wait=0"})
            place = f"/v1/operations/{posted.json()['id']}"
            if posted.status_code == 202:
                ended(client, place)
            places[f"job-{kind}"] = f"/jobs/{client.get('/v1/operations?limit=1').json()['operations'][0]['id']}"
        ids = [client.post("/v1/graphs", json=one).json()["id"] for one in (chain(8, "eight blocks"), broken())]
        asked = {"graph_ids": ids, "budgets": ["90%", "60%", "1%"], "planners": ["greedy"], "iterations": 5}
        batch = client.post("/v1/batches", json=asked | {"loss": "y"}).json()["id"]
        good = client.post("/v1/batches", json=asked | {"graph_ids": ids[:1]}).json()["id"]
        for id in (batch, good):
            ended(client, f"/v1/batches/{id}")
    return places | {"batches": "/batches", "batch": f"/batches/{good}", "batch-failed": f"/batches/{batch}"}


def unfinished(url: str) -> dict[str, str]:
    """Name -> path of a job that runs until the service stops, and of one that waits for it."""
    document = layered(400, seed=3)
    places = {}
    with httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        for name, budget in (("job-running", "60%"), ("job-waiting", "50%")):
            question = {"graph": document, "budget": budget, "search_seconds": 600}
            posted = client.post("/v1/plans", json=question, headers={"Prefer": "wait=0"})
            posted.raise_for_status()
            places[name] = f"/jobs/{posted.json()['id']}"
    return places


def pages_of(url: str) -> dict[str, str]:
    """Name -> path of what there is to see."""
    net = chain(16, "sixteen blocks")
    done = asked(url, net, budget="60%")
    other = asked(url, net, budget="40%")
    over = asked(url, net, budget="1%")
    failed = asked(url, net, budget="60%", keep=["no_such_value"])
    first, second = (one["result"].rpartition("/")[2] for one in (done, other))
    return {
        **others_of(url),
        **unfinished(url),
        "dashboard": "/",
        "dashboard-filtered": "/?planner=auto&sort=saved",
        "dashboard-nothing": "/?model=nothing",
        "jobs": "/jobs",
        "job-done": f"/jobs/{done['id']}",
        "job-over-budget": f"/jobs/{over['id']}",
        "job-failed": f"/jobs/{failed['id']}",
        "upload": "/upload",
        "plan": f"/plans/{first}",
        "compare": f"/compare?a={first}&b={second}",
        "compare-nothing": "/compare",
        "unknown": "/jobs/op0",
    }


@contextlib.contextmanager
def with_keys() -> Iterator[str]:
    """URL of a service that asks for keys."""
    with tempfile.TemporaryDirectory() as folder:
        yield from running(create_app(Settings(data=Path(folder), workers=0, drain_seconds=1), AccessControl))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--plans", type=int, default=200)
    arguments.add_argument("--only", default="", help="draw the pages with this text in their names")
    said = arguments.parse_args()
    said.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as full, tempfile.TemporaryDirectory() as empty, with_keys() as gated:
        store = Store.open_for_serving(Settings(data=Path(full)))
        fill(store, said.plans)
        for name, size in (("resnet50", 384), ("bert_large", 24), ("lstm", 1024)):
            if NETWORKS.index(name) * PLANS_PER_MODEL < said.plans:
                fit(store, name, "auto", size)
        store.close()
        services = [Served(Path(full)), Served(Path(empty))]
        try:
            places = {name: services[0].url + path for name, path in pages_of(services[0].url).items()}
            nothing = {"empty-dashboard": services[1].url + "/", "empty-jobs": services[1].url + "/jobs"}
            nothing["empty-batches"] = services[1].url + "/batches"
            every = places | nothing | {"login": f"{gated}/login"}
            draw({name: url for name, url in every.items() if said.only in name}, said.folder)
        finally:
            for service in services:
                service.stop()


def draw(places: dict[str, str], folder: Path) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for size, (width, height) in SIZES.items():
            for colours in ("light", "dark"):
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours)
                page = context.new_page()
                for name, url in places.items():
                    page.goto(url)
                    if name in DRAWN:
                        page.wait_for_selector(f"html[data-{DRAWN[name]}]", state="attached", timeout=PATIENCE_S * 1000)
                    page.wait_for_timeout(SETTLED_MS)
                    page.screenshot(path=folder / f"{name}-{size}-{colours}.png", full_page=True)
                    past, tables = page.evaluate(TOO_WIDE)
                    found = [f"{past} px too wide"] * (past > 0) + [f"{tables} tables scroll sideways"] * (tables > 0)
                    print(f"{name:<20}{size:<8}{colours:<7}{', '.join(found)}", flush=True)
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
