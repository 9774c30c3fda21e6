"""`remat worker`: worker process for an existing service, until SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from app.jobs.attempt import WorkerContext
from app.jobs.batches.scheduler import BatchScheduler
from app.jobs.worker import Worker
from app.settings import Settings
from app.solver.child_process import Runner
from app.store.store import Store
from app.telemetry import export, logs


def run(data: Path | None, slots: int | None) -> int:
    """Exit code, after draining. `slots`: parallel solves; None: as the settings say."""
    given: dict[str, Any] = {} if data is None else {"data": data}
    settings = Settings(**given)
    settings = settings.model_copy(update={"workers": max(1, settings.workers if slots is None else slots)})
    logs.start(settings.log_level)
    telemetry = export.start(settings.otlp_url)
    if settings.metrics_address is not None:
        telemetry.listen(settings.metrics_address)
    store = Store(settings)
    store.prepare()
    runner = Runner(settings.solve_memory_bytes, settings.kill_seconds)
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
