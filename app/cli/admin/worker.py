"""`remat worker`: worker process for an existing service, until SIGTERM."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from pathlib import Path

from app.cli.admin.process_settings import started_settings
from app.jobs.attempt import WorkerContext
from app.jobs.batches.scheduler import BatchScheduler
from app.jobs.worker import Worker
from app.settings import Settings
from app.solver.child_process import Runner, TaskRunner
from app.solver.clusters.connect import connect, split_url
from app.solver.clusters.runner import ClusterRunner
from app.store.store import Store
from app.telemetry import export


def run(data: Path | None, slots: int | None, solve_on: str | None) -> int:
    """Exit code, after draining. `slots`: parallel solves; None: as the settings say. `solve_on`: URL of a cluster."""
    settings = started_settings(data)
    settings = settings.model_copy(update={"workers": max(1, settings.workers if slots is None else slots)})
    telemetry = export.start(settings.otlp_url)
    if settings.metrics_address is not None:
        telemetry.listen(settings.metrics_address)
    store = Store(settings)
    store.prepare()
    runner = _runner(settings, solve_on)
    worker = Worker(WorkerContext(store, runner, settings, BatchScheduler))
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    worker.start()
    print(f"working as {worker.id}", file=sys.stderr, flush=True)
    stop.wait()
    worker.close()
    store.close()
    telemetry.flush()
    sys.stderr.flush()
    os._exit(0)  # skip joining threads: some may wait for jobs that other workers now hold


def _runner(settings: Settings, solve_on: str | None) -> TaskRunner:
    """Runs tasks in child processes, or on the cluster at `solve_on`. Raises BadUsage."""
    if solve_on is None:
        return Runner(settings.solve_memory_bytes, settings.kill_seconds)
    engine, address = split_url(solve_on, "--solve-on")
    to_cluster = functools.partial(connect, engine, address, "--solve-on")
    runner = ClusterRunner(to_cluster, settings.solve_memory_bytes, settings.kill_seconds)
    print(f"solving on {runner.description}", file=sys.stderr, flush=True)
    return runner
