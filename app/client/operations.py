"""Questions of a client: put once, waited for however long they take, answered or raised."""

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

FINISHED = frozenset({"succeeded", "failed", "cancelled"})
WAIT_S = 20  # asked of a POST; proxies cut connections that are silent for long
POLL_S = 1.0
COMPRESSED_BYTES = 1 << 10  # a body this long is sent as zstd

Json = dict[str, Any]
ProgressCallback = Callable[[Json], object] | None


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """What is put to a path, and what is known of the model here."""

    path: str
    fields: Mapping[str, Any]
    model: PreparedModel | None = None

    def restore(self, said: Any) -> Json:
        """The answer under the caller's names."""
        return dict(said if self.model is None else self.model.restore(said))


@dataclass(frozen=True, slots=True)
class ServiceCalls:
    """Over one wire."""

    wire: Transport
    retries: int

    def tries(self, deadline: Deadline | None = None) -> Retries:
        return Retries(self.retries, deadline or Deadline(None))

    async def get(self, path: str, parameters: Sequence[tuple[str, Any]] = ()) -> Json:
        call = HttpCall("GET", path, list(parameters), {"Accept": "application/json, application/schema+json"})
        return dict((await send_with_retries(self.wire, call, self.tries())).json())

    async def post(
        self,
        path: str,
        body: bytes,
        deadline: Deadline | None = None,
        wait: float | None = None,
        key: str | None = None,
    ) -> HttpResponse:
        """Sent under one idempotency key, however often; a new one unless `key` is given."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": key or str(uuid.uuid4())}
        if len(body) >= COMPRESSED_BYTES:
            body = zstandard.ZstdCompressor(level=3).compress(body)
            headers["Content-Encoding"] = "zstd"
        if wait is not None:
            headers["Prefer"] = f"wait={wait:.0f}"
        call = HttpCall("POST", path, headers=headers, content=body, seconds=wait or 0.0)
        return await send_with_retries(self.wire, call, self.tries(deadline))

    async def put(self, asked: PendingRequest, deadline: Deadline, wait: float = WAIT_S) -> HttpResponse:
        """The first answer: 201 with what was asked for, or 202 with an operation to wait for."""
        seconds = max(0.0, min(wait, deadline.left()))
        try:
            return await self.post(asked.path, msgspec.json.encode(asked.fields), deadline, seconds)
        except ServiceProblem as problem:
            raise ServiceProblem(asked.restore(problem.problem)) from None

    async def answer(self, asked: PendingRequest, timeout: float | None, on_progress: ProgressCallback) -> Json:
        """What was asked for. Raises TimedOut, OperationFailed, Cancelled, ServiceProblem."""
        deadline = Deadline(timeout)
        answer = await self.put(asked, deadline)
        if answer.status != 202:
            return asked.restore(answer.json())
        operation = await self.ended(f"/v1/operations/{path_segment(answer.json()['id'])}", deadline, on_progress)
        if operation["state"] == "failed":
            raise OperationFailed(asked.restore(operation["error"]), operation["id"])
        if operation["result"] is None:
            raise OperationCancelled(operation["id"], None)
        found = asked.restore(
            await self.get(local_path(operation["result"]), section_parameters(asked.fields.get("return")))
        )
        if operation["state"] == "cancelled":
            raise OperationCancelled(operation["id"], found)
        return found

    async def ended(self, path: str, deadline: Deadline, on_progress: ProgressCallback) -> Json:
        """The operation, or the batch, once it has ended, well or not. Raises TimedOut; it goes on then."""
        last = None
        while True:
            answer = await send_with_retries(self.wire, HttpCall("GET", path), self.tries())
            found: Json = answer.json()
            if on_progress is not None and found != last:
                on_progress(found)
            if found["state"] in FINISHED:
                return found
            last, pause, left = found, retry_after(answer.headers) or POLL_S, deadline.left()
            if left <= 0:
                raise TimedOut(f"{found['id']} is {found['state']}; wait for it again, or cancel it", found["id"])
            await self.wire.pause(min(pause, left))

    async def pages(
        self, path: str, name: str, parameters: Sequence[tuple[str, Any]], cursor: str | None = None
    ) -> AsyncGenerator[Json]:
        """Entries of a list from the cursor on, fetched a page at a time as asked for; None is no parameter."""
        while True:
            given = [(key, said) for key, said in (*parameters, ("cursor", cursor)) if said is not None]
            found = await self.get(path, given)
            for entry in found[name]:
                yield entry
            cursor = found["next"]
            if cursor is None:
                return


def path_segment(id: str) -> str:
    """An id as one part of a path."""
    return quote(id, safe="")


def local_path(path: str) -> str:
    """The path that an operation gives, of this service whatever it says."""
    return "/" + "/".join(map(path_segment, path.strip("/").split("/")))


def section_parameters(names: str | Sequence[str] | None) -> list[tuple[str, Any]]:
    """Parameters that ask for sections of a report."""
    return [("return", name) for name in ([names] if isinstance(names, str) else names or ())]
