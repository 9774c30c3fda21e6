"""`/v1/curves`: several budgets in, the least time within each and the bound beside it out."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from app.api.routes.dependencies import Serving
from app.api.routes.plans import EXAMPLE
from app.api.routes.submit_or_wait import (
    Asked,
    Sent,
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
from planner.request.curve_and_fit_request import parse_curve

router = APIRouter(tags=["curves"])

CURVE_EXAMPLE: dict[str, Any] = {"graph": EXAMPLE["graph"], "budgets": ["90%", "50%"], "search_seconds": 1}


@router.post(
    "/v1/curves",
    status_code=201,
    response_class=Response,
    responses=answers_of_questions("The curve; its plans are kept", "Curve"),
    openapi_extra=bodies({"application/json": ref("CurveQuestion")}, {"one node": CURVE_EXAMPLE}),
)
async def post_curve(asked: Annotated[Asked, Depends(asked)], service: Serving) -> Response:
    """Plan a graph at several budgets: never more time at a looser one."""
    return await answered(asked, service, _question, result)


async def _question(service: Service, sent: Sent) -> Question:
    fields = fields_of(sent)
    demand_time(service, parse_curve(fields).request.search_seconds)
    return await about_graph(service, sent, fields, "curve")


@router.get("/v1/curves/{curve_id}", response_class=Response, responses=answers_of_results("The curve", "Curve"))
async def get_curve(request: Request, service: Serving, curve_id: str) -> Response:
    """A curve; its points name their plans."""
    return await kept_result(request, service, "curve", curve_id)
