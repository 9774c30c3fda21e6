"""`/v1/fits`: a memory in, the largest batch or the longest sequence that fits it out."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from app.api.routes.dependencies import ServiceDep
from app.api.routes.plans import EXAMPLE
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
    result_response,
    submit_docs,
    submit_or_wait,
)
from app.api.service.service import Service
from app.api.wire.openapi import body_docs, ref
from app.jobs.interface import SolveRequest
from planner.request.curve_and_fit_request import parse_fit

router = APIRouter(tags=["fits"])

FIT_EXAMPLE: dict[str, Any] = {"graph": EXAMPLE["graph"], "budget": "4MiB", "grow": "batch", "search_seconds": 1}


@router.post(
    "/v1/fits",
    status_code=201,
    response_class=Response,
    responses=submit_docs("The largest size; its plan is kept", "Fit"),
    openapi_extra=body_docs({"application/json": ref("FitQuestion")}, {"one node": FIT_EXAMPLE}),
)
async def post_fit(asked: Annotated[Submission, Depends(get_submission)], service: ServiceDep) -> Response:
    """Find the largest size of a model that fits a memory. An inline document may leave dimensions open by name."""
    return await submit_or_wait(asked, service, _question, result_bytes)


async def _question(service: Service, sent: RawFields) -> SolveRequest:
    fields = request_fields(sent)
    require_search_time(service, parse_fit(fields).request.search_seconds)
    if "graph" in sent:  # kept as a graph at its size only: until then its dimensions are open
        return data_request(bytes(sent["graph"]), fields, "fit")
    return await graph_request(service, sent, fields, "fit")


@router.get("/v1/fits/{fit_id}", response_class=Response, responses=result_docs("The fit", "Fit"))
async def get_fit(request: Request, service: ServiceDep, fit_id: str) -> Response:
    """A fit; it names its plan."""
    return await result_response(request, service, "fit", fit_id)
