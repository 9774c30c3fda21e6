"""The client that waits: `await client.plan(...)`. `app/client/blocking.py` has the one that blocks."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import anyio.to_thread
import httpx2
import msgspec

from app.client.anonymize import Model, PreparedModel
from app.client.operations import FINISHED, Json, PendingRequest, ProgressCallback, ServiceCalls, path_segment
from app.client.operations import section_parameters as named_sections
from app.client.transport import (
    RETRYABLE_STATUSES,
    AsyncTransport,
    BlockingTransport,
    Deadline,
    HttpCall,
    Retries,
    ServiceProblem,
    Transport,
    Unreachable,
    retry_after,
    send_with_retries,
    service_problem,
    unreachable_error,
)
from graph.limits import ShapeOverrides
from planner.request.plan_request import parse_request

URL_VARIABLE, KEY_VARIABLE = "REMAT_URL", "REMAT_API_KEY"  # read where the arguments are left out
DEFAULT_URL = "http://127.0.0.1:8000"
PAGE_SIZE = 100
DEFAULT_SEARCH_S = 10.0  # of a search that says nothing
SHAPE_FIELDS = ("inputs", "batch", "dims")


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """One thing that happened to an operation: `state` with the operation, or `progress` with its figures."""

    id: str
    event: str
    data: Json


class AsyncClient:
    """The service at `url`, with an API key where it asks for one.

    `timeout` bounds in seconds how long a connection or an answer may take, `retries` how often a call is sent
    again after 429, 502, 503, 504 or a broken connection. `names_key` keys the hashes of hidden names: the same
    key gives the same hashes, and without it nobody finds out names by trying them. Further arguments go to
    httpx2's client (`transport`, `verify`, `proxy`, ...).
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 60.0,
        retries: int = 6,
        names_key: bytes | None = None,
        **http: Any,
    ):
        options = http_options(url, key, http)
        self.begin(AsyncTransport(httpx2.AsyncClient(**options), timeout), retries, names_key)

    def begin(self, wire: Transport, retries: int, names_key: bytes | None) -> None:
        """Speak over this wire."""
        self._wire, self._questions = wire, ServiceCalls(wire, retries)
        self._names_key = names_key or secrets.token_bytes(32)

    async def aclose(self) -> None:
        """End every connection."""
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def prepare(
        self, /, model: Model | PreparedModel, *, hide_names: bool = False, **shapes: Any
    ) -> PreparedModel:
        """The model as it will be sent: a file, bytes, a document or a Graph, under `inputs`, `batch` and `dims`.

        Reading it once serves several questions. Raises BadGraph, OSError.
        """
        if isinstance(model, PreparedModel):
            return model
        names_key = self._names_key if hide_names else None
        if isinstance(self._wire, BlockingTransport):
            return PreparedModel.of(model, _shapes(shapes), names_key)
        return await anyio.to_thread.run_sync(PreparedModel.of, model, _shapes(shapes), names_key)

    async def post_graph(self, /, model: Model | PreparedModel, **prepared: Any) -> Json:
        """What the service keeps of the graph, its `id` first; takes what `prepare` takes."""
        home = await self.prepare(model, **prepared)
        answer = await self._questions.post("/v1/graphs", home.document)
        return dict(home.restore(answer.json()))

    async def graph(self, graph_id: str, accept: str | None = None) -> Any:
        """The document of a graph, or its bytes in the media type `accept`."""
        return await self._document(f"/v1/graphs/{path_segment(graph_id)}", accept)

    async def analysis(
        self, graph_id: str, *, start: Mapping[str, int] | None = None, before: Sequence[str] = ()
    ) -> Json:
        """Versions, lives, the peak and who holds it, suspicious places; `start` and `before` number versions on."""
        parameters = [("start", f"{name}={n}") for name, n in (start or {}).items()]
        return await self._questions.get(
            f"/v1/graphs/{path_segment(graph_id)}/analysis", parameters + [("before", id) for id in before]
        )

    async def transform(self, /, graph_id: str, name: str, **fields: Any) -> Json:
        """The record of the graph that the pass called `name` makes, or what the pass answers."""
        body = msgspec.json.encode({"pass": name, **fields})
        answer = await self._questions.post(f"/v1/graphs/{path_segment(graph_id)}:transform", body)
        return dict(answer.json())

    async def plan(
        self,
        /,
        model: Model | PreparedModel | None = None,
        *,
        graph_id: str | None = None,
        hide_names: bool = False,
        timeout: float | None = None,
        on_progress: ProgressCallback = None,
        **request: Any,
    ) -> Json:
        """The report of a plan for a model, or for the graph `graph_id` that the service has.

        `request` takes the fields of the wire contract. `on_progress` is called with the operation each time it
        has changed. Raises TimedOut after `timeout` seconds, OperationFailed, Cancelled, ServiceProblem.
        """
        asked = await self._asked("/v1/plans", model, graph_id, hide_names, request)
        return await self._questions.answer(asked, timeout, on_progress)

    async def submit(
        self,
        /,
        model: Model | PreparedModel | None = None,
        *,
        graph_id: str | None = None,
        hide_names: bool = False,
        **request: Any,
    ) -> Json:
        """The operation that will answer the question, or the report where it is known already.

        Both have an `id`; an operation has a `state`. Ask `wait` for its end, then `report` for the plan.
        """
        asked = await self._asked("/v1/plans", model, graph_id, hide_names, request)
        return asked.restore((await self._questions.put(asked, Deadline(None), 0)).json())

    async def curve(
        self,
        /,
        model: Model | PreparedModel | None = None,
        budgets: Sequence[str | int | float] = (),
        *,
        graph_id: str | None = None,
        hide_names: bool = False,
        timeout: float | None = None,
        on_progress: ProgressCallback = None,
        **request: Any,
    ) -> Json:
        """The least time within each budget, and the bound beside it; every point names its plan.

        Waits, and raises, as `plan` does.
        """
        fields = {**request, "budgets": list(budgets)}
        asked = await self._asked("/v1/curves", model, graph_id, hide_names, fields)
        return await self._questions.answer(asked, timeout, on_progress)

    async def fit(
        self,
        /,
        model: Model | PreparedModel | None = None,
        *,
        graph_id: str | None = None,
        hide_names: bool = False,
        timeout: float | None = None,
        on_progress: ProgressCallback = None,
        **request: Any,
    ) -> Json:
        """The largest batch whose step fits `budget` or `fits`. A model read here has no dimension left open.

        Waits, and raises, as `plan` does.
        """
        asked = await self._asked("/v1/fits", model, graph_id, hide_names, request)
        return await self._questions.answer(asked, timeout, on_progress)

    async def pack(
        self,
        buffers: Sequence[Mapping[str, Any]],
        *,
        capacity: int | None = None,
        alignment: int = 1,
        search_seconds: float = DEFAULT_SEARCH_S,
        timeout: float | None = None,
        on_progress: ProgressCallback = None,
    ) -> Json:
        """Offsets of buffers of any origin in one arena, the smallest found, or the first within the capacity.

        Waits, and raises, as `plan` does.
        """
        fields = {
            "buffers": list(buffers),
            "capacity": capacity,
            "alignment": alignment,
            "search_seconds": search_seconds,
        }
        return await self._questions.answer(PendingRequest("/v1/layouts", fields), timeout, on_progress)

    async def get_curve(self, curve_id: str) -> Json:
        """A curve that was found before; `curve_id` may be the path an operation gives."""
        return await self._questions.get(_in("/v1/curves", curve_id))

    async def get_fit(self, fit_id: str) -> Json:
        """A fit that was found before, likewise."""
        return await self._questions.get(_in("/v1/fits", fit_id))

    async def get_packing(self, layout_id: str) -> Json:
        """Offsets that were found before, likewise."""
        return await self._questions.get(_in("/v1/layouts", layout_id))

    async def report(self, plan_id: str, sections: Sequence[str] | None = None) -> Json:
        """The report of a plan, with the sections asked for; `plan_id` may be the path an operation gives."""
        return await self._questions.get(_in("/v1/plans", plan_id), named_sections(sections))

    async def rewritten(self, plan_id: str, accept: str | None = None) -> Any:
        """The rewritten graph as a document, or its bytes in the media type `accept`."""
        return await self._document(f"{_in('/v1/plans', plan_id)}/graph", accept)

    async def source(self, plan_id: str, accept: str | None = None) -> Any:
        """The graph that was planned, after differentiation, likewise."""
        return await self._document(f"{_in('/v1/plans', plan_id)}/source", accept)

    async def layout(self, plan_id: str) -> Json:
        """Where every value lies."""
        return await self._questions.get(f"{_in('/v1/plans', plan_id)}/layout")

    async def timeline(self, plan_id: str) -> Json:
        """Bytes of every step, before and after."""
        return await self._questions.get(f"{_in('/v1/plans', plan_id)}/timeline")

    async def operation(self, operation_id: str) -> Json:
        """State and progress."""
        return await self._questions.get(f"/v1/operations/{path_segment(operation_id)}")

    async def operations(self, state: str | None = None, page: int = PAGE_SIZE) -> AsyncGenerator[Json]:
        """Every operation, newest first, fetched a page at a time as they are asked for."""
        async for operation in self._questions.pages(
            "/v1/operations", "operations", [("limit", page), ("state", state)]
        ):
            yield operation

    async def wait(
        self, operation_id: str, *, timeout: float | None = None, on_progress: ProgressCallback = None
    ) -> Json:
        """The operation once it has ended, well or not. Raises TimedOut; the operation goes on then."""
        return await self._questions.ended(
            f"/v1/operations/{path_segment(operation_id)}", Deadline(timeout), on_progress
        )

    async def events(self, operation_id: str, last_event_id: str = "") -> AsyncGenerator[OperationEvent]:
        """What happens to an operation until it ends; a broken stream goes on where it broke."""
        path, last, retries = (
            f"/v1/operations/{path_segment(operation_id)}/events",
            last_event_id,
            self._questions.tries(),
        )
        while True:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
            call, told = HttpCall("GET", path, headers=headers), None
            try:
                async with self._wire.stream(call) as (answer, events):
                    if answer.status in RETRYABLE_STATUSES:
                        told = retry_after(answer.headers) or 0.0
                    elif answer.status >= 400:
                        raise service_problem(answer)
                    elif answer.status == 200:
                        async with aclosing(events):
                            async for said in events:
                                retries.reset()
                                last = said.id or last
                                event = OperationEvent(last, said.event, msgspec.json.decode(said.data))
                                yield event
                                if event.data.get("state") in FINISHED:
                                    return
            except httpx2.TransportError as error:
                pause = retries.pause()
                if pause is None:
                    raise unreachable_error(call, retries, error) from error
            else:
                operation = await self.operation(operation_id)
                if operation["state"] in FINISHED:  # a restart of the service may have begun to count anew
                    yield OperationEvent(last, "state", operation)
                    return
                pause = retries.pause(told)
                if pause is None:
                    raise Unreachable(f"GET {path}: {retries.tries + 1} streams ended before the operation did")
            await self._wire.pause(pause)

    async def cancel(self, operation_id: str) -> Json:
        """The operation, asked to stop; it keeps its best so far."""
        call = HttpCall("POST", f"/v1/operations/{path_segment(operation_id)}:cancel")  # the same twice, without a key
        return dict((await send_with_retries(self._wire, call, self._questions.tries())).json())

    async def batch(
        self,
        /,
        models: Sequence[Model | PreparedModel] = (),
        budgets: Sequence[str | int | float] = (),
        *,
        graph_ids: Sequence[str] = (),
        planners: Sequence[str] = (),
        seeds: Sequence[int] = (),
        timeout: float | None = None,
        on_progress: ProgressCallback = None,
        **request: Any,
    ) -> Json:
        """The batch, once every combination of models, budgets, planners and seeds has been planned, or has failed.

        `graph_ids` are of graphs that the service has; `items` and `table` tell what came of each. `on_progress` is
        called with the batch each time it has changed. Raises TimedOut after `timeout` seconds: `wait_batch` goes on.
        """
        deadline, shapes = Deadline(timeout), {name: request.pop(name, None) for name in SHAPE_FIELDS if models}
        ids = [
            (await self.post_graph(model, **({} if isinstance(model, PreparedModel) else shapes)))["id"]
            for model in models
        ]
        every = list(dict.fromkeys([*ids, *graph_ids]))
        started = await self.start_batch(every, budgets=budgets, planners=planners, seeds=seeds, **request)
        return await self._questions.ended(f"/v1/batches/{path_segment(started['id'])}", deadline, on_progress)

    async def start_batch(
        self,
        /,
        graph_ids: Sequence[str],
        *,
        budgets: Sequence[str | int | float] = (),
        planners: Sequence[str] = (),
        seeds: Sequence[int] = (),
        idempotency_key: str | None = None,
        **request: Any,
    ) -> Json:
        """The batch of every combination, begun: `wait_batch` waits for its end, whoever has begun it.

        With an `idempotency_key` the same question is the same batch, also much later.
        """
        axes = {"budgets": list(budgets), "planners": list(planners), "seeds": list(seeds)}
        asked = {"graph_ids": list(graph_ids), **{axis: given for axis, given in axes.items() if given}, **request}
        return dict((await self._questions.post("/v1/batches", msgspec.json.encode(asked), key=idempotency_key)).json())

    async def batch_status(self, batch_id: str) -> Json:
        """The batch as it stands: `items` says how many are in each state, `done` of `total` have ended."""
        return await self._questions.get(f"/v1/batches/{path_segment(batch_id)}")

    async def batches(self, state: str | None = None, page: int = PAGE_SIZE) -> AsyncGenerator[Json]:
        """Every batch, newest first, fetched a page at a time as they are asked for."""
        async for batch in self._questions.pages("/v1/batches", "batches", [("limit", page), ("state", state)]):
            yield batch

    async def wait_batch(
        self, batch_id: str, *, timeout: float | None = None, on_progress: ProgressCallback = None
    ) -> Json:
        """The batch once it has ended. Raises TimedOut; the batch goes on then, and may be waited for again."""
        return await self._questions.ended(f"/v1/batches/{path_segment(batch_id)}", Deadline(timeout), on_progress)

    async def items(
        self, batch_id: str, state: str | None = None, page: int = PAGE_SIZE, after: int | None = None
    ) -> AsyncGenerator[Json]:
        """Every item of a batch past number `after`, with what its plan says, fetched a page at a time."""
        path, cursor = f"/v1/batches/{path_segment(batch_id)}/items", None if after is None else str(after)
        async for item in self._questions.pages(path, "items", [("limit", page), ("state", state)], cursor):
            yield item

    async def table(self, batch_id: str, format: str = "csv", state: str | None = None) -> bytes:
        """Every item of a batch as a file, "csv" or "parquet"."""
        given = [("format", format), ("state", state)]
        path = f"/v1/batches/{path_segment(batch_id)}/items"
        call = HttpCall("GET", path, [pair for pair in given if pair[1] is not None], {"Accept": "*/*"})
        return (await send_with_retries(self._wire, call, self._questions.tries())).body

    async def cancel_batch(self, batch_id: str) -> Json:
        """The batch, asked to stop: what waits ends at once, what runs soon."""
        call = HttpCall("POST", f"/v1/batches/{path_segment(batch_id)}:cancel")  # the same twice, without a key
        return dict((await send_with_retries(self._wire, call, self._questions.tries())).json())

    async def retry_batch(self, batch_id: str) -> Json:
        """The batch, whose failed and cancelled items are solved again."""
        call = HttpCall("POST", f"/v1/batches/{path_segment(batch_id)}:retry")
        return dict((await send_with_retries(self._wire, call, self._questions.tries())).json())

    async def savings(self, *group_by: str, since: str | None = None, until: str | None = None) -> list[Json]:
        """A row a group of plans first made in [since, until): of model (unless said), planner, budget and day."""
        given = (("group_by", ",".join(group_by) or None), ("from", since), ("to", until))
        return list((await self._questions.get("/v1/savings", [pair for pair in given if pair[1] is not None]))["rows"])

    async def planners(self) -> list[Json]:
        """Names and first words of every planner."""
        return list((await self._questions.get("/v1/planners"))["planners"])

    async def devices(self) -> list[Json]:
        """Every device profile."""
        return list((await self._questions.get("/v1/devices"))["devices"])

    async def schema(self, name: str) -> Json:
        """A JSON Schema: document, columns, request, report, transform, operation or problem."""
        return await self._questions.get(f"/v1/schemas/{path_segment(name)}")

    async def version(self) -> Json:
        """Versions of the service and of what plans depend on."""
        return await self._questions.get("/version")

    async def ready(self) -> bool:
        """Whether the service takes work now."""
        try:
            await send_with_retries(self._wire, HttpCall("GET", "/readyz"), Retries(0, Deadline(None)))
        except (ServiceProblem, Unreachable):
            return False
        return True

    async def _document(self, path: str, accept: str | None) -> Any:
        call = HttpCall("GET", path, headers={"Accept": accept or "application/json"})
        answer = await send_with_retries(self._wire, call, self._questions.tries())
        return answer.body if accept else answer.json()

    async def _asked(
        self,
        path: str,
        model: Model | PreparedModel | None,
        graph_id: str | None,
        hide_names: bool,
        request: Mapping[str, Any],
    ) -> PendingRequest:
        """The fields that are sent, and what is known of the model here."""
        if (model is None) == (graph_id is None):
            raise TypeError("give a model, or the graph_id of one the service has")
        fields = dict(request)
        if model is None:
            return PendingRequest(path, {"graph_id": graph_id, **fields})
        shapes = {} if isinstance(model, PreparedModel) else {name: fields.pop(name, None) for name in SHAPE_FIELDS}
        home = await self.prepare(model, hide_names=hide_names, **shapes)
        return PendingRequest(path, {"graph": msgspec.Raw(home.document), **home.fields(fields)}, home)


def _shapes(given: Mapping[str, Any]) -> ShapeOverrides:
    """Shapes as a request says them: lengths, or text such as 16x3x224x224. Raises BadRequest, TypeError."""
    if unknown := set(given) - set(SHAPE_FIELDS):
        raise TypeError(f"{', '.join(sorted(unknown))}: not among {', '.join(SHAPE_FIELDS)} and hide_names")
    request = parse_request({name: said for name, said in given.items() if said is not None})
    return ShapeOverrides(request.inputs, request.batch, request.dims)


def http_options(url: str | None, key: str | None, http: dict[str, Any]) -> dict[str, Any]:
    key = key if key is not None else os.environ.get(KEY_VARIABLE)
    headers = dict(http.pop("headers", {}))
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return {"base_url": url or os.environ.get(URL_VARIABLE) or DEFAULT_URL, "headers": headers, **http}


def _in(collection: str, id: str) -> str:
    """The path of a thing, of which the id is given or the path itself."""
    return f"{collection}/{path_segment(id.removeprefix(f'{collection}/'))}"
