"""Sweep engines: a `concurrent.futures` executor, and the function it calls with each task.

`solve_locally`, its arguments and its result are picklable, so that any executor can run it: threads, processes, Dask,
Ray. The plans are the same.
"""

from __future__ import annotations

import functools
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec

from app.client.blocking import Client
from app.errors import SolveFailed, to_problem
from app.solver.clusters.calls import ClusterCalls
from app.solver.clusters.interface import Cluster
from app.solver.in_process import runner_for_this_process
from app.sweep import cluster_executor, service_executor
from app.sweep.items import SweepItem
from app.sweep.tasks import (
    SECTIONS,
    ItemResult,
    ItemTask,
    ProgressCallback,
    read_model_file,
    report_errors,
    search_deadline,
    task_of,
)


@dataclass(frozen=True, slots=True)
class SweepEngine:
    """`executor` calls `work`; `stops`: whether running work ends early when the sweep is stopped."""

    executor: Executor
    work: Callable[..., ItemResult]
    stops: bool = False
    ahead: int = 256  # maximum number of submitted, unfinished tasks

    def submit(self, item: SweepItem) -> Future[ItemResult]:
        """Future of the item's result."""
        return self.executor.submit(self.work, task_of(item))


def local_engine(workers: int, on_progress: ProgressCallback | None, stop: threading.Event) -> SweepEngine:
    """At most `workers` parallel child processes on this machine; `stop` makes each return its best plan so far."""
    work = functools.partial(solve_locally, on_progress=on_progress, stop=stop)
    return SweepEngine(ThreadPoolExecutor(workers), work, True, workers)


def service_engine(
    client: Client, items: Sequence[SweepItem], token: str, on_progress: ProgressCallback | None, stop: threading.Event
) -> SweepEngine:
    """A service. `items`: all items of the sweep; the same `token` and items rejoin the service's batches."""
    models = service_executor.prepared_models(client)
    work = functools.partial(service_executor.collect_result, client=client, models=models)
    return SweepEngine(service_executor.ServiceExecutor(client, models, items, token, on_progress, stop), work, True)


def cluster_engine(cluster: Cluster, on_progress: ProgressCallback | None, stop: threading.Event) -> SweepEngine:
    """A cluster of Dask or Ray, whose workers read the same files; shutting down its executor disconnects."""
    executor = cluster_executor.ClusterExecutor(ClusterCalls(cluster), on_progress, stop)
    return SweepEngine(executor, solve_on_cluster, True)


def executor_engine(executor: Executor) -> SweepEngine:
    """An external executor; its workers must be able to read the model files at the same paths."""
    return SweepEngine(executor, solve_locally)


@report_errors
def solve_locally(
    task: ItemTask, on_progress: ProgressCallback | None = None, stop: threading.Event | None = None
) -> ItemResult:
    """The report of one task, solved in a child process with limits; in a daemon process, solved in the process."""
    data = read_model_file(task["file"], task["sha256"])
    payload = {"data": data, "fields": task["fields"], "limits": task["limits"]}
    callback = None if on_progress is None else functools.partial(on_progress, task["key"])
    runner = runner_for_this_process(task["memory_bytes"], task["kill_seconds"])
    solved = runner.run("solve", payload, search_deadline(task), callback, stop).result
    report = msgspec.json.decode(solved["report"])
    report |= {name: msgspec.Raw(solved["sections"][name]) for name in SECTIONS if name in solved["sections"]}
    return {"report": msgspec.json.encode(report), "stopped": report["plan"]["stopped"]}


def solve_on_cluster(task: ItemTask, send: Callable[[Mapping[str, Any]], None], stop: threading.Event) -> ItemResult:
    """`solve_locally` on a worker of a cluster; `send` gets the progress."""
    try:
        with open(task["file"], "rb"):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        message = (
            f"{task['file']}: {reason} on the cluster's worker {socket.gethostname()}; put the models where every "
            "worker reads them under the same path, and continue with --resume"
        )
        problem = to_problem(SolveFailed(message, code="not_on_cluster"))
        return {"problem": problem, "seconds": None}
    return solve_locally(task, lambda _, progress: send(progress), stop)
