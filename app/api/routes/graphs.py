"""`/v1/graphs`: store, analyse, transform and download graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

import anyio.to_thread
import msgspec
from fastapi import APIRouter, HTTPException, Query, Request, Response

from app.api.auth.tenant_view import delete_owned_graph, tenant_of
from app.api.routes.dependencies import (
    GRAPH_CONTENT,
    IdempotencyKey,
    PageDep,
    ServiceDep,
    graph_response,
    page_docs,
    page_response,
    require_media_type,
)
from app.api.routes.submit_or_wait import parse_body
from app.api.service.service import Service
from app.api.wire.negotiation import etag_matches
from app.api.wire.openapi import NOT_MODIFIED, body_docs, problem_docs, ref, response_docs, with_links
from app.api.wire.request_body import media_type_of, read_body
from app.store import listing, records
from planner.errors import BadRequest
from planner.request.named_lengths import parse_named_lengths

router = APIRouter(tags=["graphs"])

BINARY: dict[str, Any] = {"type": "string", "format": "binary"}
DOCUMENTS: dict[str, Any] = {"oneOf": [ref("Document"), ref("Columns")]}
ACCEPTED_BODIES: dict[str, Any] = {
    "application/json": DOCUMENTS,
    "application/msgpack": BINARY,
    "application/x-msgpack": BINARY,
    "application/onnx": BINARY,
    "application/x-onnx": BINARY,
    "application/octet-stream": BINARY,
    "application/vnd.mxnet.symbol+json": ref("MxnetSymbol"),
    "application/vnd.caffe2.net": BINARY,
    "application/vnd.caffe2.net+text": {"type": "string"},
    "application/vnd.paddle.program": BINARY,
    "application/vnd.stablehlo": {"type": "string"},
    "application/vnd.paddle.program+json": ref("PaddleProgram"),
}

MAX_NAME = 200
PRINTABLE = r"^[^\x00-\x1f\x7f]+$"


@router.post(
    "/v1/graphs",
    status_code=201,
    response_class=Response,
    responses=with_links(
        response_docs(
            201,
            "Stored",
            {"application/json": ref("GraphRecord")},
            Location="path of the graph",
            ETag="id of the graph",
        ),
        "/id",
        get_graph="graph_id",
    )
    | problem_docs(400, 408, 409, 413, 415, 422),
    openapi_extra=body_docs(ACCEPTED_BODIES),
)
async def post_graph(
    request: Request,
    service: ServiceDep,
    name: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=MAX_NAME,
            pattern=PRINTABLE,
            description="name of the model; default: the name of the graph in the document",
        ),
    ] = None,
    batch: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="leading dimension of every input")] = None,
    input: Annotated[list[str] | None, Query(description="shape of an input: NAME=16x3x224x224")] = None,
    dim: Annotated[list[str] | None, Query(description="length of a symbolic dimension: N=8")] = None,
    max: Annotated[list[str] | None, Query(description="largest length of a value, or trip count: NAME=100")] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Store a graph. Equal graphs of the same name have the same id in all formats."""
    require_media_type(media_type_of(request.headers), list(ACCEPTED_BODIES))
    data = await read_body(request, service.settings)
    shapes = {
        "inputs": parse_named_lengths(input or [], "query.input", False),
        "batch": batch,
        "dims": parse_named_lengths(dim or [], "query.dim", True),
        "max": parse_named_lengths(max or [], "query.max", True),
    }
    claimed = idempotency_key, "/v1/graphs", data + request.url.query.encode()
    await service.require_key_free(*claimed)
    record = await service.read_graph(data, shapes, name)
    await service.claim(*claimed)
    return _graph_created(record, {})


@router.get("/v1/graphs", response_class=Response, responses=page_docs("Graphs"))
async def list_graphs(
    service: ServiceDep,
    page: PageDep,
    name: Annotated[str | None, Query(description="name of the model")] = None,
    format: Annotated[str | None, Query(description="native, or the framework of the posted file")] = None,
) -> Response:
    """Stored graphs, newest first."""
    only = {"name": name, "format": format}
    rows = await anyio.to_thread.run_sync(listing.page_of_graphs, service.store, page, tenant_of(service), only)
    return page_response("graphs", rows)


