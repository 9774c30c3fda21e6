"""`/v1/fits`: the largest batch or longest sequence that fits a memory size."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from app.api.routes.dependencies import GraphFilter, PageDep, ServiceDep, page_docs
from app.api.routes.submit_or_wait import (
    RawFields,
    Submission,
    data_request,
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
from planner.request.curve_and_fit_request import parse_fit

router = APIRouter(tags=["fits"])


@router.post(
    "/v1/fits",
    status_code=201,
    response_class=Response,
    responses=submit_docs("The largest size; its plan is stored", "Fit"),
    openapi_extra=body_docs({"application/json": ref("FitQuestion")}, {"a perceptron": examples.FIT}),
)
async def post_fit(submission: Annotated[Submission, Depends(get_submission)], service: ServiceDep) -> Response:
    """Find the largest batch or sequence that fits a memory size. An inline document may have symbolic dimensions."""
    return await submit_or_wait(submission, service, _parse, result_bytes)


async def _parse(service: Service, sent: RawFields) -> SolveRequest:
    fields = request_fields(sent)
    require_search_time(service, parse_fit(fields).request.search_seconds)
    if "graph" in sent:  # stored as a graph only at its final size; until then its dimensions are symbolic
        return data_request(bytes(sent["graph"]), fields, "fit")
    return await graph_request(service, sent, fields, "fit")


@router.get("/v1/fits", response_class=Response, responses=page_docs("Fits"))
async def list_fits(service: ServiceDep, page: PageDep, graph_id: GraphFilter = None) -> Response:
    """Stored fits, newest first."""
    return await result_page(service, "fit", page, graph_id)


@router.get("/v1/fits/{fit_id}", response_class=Response, responses=result_docs("The fit", "Fit"))
async def get_fit(request: Request, service: ServiceDep, fit_id: str) -> Response:
    """A fit, with a link to its plan."""
    return await result_response(request, service, "fit", fit_id)
