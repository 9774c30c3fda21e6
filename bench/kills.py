"""Kills what a service is made of while it works, and looks whether anything was lost, doubled or broken.

    python bench/kills.py                                       # 200 jobs, SQLite
    python bench/kills.py --database postgresql --seed 1        # the workers believe to be on three other hosts

Server, three workers, solver children, what these are forked from, and PostgreSQL are killed with SIGKILL at random
moments, until so many kills are done; all but the third worker are started again, also when one leaves by itself. On
PostgreSQL workers are also frozen until the others take them for dead, and go on afterwards. Each question is asked by
two clients. Then every job must have one operation that succeeded once and one plan, which is found valid by a check
that shares nothing with its maker, and which answers its question also when it is asked again; there must be no other
plan, rows and blobs must fit together, and no process may be left. Exit 1 when anything is wrong.
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

from app.jobs.interface import FINISHED
from app.settings import Settings
from app.store.database import engine_of
from app.store.maintenance.integrity_check import check_integrity
from app.store.records import report_of
from app.store.store import Store
from app.store.tables import answers, events, operations, plans
from bench.generators import chain
from bench.processes import below, children
from planner.errors import PlannerError
from planner.report import saved_report
from tests.postgres import Cluster

ROOT = Path(__file__).resolve().parents[1]
SLOWEST_S = 900.0  # from the last kill to the last end
PATIENCE_S = 30.0  # from one kill to the next, when nothing ends in between
LAST_S = 60.0  # for what is left to notice that it is alone
LOST_S = 5.0  # a worker elsewhere that is silent for so long is taken for dead
GONE = "c"  # the worker that never comes back
#: `remat worker` on another machine, as far as it and the others can tell.
ELSEWHERE = """
import socket, sys
name = sys.argv.pop(1)
socket.gethostname = lambda: name
from app.cli.typer_app import main
main()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=30.0, help="of killing; what has begun by then ends in peace")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and everything that was started with it
    cluster = Cluster() if asked.database == "postgresql" else None
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = storm(Path(folder), asked.jobs, asked.kills, asked.seed, cluster, asked.minutes)
        finally:
            if cluster is not None:
                cluster.close()
    print(json.dumps(found, indent=1))
    return 1 if found["wrong"] else 0


