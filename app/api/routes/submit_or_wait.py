"""What questions have in common: read from a body, put to the jobs, answered from what is kept or when they end.

body ──▶ Question ──▶ answered before? ──▶ 201, the answer and its place
                    ╰▶ operation ──wait──▶ 201, or 202 and the place of the operation
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import anyio.to_thread
import msgspec
from fastapi import Header, Request, Response

from app.api.auth.tenant_view import grant_result, scope_request, tenant_of
from app.api.routes.answer_lookup import lookup_answer
from app.api.routes.dependencies import IdempotencyKey, immutable_response, require_media_type
from app.api.service.admission import request_memory
from app.api.service.service import Service
from app.api.wire.negotiation import preferred_wait
from app.api.wire.openapi import NOT_MODIFIED, Responses, problem_docs, ref, response_docs, with_links
from app.api.wire.request_body import media_type_of, raw_fields, read_body
from app.errors import ProblemDetails
from app.jobs.interface import SolveRequest
from app.models.json_object import decode_object
from app.store import records
from app.store.blobs import blob_key
from app.store.states import RESULT_PATHS
from graph.cancellation import CancellationError
from graph.errors import Finding
from planner.errors import BadRequest

GRAPH_FIELDS = ("graph", "graph_id")
Prefer = Annotated[str | None, Header(description="wait=N: seconds to wait for the answer; 20 unless told")]
RawFields = Mapping[str, msgspec.Raw]
#: The question in the fields of a body. Raises BadRequest, Problem, NotFound.
ParseRequest = Callable[[Service, RawFields], Awaitable[SolveRequest]]
#: The answer of that id as bytes.
RenderResult = Callable[[Service, SolveRequest, str], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Submission:
    """A request with a question, and what its headers say."""

    request: Request
    idempotency_key: str | None


async def get_submission(request: Request, prefer: Prefer = None, idempotency_key: IdempotencyKey = None) -> Submission:
    """The dependency of every route that puts a question to the jobs. `prefer` may come in several headers."""
    return Submission(request, idempotency_key)


async def submit_or_wait(asked: Submission, service: Service, reading: ParseRequest, showing: RenderResult) -> Response:
    """201 with the answer, from what is kept or once it is found; 202 with the operation when that takes longer.

    Raises what `reading` does, Busy, OverQuota, Conflict, Unavailable, and the problem of an operation that failed.
    """
    request, settings = asked.request, service.settings
    require_media_type(media_type_of(request.headers), ["application/json"])
    body = await read_body(request, settings)
    sent = await parse_body(request, service, body)
    wanted = preferred_wait(request.headers.getlist("prefer"))
    seconds = settings.wait_seconds if wanted is None else min(wanted, settings.longest_wait_seconds)
    key = asked.idempotency_key
    await anyio.to_thread.run_sync(service.require_key_free, key, request.url.path, body)
    question = scope_request(service, await reading(service, sent))
    place = RESULT_PATHS[question.kind]
    operation_id = await anyio.to_thread.run_sync(service.claim, key, place, body)
    if operation_id is None:
        if (known := await lookup_answer(service, question)) is not None:
            await anyio.to_thread.run_sync(grant_result, service, question.kind, known)
            return _created(place, known, await showing(service, question, known))
        operation_id = (await anyio.to_thread.run_sync(service.jobs.submit, question)).id
        await anyio.to_thread.run_sync(service.bind, key, place, operation_id)
    operation = await service.jobs.wait(operation_id, seconds)
    if operation.answer is not None:
        return _created(place, operation.answer, await showing(service, question, operation.answer))
    if operation.error is not None:
        raise ProblemDetails(operation.error)
    if operation.finished:
        raise CancellationError(f"the operation was cancelled before it had a {operation.kind}")
    headers = {"Location": f"/v1/operations/{operation.id}", "Retry-After": "1"}
    return Response(msgspec.json.encode(operation.wire()), 202, headers, "application/json")


def _created(place: str, id: str, data: bytes) -> Response:
    return Response(data, 201, {"Location": f"{place}/{id}"}, "application/json")


def submit_docs(description: str, schema: str, **linked: str) -> Responses:
    """Documentation of what `answered` gives; the answer's id is the parameter that each linked operation takes."""
    good = response_docs(201, description, {"application/json": ref(schema)}, Location="of the answer")
    later = response_docs(
        202,
        "It takes longer; follow the operation",
        {"application/json": ref("Operation")},
        Location="of the operation",
        Retry_After="seconds",
    )
    following = dict.fromkeys(("get_operation", "cancel_operation", "stream_operation"), "operation_id")
    return (
        (with_links(good, "/id", **linked) if linked else good)
        | with_links(later, "/id", **following)
        | problem_docs(400, 404, 408, 409, 413, 415, 422, 429)
    )


