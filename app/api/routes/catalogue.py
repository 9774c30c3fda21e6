"""`/v1/planners`, `/v1/devices`, `/v1/schemas/{name}`: what there is."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Path, Response

from app import catalogue
from app.api.wire.openapi import problem_docs, ref, response_docs

SchemaName = Annotated[str, Path(description="of the schema", json_schema_extra={"enum": list(catalogue.SCHEMA_NAMES)})]

router = APIRouter(tags=["what there is"])


@router.get(
    "/v1/planners",
    response_class=Response,
    responses=response_docs(200, "Every planner", {"application/json": ref("Planners")}) | problem_docs(422),
)
async def get_planners() -> Response:
    """Names a request's `planner` may say."""
    found = await anyio.to_thread.run_sync(catalogue.planners)
    return Response(msgspec.json.encode({"planners": found}), media_type="application/json")


@router.get(
    "/v1/devices",
    response_class=Response,
    responses=response_docs(200, "Every device profile", {"application/json": ref("Devices")}) | problem_docs(422),
)
async def get_devices() -> Response:
    """Names a request's `device` and `fits` may say."""
    found = await anyio.to_thread.run_sync(catalogue.devices)
    return Response(msgspec.json.encode({"devices": found}), media_type="application/json")


@router.get(
    "/v1/schemas/{name}",
    response_class=Response,
    responses=response_docs(200, "A JSON Schema", {"application/schema+json": {"type": "object"}})
    | problem_docs(404, 422),
)
async def get_schema(name: SchemaName) -> Response:
    """document, columns, request, report, operation or problem."""
    found = await anyio.to_thread.run_sync(catalogue.schema, name)
    return Response(msgspec.json.encode(found), media_type="application/schema+json")
