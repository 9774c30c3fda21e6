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

from app.api.auth.tenant_view import own_question, own_result, tenant_of
from app.api.routes.answer_lookup import known_answer
from app.api.routes.dependencies import IdempotencyKey, demand_media, immutable
from app.api.service.admission import held_by
from app.api.service.service import Service
from app.api.wire.negotiation import wait_asked
from app.api.wire.openapi import UNCHANGED, Responses, answers, links, problems, ref
from app.api.wire.request_body import body_of, fields_in, media_type_of
from app.errors import Problem
from app.jobs.interface import Question
from app.models.json_object import decoded
from app.store import records
from app.store.blobs import key_of
from app.store.states import PLACES
from graph.cancellation import Stopped
from graph.errors import Finding
from planner.errors import BadRequest

GRAPH = ("graph", "graph_id")
Prefer = Annotated[str | None, Header(description="wait=N: seconds to wait for the answer; 20 unless told")]
Sent = Mapping[str, msgspec.Raw]
#: The question in the fields of a body. Raises BadRequest, Problem, NotFound.
Reading = Callable[[Service, Sent], Awaitable[Question]]
#: The answer of that id as bytes.
Showing = Callable[[Service, Question, str], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with a question, and what its headers say."""

    request: Request
    idempotency_key: str | None


async def asked(request: Request, prefer: Prefer = None, idempotency_key: IdempotencyKey = None) -> Asked:
    """The dependency of every route that puts a question to the jobs. `prefer` may come in several headers."""
    return Asked(request, idempotency_key)


async def answered(asked: Asked, service: Service, reading: Reading, showing: Showing) -> Response:
    """201 with the answer, from what is kept or once it is found; 202 with the operation when that takes longer.

    Raises what `reading` does, Busy, OverQuota, Conflict, Unavailable, and the problem of an operation that failed.
    """
    request, settings = asked.request, service.settings
    demand_media(media_type_of(request.headers), ["application/json"])
    body = await body_of(request, settings)
    sent = await fields_of_body(request, service, body)
    wanted = wait_asked(request.headers.getlist("prefer"))
    seconds = settings.wait_seconds if wanted is None else min(wanted, settings.longest_wait_seconds)
    key = asked.idempotency_key
    await anyio.to_thread.run_sync(service.demand_free, key, request.url.path, body)
    question = own_question(service, await reading(service, sent))
    place = PLACES[question.kind]
    operation_id = await anyio.to_thread.run_sync(service.claim, key, place, body)
    if operation_id is None:
        if (known := await known_answer(service, question)) is not None:
            await anyio.to_thread.run_sync(own_result, service, question.kind, known)
            return _created(place, known, await showing(service, question, known))
        operation_id = (await anyio.to_thread.run_sync(service.jobs.submit, question)).id
        await anyio.to_thread.run_sync(service.bind, key, place, operation_id)
    operation = await service.jobs.wait(operation_id, seconds)
    if operation.answer is not None:
        return _created(place, operation.answer, await showing(service, question, operation.answer))
    if operation.error is not None:
        raise Problem(operation.error)
    if operation.finished:
        raise Stopped(f"the operation was cancelled before it had a {operation.kind}")
    headers = {"Location": f"/v1/operations/{operation.id}", "Retry-After": "1"}
    return Response(msgspec.json.encode(operation.wire()), 202, headers, "application/json")


def _created(place: str, id: str, data: bytes) -> Response:
    return Response(data, 201, {"Location": f"{place}/{id}"}, "application/json")


def answers_of_questions(description: str, schema: str, **linked: str) -> Responses:
    """Documentation of what `answered` gives; the answer's id is the parameter that each linked operation takes."""
    good = answers(201, description, {"application/json": ref(schema)}, Location="of the answer")
    later = answers(
        202,
        "It takes longer; follow the operation",
        {"application/json": ref("Operation")},
        Location="of the operation",
        Retry_After="seconds",
    )
    following = dict.fromkeys(("get_operation", "cancel_operation", "stream_operation"), "operation_id")
    return (
        (links(good, "/id", **linked) if linked else good)
        | links(later, "/id", **following)
        | problems(400, 404, 408, 409, 413, 415, 422, 429)
    )


async def result(service: Service, question: Question, id: str) -> bytes:
    """What `answered` shows of a curve, a fit or a layout."""
    return await _result(service, question.kind, id)


async def kept_result(request: Request, service: Service, kind: str, id: str) -> Response:
    """200 with a curve, a fit or a layout, which never changes. Raises NotFound."""
    return immutable(request, await _result(service, kind, id), id, "application/json")


def answers_of_results(description: str, schema: str) -> Responses:
    """Documentation of what `kept_result` gives."""
    return answers(200, description, {"application/json": ref(schema)}, ETag="its id") | UNCHANGED | problems(404, 422)


async def _result(service: Service, kind: str, id: str) -> bytes:
    """The document, from memory where this tenant has read it a moment ago. Raises NotFound."""
    key = tenant_of(service), kind, id
    document = service.kept.get(key)
    if document is None:
        document = await anyio.to_thread.run_sync(records.result_of, service.store, kind, id)
        service.kept.put(key, document)
    return document


async def fields_of_body(request: Request, service: Service, body: bytes) -> dict[str, msgspec.Raw]:
    """As `app.api.wire.request_body.fields_in`, in one of few threads."""
    parsers = held_by(request).admission.parsers
    return await anyio.to_thread.run_sync(fields_in, body, service.settings, limiter=parsers)


def fields_of(sent: Sent) -> dict[str, Any]:
    """The fields beside the one graph. Raises BadRequest."""
    fields = {name: decoded(bytes(raw), Any) for name, raw in sent.items() if name not in GRAPH}
    if ("graph" in sent) == ("graph_id" in sent):
        found = "both" if "graph" in sent else "neither"
        raise BadRequest.one("one_graph", "graph", found, "a graph, or the graph_id of one", "send one of them")
    return fields


def demand_time(service: Service, search_seconds: float) -> None:
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


async def about_graph(service: Service, sent: Sent, fields: Mapping[str, Any], kind: str) -> Question:
    """The question about a stored graph; an inline one is read and kept. Raises Problem, NotFound."""
    if "graph" in sent:
        graph_id = str((await service.read_graph(bytes(sent["graph"])))["id"])
    else:
        graph_id = decoded(bytes(sent["graph_id"]), str)
        await anyio.to_thread.run_sync(service.has_graph, graph_id)
    return Question(records.question_key(graph_id, fields, kind), graph_id, fields, kind=kind)


def about_data(data: bytes, fields: Mapping[str, Any], kind: str) -> Question:
    """The question about what is no stored graph."""
    return Question(records.question_key(key_of(data), fields, kind), None, fields, kind=kind, data=data)