def storm(
    folder: Path, jobs: int, kills: int, seed: int, cluster: Cluster | None = None, minutes: float = 30.0
) -> dict[str, Any]:
    """What was killed how often, and what is wrong after it."""
    place = {"REMAT_DATA": str(folder / "data")}
    if cluster is not None:
        place["REMAT_DATABASE_URL"] = cluster.database(f"storm{seed}")
        subprocess.run([sys.executable, "-m", "remat", "migrate"], env=os.environ | place, cwd=ROOT, check=True)
    under = Storm(place, folder, seed, cluster)
    began = time.monotonic()
    try:
        under.start("server")
        asking = [threading.Thread(target=under.ask, args=(jobs, said)) for said in ("first", "second")]
        for thread in asking:
            thread.start()
        for name in ("a", "b", GONE):
            under.start(name)
        under.rage(jobs, kills, began + 60 * minutes)
        for thread in asking:
            while thread.is_alive():
                under.supervise()
                thread.join(1)
        wrong = under.until_ended() + under.asked_again(jobs)
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
        self._environment = (
            os.environ
            | place
            | {
                "REMAT_WORKERS": "1",
                "REMAT_ATTEMPTS": "30",
                "REMAT_LOST_SECONDS": str(LOST_S),
                "REMAT_QUEUE": "100000",
                "REMAT_LOG_LEVEL": "warning",
                "REMAT_DRAIN_SECONDS": "5",
                "OMP_NUM_THREADS": "1",
            }
        )
        self._engine = engine_of(place.get("REMAT_DATABASE_URL"), Path(place["REMAT_DATA"]))
        self._log = (folder / "log").open("ab")
        self._cluster, self._random = cluster, random.Random(seed)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: set[int] = set()  # every process there was
        self._closing = threading.Event()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.answered: dict[tuple[int, str], str] = {}  # (job, client) -> operation, or the plan that was there already
        self.killed: Counter[str] = Counter()

    def start(self, name: str) -> None:
        if name == "server":
            command = ["-m", "remat", "serve", "--port", self.url.rpartition(":")[2]]
        else:
            command = (
                ["-m", "remat", "worker"] if self._cluster is None else ["-c", ELSEWHERE, f"host-{name}", "worker"]
            )
        self._processes[name] = subprocess.Popen(
            [sys.executable, *command], env=self._environment, cwd=ROOT, stderr=self._log
        )

    def ask(self, jobs: int, client: str) -> None:
        """Ask every question until it is taken: a client that never gives up."""
        for job in range(jobs):
            self.answered[job, client] = self._location(job, client)

    def _location(self, job: int, client: str) -> str:
        return str(self._insist(lambda: self._post(job, client)).headers["location"])

    def _post(self, job: int, client: str) -> httpx2.Response:
        search = {"planner": "greedy", "iterations": 20} if job % 4 else {"planner": "anneal", "search_seconds": 0.5}
        question = {"graph": chain(20 + job % 7), "budget": "60%", "seed": job, "execute": "no"} | search
        headers = {"prefer": "wait=0", "idempotency-key": f"{client} of job {job}"}
        return httpx2.post(f"{self.url}/v1/plans", json=question, headers=headers, timeout=30)

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

    def rage(self, jobs: int, kills: int, end: float) -> None:
        """Kill one after the other, and start again what was killed; some jobs get done in between."""
        kinds = ["server", "worker", "child", "nursery", *(["database", "frozen"] if self._cluster else [])]
        ended = 0
        while self.killed.total() < kills and ended < jobs and time.monotonic() < end:
            until = time.monotonic() + self._random.uniform(1, PATIENCE_S)
            self.supervise()
            while (now := self._ended()) <= ended and time.monotonic() < until:
                time.sleep(0.1)
            ended = max(now, ended)
            time.sleep(self._random.uniform(0, 2))
            kind = self._random.choice([*kinds, *(self._processes.keys() & {GONE})])
            if 2 * self.killed.total() > kills and GONE in self._processes:
                kind = GONE
            if self._kill(kind) if kind in self._processes else getattr(self, f"_kill_{kind}")():
                self.killed["gone for good" if kind == GONE else kind] += 1

    def _ended(self) -> int:
        """How many operations have ended; 0 when nobody can be asked."""
        counted = sa.select(sa.func.count()).select_from(operations).where(operations.c.ended_at.is_not(None))
        try:
            with self._engine.connect() as connection:
                return connection.scalar(counted) or 0
        except sa.exc.DBAPIError:
            return 0

    def supervise(self) -> None:
        """Start again what has ended by itself: who starts while there is no database says so, and leaves."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                self.start(name)

    def _kill(self, name: str) -> bool:
        self._look()
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        if name != GONE:
            time.sleep(self._random.uniform(0, 1))
            self.start(name)
        return True

    def _kill_worker(self) -> bool:
        return self._kill(self._random.choice("ab"))

    def _kill_frozen(self) -> bool:
        """Not a kill: the worker is taken for dead, and goes on with what is another's by then."""
        self.supervise()
        process = self._processes[self._random.choice("ab")]
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._random.uniform(LOST_S, 3 * LOST_S))
        process.send_signal(signal.SIGCONT)
        return True

    def _kill_child(self) -> bool:
        return self._kill_one([child for nursery in self._nurseries() for child in children(nursery)])

    def _kill_nursery(self) -> bool:
        """What children are forked from; those that run go on."""
        return self._kill_one(self._nurseries())

    def _nurseries(self) -> list[int]:
        self._look()
        started = [child for process in self._processes.values() for child in children(process.pid)]
        return [pid for pid in started if "forkserver" in line(pid)]

    def _kill_one(self, pids: list[int]) -> bool:
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(sorted(pids)), signal.SIGKILL)
                return True
        return False

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
            self.supervise()
            oldest = min(waiting)
            answer = self._insist(lambda place=oldest: httpx2.get(self.url + place, timeout=30))  # type: ignore[misc]
            if answer.json()["state"] in FINISHED:
                waiting.discard(oldest)
            else:
                time.sleep(0.2)
        return [f"{place} did not end" for place in waiting]

    def asked_again(self, jobs: int) -> list[str]:
        """Questions that are not answered by one plan, whoever asks them again."""
        wrong = []
        for job in range(jobs):
            before, now = self.answered[job, "first"], self._location(job, "first" if job % 2 else "third")
            if not now.startswith("/v1/plans/") or before not in (now, *self._operations_of(now)):
                wrong.append(f"job {job} was answered by {before}, and is by {now}")
        return wrong

    def _operations_of(self, place: str) -> list[str]:
        named = sa.select(operations.c.id).where(operations.c.result == place.rpartition("/")[2])
        with self._engine.connect() as connection:
            return [f"/v1/operations/{id}" for id in connection.scalars(named)]

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
        while (left := [pid for pid in self._seen if "app.solver.preload" in line(pid)]) and time.monotonic() < until:
            time.sleep(0.5)
        return left


def wrongs(store: Store, jobs: int, under: Storm) -> list[str]:
    """What the store holds that it should not, or lacks."""
    wrong = list(check_integrity(store).faults)
    if len(under.answered) != 2 * jobs:
        wrong.append(f"{len(under.answered)} of {2 * jobs} questions were answered")
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
        elif why := fault(json.loads(report_of(store, row["result"], ("timeline", "layout", "source")))):
            wrong.append(f"plan {row['result']} is not valid: {why}")
    if kept != {row["result"] for row in rows} or len(kept) != jobs:
        wrong.append(f"{len(kept)} plans for {jobs} jobs")
    return wrong


def fault(report: dict[str, Any]) -> str:
    """What an independent check finds wrong with a plan; empty: nothing."""
    try:
        return "" if report["checked"] and saved_report.verify(report)["layout"] else "no layout, or never checked"
    except PlannerError as error:
        return str(error)


def line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


if __name__ == "__main__":
    raise SystemExit(main())
