"""A service as an executor: post each graph once, submit the items as batches of the service, collect the results.

The service continues without the client. A client with the same token and items rejoins the same batches.
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
from graph.formats.readers import name_of_file
from planner.request.budget import parse_budget

POLL_S = 1.0
FINISHED = ("succeeded", "failed", "cancelled")
AXES = ("budget", "planner", "seed")

Json = dict[str, Any]
#: (file, its hash, shapes as JSON) -> the model as sent.
PrepareModel = Callable[[str, str, bytes], PreparedModel]
#: Identity of an item in a service's batch: graph id, parsed budget, planner, seed.
ItemIdentity = tuple[str, Any, str, int]


def prepared_models(client: Client) -> PrepareModel:
    """Cached reader of models; two entries suffice, since items of one graph end near each other."""

    @functools.lru_cache(maxsize=2)
    def prepared(file: str, digest: str, shapes: bytes) -> PreparedModel:
        data = read_model_file(file, digest)
        return client.prepare(data, name=name_of_file(file, data), **msgspec.json.decode(shapes))

    return prepared


@report_errors
def collect_result(task: ItemTask, item: Json, client: Client, models: PrepareModel) -> ItemResult:
    """The report of the service's `item`, with the model's own names."""
    if "problem" in item:
        return item
    if item["error"] is not None:
        return {"problem": item["error"]}
    if item["plan"] is None:
        return {"problem": problem_body(409, "stopped", "Stopped before a plan was found", "run the batch again")}
    model = models(task["file"], task["sha256"], _shapes(task["fields"]))
    report = msgspec.json.encode(model.restore(client.report(item["plan"], SECTIONS)))
    began, ended = (datetime.fromisoformat(item[name]) for name in ("started_at", "ended_at"))
    seconds = 0.0 if item["cached"] else round((ended - began).total_seconds(), 3)
    return {"report": report, "stopped": item["state"] == "cancelled", "seconds": seconds}


def _shapes(fields: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({name: fields[name] for name in SHAPE_FIELDS if name in fields}, order="deterministic")


@dataclass(slots=True)
class StartedBatch:
    """A batch of the service. `keys`: identity -> item keys; several if models differ only in their names."""

    id: str
    keys: Mapping[ItemIdentity, list[str]]
    ended: set[int] = field(default_factory=set)  # item numbers
    first: int = 0  # items before it have all ended
    is_over: bool = False


class ServiceExecutor(Executor):
    """Executor of `items`; the first `submit` submits all of them. `stop` cancels the batches, keeping best plans.

    One thread talks to the service. The secret `token` is required to rejoin the batches.
    """

    def __init__(
        self,
        client: Client,
        models: PrepareModel,
        items: Sequence[SweepItem],
        token: str,
        on_progress: ProgressCallback | None,
        stop: threading.Event,
    ):
        self._client, self._models, self._items, self._token = client, models, items, token
        self._on_progress, self._stop = on_progress, stop
        self._pending: dict[str, tuple[Future[Any], Callable[[Json], ItemResult]]] = {}
        self._running: set[str] = set()
        self._ended: dict[str, Json] = {}  # key -> the service's ended item, or {"problem": ...}
        self._failure: Json | None = None  # {"problem": ...} of all items not in _ended, once polling failed
        self._batches: list[StartedBatch] | None = None
        self._cancelled = self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)

    def submit(self, work: Callable[..., Any], /, task: ItemTask) -> Future[Any]:  # type: ignore[override]
        """Future of `work(task, item)`, called once the service's item has ended."""
        future: Future[Any] = Future()
        with self._changed:
            self._pending[task["key"]] = future, functools.partial(work, task)
            self._changed.notify()
        if self._thread.ident is None:
            self._thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread once every future is done. The service continues unless `stop` is set."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if wait and self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        next_poll = 0.0
        while not self._is_done():
            if self._failure is None and time.monotonic() >= next_poll:
                try:
                    self._poll()
                except Exception as error:
                    self._failure = {"problem": item_problem(error)}
                next_poll = time.monotonic() + POLL_S
            self._complete_futures()
            with self._changed:
                if not self._closed and not self._ready():
                    self._changed.wait(POLL_S)

    def _is_done(self) -> bool:
        with self._changed:
            return self._closed and all(future.done() for future, _ in self._pending.values())

    def _ready(self) -> list[str]:
        """Keys of pending futures with a result."""
        return [key for key in self._pending if self._failure is not None or key in self._ended]

    def _complete_futures(self) -> None:
        with self._changed:
            ready = [(key, *self._pending.pop(key)) for key in self._ready()]
        for key, future, work in ready:
            if key in self._running or future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(self._ended.get(key) or self._failure or {}))
                except Exception as error:
                    future.set_exception(error)

    def _poll(self) -> None:
        """Start or cancel the batches if due, and fetch ended and running items. Raises ClientError."""
        if self._batches is None:
            self._batches = self._start_all()
        if self._stop.is_set() and not self._cancelled:
            self._cancelled = True
            for batch in self._batches:
                self._client.cancel_batch(batch.id)
        for batch in self._batches:
            if not batch.is_over:
                self._poll_batch(batch)

    def _poll_batch(self, batch: StartedBatch) -> None:
        now = self._client.batch_status(batch.id)
        after = None if batch.first == 0 else batch.first - 1
        if now["done"] > len(batch.ended):
            for state in FINISHED:
                for item in self._client.items(batch.id, state, after=after) if now["items"][state] else ():
                    batch.ended.add(item["number"])
                    self._ended.update(dict.fromkeys(batch.keys.get(_identity(item), ()), item))
            while batch.first in batch.ended:
                batch.first += 1
        if now["items"]["running"]:
            running = {
                item["operation"]: _identity(item) for item in self._client.items(batch.id, "running", after=after)
            }
            for operation in self._client.operations("running"):
                for key in batch.keys.get(running.get(f"/v1/operations/{operation['id']}", ("", None, "", 0)), ()):
                    self._report_running(key, operation)
        batch.is_over = now["state"] in FINISHED and len(batch.ended) == now["total"]

    def _report_running(self, key: str, operation: Json) -> None:
        with self._changed:
            if key not in self._pending:
                return
            if key not in self._running:
                if not self._pending[key][0].set_running_or_notify_cancel():
                    del self._pending[key]
                    return
                self._running.add(key)
        if self._on_progress is not None and operation["stage"]:
            self._on_progress(key, {"stage": operation["stage"], **(operation["progress"] or {})})

    def _start_all(self) -> list[StartedBatch]:
        """Post the graphs and start the batches, one per set of other request fields. Raises ClientError."""
        graphs: dict[tuple[str, bytes], str | Json] = {}
        groups: dict[bytes, list[tuple[SweepItem, str]]] = {}
        for item in self._items:
            shapes = _shapes(item.fields)
            if (graph := graphs.get((item.file, shapes))) is None:
                graph = graphs[item.file, shapes] = self._post_graph(item, shapes)
            if not isinstance(graph, str):
                self._ended[item.key] = graph
                continue
            rest = {name: value for name, value in item.fields.items() if name not in (*SHAPE_FIELDS, *AXES)}
            groups.setdefault(msgspec.json.encode(rest, order="deterministic"), []).append((item, graph))
        return [batch for rest, group in groups.items() for batch in self._start(msgspec.json.decode(rest), group)]

    def _post_graph(self, item: SweepItem, shapes: bytes) -> str | Json:
        """Id of the item's graph, or its problem. Raises Unreachable."""
        try:
            return str(self._client.post_graph(self._models(item.file, item.sha256, shapes))["id"])
        except Unreachable:
            raise
        except Exception as error:
            return {"problem": item_problem(error)}

    def _start(self, rest: Json, group: Sequence[tuple[SweepItem, str]]) -> list[StartedBatch]:
        """Start or rejoin the group as one batch, or as several if it is too large for one. Raises Unreachable."""
        keys: dict[ItemIdentity, list[str]] = {}
        budgets: dict[Any, Any] = {}  # parsed -> as given
        for item, graph in group:
            budget = parse_budget(item.fields["budget"], "budget")
            budgets.setdefault(budget, item.fields["budget"])
            keys.setdefault((graph, budget, item.fields["planner"], item.fields["seed"]), []).append(item.key)
        graph_ids, _, planners, seeds = (list(dict.fromkeys(column)) for column in zip(*keys, strict=True))
        axes = {"graph_ids": graph_ids, "budgets": list(budgets.values()), "planners": planners, "seeds": seeds}
        identity = msgspec.json.encode([self._token, axes, rest], order="deterministic")
        try:
            batch = self._client.start_batch(**axes, **rest, idempotency_key=hashlib.sha256(identity).hexdigest())
            if batch["items"]["failed"] or batch["items"]["cancelled"]:
                self._retry(batch["id"])
        except ServiceProblem as error:
            if error.code == "too_many_items" and len(graph_ids) > 1:
                first = set(graph_ids[: len(graph_ids) // 2])
                halves = ([pair for pair in group if (pair[1] in first) is of] for of in (True, False))
                return [started for half in halves for started in self._start(rest, half)]
            self._ended.update((item.key, {"problem": error.problem}) for item, _ in group)
            return []
        return [StartedBatch(batch["id"], keys)]

    def _retry(self, id: str) -> None:
        """Retry unsolved items of a rejoined batch; if it is being cancelled, wait for its end first."""
        try:
            self._client.retry_batch(id)
        except ServiceProblem as error:
            if error.code != "batch_ending":
                raise
            self._client.wait_batch(id)
            self._client.retry_batch(id)


def _identity(item: Json) -> ItemIdentity:
    return item["graph_id"], parse_budget(item["budget"], "budget"), item["planner"], item["seed"]
