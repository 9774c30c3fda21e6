"""`/v1/batches`: graphs x budgets x planners x seeds, and what comes of each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Header, HTTPException, Query, Request, Response

from app.api.auth.batch_access import batch_owner, charge_batch, require_batch
from app.api.routes.dependencies import IdempotencyKey, ServiceDep, require_media_type
from app.api.routes.operations import OperationState
from app.api.routes.submit_or_wait import parse_body, require_search_time
from app.api.schemas.batch_request import BatchRequest, parse_batch
from app.api.service.service import Service
from app.api.wire.negotiation import negotiate
from app.api.wire.openapi import body_docs, problem_docs, ref, response_docs, with_links
from app.api.wire.request_body import media_type_of, read_body
from app.errors import Unavailable
from app.jobs.batches import repository, results
from app.jobs.batches.repository import BatchRecord
from app.jobs.interface import RETRY_S
from app.models.json_object import decode_object
from app.store import records
from app.store.blobs import blob_key
from planner.request.plan_request import parse_request

router = APIRouter(tags=["batches"])

PATH = "/v1/batches"
BATCH_CONTENT = {"application/json": ref("Batch")}
EXAMPLE: dict[str, Any] = {"graph_ids": ["0" * 64], "budgets": ["90%", "50%"], "planners": ["auto"], "seeds": [0, 1]}
MAX_ROWS = 1_000_000
RowLimit = Annotated[int | None, Query(ge=1, le=MAX_ROWS, description="1000 of JSON; of tables all unless told")]
TableFormat = Annotated[Literal["json", "csv", "parquet"] | None, Query(description="goes before what Accept says")]
Limit = Annotated[int, Query(ge=1, le=1000, description="of the page")]
ITEM_CONTENT: dict[str, Any] = {
    "application/json": ref("Items"),
    "text/csv": {"type": "string"},
    "application/vnd.apache.parquet": {"type": "string", "format": "binary"},
}
LINKED_OPERATIONS = dict.fromkeys(("get_batch", "list_items", "cancel_batch", "retry_batch"), "batch_id")


def _said(batch: BatchRecord, status: int = 200, **headers: str) -> Response:
    headers |= {"Cache-Control": "no-store"} | ({} if batch.finished else {"Retry-After": "1"})
    return Response(msgspec.json.encode(batch.wire()), status, headers, "application/json")


@router.post(
    PATH,
    status_code=202,
    response_class=Response,
    responses=with_links(
        response_docs(
            202,
            "It has begun; follow it, or its operation",
            BATCH_CONTENT,
            Location="of the batch",
            Retry_After="seconds",
        ),
        "/id",
        **LINKED_OPERATIONS,
    )
    | problem_docs(400, 404, 408, 409, 413, 415, 422, 429),
    openapi_extra=body_docs({"application/json": ref("BatchQuestion")}, {"four items": EXAMPLE}),
)
async def post_batch(request: Request, service: ServiceDep, idempotency_key: IdempotencyKey = None) -> Response:
    """Plan stored graphs, each at every budget, by every planner, with every seed. One that fails stops no other."""
    require_media_type(media_type_of(request.headers), ["application/json"])
    body = await read_body(request, service.settings)
    sent = await parse_body(request, service, body)
    asked = parse_batch(
        {name: decode_object(bytes(raw), Any) for name, raw in sent.items()}, service.settings.batch_items
    )
    require_search_time(service, asked.search_seconds)
    batch = await anyio.to_thread.run_sync(_begun, service, asked, idempotency_key, body)
    return _said(batch, 202, Location=f"{PATH}/{batch.id}")


def _begun(service: Service, asked: BatchRequest, idempotency_key: str | None, body: bytes) -> BatchRecord:
    if service.draining:
        raise Unavailable("the service is being stopped; ask again", headers={"Retry-After": str(RETRY_S)})
    service.jobs.start()
    for graph_id in asked.graph_ids:
        records.graph_of(service.store, graph_id)
    key = None if idempotency_key is None else blob_key(msgspec.json.encode([PATH, idempotency_key]))
    store, owner, said = service.store, batch_owner(service), blob_key(body)
    if key is not None and (before := repository.find_by_idempotency_key(store, key, said)) is not None:
        return before
    seconds = asked.total * asked.search_seconds
    return charge_batch(service, seconds, lambda: repository.create(store, asked, owner, key, said))


@router.get(
    PATH,
    response_class=Response,
    responses=response_docs(200, "A page, newest first", {"application/json": ref("Batches")}) | problem_docs(422),
)
async def list_batches(
    service: ServiceDep,
    limit: Limit = 100,
    cursor: Annotated[str | None, Query(pattern="^ba[0-9a-f]{26}$", description="`next` of the page before")] = None,
    state: Annotated[OperationState | None, Query(description="only those in this state")] = None,
) -> Response:
    """Batches, newest first."""
    tenant = batch_owner(service).tenant
    found = await anyio.to_thread.run_sync(repository.page, service.store, tenant, cursor, limit + 1, state)
    after = found[limit - 1].id if len(found) > limit else None
    body = {"batches": [batch.wire() for batch in found[:limit]], "next": after}
    return Response(msgspec.json.encode(body), 200, {"Cache-Control": "no-store"}, "application/json")


@router.post(
    PATH + "/{batch_id}:cancel",
    response_class=Response,
    responses=response_docs(200, "The batch; it ends soon", BATCH_CONTENT) | problem_docs(404, 422),
)
async def cancel_batch(service: ServiceDep, batch_id: str) -> Response:
    """End what waits and what runs; what has ended stays as it is, and what runs keeps its best so far."""
    return _said(await anyio.to_thread.run_sync(_cancelled, service, batch_id))


def _cancelled(service: Service, batch_id: str) -> BatchRecord:
    require_batch(service, batch_id)
    repository.cancel(service.store, batch_id)
    return repository.find(service.store, batch_id)


@router.post(
    PATH + "/{batch_id}:retry",
    response_class=Response,
    responses=response_docs(200, "The batch", BATCH_CONTENT) | problem_docs(404, 409, 422, 429),
)
async def retry_batch(service: ServiceDep, batch_id: str) -> Response:
    """Solve items again that failed or were cancelled; what has succeeded stays."""
    return _said(await anyio.to_thread.run_sync(_retried, service, batch_id))


def _retried(service: Service, batch_id: str) -> BatchRecord:
    batch = require_batch(service, batch_id)
    again = batch.count_in("failed", "cancelled")
    if not batch.finished or not again:
        return repository.retry(service.store, batch_id)
    seconds = again * parse_request(batch.fields).search_seconds
    return charge_batch(service, seconds, lambda: repository.retry(service.store, batch_id))


@router.get(
    PATH + "/{batch_id}",
    response_class=Response,
    responses=response_docs(200, "The batch", BATCH_CONTENT, Retry_After="while it runs") | problem_docs(404, 422),
)
async def get_batch(service: ServiceDep, batch_id: str) -> Response:
    """How many items are in each state; 200 whatever they are."""
    if batch_id.endswith((":cancel", ":retry")):
        raise HTTPException(405, headers={"Allow": "POST"})
    return _said(await anyio.to_thread.run_sync(require_batch, service, batch_id))


@router.get(
    PATH + "/{batch_id}/items",
    response_class=Response,
    responses=response_docs(200, "Items, ascending", ITEM_CONTENT, Vary="Accept") | problem_docs(404, 406, 422),
)
async def list_items(
    service: ServiceDep,
    batch_id: str,
    limit: Annotated[
        int | None, Query(ge=1, le=MAX_ROWS, description="1000 of JSON; of tables all unless told")
    ] = None,
    cursor: Annotated[str | None, Query(pattern="^[0-9]{1,9}$", description="`next` of the page before")] = None,
    state: Annotated[OperationState | None, Query(description="only those in this state")] = None,
    format: Annotated[
        Literal["json", "csv", "parquet"] | None, Query(description="before what Accept asks for")
    ] = None,
    accept: Annotated[str, Header(description="one of the media types")] = "",
) -> Response:
    """Items and the figures of their plans: a page of JSON, or a table as CSV or Parquet."""
    await anyio.to_thread.run_sync(require_batch, service, batch_id)
    form = format or {media: name for name, media in results.MEDIA_TYPES.items()}[negotiate(accept, list(ITEM_CONTENT))]
    after, headers = -1 if cursor is None else int(cursor), {"Cache-Control": "no-store", "Vary": "Accept"}
    if form == "json":
        most = min(limit or 1000, 1000)
        found = await anyio.to_thread.run_sync(repository.items_of, service.store, batch_id, after, most + 1, state)
        return Response(results.as_json(found, most), 200, headers, results.MEDIA_TYPES[form])
    asked = service.store, batch_id, form, after, limit or MAX_ROWS, state
    data = await anyio.to_thread.run_sync(results.export_table, *asked)
    headers["Content-Disposition"] = f'attachment; filename="{batch_id}.{form}"'
    return Response(data, 200, headers, results.MEDIA_TYPES[form])
