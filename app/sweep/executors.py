"""Who makes the plans of a batch: a `concurrent.futures` executor, and the function it calls with each question.

`at_home` and what it is given and gives back are plain, so that any executor takes them: threads and processes of
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
from app.sweep.items import Item
from app.sweep.tasks import SECTIONS, Answer, Question, Told, answering, question_of, read

SEARCH_S = 10.0  # of a request that says nothing


@dataclass(frozen=True, slots=True)
class Engine:
    """`work` is called by `executor`; `stops`: whether it ends early of itself when it is told to."""

    executor: Executor
    work: Callable[..., Answer]
    stops: bool = False
    ahead: int = 256  # questions given to the executor before the first is answered

    def submit(self, item: Item) -> Future[Answer]:
        """The answer to come."""
        return self.executor.submit(self.work, question_of(item))


def local(workers: int, told: Told | None, stop: threading.Event) -> Engine:
    """So many child processes at a time on this machine; `stop` makes each give its best so far."""
    return Engine(ThreadPoolExecutor(workers), functools.partial(at_home, told=told, stop=stop), True, workers)


def server(client: Client, items: Sequence[Item], token: str, told: Told | None, stop: threading.Event) -> Engine:
    """A service, whose workers may be on many hosts. `items` are all of the batch; with the same `token` it goes on."""
    models = service_executor.homes(client)
    work = functools.partial(service_executor.collected, client=client, models=models)
    return Engine(service_executor.AtService(client, models, items, token, told, stop), work, True)


def of(executor: Executor) -> Engine:
    """An executor of somebody else's; its workers read the model's file under the same name."""
    return Engine(executor, at_home)


@answering
def at_home(question: Question, told: Told | None = None, stop: threading.Event | None = None) -> Answer:
    """The report of one question, made in a child process with limits.

    Where the process may have no children, as those of some executors, it is made right here.
    """
    data = read(question["file"], question["sha256"])
    payload = {"data": data, "fields": question["fields"], "limits": question["limits"]}
    if multiprocessing.current_process().daemon:
        solved = child_tasks.solve(payload, lambda message: None, stop or threading.Event())
    else:
        seconds = float(question["fields"].get("search_seconds", SEARCH_S)) + question["overtime_seconds"]
        runner = Runner(question["memory_bytes"], question["kill_seconds"])
        progressed = None if told is None else functools.partial(told, question["key"])
        solved = runner.run("solve", payload, seconds, progressed, stop).result
    report = msgspec.json.decode(solved["report"])
    report |= {name: msgspec.Raw(solved["sections"][name]) for name in SECTIONS if name in solved["sections"]}
    return {"report": msgspec.json.encode(report), "stopped": report["plan"]["stopped"]}