@router.post(
    "/v1/graphs/{graph_id}:transform",
    status_code=201,
    response_class=Response,
    responses=with_links(
        response_docs(
            201,
            "A new graph, stored",
            {"application/json": ref("Transformed")},
            Location="path of the graph",
            ETag="id of the graph",
        ),
        "/id",
        get_graph="graph_id",
    )
    | response_docs(200, "Report of the pass on the graph", {"application/json": ref("QueryResult")})
    | problem_docs(400, 404, 408, 409, 413, 415, 422),
    openapi_extra=body_docs({"application/json": ref("Transform")}, {"dead nodes": {"pass": "prune"}}),
)
async def transform_graph(
    request: Request, service: ServiceDep, graph_id: str, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run one pass on a graph. The graph is unchanged; the result is stored as a new graph."""
    require_media_type(media_type_of(request.headers), ["application/json"])
    body = await read_body(request, service.settings)
    await parse_body(request, service, body)
    document = await _document_key(service, graph_id)
    claimed = idempotency_key, f"/v1/graphs/{graph_id}:transform", body
    await service.require_key_free(*claimed)
    record, output = await service.transform(document, body)
    await service.claim(*claimed)
    if record is None:
        return Response(msgspec.json.encode(output), 200, media_type="application/json")
    return _graph_created(record, output)


@router.delete(
    "/v1/graphs/{graph_id}",
    status_code=204,
    response_class=Response,
    responses=problem_docs(404, 409, 422) | {204: {"description": "Deleted"}},
)
async def remove_graph(service: ServiceDep, graph_id: str) -> Response:
    """Delete a graph with its plans, curves, fits, measurements, operations, batch items and files.

    Other tenants who posted the same graph keep it. Graphs made by transforms are deleted by their own ids. Files left
    by repeated solves go with the next garbage collection.
    """
    await anyio.to_thread.run_sync(delete_owned_graph, service, graph_id)
    service.responses.clear()
    return Response(status_code=204)


@router.get(
    "/v1/graphs/{graph_id}/analysis",
    response_class=Response,
    responses=response_docs(200, "The analysis", {"application/json": ref("Analysis")}, ETag="tag of this analysis")
    | NOT_MODIFIED
    | problem_docs(404, 422),
)
async def analyse_graph(
    request: Request,
    service: ServiceDep,
    graph_id: str,
    start: Annotated[list[str] | None, Query(description="initial version of a name: X=3")] = None,
    before: Annotated[
        list[str] | None,
        Query(max_length=16, description="ids of graphs that run before; version numbers continue from them"),
    ] = None,
) -> Response:
    """Versions of names with writers and readers, lifetimes, the peak and its values, and lint findings."""
    numbers = parse_named_lengths(start or [], "query.start", True)
    if any(number >= 2**31 for number in numbers.values()):
        raise BadRequest.one("bad_flag", "query.start", str(max(numbers.values()))[:80], "below 2^31", "write NAME=3")
    analysis = await service.analyse([*(before or ()), graph_id], numbers)
    etag = hashlib.sha256(analysis).hexdigest()
    headers = {"ETag": f'"{etag}"', "Cache-Control": "no-cache"}
    if etag_matches(request.headers.get("if-none-match", ""), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(analysis, headers=headers, media_type="application/json")


@router.get(
    "/v1/graphs/{graph_id}",
    response_class=Response,
    responses=response_docs(200, "The document", GRAPH_CONTENT, ETag="tag of this representation", Vary="Accept")
    | NOT_MODIFIED
    | problem_docs(404, 406, 422),
)
async def get_graph(request: Request, service: ServiceDep, graph_id: str) -> Response:
    """The document, in the format negotiated by Accept."""
    if graph_id.endswith(":transform"):
        raise HTTPException(405, headers={"Allow": "POST"})
    return await graph_response(request, service, await _document_key(service, graph_id), graph_id)


async def _document_key(service: Service, graph_id: str) -> str:
    """Blob key of the canonical document of a stored graph. Raises NotFound."""
    return await anyio.to_thread.run_sync(records.document_key, service.store, graph_id)


def _graph_created(record: Mapping[str, Any], output: Mapping[str, Any]) -> Response:
    """201 with the row of a graph and the output of a pass."""
    summary = {name: record[name] for name in listing.GRAPH_FIELDS}
    headers = {"Location": f"/v1/graphs/{record['id']}", "ETag": f'"{record["id"]}"'}
    return Response(msgspec.json.encode({**summary, **output}), 201, headers, "application/json")
