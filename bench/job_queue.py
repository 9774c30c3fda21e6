"""Figures of the job queue: jobs per second, statements of an idle worker, and the pause after a worker is killed.

    python bench/job_queue.py                            # SQLite
    python bench/job_queue.py --database postgresql      # a cluster of its own

The jobs have a stored answer each, so that they cost no child process: submitted, claimed, found, ended. Statements are
those that the processes of a service send while nothing happens, BEGIN and COMMIT not counted. For the pause, a service
that solves is killed with SIGKILL and started again: the times until it answers, until a worker has the solve again,
and until the search has shown progress again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.jobs.attempt import WorkerContext
from app.jobs.batches.scheduler import BatchScheduler
from app.jobs.durable_jobs import DurableJobs
from app.jobs.interface import SolveRequest
from app.settings import Settings
from app.solver.child_process import Runner
from app.store.records import now, save_graph, save_plan
from app.store.schema import migrate
from app.store.store import Store
from app.store.tables import answers, events, operations
from bench.generators import chain
from tests.app.stores import GRAPH_ID, graph_read, solved
from tests.postgres import Cluster

ROOT = Path(__file__).resolve().parents[1]
SLOTS = 2
PATIENCE_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--idle-seconds", type=float, default=20.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as cleanup:
        place: dict[str, Any] = {"data": Path(folder)}
        if asked.database == "postgresql":
            cluster = Cluster()
            cleanup.callback(cluster.close)
            place["database_url"] = cluster.database("queue")
        store = Store(Settings(**place))
        migrate(store.engine)
        save_graph(store, graph_read())
        found = {"database": asked.database, **throughput(store, place, asked.jobs)}
        found["idle statements a second"] = idle(store, place, asked.idle_seconds)
        found |= restart(store, place)
        store.close()
    print(json.dumps(found, indent=1))
    return 0


def jobs_of(store: Store, place: dict[str, Any], slots: int) -> DurableJobs:
    settings = Settings(**place, workers=slots, queue=1_000_000, drain_seconds=0)
    return DurableJobs(WorkerContext(store, Runner(1 << 40, 1.0), settings, BatchScheduler))


def throughput(store: Store, place: dict[str, Any], count: int) -> dict[str, float]:
    """Jobs a second, submitted and run, by the clock and by processor time of this process."""
    plan = save_plan(store, solved(), GRAPH_ID)
    with store.writing() as connection:
        rows = [{"key": f"k{n}", "plan_id": plan, "created_at": now()} for n in range(count)]
        connection.execute(sa.insert(answers), rows)
    client, worker = jobs_of(store, place, 0), jobs_of(store, place, SLOTS)
    began = time.perf_counter()
    for n in range(count):
        client.submit(SolveRequest(f"k{n}", GRAPH_ID, {}))
    submitted, cpu = time.perf_counter(), time.process_time()
    worker.start()
    until(lambda: not unfinished(store))
    ended, used = time.perf_counter(), time.process_time() - cpu
    worker.close()
    return {
        "submitted a second": round(count / (submitted - began)),
        "run a second": round(count / (ended - submitted)),
        "run a second of processor time": round(count / used),
    }


def unfinished(store: Store) -> bool:
    query = sa.select(operations.c.id).where(operations.c.state.in_(["queued", "running"])).limit(1)
    with store.reading() as connection:
        return connection.scalar(query) is not None


def idle(store: Store, place: dict[str, Any], seconds: float) -> float:
    """Statements a second of a client and a worker, after they have started."""
    client, worker = jobs_of(store, place, 0), jobs_of(store, place, SLOTS)
    client.start()
    worker.start()
    time.sleep(2)
    counted, lock = [0], threading.Lock()

    def count(_: object, __: object, statement: str, *___: object) -> None:
        with lock:
            counted[0] += not statement.startswith("BEGIN")

    sa.event.listen(store.engine, "before_cursor_execute", count)
    time.sleep(seconds)
    sa.event.remove(store.engine, "before_cursor_execute", count)
    worker.close()
    return round(counted[0] / seconds, 2)


def restart(store: Store, place: dict[str, Any]) -> dict[str, float]:
    """Seconds from the start of a service to the progress of a solve that was killed with its service before."""
    names = {f"REMAT_{name.upper()}": str(value) for name, value in place.items()}
    environment = os.environ | names | {"REMAT_WORKERS": "1", "OMP_NUM_THREADS": "1", "REMAT_LOG_LEVEL": "error"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "remat", "serve", "--port", str(port)]
    request = {"graph": chain(24), "budget": "60%", "planner": "anneal", "search_seconds": 60, "execute": "no"}

    def serving() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)

    def answers_requests() -> bool:
        with contextlib.suppress(httpx2.TransportError):
            return httpx2.get(f"{url}/livez").status_code == 200
        return False

    service = serving()
    try:
        until(answers_requests)
        id = httpx2.post(f"{url}/v1/plans", json=request, headers={"prefer": "wait=0"}, timeout=60).json()["id"]
        until(lambda: attempts(store, id) == 1 and progress_of(store, id) > 0)
        service.kill()
        service.wait()
        before = progress_of(store, id)
        began, service = time.perf_counter(), serving()
        until(answers_requests)
        ready = time.perf_counter()
        until(lambda: attempts(store, id) == 2)
        claimed = time.perf_counter()
        until(lambda: progress_of(store, id) > before)
        return {
            "seconds until a service answers": ready - began,
            "until a worker has its solve": claimed - began,
            "until its search goes on": time.perf_counter() - began,
        }
    finally:
        service.kill()
        service.wait()


def attempts(store: Store, id: str) -> int:
    with store.reading() as connection:
        return connection.scalar(sa.select(operations.c.attempts).where(operations.c.id == id)) or 0


def progress_of(store: Store, id: str) -> int:
    """Number of the latest progress event."""
    query = sa.select(sa.func.max(events.c.id)).where(events.c.operation_id == id, events.c.name == "progress")
    with store.reading() as connection:
        return connection.scalar(query) or 0


def until(true: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            raise SystemExit("it never came")
        time.sleep(0.02)


if __name__ == "__main__":
    raise SystemExit(main())
