"""Python client of the HTTP service: blocking `Client`, and `AsyncClient` with the same methods.

with Client("https://remat.example", key="...") as client:
    report = client.plan("model.onnx", budget="8GiB", hide_names=True)

Weights are never sent, and names only as hashes with `hide_names`; responses refer to the caller's model. Temporary
errors are retried under one idempotency key, so that no request is executed twice.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx2

from app.client.anonymize import PreparedModel
from app.client.asynchronous import AsyncClient, OperationEvent, http_options
from app.client.progress_bar import progress_bar
from app.client.transport import (
    BlockingTransport,
    ClientError,
    InvalidUrl,
    OperationCancelled,
    OperationFailed,
    ServiceProblem,
    TimedOut,
    Unreachable,
)

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "InvalidUrl",
    "OperationCancelled",
    "OperationEvent",
    "OperationFailed",
    "PreparedModel",
    "ServiceProblem",
    "TimedOut",
    "Unreachable",
    "progress_bar",
]

P = ParamSpec("P")
T = TypeVar("T")


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("a blocking transport suspended")


def _iterate(events: AsyncGenerator[T]) -> Iterator[T]:
    """Items of an async generator that never suspends."""
    try:
        while True:
            try:
                yield _run(events.__anext__())
            except StopAsyncIteration:
                return
    finally:
        _run(events.aclose())


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """The blocking method of `Client` for a method of `AsyncClient`."""

    @functools.wraps(method)
    def blocking(self: Client, /, *args: P.args, **named: P.kwargs) -> T:
        return _run(method(self._client, *args, **named))

    return blocking


def _streamed(
    method: Callable[Concatenate[AsyncClient, P], AsyncGenerator[T]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """The iterator method of `Client` for an async generator of `AsyncClient`."""

    @functools.wraps(method)
    def streamed(self: Client, /, *args: P.args, **named: P.kwargs) -> Iterator[T]:
        return _iterate(method(self._client, *args, **named))

    return streamed


class Client:
    """Blocking client: arguments, methods and results of `AsyncClient`, with iterators for streams."""

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
        self._client = AsyncClient.__new__(AsyncClient)
        self._client._connect(BlockingTransport(httpx2.Client(**options), timeout), retries, names_key)

    def close(self) -> None:
        """Close all connections."""
        _run(self._client.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    prepare = _blocking(AsyncClient.prepare)
    post_graph = _blocking(AsyncClient.post_graph)
    graph = _blocking(AsyncClient.graph)
    graphs = _streamed(AsyncClient.graphs)
    delete_graph = _blocking(AsyncClient.delete_graph)
    analysis = _blocking(AsyncClient.analysis)
    transform = _blocking(AsyncClient.transform)
    plan = _blocking(AsyncClient.plan)
    submit = _blocking(AsyncClient.submit)
    curve = _blocking(AsyncClient.curve)
    fit = _blocking(AsyncClient.fit)
    pack = _blocking(AsyncClient.pack)
    plans = _streamed(AsyncClient.plans)
    curves = _streamed(AsyncClient.curves)
    fits = _streamed(AsyncClient.fits)
    packings = _streamed(AsyncClient.packings)
    get_curve = _blocking(AsyncClient.get_curve)
    get_fit = _blocking(AsyncClient.get_fit)
    get_packing = _blocking(AsyncClient.get_packing)
    report = _blocking(AsyncClient.report)
    rewritten = _blocking(AsyncClient.rewritten)
    source = _blocking(AsyncClient.source)
    certificate = _blocking(AsyncClient.certificate)
    layout = _blocking(AsyncClient.layout)
    timeline = _blocking(AsyncClient.timeline)
    add_measurement = _blocking(AsyncClient.add_measurement)
    measurements = _blocking(AsyncClient.measurements)
    annotate = _blocking(AsyncClient.annotate)
    operation = _blocking(AsyncClient.operation)
    operations = _streamed(AsyncClient.operations)
    wait = _blocking(AsyncClient.wait)
    events = _streamed(AsyncClient.events)
    retry = _blocking(AsyncClient.retry)
    cancel = _blocking(AsyncClient.cancel)
    batch = _blocking(AsyncClient.batch)
    start_batch = _blocking(AsyncClient.start_batch)
    batch_status = _blocking(AsyncClient.batch_status)
    batches = _streamed(AsyncClient.batches)
    wait_batch = _blocking(AsyncClient.wait_batch)
    items = _streamed(AsyncClient.items)
    table = _blocking(AsyncClient.table)
    cancel_batch = _blocking(AsyncClient.cancel_batch)
    retry_batch = _blocking(AsyncClient.retry_batch)
    savings = _blocking(AsyncClient.savings)
    planners = _blocking(AsyncClient.planners)
    devices = _blocking(AsyncClient.devices)
    me = _blocking(AsyncClient.me)
    schema = _blocking(AsyncClient.schema)
    version = _blocking(AsyncClient.version)
    ready = _blocking(AsyncClient.ready)
