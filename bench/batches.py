"""Plans many small graphs at several budgets as one batch, kills the service that does it, and counts.

    python -m bench.batches                                 # 50 graphs x 4 budgets, two kills, searches of 1 s
    python -m bench.batches --graphs 500 --slots 4

`remat serve` on SQLite is killed with SIGKILL, and its children with it, each time a further share of the items has
ended, and is started again. Then every item must have ended well, by one operation that was begun once, or once more
for each kill that met it, and that has ended once; it has a plan, and its question one answer; rows and blobs must fit
together. All of it is counted in the store. The graphs are chains of some layers, each with sizes of its own.

The overhead of the queue is the CPU seconds of the serving process (HTTP, queue, feeding, keeping, watching) beside
the solver's: the seconds of the clock that making the plans took, `overhead`, and the CPU seconds of the children, with
their start and what was lost with the killed, `cpu_overhead`. Of it `posting_cpu_seconds` were for the graphs, before
there was a batch. Exit 1 when anything is wrong.
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
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from app.client.blocking import Client
from app.jobs.interface import FINISHED
from app.settings import Settings
from app.store.batch_tables import items
from app.store.maintenance.integrity_check import check_integrity
from app.store.store import Store
from app.store.tables import answers, events, operations, plans
from bench.generators import chain
from bench.processes import below, children

BUDGETS = ["95%", "85%", "75%", "65%"]
START_S = 120.0
TICK = os.sysconf("SC_CLK_TCK")


class Served:
    """One life of `remat serve`."""

    def __init__(self, folder: Path, slots: int):
        environment = {**os.environ, "REMAT_WORKERS": str(slots), "REMAT_LOG_LEVEL": "warning"}
        command = [sys.executable, "-m", "remat", "serve", "--port", "0", "--data", str(folder)]
        self.log = (folder.parent / "serve.log").open("ab")
        self.log.seek(0, os.SEEK_END)
        start, until = self.log.tell(), time.monotonic() + START_S
        self.process = subprocess.Popen(command, stderr=self.log, env=environment)
        while not (said := re.search(rb"listening on (\S+)", Path(self.log.name).read_bytes()[start:])):
            assert time.monotonic() < until and self.process.poll() is None, "it does not start"
            time.sleep(0.05)
        self.url, self.started_at = said[1].decode(), time.monotonic()

    def cpu_seconds(self) -> float:
        """Of the serving process alone."""
        return sum(_ticks(self.process.pid)[:2]) / TICK

    def solving_seconds(self) -> float:
        """CPU of the solves: ended ones are counted with the process they were forked from, its child."""
        ended = sum(sum(_ticks(pid)[2:]) for pid in children(self.process.pid))
        return (ended + sum(sum(_ticks(pid)) for fork in children(self.process.pid) for pid in children(fork))) / TICK

    def peak_bytes(self) -> int:
        """The most memory that the serving process has had."""
        said = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(said.partition("VmHWM:")[2].split()[0]) * 1024

    def kill(self) -> None:
        for pid in [self.process.pid, *below(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def _ticks(pid: int) -> list[int]:
    """CPU of a process, user and system, and the same of its children that have ended; none of one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return list(map(int, fields[11:15]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=50)
    parser.add_argument("--layers", type=int, default=6, help="of the smallest graph; the largest has six more")
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
    served, cpu, posting, solving, lived, peak = Served(folder, given.slots), 0.0, 0.0, 0.0, 0.0, 0
    batch_id, total, kills = "", given.graphs * len(BUDGETS), 0
    for life in range(given.kills + 1):
        with Client(served.url, timeout=300.0) as client:
            cpu -= served.cpu_seconds()  # of starting
            if not life:
                graphs = (chain(given.layers + n % 7, seed=n) for n in range(given.graphs))
                with ThreadPoolExecutor(given.slots) as pool:
                    posted = pool.map(client.post_graph, graphs)
                    ids = [graph["id"] for graph in posted]
                posting = cpu + served.cpu_seconds()
                asked = {"budgets": BUDGETS, "planners": [given.planner], "search_seconds": given.seconds}
                served.started_at, solving = time.monotonic(), -served.solving_seconds()  # of reading the graphs
                batch_id = client.start_batch(ids, **asked)["id"]
            enough = total if life == given.kills else total * (life + 1) // (given.kills + 1)
            while (batch := client.batch_status(batch_id))["done"] < enough:
                time.sleep(0.5)
        cpu, lived = cpu + served.cpu_seconds(), lived + time.monotonic() - served.started_at
        solving, peak = solving + served.solving_seconds(), max(peak, served.peak_bytes())
        if life < given.kills:
            served.kill()
            served, kills = Served(folder, given.slots), kills + 1
    with Client(served.url) as client:
        batch = client.wait_batch(batch_id, timeout=60)
    served.stop()
    return {
        "items": batch["total"],
        "search_seconds": given.seconds,
        "planner": given.planner,
        "slots": given.slots,
        "kills": kills,
        "counts": batch["items"],
        "lived_seconds": round(lived, 1),
        "serving_cpu_seconds": round(cpu, 2),
        "posting_cpu_seconds": round(posting, 2),
        "solving_cpu_seconds": round(solving, 1),
        "serving_peak_mib": round(peak / 2**20),
        "load": os.getloadavg()[2],
    } | told(folder, batch, cpu, solving, lived, kills, given)


def told(
    folder: Path, batch: dict[str, Any], cpu: float, solving: float, lived: float, kills: int, given: argparse.Namespace
) -> dict[str, Any]:
    """What the store says of it."""
    store = Store(Settings(data=folder))
    with store.reading() as connection:
        rows = list(connection.execute(sa.select(operations)).mappings())
        of_items = Counter(connection.scalars(sa.select(items.c.operation_id)))
        of_plans = list(connection.execute(sa.select(items.c.plan_id, plans.c.id).join(plans, isouter=True)))
        own = answers.join(operations, operations.c.key == answers.c.key)  # other answers are by form key
        answered = connection.scalar(sa.select(sa.func.count()).select_from(own))
        said = connection.execute(sa.select(events.c.operation_id, events.c.data).where(events.c.name == "state"))
        ends = Counter(row.operation_id for row in said if row.data["state"] in FINISHED)
        solver = connection.scalar(sa.select(sa.func.sum(plans.c.solver_seconds))) or 0.0
    faults = check_integrity(store).faults
    store.close()
    again = sum(row["attempts"] - 1 for row in rows)
    busy = sum(_seconds(row["started_at"], row["ended_at"]) for row in rows)
    checks = {
        "items did not all succeed": batch["items"]["succeeded"] != batch["total"],
        "an item has no operation of its own": len(of_items) != batch["total"] or None in of_items,
        "an item has no plan": len(of_plans) != batch["total"] or any(id is None for _, id in of_plans),
        "a question has not one answer": answered != batch["total"],
        "an operation has not ended once": len(ends) != len(rows) or set(ends.values()) != {1},
        "a question was put twice": len({row["key"] for row in rows}) != len(rows) or len(rows) != batch["total"],
        "more was begun again than kills met": again > kills * given.slots,
    }
    return {
        "operations": len(rows),
        "begun_again": again,
        "solver_seconds": round(solver, 1),
        "cpu_milliseconds_an_item": round(1000 * cpu / batch["total"], 1),
        "operation_seconds": round(busy, 1),
        "overhead": round(cpu / solver, 4),
        "cpu_overhead": round(cpu / solving, 4),
        "slots_idle": round(1 - busy / (given.slots * lived), 4),
        "wrong": [said for said, is_so in checks.items() if is_so] + faults,
    }


def _seconds(began: str, ended: str) -> float:
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


if __name__ == "__main__":
    sys.exit(main())
