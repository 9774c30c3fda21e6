"""Shared flow of POST routes that solve: parse the body, look up a stored result, else submit and wait.

body ──▶ SolveRequest ──▶ stored result? ──▶ 201 with the result and its Location
                        ╰▶ operation ──wait─▶ 201, or 202 with the Location of the operation
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import anyio.to_thread
import msgspec
from fastapi import Header, Request, Response

from app.api.auth.tenant_view import own_result, scope_request, tenant_of
from app.api.routes.dependencies import IdempotencyKey, immutable_response, page_response, require_media_type
from app.api.service.answer_lookup import lookup_answer
from app.api.service.process_admission import request_memory
from app.api.service.service import NO_SHAPES, Service
from app.api.wire.negotiation import Preferences, parse_prefer
from app.api.wire.openapi import NOT_MODIFIED, Responses, problem_docs, ref, response_docs, with_links
from app.api.wire.request_body import media_type_of, raw_fields, read_body
from app.errors import Busy, NotFound, ProblemDetails
from app.jobs.interface import SolveRequest
from app.models.json_object import decode_object
from app.settings import Settings
from app.store import listing, records
from app.store.blobs import blob_key
from app.store.listing import PageRequest
from app.store.states import RESULT_PATHS
from graph.cancellation import CancellationError
from graph.errors import Finding
from planner.errors import BadRequest
from planner.request.plan_request import PARSERS

GRAPH_FIELDS = ("graph", "graph_id")
SHAPE_FIELDS = ("inputs", "batch", "dims")
Prefer = Annotated[
    str | None,
    Header(
        description="wait=N: seconds to wait for the result, default 20; respond-async: do not wait; return=minimal: "
        "the summary of a plan"
    ),
]
SMALL_BYTES = 1 << 14  # parsed or hashed in less time than a thread takes to begin
APPLIED = "preferences that were applied"
NO_FIELDS: Mapping[str, msgspec.Raw] = {}
RawFields = Mapping[str, msgspec.Raw]
#: SolveRequest of the fields of a body. Raises BadRequest, ProblemDetails, NotFound.
ParseRequest = Callable[[Service, RawFields], Awaitable[SolveRequest]]
#: Response body of the result of that id.
RenderResult = Callable[[Service, SolveRequest, str], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Submission:
    """An HTTP request to solve, with its idempotency key."""

    request: Request
    idempotency_key: str | None


async def get_submission(request: Request, prefer: Prefer = None, idempotency_key: IdempotencyKey = None) -> Submission:
    """Dependency of routes that solve. `prefer` is declared for OpenAPI; the header may occur several times."""
    return Submission(request, idempotency_key)


async def submit_or_wait(
    submission: Submission,
    service: Service,
    parse: ParseRequest,
    render: RenderResult,
    minimal: Mapping[str, msgspec.Raw] = NO_FIELDS,
) -> Response:
    """201 with the stored or computed result; 202 with the operation if it takes longer than the wait.

    `minimal` are fields to add under `Prefer: return=minimal`; none: the preference is not applied.
    Raises the errors of `parse`, Busy, OverQuota, Conflict, Unavailable, and the problem of a failed operation.
    """
    request, settings = submission.request, service.settings
    require_media_type(media_type_of(request.headers), ["application/json"])
    body = await read_body(request, settings)
    sent = await parse_body(request, service, body)
    preferred = parse_prefer(request.headers.getlist("prefer"))
    seconds, applied = _wait_seconds(preferred, settings), list[str]()
    if preferred.minimal and minimal:
        sent |= minimal
        applied.append("return=minimal")
    key = submission.idempotency_key
    await service.require_key_free(key, request.url.path, body)
    solve = scope_request(service, await parse(service, sent))
    path = RESULT_PATHS[solve.kind]
    operation_id = await service.claim(key, path, body)
    if operation_id is None:
        if (stored_id := await lookup_answer(service, solve)) is not None:
            await own_result(service, solve.kind, stored_id)
            return _created(path, stored_id, await render(service, solve, stored_id), applied)
        operation_id = (await anyio.to_thread.run_sync(service.jobs.submit, solve)).id
        await service.bind(key, path, operation_id)
    if preferred.wait is not None:
        applied.append(f"wait={seconds:g}")
    try:
        request_memory(request).require_stream(service.tenant)
    except Busy:  # 202 at once
        seconds = 0
    operation = await service.jobs.wait(operation_id, seconds)
    if operation.answer is not None:
        return _created(path, operation.answer, await render(service, solve, operation.answer), applied)
    if operation.error is not None:
        raise ProblemDetails(operation.error)
    if operation.finished:
        raise CancellationError(f"the operation was cancelled before it had a {operation.kind}")
    applied = ["respond-async"] * preferred.respond_async + [each for each in applied if each != "return=minimal"]
    headers = {"Location": f"/v1/operations/{operation.id}", "Retry-After": "1"} | _applied(applied)
    return Response(msgspec.json.encode(operation.wire()), 202, headers, "application/json")


def _wait_seconds(preferred: Preferences, settings: Settings) -> float:
    """Seconds to wait for a result, within REMAT_LONGEST_WAIT_SECONDS."""
    if preferred.wait is not None:
        return min(preferred.wait, settings.longest_wait_seconds)
    return 0 if preferred.respond_async else settings.wait_seconds


def _created(path: str, id: str, data: bytes, applied: Sequence[str]) -> Response:
    return Response(data, 201, {"Location": f"{path}/{id}"} | _applied(applied), "application/json")


def _applied(preferences: Sequence[str]) -> dict[str, str]:
    """The header that names the preferences that were applied (RFC 7240, section 3)."""
    return {"Preference-Applied": ", ".join(preferences)} if preferences else {}


def submit_docs(description: str, schema: str, **linked: str) -> Responses:
    """Documentation of the responses of `submit_or_wait`; the result id is a parameter of each linked operation."""
    created = response_docs(
        201, description, {"application/json": ref(schema)}, Location="path of the result", Preference_Applied=APPLIED
    )
    later = response_docs(
        202,
        "Not finished within the wait; poll or stream the operation",
        {"application/json": ref("Operation")},
        Location="path of the operation",
        Retry_After="seconds until the next poll",
        Preference_Applied=APPLIED,
    )
    following = dict.fromkeys(("get_operation", "cancel_operation", "stream_operation"), "operation_id")
    return (
        (with_links(created, "/id", **linked) if linked else created)
        | with_links(later, "/id", **following)
        | problem_docs(400, 404, 408, 409, 413, 415, 422, 429)
    )


async def result_bytes(service: Service, request: SolveRequest, id: str) -> bytes:
    """Response body of a curve, fit or layout for `submit_or_wait`."""
    return await _result(service, request.kind, id)


async def result_response(request: Request, service: Service, kind: str, id: str) -> Response:
    """200 with a curve, fit or layout, which is immutable. Raises NotFound."""
    return immutable_response(request, await _result(service, kind, id), id, "application/json")


async def result_page(service: Service, kind: str, page: PageRequest, graph_id: str | None = None) -> Response:
    """200 with a page of curves, fits or layouts."""
    tenant = tenant_of(service)
    rows = await anyio.to_thread.run_sync(listing.page_of_results, service.store, page, tenant, kind, graph_id)
    return page_response(f"{kind}s", rows)


def result_docs(description: str, schema: str) -> Responses:
    """Documentation of the responses of `result_response`."""
    return (
        response_docs(200, description, {"application/json": ref(schema)}, ETag="id of the result")
        | NOT_MODIFIED
        | problem_docs(404, 422)
    )


async def _result(service: Service, kind: str, id: str) -> bytes:
    """The document, from the response cache if possible; cached per tenant. Raises NotFound."""
    key = tenant_of(service), kind, id
    document = service.responses.get(key)
    if document is None:
        document = await anyio.to_thread.run_sync(records.result_of, service.store, kind, id)
        service.responses.put(key, document)
    return document


async def parse_body(request: Request, service: Service, body: bytes) -> dict[str, msgspec.Raw]:
    """As `app.api.wire.request_body.raw_fields`; a large body is parsed in one of the parser threads."""
    if len(body) <= SMALL_BYTES:
        return raw_fields(body, service.settings)
    parsers = request_memory(request).admission.parsers
    return await anyio.to_thread.run_sync(raw_fields, body, service.settings, limiter=parsers)


def request_fields(sent: RawFields) -> dict[str, Any]:
    """The decoded fields except the graph. Raises BadRequest unless there is exactly one graph."""
    fields = {name: decode_object(bytes(raw), Any) for name, raw in sent.items() if name not in GRAPH_FIELDS}
    if ("graph" in sent) == ("graph_id" in sent):
        given = "both" if "graph" in sent else "neither"
        raise BadRequest.one("one_graph", "graph", given, "either graph or graph_id", "send one of them")
    return fields


def require_search_time(service: Service, search_seconds: float) -> None:
    """Raises BadRequest if the search exceeds REMAT_SEARCH_SECONDS."""
    longest = service.settings.search_seconds
    if search_seconds > longest:
        raise BadRequest(
            [
                Finding(
                    "too_long",
                    "search_seconds",
                    f"{search_seconds:g}",
                    f"at most {longest:g}",
                    "reduce it, or raise REMAT_SEARCH_SECONDS",
                )
            ]
        )


async def graph_request(service: Service, sent: RawFields, fields: Mapping[str, Any], kind: str) -> SolveRequest:
    """The request on a stored graph; an inline graph is read and stored. Raises ProblemDetails, NotFound.

    The lengths that the request gives to symbolic dimensions are those of the stored graph.
    """
    if "graph" in sent:
        shapes = {name: PARSERS[name](fields[name], name) for name in SHAPE_FIELDS if fields.get(name)}
        graph_id = await _inline_graph(service, bytes(sent["graph"]), shapes)
        bound = SHAPE_FIELDS if "dims" in shapes else ("dims",)
        fields = {name: given for name, given in fields.items() if name not in bound}
    else:
        graph_id = decode_object(bytes(sent["graph_id"]), str)
        await anyio.to_thread.run_sync(service.has_graph, graph_id)
    return SolveRequest(records.request_key(graph_id, fields, kind), graph_id, fields, kind=kind)


async def _inline_graph(service: Service, data: bytes, shapes: Mapping[str, Any]) -> str:
    """Id of the graph in `data`, read and stored; the same bytes sent shortly after need no child process.

    `shapes`: SHAPE_FIELDS of the request. Without `dims` they are those of the graph only if it has named dimensions.
    """
    digest = blob_key(data) if len(data) <= SMALL_BYTES else await anyio.to_thread.run_sync(blob_key, data)
    lengths = msgspec.json.encode(shapes, order="deterministic")
    key = "inline", tenant_of(service), service.settings.limits(), digest, lengths
    known = service.responses.get(key)
    if known is not None:
        with suppress(NotFound):
            await anyio.to_thread.run_sync(service.has_graph, known.decode())
            return known.decode()
    try:
        record = await service.read_graph(data, {**NO_SHAPES, **(shapes if "dims" in shapes else {})})
    except ProblemDetails as problem:
        if problem.body["code"] != "unbound_dimension" or not shapes:
            raise
        record = await service.read_graph(data, {**NO_SHAPES, **shapes})
    graph_id = str(record["id"])
    service.responses.put(key, graph_id.encode())
    return graph_id


def data_request(data: bytes, fields: Mapping[str, Any], kind: str) -> SolveRequest:
    """The request on an input document that is not stored as a graph."""
    return SolveRequest(records.request_key(blob_key(data), fields, kind), None, fields, kind=kind, data=data)