async def result_bytes(service: Service, question: SolveRequest, id: str) -> bytes:
    """What `answered` shows of a curve, a fit or a layout."""
    return await _result(service, question.kind, id)


async def result_response(request: Request, service: Service, kind: str, id: str) -> Response:
    """200 with a curve, a fit or a layout, which never changes. Raises NotFound."""
    return immutable_response(request, await _result(service, kind, id), id, "application/json")


def result_docs(description: str, schema: str) -> Responses:
    """Documentation of what `kept_result` gives."""
    return (
        response_docs(200, description, {"application/json": ref(schema)}, ETag="its id")
        | NOT_MODIFIED
        | problem_docs(404, 422)
    )


async def _result(service: Service, kind: str, id: str) -> bytes:
    """The document, from memory where this tenant has read it a moment ago. Raises NotFound."""
    key = tenant_of(service), kind, id
    document = service.kept.get(key)
    if document is None:
        document = await anyio.to_thread.run_sync(records.result_of, service.store, kind, id)
        service.kept.put(key, document)
    return document


async def parse_body(request: Request, service: Service, body: bytes) -> dict[str, msgspec.Raw]:
    """As `app.api.wire.request_body.raw_fields`, in one of few threads."""
    parsers = request_memory(request).admission.parsers
    return await anyio.to_thread.run_sync(raw_fields, body, service.settings, limiter=parsers)


def request_fields(sent: RawFields) -> dict[str, Any]:
    """The fields beside the one graph. Raises BadRequest."""
    fields = {name: decode_object(bytes(raw), Any) for name, raw in sent.items() if name not in GRAPH_FIELDS}
    if ("graph" in sent) == ("graph_id" in sent):
        found = "both" if "graph" in sent else "neither"
        raise BadRequest.one("one_graph", "graph", found, "a graph, or the graph_id of one", "send one of them")
    return fields


def require_search_time(service: Service, search_seconds: float) -> None:
    """Raises BadRequest for a longer search than the settings allow."""
    longest = service.settings.search_seconds
    if search_seconds > longest:
        raise BadRequest(
            [
                Finding(
                    "too_long",
                    "search_seconds",
                    f"{search_seconds:g}",
                    f"at most {longest:g}",
                    "ask for less, or raise REMAT_SEARCH_SECONDS",
                )
            ]
        )


async def graph_request(service: Service, sent: RawFields, fields: Mapping[str, Any], kind: str) -> SolveRequest:
    """The question about a stored graph; an inline one is read and kept. Raises Problem, NotFound."""
    if "graph" in sent:
        graph_id = str((await service.read_graph(bytes(sent["graph"])))["id"])
    else:
        graph_id = decode_object(bytes(sent["graph_id"]), str)
        await anyio.to_thread.run_sync(service.has_graph, graph_id)
    return SolveRequest(records.request_key(graph_id, fields, kind), graph_id, fields, kind=kind)


def data_request(data: bytes, fields: Mapping[str, Any], kind: str) -> SolveRequest:
    """The question about what is no stored graph."""
    return SolveRequest(records.request_key(blob_key(data), fields, kind), None, fields, kind=kind, data=data)
