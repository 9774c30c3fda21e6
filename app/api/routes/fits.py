"""`/v1/fits`: a memory in, the largest batch or the longest sequence that fits it out."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from app.api.routes.dependencies import Serving
from app.api.routes.plans import EXAMPLE
from app.api.routes.submit_or_wait import (
    Asked,
    Sent,
    about_data,
    about_graph,
    answered,
    answers_of_questions,
    answers_of_results,
    asked,
    demand_time,
    fields_of,
    kept_result,
    result,
)
from app.api.service.service import Service
from app.api.wire.openapi import bodies, ref
from app.jobs.interface import Question
from planner.request.curve_and_fit_request import parse_fit

router = APIRouter(tags=["fits"])

FIT_EXAMPLE: dict[str, Any] = {"graph": EXAMPLE["graph"], "budget": "4MiB", "grow": "batch", "search_seconds": 1}


@router.post(
    "/v1/fits",
    status_code=201,
    response_class=Response,
    responses=answers_of_questions("The largest size; its plan is kept", "Fit"),
    openapi_extra=bodies({"application/json": ref("FitQuestion")}, {"one node": FIT_EXAMPLE}),
)
async def post_fit(asked: Annotated[Asked, Depends(asked)], service: Serving) -> Response:
    """Find the largest size of a model that fits a memory. An inline document may leave dimensions open by name."""
    return await answered(asked, service, _question, result)


async def _question(service: Service, sent: Sent) -> Question:
    fields = fields_of(sent)
    demand_time(service, parse_fit(fields).request.search_seconds)
    if "graph" in sent:  # kept as a graph at its size only: until then its dimensions are open
        return about_data(bytes(sent["graph"]), fields, "fit")
    return await about_graph(service, sent, fields, "fit")


@router.get("/v1/fits/{fit_id}", response_class=Response, responses=answers_of_results("The fit", "Fit"))
async def get_fit(request: Request, service: Serving, fit_id: str) -> Response:
    """A fit; it names its plan."""
    return await kept_result(request, service, "fit", fit_id)
