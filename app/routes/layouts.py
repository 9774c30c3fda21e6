"""`/v1/layouts`: buffers of any origin in, an offset for each out."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from app.bodies import decoded
from app.openapi import answers, bodies, problems, ref
from app.routes.asking import demand_time, sent_in
from app.routes.common import Serving
from planner.layout.buffers import parse_seconds

router = APIRouter(tags=["layouts"])

EXAMPLE = {"buffers": [{"lower": 0, "upper": 2, "size": 4096}, {"lower": 1, "upper": 3, "size": 512}], "capacity": 8192}


@router.post(
    "/v1/layouts",
    response_class=Response,
    responses=answers(200, "Where they lie", {"application/json": ref("PackedLayout")})
    | problems(400, 413, 415, 422, 429),
    openapi_extra=bodies({"application/json": ref("LayoutQuestion")}, {"two buffers": EXAMPLE}),
)
async def post_layout(request: Request, service: Serving) -> Response:
    """Pack buffers with known lifetimes into one arena. Nothing of it is kept."""
    sent = await sent_in(request, service)
    seconds = parse_seconds({name: decoded(bytes(raw), Any) for name, raw in sent.items() if name == "search_seconds"})
    demand_time(service, seconds)
    made = await service.solve_in_child("layout", {"asked": msgspec.json.encode(sent)}, seconds)
    return Response(made["document"], 200, media_type="application/json")
