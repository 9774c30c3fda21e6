"""The HTTP service as Python: `Client` blocks, `AsyncClient` waits; both say and do the same.

with Client("https://remat.example", key="...") as client:
    report = client.plan("model.onnx", budget="8GiB", hide_names=True)

Weights never leave, names only where they may; what is answered speaks of the caller's model. Whatever fails
for a while is sent again, and with one idempotency key, so that nothing is done twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from app.client_async import PAGE, AsyncClient, Event, Json, options_of
from app.client_calls import Blocking, Cancelled, ClientError, OperationFailed, ServiceProblem, TimedOut, Unreachable
from app.client_home import Home, Model

__all__ = [
    "AsyncClient", "Cancelled", "Client", "ClientError", "Event", "Home", "OperationFailed", "ServiceProblem",
    "TimedOut", "Unreachable",
]  # fmt: skip

T = TypeVar("T")


class Client:
    """`AsyncClient` for those who block: the same arguments, methods and answers, and iterators for streams."""

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
        options = options_of(url, key, http)
        self._waiting = AsyncClient.__new__(AsyncClient)
        self._waiting.begin(Blocking(httpx2.Client(**options), timeout), retries, names_key)

    def close(self) -> None:
        """End every connection."""
        _now(self._waiting.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prepare(self, model: Model | Home, *, hide_names: bool = False, **shapes: Any) -> Home:
        return _now(self._waiting.prepare(model, hide_names=hide_names, **shapes))

    def post_graph(self, model: Model | Home, **prepared: Any) -> Json:
        return _now(self._waiting.post_graph(model, **prepared))

    def graph(self, graph_id: str, accept: str | None = None) -> Any:
        return _now(self._waiting.graph(graph_id, accept))

    def analysis(self, graph_id: str, *, start: Mapping[str, int] | None = None, before: Sequence[str] = ()) -> Json:
        return _now(self._waiting.analysis(graph_id, start=start, before=before))

    def transform(self, graph_id: str, name: str, **fields: Any) -> Json:
        return _now(self._waiting.transform(graph_id, name, **fields))

    def plan(
        self,
        model: Model | Home | None = None,
        *,
        graph_id: str | None = None,
        hide_names: bool = False,
        timeout: float | None = None,
        on_progress: Callable[[Json], object] | None = None,
        **request: Any,
    ) -> Json:
        return _now(
            self._waiting.plan(
                model, graph_id=graph_id, hide_names=hide_names, timeout=timeout, on_progress=on_progress, **request
            )
        )

    def submit(
        self,
        model: Model | Home | None = None,
        *,
        graph_id: str | None = None,
        hide_names: bool = False,
        **request: Any,
    ) -> Json:
        return _now(self._waiting.submit(model, graph_id=graph_id, hide_names=hide_names, **request))

    def curve(
        self,
        model: Model | Home | None = None,
        budgets: Sequence[str | int | float] = (),
        *,
        graph_id: str | None = None,
        hide_names: bool = False,
        **request: Any,
    ) -> Json:
        return _now(self._waiting.curve(model, budgets, graph_id=graph_id, hide_names=hide_names, **request))

    def fit(
        self,
        model: Model | Home | None = None,
        *,
        graph_id: str | None = None,
        hide_names: bool = False,
        **request: Any,
    ) -> Json:
        return _now(self._waiting.fit(model, graph_id=graph_id, hide_names=hide_names, **request))

    def report(self, plan_id: str, sections: Sequence[str] | None = None) -> Json:
        return _now(self._waiting.report(plan_id, sections))

    def rewritten(self, plan_id: str, accept: str | None = None) -> Any:
        return _now(self._waiting.rewritten(plan_id, accept))

    def source(self, plan_id: str, accept: str | None = None) -> Any:
        return _now(self._waiting.source(plan_id, accept))

    def layout(self, plan_id: str) -> Json:
        return _now(self._waiting.layout(plan_id))

    def timeline(self, plan_id: str) -> Json:
        return _now(self._waiting.timeline(plan_id))

    def operation(self, operation_id: str) -> Json:
        return _now(self._waiting.operation(operation_id))

    def operations(self, state: str | None = None, page: int = PAGE) -> Iterator[Json]:
        return _each(self._waiting.operations(state, page))

    def wait(
        self,
        operation_id: str,
        *,
        timeout: float | None = None,
        on_progress: Callable[[Json], object] | None = None,
    ) -> Json:
        return _now(self._waiting.wait(operation_id, timeout=timeout, on_progress=on_progress))

    def events(self, operation_id: str, last_event_id: str = "") -> Iterator[Event]:
        return _each(self._waiting.events(operation_id, last_event_id))

    def cancel(self, operation_id: str) -> Json:
        return _now(self._waiting.cancel(operation_id))

    def savings(self, *group_by: str, since: str | None = None, until: str | None = None) -> list[Json]:
        return _now(self._waiting.savings(*group_by, since=since, until=until))

    def planners(self) -> list[Json]:
        return _now(self._waiting.planners())

    def devices(self) -> list[Json]:
        return _now(self._waiting.devices())

    def schema(self, name: str) -> Json:
        return _now(self._waiting.schema(name))

    def version(self) -> Json:
        return _now(self._waiting.version())

    def ready(self) -> bool:
        return _now(self._waiting.ready())


for _name, _method in vars(Client).items():  # said once, above
    if not _name.startswith("_") and _method.__doc__ is None:
        _method.__doc__ = getattr(AsyncClient, _name).__doc__


def _now(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine that never suspends comes to."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("a blocking wire has suspended")


def _each(events: AsyncGenerator[T]) -> Iterator[T]:
    """The items of an async generator that never suspends."""
    try:
        while True:
            try:
                yield _now(events.__anext__())
            except StopAsyncIteration:
                return
    finally:
        _now(events.aclose())
