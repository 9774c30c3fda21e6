"""`/v1/layouts`: buffers of any origin in, an offset for each out."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from app.api.routes.dependencies import Serving
from app.api.routes.submit_or_wait import (
    Asked,
    Sent,
    about_data,
    answered,
    answers_of_questions,
    answers_of_results,
    asked,
    demand_time,
    kept_result,
    result,
)
from app.api.service.service import Service
from app.api.wire.openapi import bodies, ref
from app.jobs.interface import Question
from app.models.json_object import decoded
from planner.layout.csv_buffers import parse_seconds

router = APIRouter(tags=["layouts"])

EXAMPLE = {"buffers": [{"lower": 0, "upper": 2, "size": 4096}, {"lower": 1, "upper": 3, "size": 512}], "capacity": 8192}


@router.post(
    "/v1/layouts",
    status_code=201,
    response_class=Response,
    responses=answers_of_questions("Where they lie", "PackedLayout"),
    openapi_extra=bodies({"application/json": ref("LayoutQuestion")}, {"two buffers": EXAMPLE}),
)
async def post_layout(asked: Annotated[Asked, Depends(asked)], service: Serving) -> Response:
    """Pack buffers with known lifetimes into one arena."""
    return await answered(asked, service, _question, result)


async def _question(service: Service, sent: Sent) -> Question:
    seconds = parse_seconds({name: decoded(bytes(raw), Any) for name, raw in sent.items() if name == "search_seconds"})
    demand_time(service, seconds)
    return about_data(msgspec.json.encode(sent), {"search_seconds": seconds}, "layout")


@router.get(
    "/v1/layouts/{layout_id}", response_class=Response, responses=answers_of_results("Where they lie", "PackedLayout")
)
async def get_packed(request: Request, service: Serving, layout_id: str) -> Response:
    """Offsets, in the order of the buffers that were sent."""
    return await kept_result(request, service, "layout", layout_id)
