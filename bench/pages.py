"""Server time of the dashboard over many plans: wall and CPU milliseconds of a request, the page drawn included.

    python bench/pages.py [--plans 10000] [--requests 20]

The store is SQLite in a new folder, filled with rows as plans leave them; requests come one after the other, in this
process. The last line is the query of the dashboard's alert alone. The goal is 300 ms over 10,000 plans, see
docs/guides/pages.md.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from starlette.testclient import TestClient

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from app.api.main import create_app  # noqa: E402
from app.pages.peak_growth import grown_peaks  # noqa: E402
from app.pages.savings_query import SavingsFilter  # noqa: E402
from app.settings import Settings  # noqa: E402
from app.store.store import Store  # noqa: E402
from app.store.tables import graphs, plans  # noqa: E402
from tests.app.pages.seeded import fill  # noqa: E402

PATHS = (
    "/",
    "/?sort=saved_bytes&direction=desc",
    "/?planner=auto&outcome=fits&model=net",
    "/?page=50",
    "/trends.json",
    "/savings.csv",
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--plans", type=int, default=10_000)
    arguments.add_argument("--requests", type=int, default=20)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(data=Path(folder), workers=1, drain_seconds=1))
        fill(app.state.service.store, asked.plans)
        make_versions(app.state.service.store)
        with TestClient(app) as client:
            print(f"{asked.plans} plans, {asked.requests} requests each; median, and the slowest, in ms")
            print(f"{'path':<42}{'wall':>8}{'slowest':>9}{'CPU':>8}{'KiB':>8}")
            for path in PATHS:
                print(line(path, asked.requests, partial(got, client, path)))
            store = app.state.service.store
            print(line("peaks that grew", asked.requests, lambda: len(grown_peaks(store, None, SavingsFilter()))))


def make_versions(store: Store) -> None:
    """Let graphs be versions of few models, planned with the same requests, so that there are peaks that grew."""
    with store.writing() as connection:
        named = connection.execute(sa.select(graphs.c.id, graphs.c.name)).all()
        changes = [{"key": row.id, "to": re.sub(r"_b\d+$", "", row.name)} for row in named]
        update = sa.update(graphs).where(graphs.c.id == sa.bindparam("key")).values(name=sa.bindparam("to"))
        connection.execute(update, changes)
        connection.execute(sa.update(plans).values(request=plans.c.budget + plans.c.planner + "0" * 48))


def got(client: TestClient, path: str) -> int:
    """Bytes of an answer."""
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return len(answer.content)


def line(name: str, requests: int, action: Callable[[], int]) -> str:
    """A row of the table: times of the action, and the bytes that it returns."""
    wall, cpu, size = [], [], 0
    for _ in range(requests):
        began, worked = time.perf_counter(), time.process_time()
        size = action()
        wall.append(1000 * (time.perf_counter() - began))
        cpu.append(1000 * (time.process_time() - worked))
    middle, paid = statistics.median(wall), statistics.median(cpu)
    return f"{name:<42}{middle:>8.0f}{max(wall):>9.0f}{paid:>8.0f}{size / 1024:>8.0f}"


if __name__ == "__main__":
    main()
