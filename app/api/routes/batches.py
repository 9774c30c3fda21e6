"""`/v1/batches`: plan graphs x budgets x planners x seeds, and list the results."""

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
RowLimit = Annotated[
    int | None, Query(ge=1, le=MAX_ROWS, description="default: 1000 (JSON, the maximum), all (tables)")
]
TableFormat = Annotated[Literal["json", "csv", "parquet"] | None, Query(description="overrides Accept")]
Limit = Annotated[int, Query(ge=1, le=1000, description="page size")]
ITEM_CONTENT: dict[str, Any] = {
    "application/json": ref("Items"),
    "text/csv": {"type": "string"},
    "application/vnd.apache.parquet": {"type": "string", "format": "binary"},
}
LINKED_OPERATIONS = dict.fromkeys(("get_batch", "list_items", "cancel_batch", "retry_batch"), "batch_id")


def _response(batch: BatchRecord, status: int = 200, **headers: str) -> Response:
    headers |= {"Cache-Control": "no-store"} | ({} if batch.finished else {"Retry-After": "1"})
    return Response(msgspec.json.encode(batch.wire()), status, headers, "application/json")


@router.post(
    PATH,
    status_code=202,
    response_class=Response,
    responses=with_links(
        response_docs(
            202,
            "Started; poll the batch or its operation",
            BATCH_CONTENT,
            Location="path of the batch",
            Retry_After="seconds until the next poll",
        ),
        "/id",
        **LINKED_OPERATIONS,
    )
    | problem_docs(400, 404, 408, 409, 413, 415, 422, 429),
    openapi_extra=body_docs({"application/json": ref("BatchQuestion")}, {"four items": EXAMPLE}),
)
async def post_batch(request: Request, service: ServiceDep, idempotency_key: IdempotencyKey = None) -> Response:
    """Plan stored graphs at every combination of budget, planner and seed. Items fail independently."""
    require_media_type(media_type_of(request.headers), ["application/json"])
    body = await read_body(request, service.settings)
    sent = await parse_body(request, service, body)
    batch_request = parse_batch(
        {name: decode_object(bytes(raw), Any) for name, raw in sent.items()}, service.settings.batch_items
    )
    require_search_time(service, batch_request.search_seconds)
    batch = await anyio.to_thread.run_sync(_create, service, batch_request, idempotency_key, body)
    return _response(batch, 202, Location=f"{PATH}/{batch.id}")


def _create(service: Service, batch_request: BatchRequest, idempotency_key: str | None, body: bytes) -> BatchRecord:
    if service.draining:
        raise Unavailable("the service is shutting down; retry", headers={"Retry-After": str(RETRY_S)})
    service.jobs.start()
    for graph_id in batch_request.graph_ids:
        records.graph_of(service.store, graph_id)
    key = None if idempotency_key is None else blob_key(msgspec.json.encode([PATH, idempotency_key]))
    store, owner, body_hash = service.store, batch_owner(service), blob_key(body)
    if key is not None and (before := repository.find_by_idempotency_key(store, key, body_hash)) is not None:
        return before
    seconds = batch_request.total * batch_request.search_seconds
    open_items = service.settings.open_items
    return charge_batch(
        service, seconds, lambda: repository.create(store, batch_request, owner, key, body_hash, open_items)
    )


@router.get(
    PATH,
    response_class=Response,
    responses=response_docs(200, "A page, newest first", {"application/json": ref("Batches")}) | problem_docs(422),
)
async def list_batches(
    service: ServiceDep,
    limit: Limit = 100,
    cursor: Annotated[str | None, Query(pattern="^ba[0-9a-f]{26}$", description="`next` of the previous page")] = None,
    state: Annotated[OperationState | None, Query(description="state to select; default: all")] = None,
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
    responses=response_docs(200, "The batch, which ends soon", BATCH_CONTENT) | problem_docs(404, 422),
)
async def cancel_batch(service: ServiceDep, batch_id: str) -> Response:
    """Cancel queued and running items. Running items keep their best plan; finished items are unchanged."""
    return _response(await anyio.to_thread.run_sync(_cancel, service, batch_id))


def _cancel(service: Service, batch_id: str) -> BatchRecord:
    require_batch(service, batch_id)
    repository.cancel(service.store, batch_id)
    return repository.find(service.store, batch_id)


@router.post(
    PATH + "/{batch_id}:retry",
    response_class=Response,
    responses=response_docs(200, "The batch", BATCH_CONTENT) | problem_docs(404, 409, 422, 429),
)
async def retry_batch(service: ServiceDep, batch_id: str) -> Response:
    """Retry failed and cancelled items; succeeded items are unchanged."""
    return _response(await anyio.to_thread.run_sync(_retry, service, batch_id))


def _retry(service: Service, batch_id: str) -> BatchRecord:
    batch = require_batch(service, batch_id)
    retried = batch.count_in("failed", "cancelled")
    if not batch.finished or not retried:
        return repository.retry(service.store, batch_id)
    seconds = retried * parse_request(batch.fields).search_seconds
    return charge_batch(service, seconds, lambda: repository.retry(service.store, batch_id))


@router.get(
    PATH + "/{batch_id}",
    response_class=Response,
    responses=response_docs(200, "The batch", BATCH_CONTENT, Retry_After="seconds until the next poll, while it runs")
    | problem_docs(404, 422),
)
async def get_batch(service: ServiceDep, batch_id: str) -> Response:
    """Number of items in each state; 200 in every state."""
    if batch_id.endswith((":cancel", ":retry")):
        raise HTTPException(405, headers={"Allow": "POST"})
    return _response(await anyio.to_thread.run_sync(require_batch, service, batch_id))


@router.get(
    PATH + "/{batch_id}/items",
    response_class=Response,
    responses=response_docs(200, "Items, ascending", ITEM_CONTENT, Vary="Accept") | problem_docs(404, 406, 422),
)
async def list_items(
    service: ServiceDep,
    batch_id: str,
    limit: RowLimit = None,
    cursor: Annotated[str | None, Query(pattern="^[0-9]{1,9}$", description="`next` of the previous page")] = None,
    state: Annotated[OperationState | None, Query(description="state to select; default: all")] = None,
    format: TableFormat = None,
    accept: Annotated[str, Header(description="one of the media types")] = "",
) -> Response:
    """Items and the figures of their plans: a page of JSON, or a table as CSV or Parquet."""
    await anyio.to_thread.run_sync(require_batch, service, batch_id)
    form = format or {media: name for name, media in results.MEDIA_TYPES.items()}[negotiate(accept, list(ITEM_CONTENT))]
    after, headers = -1 if cursor is None else int(cursor), {"Cache-Control": "no-store", "Vary": "Accept"}
    if form == "json":
        page = min(limit or 1000, 1000)
        items = await anyio.to_thread.run_sync(repository.items_of, service.store, batch_id, after, page + 1, state)
        return Response(results.as_json(items, page), 200, headers, results.MEDIA_TYPES[form])
    selection = service.store, batch_id, form, after, limit or MAX_ROWS, state
    data = await anyio.to_thread.run_sync(results.export_table, *selection)
    headers["Content-Disposition"] = f'attachment; filename="{batch_id}.{form}"'
    return Response(data, 200, headers, results.MEDIA_TYPES[form])
