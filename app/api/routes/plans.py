"""`/v1/plans`: plan a graph; reports, rewritten graphs, layouts, timelines, tags and notes of plans."""

from __future__ import annotations

from typing import Annotated, Literal

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from app.api.auth.tenant_view import tenant_of
from app.api.routes.dependencies import (
    GRAPH_CONTENT,
    GraphFilter,
    PageDep,
    ServiceDep,
    graph_response,
    immutable_response,
    page_docs,
    page_response,
    require_media_type,
    validated,
)
from app.api.routes.submit_or_wait import (
    RawFields,
    Submission,
    get_submission,
    graph_request,
    parse_body,
    request_fields,
    require_search_time,
    submit_docs,
    submit_or_wait,
)
from app.api.schemas import examples
from app.api.schemas.plans import PlanChange
from app.api.service.service import Service
from app.api.wire.openapi import NOT_MODIFIED, Responses, body_docs, problem_docs, ref, response_docs
from app.api.wire.request_body import media_type_of, read_body
from app.jobs.interface import SolveRequest
from app.store import listing, records
from app.store.tables import plans
from app.store.tags_and_notes import annotate
from planner.request.field_kinds import Section
from planner.request.plan_request import parse_request

router = APIRouter(tags=["plans"])

PlanStatus = Literal["proven", "found", "over_budget"]
SectionsQuery = Annotated[
    list[Section] | None,
    Query(alias="return", description="sections; default: plan and timeline; summary: no order, names or proofs"),
]


@router.post(
    "/v1/plans",
    status_code=201,
    response_class=Response,
    responses=submit_docs(
        "The plan",
        "Report",
        get_plan="plan_id",
        get_rewritten="plan_id",
        get_source="plan_id",
        get_layout="plan_id",
        get_timeline="plan_id",
        get_certificate="plan_id",
    ),
    openapi_extra=body_docs({"application/json": ref("Question")}, {"a perceptron": examples.PLAN}),
)
async def post_plan(submission: Annotated[Submission, Depends(get_submission)], service: ServiceDep) -> Response:
    """Plan a graph. A repeated request returns the stored plan."""
    return await submit_or_wait(submission, service, _parse, _render, {"return": msgspec.Raw(b'"summary"')})


async def _parse(service: Service, sent: RawFields) -> SolveRequest:
    fields = request_fields(sent)
    require_search_time(service, parse_request(fields).search_seconds)
    return await graph_request(service, sent, fields, "plan")


async def _render(service: Service, request: SolveRequest, plan_id: str) -> bytes:
    return await _report(service, plan_id, parse_request(request.fields).returns)


async def _report(service: Service, plan_id: str, sections: tuple[str, ...]) -> bytes:
    """The report of a plan, from the response cache if possible; cached per tenant. Raises NotFound."""
    key = tenant_of(service), plan_id, frozenset(sections)
    report = service.responses.get(key)
    if report is None:
        report = await anyio.to_thread.run_sync(records.report_of, service.store, plan_id, sections)
        service.responses.put(key, report)
    return report


@router.get("/v1/plans", response_class=Response, responses=page_docs("Plans"))
async def list_plans(
    service: ServiceDep,
    page: PageDep,
    graph_id: GraphFilter = None,
    model: Annotated[str | None, Query(description="name of the model")] = None,
    planner: Annotated[str | None, Query(description="planner that found the plan")] = None,
    status: Annotated[PlanStatus | None, Query(description="status of the plan")] = None,
    tag: Annotated[str | None, Query(description="tag of the plan")] = None,
) -> Response:
    """Stored plans, newest first."""
    only = {"graph_id": graph_id, "planner": planner, "status": status}
    rows = await anyio.to_thread.run_sync(
        listing.page_of_plans, service.store, page, tenant_of(service), only, model, tag
    )
    return page_response("plans", rows)


