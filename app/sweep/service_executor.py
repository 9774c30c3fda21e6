"""A service as an executor: each graph is posted once, and the questions are asked as batches of the service.

The service goes on while nobody follows. Who comes again with the same token and items joins the same batches.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from app.client.asynchronous import SHAPE_FIELDS
from app.client.blocking import Client, PreparedModel, ServiceProblem, Unreachable
from app.errors import problem_body
from app.sweep.items import SweepItem
from app.sweep.tasks import (
    SECTIONS,
    ItemResult,
    ItemTask,
    ProgressCallback,
    item_problem,
    read_model_file,
    report_errors,
)
from planner.request.budget import parse_budget

POLL_S = 1.0
FINISHED = ("succeeded", "failed", "cancelled")
AXES = ("budget", "planner", "seed")

Json = dict[str, Any]
#: A model's file, its hash, and shapes as JSON -> the model as it is sent.
PrepareModel = Callable[[str, str, bytes], PreparedModel]
#: What tells an item of a service's batch: the graph, what its budget means, planner, seed.
ItemIdentity = tuple[str, Any, str, int]


def prepared_models(client: Client) -> PrepareModel:
    """Models read; the last two are kept, since items of a graph end near each other."""
    return functools.lru_cache(maxsize=2)(
        lambda file, digest, shapes: client.prepare(read_model_file(file, digest), **msgspec.json.decode(shapes))
    )


@report_errors
def collect_result(question: ItemTask, said: Json, client: Client, models: PrepareModel) -> ItemResult:
    """The report of the service's item `said`, under the model's own names."""
    if "problem" in said:
        return said
    if said["error"] is not None:
        return {"problem": said["error"]}
    if said["plan"] is None:
        return {"problem": problem_body(409, "stopped", "Stopped before there was a plan", "ask for it again")}
    home = models(question["file"], question["sha256"], _shapes(question["fields"]))
    report = msgspec.json.encode(home.restore(client.report(said["plan"], SECTIONS)))
    began, ended = (datetime.fromisoformat(said[name]) for name in ("started_at", "ended_at"))
    seconds = 0.0 if said["cached"] else round((ended - began).total_seconds(), 3)
    return {"report": report, "stopped": said["state"] == "cancelled", "seconds": seconds}


def _shapes(fields: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({name: fields[name] for name in SHAPE_FIELDS if name in fields}, order="deterministic")


@dataclass(slots=True)
class StartedBatch:
    """A batch of the service. `keys` are those of our items at a place: several where only names of models differ."""

    id: str
    keys: Mapping[ItemIdentity, list[str]]
    ended: set[int] = field(default_factory=set)  # numbers of items
    first: int = 0  # all before it have ended
    is_over: bool = False


class ServiceExecutor(Executor):
    """Answers about `items`, which are all asked with the first. Once `stop` is set, what runs gives its best so far.

    One thread speaks with the service. Who knows `token` may join, and nobody else.
    """

    def __init__(
        self,
        client: Client,
        models: PrepareModel,
        items: Sequence[SweepItem],
        token: str,
        told: ProgressCallback | None,
        stop: threading.Event,
    ):
        self._client, self._models, self._items, self._token = client, models, items, token
        self._told, self._stop = told, stop
        self._asked: dict[str, tuple[Future[Any], Callable[[Json], ItemResult]]] = {}
        self._running: set[str] = set()
        self._said: dict[str, Json] = {}  # key -> the service's item that has ended, or {"problem": ...}
        self._lost: Json | None = None  # why there will be no more of them
        self._batches: list[StartedBatch] | None = None
        self._cancelled = self._closed = False
        self._woken = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)

    def submit(self, work: Callable[..., Any], /, question: ItemTask) -> Future[Any]:  # type: ignore[override]
        """What `work` makes of the question and the service's word on it, once there is one."""
        future: Future[Any] = Future()
        with self._woken:
            self._asked[question["key"]] = future, functools.partial(work, question)
            self._woken.notify()
        if self._thread.ident is None:
            self._thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End as soon as nobody waits for an answer. The service goes on unless `stop` is set."""
        with self._woken:
            self._closed = True
            self._woken.notify()
        if wait and self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        next_look = 0.0
        while not self._is_done():
            if self._lost is None and time.monotonic() >= next_look:
                try:
                    self._look()
                except Exception as error:
                    self._lost = {"problem": item_problem(error)}
                next_look = time.monotonic() + POLL_S
            self._answer()
            with self._woken:
                if not self._closed and not self._known():
                    self._woken.wait(POLL_S)

    def _is_done(self) -> bool:
        with self._woken:
            return self._closed and all(future.done() for future, _ in self._asked.values())

    def _known(self) -> list[str]:
        """Keys of questions that can be answered now."""
        return [key for key in self._asked if self._lost is not None or key in self._said]

    def _answer(self) -> None:
        with self._woken:
            ready = [(key, *self._asked.pop(key)) for key in self._known()]
        for key, future, work in ready:
            if key in self._running or future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(self._said.get(key) or self._lost or {}))
                except Exception as error:
                    future.set_exception(error)

    def _look(self) -> None:
        """Hear what has ended and what runs. Raises ClientError."""
        if self._batches is None:
            self._batches = self._begin()
        if self._stop.is_set() and not self._cancelled:
            self._cancelled = True
            for batch in self._batches:
                self._client.cancel_batch(batch.id)
        for batch in self._batches:
            if not batch.is_over:
                self._follow(batch)

    def _follow(self, batch: StartedBatch) -> None:
        now = self._client.batch_status(batch.id)
        after = None if batch.first == 0 else batch.first - 1
        if now["done"] > len(batch.ended):
            for state in FINISHED:
                for item in self._client.items(batch.id, state, after=after) if now["items"][state] else ():
                    batch.ended.add(item["number"])
                    self._said.update(dict.fromkeys(batch.keys.get(_place(item), ()), item))
            while batch.first in batch.ended:
                batch.first += 1
        if now["items"]["running"]:
            where = {item["operation"]: _place(item) for item in self._client.items(batch.id, "running", after=after)}
            for operation in self._client.operations("running"):
                for key in batch.keys.get(where.get(f"/v1/operations/{operation['id']}", ("", None, "", 0)), ()):
                    self._runs(key, operation)
        batch.is_over = now["state"] in FINISHED and len(batch.ended) == now["total"]

    def _runs(self, key: str, operation: Json) -> None:
        with self._woken:
            if key not in self._asked:
                return
            if key not in self._running:
                if not self._asked[key][0].set_running_or_notify_cancel():
                    del self._asked[key]
                    return
                self._running.add(key)
        if self._told is not None and operation["stage"]:
            self._told(key, {"stage": operation["stage"], **(operation["progress"] or {})})

    def _begin(self) -> list[StartedBatch]:
        """Post the graphs and ask; items with the same further fields are one batch. Raises ClientError."""
        graphs: dict[tuple[str, bytes], str | Json] = {}
        groups: dict[bytes, list[tuple[SweepItem, str]]] = {}
        for item in self._items:
            shapes = _shapes(item.fields)
            if (graph := graphs.get((item.file, shapes))) is None:
                graph = graphs[item.file, shapes] = self._posted(item, shapes)
            if not isinstance(graph, str):
                self._said[item.key] = graph
                continue
            rest = {name: said for name, said in item.fields.items() if name not in (*SHAPE_FIELDS, *AXES)}
            groups.setdefault(msgspec.json.encode(rest, order="deterministic"), []).append((item, graph))
        return [batch for rest, group in groups.items() for batch in self._start(msgspec.json.decode(rest), group)]

    def _posted(self, item: SweepItem, shapes: bytes) -> str | Json:
        """Id of the item's graph, or the problem with it. Raises Unreachable."""
        try:
            return str(self._client.post_graph(self._models(item.file, item.sha256, shapes))["id"])
        except Unreachable:
            raise
        except Exception as error:
            return {"problem": item_problem(error)}

    def _start(self, rest: Json, group: Sequence[tuple[SweepItem, str]]) -> list[StartedBatch]:
        """The group as a batch, as several where it is too large for one, begun or joined. Raises Unreachable."""
        keys: dict[ItemIdentity, list[str]] = {}
        budgets: dict[Any, Any] = {}  # what it means -> as it is said
        for item, graph in group:
            meant = parse_budget(item.fields["budget"], "budget")
            budgets.setdefault(meant, item.fields["budget"])
            keys.setdefault((graph, meant, item.fields["planner"], item.fields["seed"]), []).append(item.key)
        graph_ids, _, planners, seeds = (list(dict.fromkeys(column)) for column in zip(*keys, strict=True))
        asked = {"graph_ids": graph_ids, "budgets": list(budgets.values()), "planners": planners, "seeds": seeds}
        said = msgspec.json.encode([self._token, asked, rest], order="deterministic")
        try:
            batch = self._client.start_batch(**asked, **rest, idempotency_key=hashlib.sha256(said).hexdigest())
            if batch["items"]["failed"] or batch["items"]["cancelled"]:
                self._again(batch["id"])
        except ServiceProblem as error:
            if error.code == "too_many_items" and len(graph_ids) > 1:
                first = set(graph_ids[: len(graph_ids) // 2])
                halves = ([pair for pair in group if (pair[1] in first) is of] for of in (True, False))
                return [begun for half in halves for begun in self._start(rest, half)]
            self._said.update((item.key, {"problem": error.problem}) for item, _ in group)
            return []
        return [StartedBatch(batch["id"], keys)]

    def _again(self, id: str) -> None:
        """Have items of a joined batch solved that were not; one that is being cancelled ends first."""
        try:
            self._client.retry_batch(id)
        except ServiceProblem as error:
            if error.code != "batch_ending":
                raise
            self._client.wait_batch(id)
            self._client.retry_batch(id)


def _place(item: Json) -> ItemIdentity:
    return item["graph_id"], parse_budget(item["budget"], "budget"), item["planner"], item["seed"]
