"""Who makes the plans of a batch: a `concurrent.futures` executor, and the function it calls with each question.

`solve_locally` and what it is given and gives back are plain, so that any executor takes them: threads and processes of
this machine, Dask, Ray. The plans are the same.
"""

from __future__ import annotations

import functools
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from app.client.blocking import Client
from app.solver import child_tasks
from app.solver.child_process import Runner
from app.sweep import service_executor
from app.sweep.items import SweepItem
from app.sweep.tasks import SECTIONS, ItemResult, ItemTask, ProgressCallback, read_model_file, report_errors, task_of

DEFAULT_SEARCH_S = 10.0  # of a request that says nothing


@dataclass(frozen=True, slots=True)
class SweepEngine:
    """`work` is called by `executor`; `stops`: whether it ends early of itself when it is told to."""

    executor: Executor
    work: Callable[..., ItemResult]
    stops: bool = False
    ahead: int = 256  # questions given to the executor before the first is answered

    def submit(self, item: SweepItem) -> Future[ItemResult]:
        """The answer to come."""
        return self.executor.submit(self.work, task_of(item))


def local_engine(workers: int, told: ProgressCallback | None, stop: threading.Event) -> SweepEngine:
    """So many child processes at a time on this machine; `stop` makes each give its best so far."""
    return SweepEngine(
        ThreadPoolExecutor(workers), functools.partial(solve_locally, told=told, stop=stop), True, workers
    )


def service_engine(
    client: Client, items: Sequence[SweepItem], token: str, told: ProgressCallback | None, stop: threading.Event
) -> SweepEngine:
    """A service, whose workers may be on many hosts. `items` are all of the batch; with the same `token` it goes on."""
    models = service_executor.prepared_models(client)
    work = functools.partial(service_executor.collect_result, client=client, models=models)
    return SweepEngine(service_executor.ServiceExecutor(client, models, items, token, told, stop), work, True)


def executor_engine(executor: Executor) -> SweepEngine:
    """An executor of somebody else's; its workers read the model's file under the same name."""
    return SweepEngine(executor, solve_locally)


@report_errors
def solve_locally(
    question: ItemTask, told: ProgressCallback | None = None, stop: threading.Event | None = None
) -> ItemResult:
    """The report of one question, made in a child process with limits.

    Where the process may have no children, as those of some executors, it is made right here.
    """
    data = read_model_file(question["file"], question["sha256"])
    payload = {"data": data, "fields": question["fields"], "limits": question["limits"]}
    if multiprocessing.current_process().daemon:
        solved = child_tasks.solve(payload, lambda message: None, stop or threading.Event())
    else:
        seconds = float(question["fields"].get("search_seconds", DEFAULT_SEARCH_S)) + question["overtime_seconds"]
        runner = Runner(question["memory_bytes"], question["kill_seconds"])
        progressed = None if told is None else functools.partial(told, question["key"])
        solved = runner.run("solve", payload, seconds, progressed, stop).result
    report = msgspec.json.decode(solved["report"])
    report |= {name: msgspec.Raw(solved["sections"][name]) for name in SECTIONS if name in solved["sections"]}
    return {"report": msgspec.json.encode(report), "stopped": report["plan"]["stopped"]}