@router.patch(
    "/v1/plans/{plan_id}",
    response_class=Response,
    responses=response_docs(200, "Tags and note as stored", {"application/json": ref("PlanAnnotations")})
    | problem_docs(400, 404, 408, 413, 415, 422),
    openapi_extra=body_docs({"application/json": ref("PlanChange")}, {"a tag": examples.TAGS}),
)
async def patch_plan(request: Request, service: ServiceDep, plan_id: str) -> Response:
    """Change tags and note of a plan; the report stays as it is. Each tenant has its own."""
    await anyio.to_thread.run_sync(service.store.row, plans, plan_id)
    require_media_type(media_type_of(request.headers), ["application/json"])
    body = await read_body(request, service.settings)
    await parse_body(request, service, body)
    change = validated(PlanChange, body, "see PlanChange in /openapi.json")
    tags = (change.tags or []) if "tags" in change.model_fields_set else None
    note = (change.note or "") if "note" in change.model_fields_set else None
    stored = await anyio.to_thread.run_sync(annotate, service.store, plan_id, tenant_of(service), tags, note)
    return Response(msgspec.json.encode({"id": plan_id} | stored), media_type="application/json")


@router.get(
    "/v1/plans/{plan_id}",
    response_class=Response,
    responses=response_docs(200, "The report", {"application/json": ref("Report")}, ETag="tag of these sections")
    | NOT_MODIFIED
    | problem_docs(404, 422),
)
async def get_plan(request: Request, service: ServiceDep, plan_id: str, sections: SectionsQuery = None) -> Response:
    """The report of a plan, with the requested sections."""
    wanted = records.DEFAULT_SECTIONS if sections is None else tuple(sections)
    report = await _report(service, plan_id, wanted)
    etag = "-".join([plan_id, *sorted(set(wanted) - {"plan"})])
    return immutable_response(request, report, etag, "application/json")


@router.get(
    "/v1/plans/{plan_id}/graph",
    response_class=Response,
    responses=response_docs(200, "The rewritten graph", GRAPH_CONTENT, ETag="tag of this representation", Vary="Accept")
    | NOT_MODIFIED
    | problem_docs(404, 406, 422),
)
async def get_rewritten(request: Request, service: ServiceDep, plan_id: str) -> Response:
    """The rewritten graph, in the format negotiated by Accept."""
    return await _graph(request, service, plan_id, "graph")


@router.get(
    "/v1/plans/{plan_id}/source",
    response_class=Response,
    responses=response_docs(200, "The planned graph", GRAPH_CONTENT, ETag="tag of this representation", Vary="Accept")
    | NOT_MODIFIED
    | problem_docs(404, 406, 422),
)
async def get_source(request: Request, service: ServiceDep, plan_id: str) -> Response:
    """The graph that was planned, after differentiation."""
    return await _graph(request, service, plan_id, "source")


def _section_docs(about: str, schema: str) -> Responses:
    """Documentation of the responses with one section of a plan."""
    content = {"application/json": ref(schema)}
    return (
        response_docs(200, about, content, ETag=f"tag of the {schema.lower()}") | NOT_MODIFIED | problem_docs(404, 422)
    )


@router.get("/v1/plans/{plan_id}/layout", response_class=Response, responses=_section_docs("Addresses", "Layout"))
async def get_layout(request: Request, service: ServiceDep, plan_id: str) -> Response:
    """Address of every value."""
    return await _section(request, service, plan_id, "layout")


@router.get(
    "/v1/plans/{plan_id}/timeline", response_class=Response, responses=_section_docs("Bytes live per step", "Timeline")
)
async def get_timeline(request: Request, service: ServiceDep, plan_id: str) -> Response:
    """Bytes live at every step, of the baseline and of the plan."""
    return await _section(request, service, plan_id, "timeline")


@router.get(
    "/v1/plans/{plan_id}/certificate",
    response_class=Response,
    responses=_section_docs("Format and claims", "Certificate"),
)
async def get_certificate(request: Request, service: ServiceDep, plan_id: str) -> Response:
    """Certificate of the plan's lower bound. A report has it with `return=source`, for `remat verify`."""
    data = await anyio.to_thread.run_sync(records.certificate_of, service.store, plan_id)
    return immutable_response(request, data, f"{plan_id}-certificate", "application/json")


async def _graph(request: Request, service: Service, plan_id: str, section: str) -> Response:
    key = await anyio.to_thread.run_sync(records.section_key, service.store, plan_id, section)
    return await graph_response(request, service, key, f"{plan_id}-{section}")


async def _section(request: Request, service: Service, plan_id: str, section: str) -> Response:
    data = await anyio.to_thread.run_sync(records.section_of, service.store, plan_id, section)
    return immutable_response(request, data, f"{plan_id}-{section}", "application/json")
