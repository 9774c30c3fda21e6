"""Async client: `await client.plan(...)`. The blocking client is in `app/client/blocking.py`."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
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
    checked_url,
    retry_after,
    send_with_retries,
    service_problem,
    unreachable_error,
)
from graph.limits import ShapeOverrides
from planner.request.field_kinds import DEFAULT_SEARCH_SECONDS, SHAPE_KINDS
from planner.request.plan_request import parse_request

URL_VARIABLE, KEY_VARIABLE = "REMAT_URL", "REMAT_API_KEY"  # defaults of the arguments `url` and `key`
DEFAULT_URL = "http://127.0.0.1:8000"
PAGE_SIZE = 100
SHAPE_FIELDS = (*SHAPE_KINDS, "max")


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """Event of an operation: `state` with the operation, or `progress` with its figures."""

    id: str
    event: str
    data: Json


class AsyncClient:
    """Client of the service at `url`, with an API key if the service requires one.

    `timeout` limits a connection or a response, in seconds; `retries` limits the retries of a call after 429, 502,
    503, 504 or a broken connection. `names_key` is the secret key of name hashes: the same key gives the same hashes,
    and names cannot be guessed without it; default: a random key. Further arguments go to the httpx2 client
    (`transport`, `verify`, `proxy`, ...).
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
        self._connect(AsyncTransport(httpx2.AsyncClient(**options), timeout), retries, names_key)

    def _connect(self, wire: Transport, retries: int, names_key: bytes | None) -> None:
        """Use this transport."""
        self._wire, self._calls = wire, ServiceCalls(wire, retries)
        self._names_key = names_key or secrets.token_bytes(32)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def prepare(
        self, /, model: Model | PreparedModel, *, name: str | None = None, hide_names: bool = False, **shapes: Any
    ) -> PreparedModel:
        """Prepare a model (file, bytes, document or Graph) with the shapes `inputs`, `batch`, `dims` and `max`.

        It is called `name`; by default as its file, or as the graph says. A model prepared once can be sent in several
        requests. Raises BadGraph, OSError.
        """
        if isinstance(model, PreparedModel):
            if name is not None:
                raise TypeError("a prepared model has a name; give `name` to `prepare`")
            return model
        names_key = self._names_key if hide_names else None
        if isinstance(self._wire, BlockingTransport):
            return PreparedModel.of(model, _shapes(shapes), names_key, name)
        return await anyio.to_thread.run_sync(PreparedModel.of, model, _shapes(shapes), names_key, name)

    async def post_graph(self, /, model: Model | PreparedModel, **prepared: Any) -> Json:
        """Post a graph; its record with `id`. Takes the arguments of `prepare`."""
        prepared_model = await self.prepare(model, **prepared)
        response = await self._calls.post("/v1/graphs", prepared_model.document)
        return dict(prepared_model.restore(response.json()))

    async def graph(self, graph_id: str, accept: str | None = None) -> Any:
        """Document of a graph, or its bytes in the media type `accept`."""
        return await self._document(f"/v1/graphs/{path_segment(graph_id)}", accept)

    async def graphs(self, /, **filters: Any) -> AsyncGenerator[Json]:
        """All graphs, newest first, fetched page by page on demand; filters `name`, `format`, `created_after`."""
        async for graph in self._calls.pages("/v1/graphs", "graphs", _list_parameters(filters)):
            yield graph

    async def delete_graph(self, graph_id: str) -> None:
        """Delete a graph with its plans, curves, fits, operations and files; other owners of the graph keep it."""
        call = HttpCall("DELETE", _in("/v1/graphs", graph_id))
        await send_with_retries(self._wire, call, self._calls.new_retries())

    async def analysis(
        self, graph_id: str, *, start: Mapping[str, int] | None = None, before: Sequence[str] = ()
    ) -> Json:
        """Versions of names, live ranges, peak and lints of a graph.

        Version numbers continue from `start` and from the final versions of the graphs `before`.
        """
        parameters = [("start", f"{name}={n}") for name, n in (start or {}).items()]
        return await self._calls.get(
            f"/v1/graphs/{path_segment(graph_id)}/analysis", parameters + [("before", id) for id in before]
        )

    async def transform(self, /, graph_id: str, name: str, **fields: Any) -> Json:
        """Apply the pass `name`: the record of the new graph, or the result of a query."""
        body = msgspec.json.encode({"pass": name, **fields})
        response = await self._calls.post(f"/v1/graphs/{path_segment(graph_id)}:transform", body)
        return dict(response.json())

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
        """Plan a model, or the graph `graph_id` of the service; the report.

        `request` takes the request fields (docs/reference/request-fields.md). `on_progress` is called with the
        operation after each change. `hide_names` sends hashes instead of names. Raises TimedOut after `timeout`
        seconds, OperationFailed, OperationCancelled, ServiceProblem.
        """
        pending = await self._pending_request("/v1/plans", model, graph_id, hide_names, request)
        return await self._calls.result(pending, timeout, on_progress)

    async def submit(
        self,
        /,
        model: Model | PreparedModel | None = None,
        *,
        graph_id: str | None = None,
        hide_names: bool = False,
        **request: Any,
    ) -> Json:
        """Submit a plan request without waiting: its operation, or the report if the plan is stored already.

        Both have an `id`; only an operation has a `state`. `wait` awaits its end, `report` fetches the plan.
        """
        pending = await self._pending_request("/v1/plans", model, graph_id, hide_names, request)
        return pending.restore((await self._calls.submit(pending, Deadline(None), 0)).json())

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
        """Plan several budgets: minimum time, lower bound and plan of each. Waits and raises like `plan`."""
        fields = {**request, "budgets": list(budgets)}
        pending = await self._pending_request("/v1/curves", model, graph_id, hide_names, fields)
        return await self._calls.result(pending, timeout, on_progress)

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
        """Find the largest batch whose training step fits `budget` or `fits`. Waits and raises like `plan`.

        Reading a model here fixes its symbolic dimensions; post its file and pass `graph_id` to keep them.
        """
        pending = await self._pending_request("/v1/fits", model, graph_id, hide_names, request)
        return await self._calls.result(pending, timeout, on_progress)

    async def pack(
        self,
        buffers: Sequence[Mapping[str, Any]],
        *,
        capacity: int | None = None,
        alignment: int = 1,
        search_seconds: float = DEFAULT_SEARCH_SECONDS,
        timeout: float | None = None,
        on_progress: ProgressCallback = None,
    ) -> Json:
        """Assign offsets to buffers: the smallest arena found, or the first one within `capacity` bytes.

        Waits and raises like `plan`.
        """
        fields = {
            "buffers": list(buffers),
            "capacity": capacity,
            "alignment": alignment,
            "search_seconds": search_seconds,
        }
        return await self._calls.result(PendingRequest("/v1/layouts", fields), timeout, on_progress)

    async def plans(self, /, **filters: Any) -> AsyncGenerator[Json]:
        """Figures of all plans, newest first.

        Filters `graph_id`, `model`, `planner`, `status`, `tag`, `created_after`.
        """
        async for plan in self._calls.pages("/v1/plans", "plans", _list_parameters(filters)):
            yield plan

    async def curves(self, /, **filters: Any) -> AsyncGenerator[Json]:
        """Ids and models of all curves, newest first; filters `graph_id`, `created_after`."""
        async for curve in self._calls.pages("/v1/curves", "curves", _list_parameters(filters)):
            yield curve

    async def fits(self, /, **filters: Any) -> AsyncGenerator[Json]:
        """Ids, models and sizes of all fits, newest first; filters `graph_id`, `created_after`."""
        async for fit in self._calls.pages("/v1/fits", "fits", _list_parameters(filters)):
            yield fit

    async def packings(self, /, **filters: Any) -> AsyncGenerator[Json]:
        """Ids of all layouts, newest first; filter `created_after`."""
        async for layout in self._calls.pages("/v1/layouts", "layouts", _list_parameters(filters)):
            yield layout

    async def get_curve(self, curve_id: str) -> Json:
        """A stored curve; `curve_id` is its id, or the result path of its operation."""
        return await self._calls.get(_in("/v1/curves", curve_id))

    async def get_fit(self, fit_id: str) -> Json:
        """A stored fit, by id or path."""
        return await self._calls.get(_in("/v1/fits", fit_id))

    async def get_packing(self, layout_id: str) -> Json:
        """A stored layout, by id or path."""
        return await self._calls.get(_in("/v1/layouts", layout_id))

    async def report(self, plan_id: str, sections: Sequence[str] | None = None) -> Json:
        """Report of a stored plan with the given sections; `plan_id` is its id, or the result path of its operation."""
        return await self._calls.get(_in("/v1/plans", plan_id), named_sections(sections))

    async def rewritten(self, plan_id: str, accept: str | None = None) -> Any:
        """Rewritten graph of a plan as a document, or its bytes in the media type `accept`."""
        return await self._document(f"{_in('/v1/plans', plan_id)}/graph", accept)

    async def source(self, plan_id: str, accept: str | None = None) -> Any:
        """Source graph of a plan, after differentiation, as a document or as bytes."""
        return await self._document(f"{_in('/v1/plans', plan_id)}/source", accept)

    async def certificate(self, plan_id: str) -> Json:
        """Certificate of a plan's lower bound: format and claims."""
        return await self._calls.get(f"{_in('/v1/plans', plan_id)}/certificate")

    async def layout(self, plan_id: str) -> Json:
        """Offset of every value of a plan."""
        return await self._calls.get(f"{_in('/v1/plans', plan_id)}/layout")

    async def timeline(self, plan_id: str) -> Json:
        """Bytes live at every step, before and after planning."""
        return await self._calls.get(f"{_in('/v1/plans', plan_id)}/timeline")

    async def add_measurement(self, plan_id: str, measurement: Mapping[str, Any] | bytes) -> Json:
        """Store a measurement of a plan: the document of `remat measure`, or a pickled memory snapshot of PyTorch."""
        path = f"{_in('/v1/plans', plan_id)}/measurements"
        if isinstance(measurement, bytes):
            response = await self._calls.post(path, measurement, media_type="application/octet-stream")
        else:
            response = await self._calls.post(path, msgspec.json.encode(measurement))
        return dict(response.json())

    async def measurements(self, plan_id: str) -> list[Json]:
        """Measurements of a plan, newest first."""
        return list((await self._calls.get(f"{_in('/v1/plans', plan_id)}/measurements"))["measurements"])

    async def annotate(self, plan_id: str, *, tags: Sequence[str] | None = None, note: str | None = None) -> Json:
        """Replace the tags and the note of a plan, each unless None; returns both as stored."""
        change = {name: value for name, value in (("tags", tags), ("note", note)) if value is not None}
        headers = {"Content-Type": "application/json"}
        call = HttpCall("PATCH", _in("/v1/plans", plan_id), headers=headers, content=msgspec.json.encode(change))
        return dict((await send_with_retries(self._wire, call, self._calls.new_retries())).json())

    async def operation(self, operation_id: str) -> Json:
        """State and progress of an operation."""
        return await self._calls.get(f"/v1/operations/{path_segment(operation_id)}")

    async def operations(self, state: str | None = None, page: int = PAGE_SIZE) -> AsyncGenerator[Json]:
        """All operations, newest first, fetched page by page on demand."""
        async for operation in self._calls.pages("/v1/operations", "operations", [("limit", page), ("state", state)]):
            yield operation

    async def wait(
        self, operation_id: str, *, timeout: float | None = None, on_progress: ProgressCallback = None
    ) -> Json:
        """Wait for the end of an operation. Raises TimedOut; the operation continues then."""
        return await self._calls.finished(
            f"/v1/operations/{path_segment(operation_id)}", Deadline(timeout), on_progress
        )

    async def events(self, operation_id: str, last_event_id: str = "") -> AsyncGenerator[OperationEvent]:
        """Events of an operation until it ends; a broken stream is resumed."""
        path, last, retries = (
            f"/v1/operations/{path_segment(operation_id)}/events",
            last_event_id,
            self._calls.new_retries(),
        )
        while True:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
            call, minimum_pause = HttpCall("GET", path, headers=headers), None
            try:
                async with self._wire.stream(call) as (response, events):
                    if response.status in RETRYABLE_STATUSES:
                        minimum_pause = retry_after(response.headers) or 0.0
                    elif response.status >= 400:
                        raise service_problem(response)
                    elif response.status == 200:
                        async with aclosing(events):
                            async for sent in events:
                                retries.reset()
                                last = sent.id or last
                                event = OperationEvent(last, sent.event, msgspec.json.decode(sent.data))
                                yield event
                                if event.data.get("state") in FINISHED:
                                    return
            except httpx2.TransportError as error:
                pause = retries.pause()
                if pause is None:
                    raise unreachable_error(call, retries, error) from error
            else:
                operation = await self.operation(operation_id)
                if operation["state"] in FINISHED:  # event ids restart with the service
                    yield OperationEvent(last, "state", operation)
                    return
                pause = retries.pause(minimum_pause)
                if pause is None:
                    raise Unreachable(f"GET {path}: {retries.tries + 1} event streams ended before the operation")
            await self._wire.pause(pause)

    async def retry(self, operation_id: str) -> Json:
        """Submit the request of an operation a second time; the new operation."""
        call = HttpCall("POST", f"/v1/operations/{path_segment(operation_id)}:retry")  # joins an unfinished operation
        return dict((await send_with_retries(self._wire, call, self._calls.new_retries())).json())

    async def cancel(self, operation_id: str) -> Json:
        """Cancel an operation; its best result so far is kept."""
        call = HttpCall("POST", f"/v1/operations/{path_segment(operation_id)}:cancel")  # idempotent without a key
        return dict((await send_with_retries(self._wire, call, self._calls.new_retries())).json())

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
        """Plan every combination of models, budgets, planners and seeds; the batch after its last item has ended.

        `graph_ids` adds graphs of the service; `items` and `table` list the results. `on_progress` is called with the
        batch after each change. Raises TimedOut after `timeout` seconds; `wait_batch` waits longer.
        """
        _require_lists(models=models, graph_ids=graph_ids, budgets=budgets, planners=planners, seeds=seeds)
        deadline, shapes = Deadline(timeout), {name: request.pop(name, None) for name in SHAPE_FIELDS if models}
        ids = [
            (await self.post_graph(model, **({} if isinstance(model, PreparedModel) else shapes)))["id"]
            for model in models
        ]
        every = list(dict.fromkeys([*ids, *graph_ids]))
        started = await self.start_batch(every, budgets=budgets, planners=planners, seeds=seeds, **request)
        return await self._calls.finished(f"/v1/batches/{path_segment(started['id'])}", deadline, on_progress)

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
        """Start a batch without waiting; `wait_batch` waits for its end, from any process.

        Equal requests with the same `idempotency_key` return the same batch.
        """
        _require_lists(graph_ids=graph_ids, budgets=budgets, planners=planners, seeds=seeds)
        axes = {"budgets": list(budgets), "planners": list(planners), "seeds": list(seeds)}
        fields = {"graph_ids": list(graph_ids), **{axis: given for axis, given in axes.items() if given}, **request}
        return dict((await self._calls.post("/v1/batches", msgspec.json.encode(fields), key=idempotency_key)).json())

    async def batch_status(self, batch_id: str) -> Json:
        """Current state of a batch: `items` counts items per state; `done` of `total` have ended."""
        return await self._calls.get(f"/v1/batches/{path_segment(batch_id)}")

    async def batches(self, state: str | None = None, page: int = PAGE_SIZE) -> AsyncGenerator[Json]:
        """All batches, newest first, fetched page by page on demand."""
        async for batch in self._calls.pages("/v1/batches", "batches", [("limit", page), ("state", state)]):
            yield batch

    async def wait_batch(
        self, batch_id: str, *, timeout: float | None = None, on_progress: ProgressCallback = None
    ) -> Json:
        """Wait for the end of a batch. Raises TimedOut; the batch continues then."""
        return await self._calls.finished(f"/v1/batches/{path_segment(batch_id)}", Deadline(timeout), on_progress)

    async def items(
        self, batch_id: str, state: str | None = None, page: int = PAGE_SIZE, after: int | None = None
    ) -> AsyncGenerator[Json]:
        """Items of a batch after number `after`, with figures of their plans, fetched page by page on demand."""
        path, cursor = f"/v1/batches/{path_segment(batch_id)}/items", None if after is None else str(after)
        async for item in self._calls.pages(path, "items", [("limit", page), ("state", state)], cursor):
            yield item

    async def table(self, batch_id: str, format: str = "csv", state: str | None = None) -> bytes:
        """All items of a batch as a file; `format` is "csv" or "parquet"."""
        given = [("format", format), ("state", state)]
        path = f"/v1/batches/{path_segment(batch_id)}/items"
        call = HttpCall("GET", path, [pair for pair in given if pair[1] is not None], {"Accept": "*/*"})
        return (await send_with_retries(self._wire, call, self._calls.new_retries())).body

    async def cancel_batch(self, batch_id: str) -> Json:
        """Cancel a batch: queued items end at once, running ones at their next check."""
        call = HttpCall("POST", f"/v1/batches/{path_segment(batch_id)}:cancel")  # idempotent without a key
        return dict((await send_with_retries(self._wire, call, self._calls.new_retries())).json())

    async def retry_batch(self, batch_id: str) -> Json:
        """Retry the failed and cancelled items of a batch."""
        call = HttpCall("POST", f"/v1/batches/{path_segment(batch_id)}:retry")
        return dict((await send_with_retries(self._wire, call, self._calls.new_retries())).json())

    async def savings(self, *group_by: str, since: str | None = None, until: str | None = None) -> list[Json]:
        """Savings of the plans first made in [since, until), one row per group.

        `group_by`: model (default), planner, budget, day.
        """
        given = (("group_by", ",".join(group_by) or None), ("from", since), ("to", until))
        return list((await self._calls.get("/v1/savings", [pair for pair in given if pair[1] is not None]))["rows"])

    async def planners(self) -> list[Json]:
        """Name and summary of every planner."""
        return list((await self._calls.get("/v1/planners"))["planners"])

    async def devices(self) -> list[Json]:
        """All device profiles."""
        return list((await self._calls.get("/v1/devices"))["devices"])

    async def me(self) -> Json:
        """Tenant, key, scopes, quotas and their use."""
        return await self._calls.get("/v1/me")

    async def schema(self, name: str) -> Json:
        """A JSON Schema: document, columns, request, report, transform, operation or problem."""
        return await self._calls.get(f"/v1/schemas/{path_segment(name)}")

    async def version(self) -> Json:
        """Versions of the service and of the libraries that plans depend on."""
        return await self._calls.get("/version")

    async def ready(self) -> bool:
        """Whether the service accepts work."""
        try:
            await send_with_retries(self._wire, HttpCall("GET", "/readyz"), Retries(0, Deadline(None)))
        except (ServiceProblem, Unreachable):
            return False
        return True

    async def _document(self, path: str, accept: str | None) -> Any:
        call = HttpCall("GET", path, headers={"Accept": accept or "application/json"})
        response = await send_with_retries(self._wire, call, self._calls.new_retries())
        return response.body if accept else response.json()

    async def _pending_request(
        self,
        path: str,
        model: Model | PreparedModel | None,
        graph_id: str | None,
        hide_names: bool,
        request: Mapping[str, Any],
    ) -> PendingRequest:
        """Request of a model or a graph id; its name and shapes apply to the model here and are not sent."""
        if (model is None) == (graph_id is None):
            raise TypeError("pass either a model or the graph_id of a posted graph")
        fields = dict(request)
        if model is None:
            return PendingRequest(path, {"graph_id": graph_id, **fields})
        own = () if isinstance(model, PreparedModel) else ("name", *SHAPE_FIELDS)
        prepared = await self.prepare(model, hide_names=hide_names, **{name: fields.pop(name, None) for name in own})
        return PendingRequest(path, {"graph": msgspec.Raw(prepared.document), **prepared.fields(fields)}, prepared)


