"""`/v1/operations`: list, status, events and cancellation of jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated, Any, Literal

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Header, HTTPException, Query, Request, Response
from starlette.responses import StreamingResponse

from app.api.auth.tenant_view import scope_request
from app.api.routes.dependencies import ServiceDep
from app.api.routes.submit_or_wait import data_request, require_search_time
from app.api.service.process_admission import request_memory
from app.api.service.service import Service
from app.api.wire.openapi import problem_docs, ref, response_docs
from app.errors import Conflict
from app.jobs.interface import Operation, SolveRequest
from app.store import records
from planner.layout.csv_buffers import parse_seconds
from planner.request.curve_and_fit_request import parse_curve, parse_fit
from planner.request.plan_request import parse_request

router = APIRouter(tags=["operations"])

OperationState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
EVENT_SCHEMA = {
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "description": "counts from 1; pass it as Last-Event-ID to resume"},
        "event": {"enum": ["state", "progress"]},
        "data": {"type": "string", "description": "JSON: an Operation, or its stage and progress"},
    },
}
OPERATION_CONTENT = {"application/json": ref("Operation")}


#: Kind of operation -> requested search seconds. Raises BadRequest.
SEARCH_SECONDS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "plan": lambda fields: parse_request(fields).search_seconds,
    "curve": lambda fields: parse_curve(fields).request.search_seconds,
    "fit": lambda fields: parse_fit(fields).request.search_seconds,
    "layout": parse_seconds,
}


def resubmit(service: Service, operation_id: str) -> Operation:
    """A new operation for the same request, or the old one if it is unfinished. Raises as posting the request does."""
    old = service.jobs.status(operation_id)
    if old.kind not in SEARCH_SECONDS:
        message = f"{operation_id} is a {old.kind}; retry its failed items with POST /v1/batches/ID:retry"
        raise Conflict(message, code="not_retryable")
    if not old.finished:
        return old
    require_search_time(service, SEARCH_SECONDS[old.kind](old.fields))
    if old.graph_id is not None:
        service.has_graph(old.graph_id)
        key = records.request_key(old.graph_id, old.fields, old.kind)
        solve_request = SolveRequest(key, old.graph_id, old.fields, kind=old.kind)
    else:
        solve_request = data_request(service.store.blobs.get(str(old.asked)), old.fields, old.kind)
    return service.jobs.submit(scope_request(service, solve_request))


def _response(operation: Operation) -> Response:
    headers = {"Cache-Control": "no-store"} | ({} if operation.finished else {"Retry-After": "1"})
    return Response(msgspec.json.encode(operation.wire()), 200, headers, "application/json")


@router.get(
    "/v1/operations",
    response_class=Response,
    responses=response_docs(200, "A page, newest first", {"application/json": ref("Operations")}) | problem_docs(422),
)
async def list_operations(
    service: ServiceDep,
    limit: Annotated[int, Query(ge=1, le=1000, description="page size")] = 100,
    cursor: Annotated[str | None, Query(pattern="^op[0-9a-f]{26}$", description="`next` of the previous page")] = None,
    state: Annotated[OperationState | None, Query(description="state to select; default: all")] = None,
) -> Response:
    """Operations, newest first."""
    page = await anyio.to_thread.run_sync(service.jobs.list, cursor, limit, state)
    body = {"operations": [operation.wire() for operation in page.operations], "next": page.after}
    return Response(msgspec.json.encode(body), 200, {"Cache-Control": "no-store"}, "application/json")


@router.post(
    "/v1/operations/{operation_id}:cancel",
    response_class=Response,
    responses=response_docs(200, "The operation, which ends soon", OPERATION_CONTENT) | problem_docs(404, 422),
)
async def cancel_operation(service: ServiceDep, operation_id: str) -> Response:
    """Cancel an operation. A running operation keeps its best plan; a finished operation is unchanged."""
    return _response(await anyio.to_thread.run_sync(service.jobs.cancel, operation_id))


@router.post(
    "/v1/operations/{operation_id}:retry",
    status_code=202,
    response_class=Response,
    responses=response_docs(
        202, "The new operation, or this one if it is unfinished", OPERATION_CONTENT, Location="path of the operation"
    )
    | problem_docs(404, 409, 422, 429),
)
async def retry_operation(service: ServiceDep, operation_id: str) -> Response:
    """Submit the request of an operation a second time. Failed items of a batch are retried by the batch."""
    operation = await anyio.to_thread.run_sync(resubmit, service, operation_id)
    response = _response(operation)
    response.status_code, response.headers["Location"] = 202, f"/v1/operations/{operation.id}"
    return response


@router.get(
    "/v1/operations/{operation_id}",
    response_class=Response,
    responses=response_docs(
        200, "The operation", OPERATION_CONTENT, Retry_After="seconds until the next poll, while it runs"
    )
    | problem_docs(404, 422),
)
async def get_operation(service: ServiceDep, operation_id: str) -> Response:
    """State and progress; 200 in every state."""
    if operation_id.endswith((":cancel", ":retry")):
        raise HTTPException(405, headers={"Allow": "POST"})
    return _response(await anyio.to_thread.run_sync(service.jobs.status, operation_id))


@router.get(
    "/v1/operations/{operation_id}/events",
    response_class=Response,
    responses=response_docs(200, "Events until the operation ends", {"text/event-stream": EVENT_SCHEMA})
    | {204: {"description": "The operation has ended, and there are no events after Last-Event-ID"}}
    | problem_docs(404, 422, 429),
)
async def stream_operation(
    request: Request,
    service: ServiceDep,
    operation_id: str,
    last_event_id: Annotated[str, Header(alias="Last-Event-ID", description="id of the last event received")] = "",
) -> Response:
    """`state` events hold the operation, `progress` events its progress; ids count from 1."""
    after = int(last_event_id) if last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19 else 0
    request_memory(request).require_stream(service.tenant)  # before the database is queried
    operation = await anyio.to_thread.run_sync(service.jobs.status, operation_id)
    if operation.finished and operation.last_event <= after:
        return Response(status_code=204)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(service, operation_id, after), headers=headers, media_type="text/event-stream")


async def _events(service: Service, operation_id: str, after: int) -> AsyncIterator[bytes]:
    async for event in service.jobs.stream(operation_id, after):
        if event is None:
            yield b": keep-alive\n\n"
        else:
            data = msgspec.json.encode(event.data).decode()  # one line: JSON escapes line breaks
            yield f"id: {event.id}\nevent: {event.name}\ndata: {data}\n\n".encode()
