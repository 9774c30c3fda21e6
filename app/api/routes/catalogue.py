"""`/v1/planners`, `/v1/devices`, `/v1/schemas/{name}`: the catalogue."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Path, Response

from app import catalogue
from app.api.wire.openapi import problem_docs, ref, response_docs

SchemaName = Annotated[str, Path(description="schema name", json_schema_extra={"enum": list(catalogue.SCHEMA_NAMES)})]

router = APIRouter(tags=["catalogue"])


@router.get(
    "/v1/planners",
    response_class=Response,
    responses=response_docs(200, "All planners", {"application/json": ref("Planners")}) | problem_docs(422),
)
async def get_planners() -> Response:
    """Values of the request field `planner`."""
    planners = await anyio.to_thread.run_sync(catalogue.planners)
    return Response(msgspec.json.encode({"planners": planners}), media_type="application/json")


@router.get(
    "/v1/devices",
    response_class=Response,
    responses=response_docs(200, "All device profiles", {"application/json": ref("Devices")}) | problem_docs(422),
)
async def get_devices() -> Response:
    """Values of the request fields `device` and `fits`."""
    devices = await anyio.to_thread.run_sync(catalogue.devices)
    return Response(msgspec.json.encode({"devices": devices}), media_type="application/json")


@router.get(
    "/v1/schemas/{name}",
    response_class=Response,
    responses=response_docs(200, "A JSON Schema", {"application/schema+json": {"type": "object"}})
    | problem_docs(404, 422),
)
async def get_schema(name: SchemaName) -> Response:
    """JSON Schema of documents, requests, reports, operations or problems."""
    schema = await anyio.to_thread.run_sync(catalogue.schema, name)
    return Response(msgspec.json.encode(schema), media_type="application/schema+json")
