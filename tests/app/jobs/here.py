"""Jobs of this process, with a child that does what the test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

from app.jobs.attempt import WorkerContext
from app.jobs.batches.scheduler import BatchScheduler
from app.jobs.durable_jobs import DurableJobs
from app.jobs.interface import Operation, SolveRequest
from app.settings import Settings
from app.solver.child_process import ChildResult
from app.store.store import Store
from tests.app.stores import GRAPH_ID, solved

QUESTION = SolveRequest("k1", GRAPH_ID, {"budget": "50%"})


class Pretender:
    """In the place of the runner."""

    def __init__(self, act: Callable[[threading.Event, Callable[..., None]], str] | None = None):
        self.act = act or (lambda stop, tell: "plan")
        self.started = threading.Event()
        self.runs = 0

    def run(
        self,
        task: str,
        payload: Mapping[str, Any],
        seconds: float,
        on_progress: Callable[[Mapping[str, Any]], None],
        stop: threading.Event,
    ) -> ChildResult:
        def tell(peak: int) -> None:
            on_progress(
                {
                    "stage": "plan",
                    "seconds": 0.1,
                    "incumbent_overhead": 0.1,
                    "incumbent_peak_bytes": peak,
                    "bound_overhead": 0.0,
                    "gap": 0.1,
                }
            )

        self.runs += 1
        self.started.set()
        order = self.act(stop, tell)
        return ChildResult(solved(order) | {"exit_code": 4 if order == "different" else 0}, hit_deadline=False)


def until_stopped(stop: threading.Event, tell: Callable[..., None]) -> str:
    tell(7)
    assert stop.wait(90)
    return "best so far"


class Here(DurableJobs):
    """The port with a worker, over a store that is closed with it."""

    def __init__(self, store: Store, runner: Pretender, settings: Settings):
        self.context = WorkerContext(store, runner, settings, BatchScheduler)  # type: ignore[arg-type]
        super().__init__(self.context)
        self.start()

    def close(self) -> None:
        super().close()
        self.context.store.close()

    def ask(self, key: str, **more: Any) -> str:
        return self.submit(SolveRequest(key, GRAPH_ID, {}, **more)).id


def finished(jobs: DurableJobs, id: str) -> Operation:
    operation = asyncio.run(jobs.wait(id, 90))
    assert operation.finished
    return operation
