"""`/v1/plans/{plan_id}/measurements`: peak and time that steps under a plan took, beside the prediction."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Request, Response

from app.api.auth.tenant_view import tenant_of
from app.api.routes.dependencies import IdempotencyKey, ServiceDep, require_media_type, validated
from app.api.routes.submit_or_wait import parse_body
from app.api.schemas.measurements import StepMeasurement
from app.api.wire.openapi import body_docs, problem_docs, ref, response_docs
from app.api.wire.request_body import media_type_of, read_body
from app.store.measurements import SNAPSHOT, STEP, measurements_of, save_measurement
from app.store.tables import plans

router = APIRouter(tags=["plans"])

PICKLE = "application/octet-stream"
ACCEPTED_BODIES: dict[str, Any] = {
    "application/json": ref("StepMeasurement"),
    PICKLE: {"type": "string", "format": "binary"},
}


@router.post(
    "/v1/plans/{plan_id}/measurements",
    status_code=201,
    response_class=Response,
    responses=response_docs(201, "Stored", {"application/json": ref("Measurement")})
    | problem_docs(400, 404, 408, 409, 413, 415, 422),
    openapi_extra=body_docs(ACCEPTED_BODIES),
)
async def post_measurement(
    request: Request, service: ServiceDep, plan_id: str, idempotency_key: IdempotencyKey = None
) -> Response:
    """Store a measurement: the JSON of `remat measure`, or a pickled memory snapshot of PyTorch (never unpickled).

    A plan keeps the newest 100 of a tenant; one that is stored already is not stored again.
    """
    await anyio.to_thread.run_sync(service.store.row, plans, plan_id)
    media_type = media_type_of(request.headers)
    require_media_type(media_type, list(ACCEPTED_BODIES))
    body = await read_body(request, service.settings)
    claimed = idempotency_key, request.url.path, body
    await service.require_key_free(*claimed)
    if media_type == PICKLE:
        kind = SNAPSHOT
        document = await service.run_in_child("snapshot", lambda: {"data": body}, len(body))
    else:
        await parse_body(request, service, body)
        kind, document = STEP, validated(StepMeasurement, body, "send what `remat measure` wrote").model_dump()
    await service.claim(*claimed)
    saved = await anyio.to_thread.run_sync(save_measurement, service.store, plan_id, tenant_of(service), kind, document)
    return Response(msgspec.json.encode(saved), 201, media_type="application/json")


@router.get(
    "/v1/plans/{plan_id}/measurements",
    response_class=Response,
    responses=response_docs(200, "The measurements", {"application/json": ref("Measurements")})
    | problem_docs(404, 422),
)
async def get_measurements(service: ServiceDep, plan_id: str) -> Response:
    """Measurements of a plan, newest first."""
    rows = await anyio.to_thread.run_sync(measurements_of, service.store, plan_id, tenant_of(service))
    return Response(msgspec.json.encode({"measurements": rows}), media_type="application/json")
