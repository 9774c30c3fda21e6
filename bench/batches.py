"""Plans many small graphs at several budgets as one batch, kills the service that does it, and counts.

    python -m bench.batches                                 # 50 graphs x 4 budgets, two kills
    python -m bench.batches --graphs 500 --seconds 1

`remat serve` on SQLite is killed with SIGKILL, and its children with it, each time a further share of the items has
ended, and is started again. Then every item must have ended well, by one operation that was begun once, or once more
for each kill that met it; rows and blobs must fit together. The overhead of the queue is the CPU seconds of the serving
process (HTTP, queue, feeding, keeping, watching) beside the solver's seconds. Exit 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from app.client import Client
from app.settings import Settings
from app.store.store import Store
from app.store.tables import operations, plans
from app.store.tables_batches import items
from app.store.walk import walk
from bench.generators import chain
from bench.processes import below

BUDGETS = ["95%", "85%", "75%", "65%"]
START_S = 120.0
TICK = os.sysconf("SC_CLK_TCK")


class Served:
    """One life of `remat serve`."""

    def __init__(self, folder: Path, slots: int):
        environment = {**os.environ, "REMAT_WORKERS": str(slots), "REMAT_LOG_LEVEL": "warning"}
        command = [sys.executable, "-m", "app", "serve", "--port", "0", "--data", str(folder)]
        self.log = (folder.parent / "serve.log").open("ab")
        self.log.seek(0, os.SEEK_END)
        start, until = self.log.tell(), time.monotonic() + START_S
        self.process = subprocess.Popen(command, stderr=self.log, env=environment)
        while not (said := re.search(rb"listening on (\S+)", Path(self.log.name).read_bytes()[start:])):
            assert time.monotonic() < until and self.process.poll() is None, "it does not start"
            time.sleep(0.05)
        self.url, self.began = said[1].decode(), time.monotonic()

    def cpu_seconds(self) -> float:
        """Of the serving process alone."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def kill(self) -> None:
        for pid in [self.process.pid, *below(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=1.0, help="search_seconds of one item")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--slots", type=int, default=2, help="solves at a time")
    parser.add_argument("--planner", default="anneal")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder) / "data", given)
    print(json.dumps(found, indent=2))
    return 1 if found["wrong"] else 0


def measured(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    folder.mkdir()
    served, cpu, lived = Served(folder, given.slots), 0.0, 0.0
    batch_id, total, kills = "", given.graphs * len(BUDGETS), 0
    for life in range(given.kills + 1):
        with Client(served.url, timeout=300.0) as client:
            cpu -= served.cpu_seconds()  # of starting
            if not life:
                ids = [client.post_graph(chain(6 + n % 7, seed=n))["id"] for n in range(given.graphs)]
                asked = {"budgets": BUDGETS, "planners": [given.planner], "search_seconds": given.seconds}
                served.began = time.monotonic()
                batch_id = client.start_batch(ids, **asked)["id"]
            enough = total if life == given.kills else total * (life + 1) // (given.kills + 1)
            while (batch := client.batch_status(batch_id))["done"] < enough:
                time.sleep(0.5)
        cpu, lived = cpu + served.cpu_seconds(), lived + time.monotonic() - served.began
        if life < given.kills:
            served.kill()
            served, kills = Served(folder, given.slots), kills + 1
    with Client(served.url) as client:
        batch = client.wait_batch(batch_id, timeout=60)
    served.stop()
    return told(folder, batch, cpu, lived, kills, given)


def told(
    folder: Path, batch: dict[str, Any], cpu: float, lived: float, kills: int, given: argparse.Namespace
) -> dict[str, Any]:
    store = Store(Settings(data=folder))
    with store.reading() as connection:
        rows = list(connection.execute(sa.select(operations)).mappings())
        of_items = Counter(connection.scalars(sa.select(items.c.operation_id)))
        solver = connection.scalar(sa.select(sa.func.sum(plans.c.solver_seconds))) or 0.0
    faults = walk(store).faults
    store.close()
    again = sum(row["attempts"] - 1 for row in rows)
    busy = sum(_seconds(row["started_at"], row["ended_at"]) for row in rows)
    checks = {
        "items did not all succeed": batch["items"]["succeeded"] != batch["total"],
        "an item has no operation of its own": len(of_items) != batch["total"] or None in of_items,
        "a question was put twice": len({row["key"] for row in rows}) != len(rows) or len(rows) != batch["total"],
        "more was begun again than kills met": again > kills * given.slots,
    }
    return {
        "items": batch["total"], "kills": kills, "counts": batch["items"], "operations": len(rows),
        "begun_again": again, "lived_seconds": round(lived, 1), "solver_seconds": round(solver, 1),
        "operation_seconds": round(busy, 1), "serving_cpu_seconds": round(cpu, 2),
        "overhead": round(cpu / solver, 4), "slots_idle": round(1 - busy / (given.slots * lived), 4),
        "wrong": [said for said, is_so in checks.items() if is_so] + faults,
    }  # fmt: skip


def _seconds(began: str, ended: str) -> float:
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


if __name__ == "__main__":
    sys.exit(main())
