"""Who makes the plans of a batch: a `concurrent.futures` executor, and the function it calls with each question.

`at_home` and what it is given and gives back are plain, so that any executor takes them: threads and processes of
this machine, Dask, Ray. The plans are the same.
"""

from __future__ import annotations

import functools
import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from app import child
from app.batch_runs.items import Item
from app.client import Client, ClientError, ServiceProblem
from app.errors import BadUsage, problem, problem_of
from app.runner import Runner
from app.settings import Settings

SECTIONS = ("timeline", "layout", "source")  # besides the figures, so that `remat verify` needs one file
SEARCH_S = 10.0  # of a request that says nothing
POLL_S = 1.0

Question = dict[str, Any]
#: {"report": JSON, "stopped": whether it is only the best so far}, or {"problem": ...}; always {"seconds": ...}.
Answer = dict[str, Any]
Told = Callable[[str, Mapping[str, Any]], None]  # key of the item, and how its search goes


@dataclass(frozen=True, slots=True)
class Engine:
    """`work` is called by `executor`; `stops`: whether it ends early of itself when it is told to."""

    executor: Executor
    work: Callable[[Question], Answer]
    stops: bool = False
    ahead: int = 256  # questions given to the executor before the first is answered

    def submit(self, item: Item) -> Future[Answer]:
        """The answer to come."""
        return self.executor.submit(self.work, question_of(item))


def question_of(item: Item) -> Question:
    """The item as plain data, with the limits that the settings here set."""
    settings = Settings()
    return {
        "key": item.key, "file": item.file, "sha256": item.sha256, "fields": dict(item.fields),
        "limits": asdict(settings.limits()), "memory_bytes": settings.solve_memory_bytes,
        "kill_seconds": settings.kill_seconds, "overtime_seconds": settings.overtime_seconds,
    }  # fmt: skip


def local(workers: int, told: Told | None, stop: threading.Event) -> Engine:
    """So many child processes at a time on this machine; `stop` makes each give its best so far."""
    return Engine(ThreadPoolExecutor(workers), functools.partial(at_home, told=told, stop=stop), True, workers)


def server(url: str | None, waiting: int, told: Told | None, stop: threading.Event) -> Engine:
    """The service at `url`, whose workers may be on many hosts; so many questions wait there at a time."""
    client = Client(url)
    work = functools.partial(at_service, client=client, told=told, stop=stop)
    return Engine(ThreadPoolExecutor(waiting), work, True, waiting)


def of(executor: Executor) -> Engine:
    """An executor of somebody else's; its workers read the model's file under the same name."""
    return Engine(executor, at_home)


def _answering(work: Callable[..., Answer]) -> Callable[..., Answer]:
    """The work with its seconds, and what goes wrong as a problem: one item that fails is a state."""

    @functools.wraps(work)
    def answered(question: Question, **given: Any) -> Answer:
        began = time.monotonic()
        try:
            answer = work(question, **given)
        except Exception as error:
            answer = {"problem": told_of(error)}
        return answer | {"seconds": round(time.monotonic() - began, 3)}

    return answered


def told_of(error: BaseException) -> dict[str, Any]:
    """The problem object that says what kept an item from its plan."""
    if isinstance(error, ServiceProblem):
        return error.problem
    if isinstance(error, ClientError):
        return problem(503, "unreachable", "The service did not answer", str(error))
    said = problem_of(error)
    if said["code"] == "internal":  # nobody looks into a log for it here
        said["detail"] = f"{type(error).__name__}: {error}"
    return said


@_answering
def at_home(question: Question, told: Told | None = None, stop: threading.Event | None = None) -> Answer:
    """The report of one question, made in a child process with limits.

    Where the process may have no children, as those of some executors, it is made right here.
    """
    payload = {"data": _read(question), "fields": question["fields"], "limits": question["limits"]}
    if multiprocessing.current_process().daemon:
        solved = child.solve(payload, lambda message: None, stop or threading.Event())
    else:
        seconds = float(question["fields"].get("search_seconds", SEARCH_S)) + question["overtime_seconds"]
        runner = Runner(question["memory_bytes"], question["kill_seconds"])
        progressed = None if told is None else functools.partial(told, question["key"])
        solved = runner.run("solve", payload, seconds, progressed, stop).result
    report = msgspec.json.decode(solved["report"])
    report |= {name: msgspec.Raw(solved["sections"][name]) for name in SECTIONS if name in solved["sections"]}
    return {"report": msgspec.json.encode(report), "stopped": report["plan"]["stopped"]}


@_answering
def at_service(question: Question, client: Client, told: Told | None, stop: threading.Event) -> Answer:
    """The report of one question, asked of a service."""
    fields = dict(question["fields"])
    shapes = {name: fields.pop(name) for name in ("inputs", "batch", "dims") if name in fields}
    home = client.prepare(_read(question), **shapes)
    fields["return"] = ["plan", *SECTIONS]
    said = client.submit(home, **fields)
    while "state" in said and said["state"] in ("queued", "running"):
        if told is not None and said.get("progress"):
            told(question["key"], {"stage": said["stage"], **said["progress"]})
        if stop.wait(POLL_S):
            said = client.cancel(said["id"])
        said = client.operation(said["id"])
    if said.get("error"):
        return {"problem": said["error"]}
    stopped = said.get("state") == "cancelled"
    if "state" in said and said["result"] is None:
        return {"problem": problem(409, "stopped", "Stopped before there was a plan", "ask for it again")}
    report = home.restored(client.report(said.get("result") or said["id"], SECTIONS))
    return {"report": msgspec.json.encode(report), "stopped": stopped}


def _read(question: Question) -> bytes:
    """The model's file, as it was when the batch began. Raises BadUsage, OSError."""
    from app.zoo.manifest import sha256

    data = Path(question["file"]).read_bytes()
    if sha256(data) != question["sha256"]:
        said = f"{question['file']} is not what it was when the batch began; begin again"
        raise BadUsage(said, code="file_changed")
    return data
