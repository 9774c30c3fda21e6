"""Requests of a client: post one, wait for its operation, return its result or raise."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec
import zstandard

from app.client.anonymize import PreparedModel
from app.client.transport import (
    Deadline,
    HttpCall,
    HttpResponse,
    OperationCancelled,
    OperationFailed,
    Retries,
    ServiceProblem,
    TimedOut,
    Transport,
    retry_after,
    send_with_retries,
)
from app.render.notebook_document import NotebookDocument

FINISHED = frozenset({"succeeded", "failed", "cancelled"})
WAIT_S = 20  # wait in the Prefer header of a POST; proxies close connections that are idle for longer
POLL_S = 1.0
COMPRESSED_BYTES = 1 << 10  # minimum size of a body that is compressed with zstd

Json = dict[str, Any]
ProgressCallback = Callable[[Json], object] | None


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """Path and fields of a POST, and the model that restores names in the response."""

    path: str
    fields: Mapping[str, Any]
    model: PreparedModel | None = None

    def restore(self, data: Any) -> Json:
        """Response data with the caller's names."""
        return NotebookDocument(data if self.model is None else self.model.restore(data))


@dataclass(frozen=True, slots=True)
class ServiceCalls:
    """Calls of the service over one transport, with retries."""

    wire: Transport
    retries: int

    def new_retries(self, deadline: Deadline | None = None) -> Retries:
        return Retries(self.retries, deadline or Deadline(None))

    async def get(self, path: str, parameters: Sequence[tuple[str, Any]] = ()) -> Json:
        call = HttpCall("GET", path, list(parameters), {"Accept": "application/json, application/schema+json"})
        return NotebookDocument((await send_with_retries(self.wire, call, self.new_retries())).json())

    async def post(
        self,
        path: str,
        body: bytes,
        deadline: Deadline | None = None,
        wait: float | None = None,
        key: str | None = None,
        media_type: str = "application/json",
    ) -> HttpResponse:
        """Response to a POST, whose retries share one idempotency key; default: a random key."""
        headers = {"Content-Type": media_type, "Idempotency-Key": key or str(uuid.uuid4())}
        if len(body) >= COMPRESSED_BYTES:
            body = zstandard.ZstdCompressor(level=3).compress(body)
            headers["Content-Encoding"] = "zstd"
        if wait is not None:
            headers["Prefer"] = f"wait={wait:.0f}"
        call = HttpCall("POST", path, headers=headers, content=body, seconds=wait or 0.0)
        return await send_with_retries(self.wire, call, self.new_retries(deadline))

    async def submit(self, pending: PendingRequest, deadline: Deadline, wait: float = WAIT_S) -> HttpResponse:
        """The first response: 201 with the result, or 202 with an operation to wait for."""
        seconds = max(0.0, min(wait, deadline.remaining()))
        try:
            return await self.post(pending.path, msgspec.json.encode(pending.fields), deadline, seconds)
        except ServiceProblem as problem:
            raise ServiceProblem(pending.restore(problem.problem)) from None

    async def result(self, pending: PendingRequest, timeout: float | None, on_progress: ProgressCallback) -> Json:
        """Result of a request. Raises TimedOut, OperationFailed, OperationCancelled, ServiceProblem."""
        deadline = Deadline(timeout)
        response = await self.submit(pending, deadline)
        if response.status != 202:
            return pending.restore(response.json())
        path = f"/v1/operations/{path_segment(response.json()['id'])}"
        operation = await self.finished(path, deadline, on_progress)
        if operation["state"] == "failed":
            raise OperationFailed(pending.restore(operation["error"]), operation["id"])
        if operation["result"] is None:
            raise OperationCancelled(operation["id"], None)
        result = pending.restore(
            await self.get(local_path(operation["result"]), section_parameters(pending.fields.get("return")))
        )
        if operation["state"] == "cancelled":
            raise OperationCancelled(operation["id"], result)
        return result

    async def finished(self, path: str, deadline: Deadline, on_progress: ProgressCallback) -> Json:
        """Wait for the end of the operation or batch at `path`. Raises TimedOut; the operation continues then."""
        last = None
        while True:
            response = await send_with_retries(self.wire, HttpCall("GET", path), self.new_retries())
            current: Json = response.json()
            if on_progress is not None and current != last:
                on_progress(current)
            if current["state"] in FINISHED:
                return current
            last, pause, remaining = current, retry_after(response.headers) or POLL_S, deadline.remaining()
            if remaining <= 0:
                raise TimedOut(f"{current['id']} is still {current['state']}; wait longer, or cancel it", current["id"])
            await self.wire.pause(min(pause, remaining))

    async def pages(
        self, path: str, name: str, parameters: Sequence[tuple[str, Any]], cursor: str | None = None
    ) -> AsyncGenerator[Json]:
        """Entries of a list from the cursor on, fetched page by page on demand; None omits a parameter."""
        while True:
            given = [(key, value) for key, value in (*parameters, ("cursor", cursor)) if value is not None]
            page = await self.get(path, given)
            for entry in page[name]:
                yield entry
            cursor = page["next"]
            if cursor is None:
                return


def path_segment(id: str) -> str:
    """An id, quoted as one segment of a path."""
    return quote(id, safe="")


def local_path(path: str) -> str:
    """The result path of an operation, forced to be a path on this service."""
    return "/" + "/".join(map(path_segment, path.strip("/").split("/")))


def section_parameters(names: str | Sequence[str] | None) -> list[tuple[str, Any]]:
    """Query parameters that select sections of a report."""
    return [("return", name) for name in ([names] if isinstance(names, str) else names or ())]
