"""`/v1/curves`: the minimum time at each of several budgets, with its lower bound."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from app.api.routes.dependencies import GraphFilter, PageDep, ServiceDep, page_docs
from app.api.routes.submit_or_wait import (
    RawFields,
    Submission,
    get_submission,
    graph_request,
    request_fields,
    require_search_time,
    result_bytes,
    result_docs,
    result_page,
    result_response,
    submit_docs,
    submit_or_wait,
)
from app.api.schemas import examples
from app.api.service.service import Service
from app.api.wire.openapi import body_docs, ref
from app.jobs.interface import SolveRequest
from planner.request.curve_and_fit_request import parse_curve

router = APIRouter(tags=["curves"])


@router.post(
    "/v1/curves",
    status_code=201,
    response_class=Response,
    responses=submit_docs("The curve; its plans are stored", "Curve"),
    openapi_extra=body_docs({"application/json": ref("CurveQuestion")}, {"a perceptron": examples.CURVE}),
)
async def post_curve(submission: Annotated[Submission, Depends(get_submission)], service: ServiceDep) -> Response:
    """Plan a graph at several budgets; time does not increase with the budget."""
    return await submit_or_wait(submission, service, _parse, result_bytes)


async def _parse(service: Service, sent: RawFields) -> SolveRequest:
    fields = request_fields(sent)
    require_search_time(service, parse_curve(fields).request.search_seconds)
    return await graph_request(service, sent, fields, "curve")


@router.get("/v1/curves", response_class=Response, responses=page_docs("Curves"))
async def list_curves(service: ServiceDep, page: PageDep, graph_id: GraphFilter = None) -> Response:
    """Stored curves, newest first."""
    return await result_page(service, "curve", page, graph_id)


@router.get("/v1/curves/{curve_id}", response_class=Response, responses=result_docs("The curve", "Curve"))
async def get_curve(request: Request, service: ServiceDep, curve_id: str) -> Response:
    """A curve; its points link to their plans."""
    return await result_response(request, service, "curve", curve_id)
