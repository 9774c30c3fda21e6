"""`/v1/plans`: questions in, reports out."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Header, Query, Request, Response

from app import records
from app.access.view import own_question, tenant_of
from app.bodies import body_of, media_type_of
from app.errors import Problem, Stopped
from app.jobs.port import Operation, Question
from app.negotiation import wait_asked
from app.openapi import UNCHANGED, answers, bodies, links, problems, ref
from app.routes.asking import demand_time, fields_of, fields_of_body, graph_id_of
from app.routes.common import (
    GRAPH_FORMS,
    IdempotencyKey,
    Serving,
    demand_media,
    immutable,
    negotiated,
)
from app.schemas import Section
from app.service import Service
from planner.request import parse_request

router = APIRouter(tags=["plans"])

EXAMPLE = {
    "graph": {
        "format": "remat/1",
        "values": [{"name": "x", "shape": [64, 784], "dtype": "float32", "role": "input"}],
        "nodes": [{"name": "relu1", "op": "Relu", "inputs": ["x"], "outputs": ["y"]}],
        "outputs": ["y"],
    },
    "budget": "50%",
}
Prefer = Annotated[list[str] | None, Header(description="wait=N: seconds to wait for the plan; 20 unless told")]
Sections = Annotated[list[Section] | None, Query(alias="return", description="of the report; plan and timeline")]


@router.post(
    "/v1/plans",
    status_code=201,
    response_class=Response,
    responses=links(
        answers(201, "The plan", {"application/json": ref("Report")}, Location="of the plan"),
        "/id",
        get_plan="plan_id",
        get_rewritten="plan_id",
        get_source="plan_id",
        get_layout="plan_id",
        get_timeline="plan_id",
    )
    | links(
        answers(
            202,
            "It takes longer; follow the operation",
            {"application/json": ref("Operation")},
            Location="of the operation",
            Retry_After="seconds",
        ),
        "/id",
        get_operation="operation_id",
        cancel_operation="operation_id",
        stream_operation="operation_id",
    )
    | problems(400, 404, 408, 409, 413, 415, 422, 429),
    openapi_extra=bodies({"application/json": ref("Question")}, {"one node": EXAMPLE}),
)
async def post_plan(
    request: Request,
    service: Serving,
    prefer: Prefer = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Plan a graph. The same question is answered from what is stored."""
    demand_media(media_type_of(request.headers), ["application/json"])
    body = await body_of(request, service.settings)
    sent = await fields_of_body(request, service, body)
    wanted = wait_asked(prefer or [])
    seconds = service.settings.wait_seconds if wanted is None else min(wanted, service.settings.longest_wait_seconds)
    question = await _question(service, sent)
    operation_id = await anyio.to_thread.run_sync(service.claim, idempotency_key, "/v1/plans", body)
    sections = parse_request(question.fields).returns
    if operation_id is None:
        if (plan_id := await anyio.to_thread.run_sync(records.answer_of, service.store, question.key)) is not None:
            return await _created(service, plan_id, sections)
        operation_id = (await anyio.to_thread.run_sync(service.jobs.submit, question)).id
        await anyio.to_thread.run_sync(service.bind, idempotency_key, "/v1/plans", operation_id)
    return await _answer(service, await service.jobs.wait(operation_id, seconds), sections)


async def _question(service: Service, sent: dict[str, msgspec.Raw]) -> Question:
    """The question in a body; an inline graph is read and kept. Raises BadRequest, Problem, NotFound."""
    fields = fields_of(sent)
    demand_time(service, parse_request(fields).search_seconds)
    graph_id = await graph_id_of(service, sent)
    return own_question(service, Question(records.question_key(graph_id, fields), graph_id, fields))


async def _answer(service: Service, operation: Operation, sections: tuple[str, ...]) -> Response:
    if operation.result is not None:
        return await _created(service, operation.result, sections)
    if operation.finished:
        raise (
            Problem(operation.error) if operation.error else Stopped("the operation was cancelled before it had a plan")
        )
    headers = {"Location": f"/v1/operations/{operation.id}", "Retry-After": "1"}
    return Response(msgspec.json.encode(operation.wire()), 202, headers, "application/json")


async def _created(service: Service, plan_id: str, sections: tuple[str, ...]) -> Response:
    report = await _report(service, plan_id, sections)
    return Response(report, 201, {"Location": f"/v1/plans/{plan_id}"}, "application/json")


async def _report(service: Service, plan_id: str, sections: tuple[str, ...]) -> bytes:
    """The report of a plan, from memory where this tenant has read it a moment ago. Raises NotFound."""
    key = tenant_of(service), plan_id, frozenset(sections)
    report = service.kept.get(key)
    if report is None:
        report = await anyio.to_thread.run_sync(records.report_of, service.store, plan_id, sections)
        service.kept.put(key, report)
    return report


@router.get(
    "/v1/plans/{plan_id}",
    response_class=Response,
    responses=answers(200, "The report", {"application/json": ref("Report")}, ETag="of these sections")
    | UNCHANGED
    | problems(404, 422),
)
async def get_plan(
    request: Request,
    service: Serving,
    plan_id: str,
    sections: Sections = None,
) -> Response:
    """The report of a plan, with the sections asked for."""
    wanted = records.DEFAULT_SECTIONS if sections is None else tuple(sections)
    report = await _report(service, plan_id, wanted)
    etag = "-".join([plan_id, *sorted(set(wanted) - {"plan"})])
    return immutable(request, report, etag, "application/json")


@router.get(
    "/v1/plans/{plan_id}/graph",
    response_class=Response,
    responses=answers(200, "The rewritten graph", GRAPH_FORMS, ETag="of this form", Vary="Accept")
    | UNCHANGED
    | problems(404, 406, 422),
)
async def get_rewritten(request: Request, service: Serving, plan_id: str) -> Response:
    """The rewritten graph, in the form that Accept asks for."""
    return await _graph(request, service, plan_id, "graph")


@router.get(
    "/v1/plans/{plan_id}/source",
    response_class=Response,
    responses=answers(200, "The graph that was planned", GRAPH_FORMS, ETag="of this form", Vary="Accept")
    | UNCHANGED
    | problems(404, 406, 422),
)
async def get_source(request: Request, service: Serving, plan_id: str) -> Response:
    """The graph that was planned, after differentiation."""
    return await _graph(request, service, plan_id, "source")


@router.get(
    "/v1/plans/{plan_id}/layout",
    response_class=Response,
    responses=answers(200, "Addresses", {"application/json": ref("Layout")}, ETag="of the layout")
    | UNCHANGED
    | problems(404, 422),
)
async def get_layout(request: Request, service: Serving, plan_id: str) -> Response:
    """Where every value lies."""
    return await _section(request, service, plan_id, "layout")


@router.get(
    "/v1/plans/{plan_id}/timeline",
    response_class=Response,
    responses=answers(200, "Bytes of every step", {"application/json": ref("Timeline")}, ETag="of the timeline")
    | UNCHANGED
    | problems(404, 422),
)
async def get_timeline(request: Request, service: Serving, plan_id: str) -> Response:
    """Bytes of every step, before and after."""
    return await _section(request, service, plan_id, "timeline")


async def _graph(request: Request, service: Service, plan_id: str, section: str) -> Response:
    document = await anyio.to_thread.run_sync(records.section_of, service.store, plan_id, section)
    return await negotiated(request, service, document, f"{plan_id}-{section}")


async def _section(request: Request, service: Service, plan_id: str, section: str) -> Response:
    data = await anyio.to_thread.run_sync(records.section_of, service.store, plan_id, section)
    return immutable(request, data, f"{plan_id}-{section}", "application/json")
