"""`/v1/fits`: a memory in, the largest batch or the longest sequence that fits it out."""

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
from planner.asked import parse_fit

router = APIRouter(tags=["fits"])

FIT_EXAMPLE: dict[str, Any] = {"graph": EXAMPLE["graph"], "budget": "4MiB", "grow": "batch", "search_seconds": 1}


@router.post(
    "/v1/fits",
    status_code=201,
    response_class=Response,
    responses=answers(201, "The largest size; its plan is kept", {"application/json": ref("Fit")})
    | problems(400, 404, 408, 413, 415, 422, 429),
    openapi_extra=bodies({"application/json": ref("FitQuestion")}, {"one node": FIT_EXAMPLE}),
)
async def post_fit(request: Request, service: Serving) -> Response:
    """Find the largest size of a model that fits a memory. An inline document may leave dimensions open by name."""
    sent = await sent_in(request, service)
    fields = fields_of(sent)
    seconds = parse_fit(fields).request.search_seconds
    demand_time(service, seconds)
    if "graph" in sent:  # kept at its size only: until then its dimensions are open
        payload: dict[str, Any] = {"data": bytes(sent["graph"]), "fields": fields}
    else:
        graph_id = await graph_id_of(service, sent)
        payload = await anyio.to_thread.run_sync(records.solve_payload, service.store, graph_id, fields)
    made = await service.solve_in_child("fit", payload, seconds)
    for solved in made["plans"]:
        graph = await anyio.to_thread.run_sync(records.keep_graph, service.store, made["graph"])
        plan_id = await anyio.to_thread.run_sync(records.keep_plan, service.store, solved, graph["id"])
        await anyio.to_thread.run_sync(own_plan, service, plan_id)
        made["document"]["plan"] = f"/v1/plans/{plan_id}"
    return Response(msgspec.json.encode(made["document"]), 201, media_type="application/json")