def _shapes(given: Mapping[str, Any]) -> ShapeOverrides:
    """Shape overrides of request fields: lengths, or text such as 16x3x224x224. Raises BadRequest, TypeError."""
    if unknown := set(given) - set(SHAPE_FIELDS):
        known = ", ".join((*SHAPE_FIELDS, "name", "hide_names"))
        raise TypeError(f"unexpected arguments {', '.join(sorted(unknown))}; known: {known}")
    request = parse_request({name: value for name, value in given.items() if value is not None})
    return ShapeOverrides(request.inputs, request.batch, request.dims, max=request.max)


def http_options(url: str | None, key: str | None, http: dict[str, Any]) -> dict[str, Any]:
    key = key if key is not None else os.environ.get(KEY_VARIABLE)
    headers = dict(http.pop("headers", {}))
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return {"base_url": service_url(url), "headers": headers, **http}


def service_url(given: str | None) -> str:
    """The URL that is given, else that of the environment, else of this machine. Raises InvalidUrl."""
    if given:
        return checked_url(given, "url")
    return checked_url(os.environ.get(URL_VARIABLE) or DEFAULT_URL, URL_VARIABLE)


def _require_lists(**given: Any) -> None:
    """Return if none of the arguments is one entry instead of a list of them. Raises TypeError."""
    for name, value in given.items():
        if isinstance(value, str | bytes | Mapping | int | float) or not isinstance(value, Iterable):
            shown = repr(value)[:80]
            raise TypeError(f"{name}: found {shown}, expected a list; write {name}=[{shown}]")


def _list_parameters(filters: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Query parameters of a list; the service refuses unknown ones."""
    return [("limit", PAGE_SIZE), *filters.items()]


def _in(collection: str, id: str) -> str:
    """Path of a resource in `collection`, from its id or its path."""
    return f"{collection}/{path_segment(id.removeprefix(f'{collection}/'))}"
