"""`/v1/graphs`: models in, documents out."""

from __future__ import annotations

from typing import Annotated, Any

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Query, Request, Response

from app.bodies import body_of, media_type_of
from app.openapi import answers, bodies, links, problems, ref
from app.options import pairs
from app.routes.common import GRAPH_FORMS, IdempotencyKey, Serving, demand_media, negotiated

router = APIRouter(tags=["graphs"])

BINARY: dict[str, Any] = {"type": "string", "format": "binary"}
DOCUMENTS: dict[str, Any] = {"oneOf": [ref("Document"), ref("Columns")]}
TAKEN: dict[str, Any] = {
    "application/json": DOCUMENTS,
    "application/msgpack": BINARY,
    "application/x-msgpack": BINARY,
    "application/onnx": BINARY,
    "application/x-onnx": BINARY,
    "application/octet-stream": BINARY,
}


@router.post(
    "/v1/graphs",
    status_code=201,
    response_class=Response,
    responses=links(
        answers(201, "Kept", {"application/json": ref("GraphRecord")}, Location="its path", ETag="its id"),
        "/id",
        get_graph="graph_id",
    )
    | problems(400, 409, 413, 415, 422),
    openapi_extra=bodies(TAKEN),
)
async def post_graph(
    request: Request,
    service: Serving,
    batch: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="leading length of every input")] = None,
    input: Annotated[list[str] | None, Query(description="shape of an input: NAME=16x3x224x224")] = None,
    dim: Annotated[list[str] | None, Query(description="length of a symbolic dimension: N=8")] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Keep a graph. The same graph has the same id, whatever form it came in."""
    demand_media(media_type_of(request.headers), list(TAKEN))
    data = await body_of(request, service.settings)
    shapes = {
        "inputs": pairs(input or [], "query.input", False),
        "batch": batch,
        "dims": pairs(dim or [], "query.dim", True),
    }
    record = await service.read_graph(data, shapes)
    await anyio.to_thread.run_sync(service.claim, idempotency_key, "/v1/graphs", data + request.url.query.encode())
    said = {name: record[name] for name in ("id", "name", "nodes", "values", "format", "created_at")}
    headers = {"Location": f"/v1/graphs/{record['id']}", "ETag": f'"{record["id"]}"'}
    return Response(msgspec.json.encode(said), 201, headers, "application/json")


@router.get(
    "/v1/graphs/{graph_id}",
    response_class=Response,
    responses=answers(200, "The document", GRAPH_FORMS, ETag="of this form", Vary="Accept")
    | {304: {"description": "The caller has it"}}
    | problems(404, 406, 422),
)
async def get_graph(request: Request, service: Serving, graph_id: str) -> Response:
    """The document, in the form that Accept asks for."""
    record = await anyio.to_thread.run_sync(service.store.record, "graphs", graph_id)
    document = await anyio.to_thread.run_sync(service.store.get, record["blob"])
    return await negotiated(request, service, document, graph_id)
