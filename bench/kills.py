"""Kills what a service is made of while it works, and looks whether anything was lost, doubled or broken.

    python bench/kills.py                                       # 200 jobs, SQLite
    python bench/kills.py --database postgresql --seed 1        # three workers, of which one never comes back

Server, workers, solver children and PostgreSQL are killed with SIGKILL at random moments, until so many kills are done;
all but one worker on PostgreSQL are started again. Then every job must have one operation that succeeded once and one
plan, which is checked and answers its question; there must be no other plan, rows and blobs must fit together, and no
process may be left. Exit 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.jobs.port import FINISHED
from app.records import report_of
from app.settings import Settings
from app.store.database import engine_of
from app.store.store import Store
from app.store.tables import answers, events, operations, plans
from app.store.walk import walk
from bench.generators import chain
from tests.postgres import Cluster

ROOT = Path(__file__).resolve().parents[1]
SLOWEST_S = 900.0  # from the last kill to the last end
PATIENCE_S = 30.0  # from one kill to the next, when nothing ends in between
LAST_S = 60.0  # for what is left to notice that it is alone


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    cluster = Cluster() if asked.database == "postgresql" else None
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = storm(Path(folder), asked.jobs, asked.kills, asked.seed, cluster)
        finally:
            if cluster is not None:
                cluster.close()
    print(json.dumps(found, indent=1))
    return 1 if found["wrong"] else 0


def storm(folder: Path, jobs: int, kills: int, seed: int, cluster: Cluster | None = None) -> dict[str, Any]:
    """What was killed how often, and what is wrong after it."""
    place = {"REMAT_DATA": str(folder / "data")}
    if cluster is not None:
        place["REMAT_DATABASE_URL"] = cluster.database(f"storm{seed}")
        subprocess.run([sys.executable, "-m", "app", "migrate"], env=os.environ | place, cwd=ROOT, check=True)
    under = Storm(place, folder, seed, cluster)
    began = time.monotonic()
    try:
        under.start("server")
        asking = threading.Thread(target=under.ask, args=(jobs,))
        asking.start()
        for name in ("a", "b", *("c" if cluster else "")):
            under.start(name)
        under.rage(jobs, kills)
        asking.join()
        wrong = under.until_ended()
    finally:
        left = under.close()
    wrong += [f"process {pid} was left" for pid in left]
    store = Store(Settings(**{name.removeprefix("REMAT_").lower(): value for name, value in place.items()}))  # type: ignore[arg-type]
    wrong += wrongs(store, jobs, under)
    with store.reading() as connection:
        attempts = connection.scalar(sa.select(sa.func.sum(operations.c.attempts)))
    store.close()
    return {
        "database": "postgresql" if cluster else "sqlite",
        "jobs": jobs,
        "kills": dict(under.killed),
        "attempts": int(attempts or 0),
        "seconds": round(time.monotonic() - began),
        "wrong": wrong,
    }


class Storm:
    """A server and its workers, each a process that may be killed at any moment."""

    def __init__(self, place: dict[str, str], folder: Path, seed: int, cluster: Cluster | None):
        self._environment = os.environ | place | {
            "REMAT_WORKERS": "1", "REMAT_ATTEMPTS": "30", "REMAT_LOST_SECONDS": "5", "REMAT_QUEUE": "100000",
            "REMAT_LOG_LEVEL": "warning", "REMAT_DRAIN_SECONDS": "5", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self._engine = engine_of(place.get("REMAT_DATABASE_URL"), Path(place["REMAT_DATA"]))
        self._log = (folder / "log").open("ab")
        self._cluster, self._random = cluster, random.Random(seed)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: set[int] = set()  # every process there was
        self._closing = threading.Event()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.answered: dict[int, str] = {}  # job -> its operation, or its plan where that was there already
        self.killed: Counter[str] = Counter()

    def start(self, name: str) -> None:
        command = ["serve", "--port", self.url.rpartition(":")[2]] if name == "server" else ["worker"]
        self._processes[name] = subprocess.Popen(
            [sys.executable, "-m", "app", *command], env=self._environment, cwd=ROOT, stderr=self._log
        )

    def ask(self, jobs: int) -> None:
        """Ask every question until it is taken: a client that never gives up."""
        for job in range(jobs):
            question = {
                "graph": chain(20 + job % 7), "budget": "60%", "planner": "anneal", "search_seconds": 0.5, "seed": job,
                "execute": "no",
            }  # fmt: skip
            headers = {"prefer": "wait=0", "idempotency-key": f"job {job}"}
            answer = self._insist(lambda question=question, headers=headers: httpx2.post(  # type: ignore[misc]
                f"{self.url}/v1/plans", json=question, headers=headers, timeout=30
            ))  # fmt: skip
            self.answered[job] = answer.headers["location"]

    def _insist(self, ask: Callable[[], httpx2.Response]) -> httpx2.Response:
        while not self._closing.is_set():
            try:
                answer = ask()
                if answer.status_code < 300:
                    return answer
                assert answer.status_code in (429, 500, 503), answer.text
            except httpx2.TransportError:
                pass
            time.sleep(0.2)
        raise SystemExit("closed before all was asked")

    def rage(self, jobs: int, kills: int) -> None:
        """Kill one after the other, and start again what was killed; some jobs get done in between."""
        kinds = ["server", "worker", "child", *(["database"] if self._cluster else [])]
        ended = 0
        while sum(self.killed.values()) < kills and ended < jobs:
            until = time.monotonic() + self._random.uniform(1, PATIENCE_S)
            while (now := self._ended()) <= ended and time.monotonic() < until:
                time.sleep(0.1)
            ended = max(now, ended)
            time.sleep(self._random.uniform(0, 2))
            kind = self._random.choice(kinds)
            if getattr(self, f"_kill_{kind}")():
                self.killed[kind] += 1

    def _ended(self) -> int:
        """How many operations have ended; 0 when nobody can be asked."""
        counted = sa.select(sa.func.count()).select_from(operations).where(operations.c.ended_at.is_not(None))
        try:
            with self._engine.connect() as connection:
                return connection.scalar(counted) or 0
        except sa.exc.DBAPIError:
            return 0

    def _kill_server(self) -> bool:
        return self._kill("server")

    def _kill_worker(self) -> bool:
        names = sorted(self._processes.keys() - {"server"})
        return self._kill(self._random.choice(names))

    def _kill(self, name: str) -> bool:
        self._look()
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        if name != "c":  # which never comes back
            time.sleep(self._random.uniform(0, 1))
            self.start(name)
        return True

    def _kill_child(self) -> bool:
        self._look()
        every = [pid for process in self._processes.values() for pid in below(process.pid)]
        solving = sorted({pid for server in every if "forkserver" in line(server) for pid in children(server)})
        if not solving:
            return False
        os.kill(self._random.choice(solving), signal.SIGKILL)
        return True

    def _kill_database(self) -> bool:
        assert self._cluster is not None
        pid = int((Path(self._cluster.data) / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        time.sleep(self._random.uniform(0.5, 3))
        while True:
            try:
                self._cluster.start()
                return True
            except AssertionError:  # processes of the dead one are still going
                time.sleep(0.5)

    def _look(self) -> None:
        self._seen |= {pid for process in self._processes.values() for pid in below(process.pid)}

    def until_ended(self) -> list[str]:
        """What did not end in time."""
        until = time.monotonic() + SLOWEST_S
        waiting = {place for place in self.answered.values() if "/operations/" in place}
        while waiting and time.monotonic() < until:
            for place in sorted(waiting):
                answer = self._insist(lambda place=place: httpx2.get(self.url + place, timeout=30))  # type: ignore[misc]
                if answer.json()["state"] in FINISHED:
                    waiting.discard(place)
            time.sleep(0.5)
        return [f"{place} did not end" for place in waiting]

    def close(self) -> list[int]:
        """Processes that are left after a polite stop."""
        self._closing.set()
        self._look()
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()
        self._engine.dispose()
        until = time.monotonic() + LAST_S
        while (left := [pid for pid in self._seen if "app.preload" in line(pid)]) and time.monotonic() < until:
            time.sleep(0.5)
        return left


def wrongs(store: Store, jobs: int, under: Storm) -> list[str]:
    """What the store holds that it should not, or lacks."""
    wrong = list(walk(store).faults)
    if len(under.answered) != jobs:
        wrong.append(f"{len(under.answered)} of {jobs} questions were answered")
    with store.reading() as connection:
        rows = connection.execute(sa.select(operations)).mappings().all()
        kept = set(connection.scalars(sa.select(plans.c.id)))
        answer = {row.key: row.plan_id for row in connection.execute(sa.select(answers))}
        told = connection.execute(sa.select(events).where(events.c.name == "state")).mappings().all()
    ends = Counter(event["operation_id"] for event in told if event["data"]["state"] in FINISHED)
    if len(rows) != jobs:
        wrong.append(f"{len(rows)} operations for {jobs} jobs")
    for row in rows:
        if (row["state"], ends[row["id"]], answer.get(row["key"])) != ("succeeded", 1, row["result"]):
            wrong.append(f"operation {row['id']}: {row['state']}, ended {ends[row['id']]} times, {row['error']}")
        elif not json.loads(report_of(store, row["result"]))["checked"]:
            wrong.append(f"plan {row['result']} is not checked")
    if kept != {row["result"] for row in rows} or len(kept) != jobs:
        wrong.append(f"{len(kept)} plans for {jobs} jobs")
    return wrong


def children(pid: int) -> list[int]:
    """Of every thread of the process."""
    found = []
    for told in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in told.read_text().split()]
    return found


def below(pid: int) -> list[int]:
    """Every process that the process has started, and those that they have."""
    return [found for child in children(pid) for found in (child, *below(child))]


def line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


if __name__ == "__main__":
    raise SystemExit(main())
