"""`/v1/curves`: several budgets in, the least time within each and the bound beside it out."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Request, Response

from app import records
from app.access.view import own_plan
from app.openapi import answers, bodies, problems, ref
from app.routes.asking import demand_time, fields_of, graph_id_of, sent_in
from app.routes.common import Serving
from app.routes.plans import EXAMPLE
from planner.asked import parse_curve

router = APIRouter(tags=["curves"])

CURVE_EXAMPLE: dict[str, Any] = {"graph": EXAMPLE["graph"], "budgets": ["90%", "50%"], "search_seconds": 1}


@router.post(
    "/v1/curves",
    status_code=201,
    response_class=Response,
    responses=answers(201, "The curve; its plans are kept", {"application/json": ref("Curve")})
    | problems(400, 404, 408, 413, 415, 422, 429),
    openapi_extra=bodies({"application/json": ref("CurveQuestion")}, {"one node": CURVE_EXAMPLE}),
)
async def post_curve(request: Request, service: Serving) -> Response:
    """Plan a graph at several budgets: never more time at a looser one. Answered when all are planned."""
    sent = await sent_in(request, service)
    fields = fields_of(sent)
    seconds = parse_curve(fields).request.search_seconds
    demand_time(service, seconds)
    graph_id = await graph_id_of(service, sent)
    payload = await anyio.to_thread.run_sync(records.solve_payload, service.store, graph_id, fields)
    made = await service.solve_in_child("curve", payload, seconds)
    for point, solved in zip(made["document"]["points"], made["plans"], strict=True):
        plan_id = await anyio.to_thread.run_sync(records.keep_plan, service.store, solved, graph_id)
        await anyio.to_thread.run_sync(own_plan, service, plan_id)
        point["plan"] = f"/v1/plans/{plan_id}"
    return Response(msgspec.json.encode(made["document"]), 201, media_type="application/json")
