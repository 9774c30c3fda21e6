"""`/livez`, `/readyz`, `/version`, `/metrics`."""

from __future__ import annotations

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Request, Response

from app.api.routes.dependencies import ServiceDep
from app.api.wire.openapi import problem_docs, ref, response_docs
from app.catalogue import versions
from app.errors import Unavailable
from app.store.database import require_current_schema
from app.telemetry.export import CONTENT_TYPE, TelemetryExport

router = APIRouter(tags=["health"])


@router.get(
    "/livez",
    response_class=Response,
    responses=response_docs(200, "The process answers", {"application/json": ref("Health")}) | problem_docs(422),
)
async def livez() -> Response:
    """Whether the process answers at all."""
    return Response(b'{"status":"ok"}', media_type="application/json")


@router.get(
    "/readyz",
    response_class=Response,
    responses=response_docs(200, "Work is taken", {"application/json": ref("Health")}) | problem_docs(422),
)
async def readyz(service: ServiceDep) -> Response:
    """Whether work is taken: not while draining, nor when nothing can be stored, or tables are of another program."""
    if service.draining:
        raise Unavailable("the service is being stopped", headers={"Retry-After": "5"})
    await anyio.to_thread.run_sync(require_current_schema, service.store.engine)
    await anyio.to_thread.run_sync(service.store.check)
    return Response(b'{"status":"ready"}', media_type="application/json")


@router.get(
    "/version",
    response_class=Response,
    responses=response_docs(200, "Versions", {"application/json": ref("Version")}) | problem_docs(422),
)
async def version() -> Response:
    """Of the program, its formats and the libraries that plans depend on."""
    return Response(msgspec.json.encode(versions()), media_type="application/json")


@router.get(
    "/metrics",
    response_class=Response,
    responses=response_docs(200, "Every metric", {"application/openmetrics-text": {"type": "string"}})
    | problem_docs(422),
)
async def metrics(request: Request) -> Response:
    """What Prometheus reads: requests, solves, queues, jobs, savings, faults; of all tenants together."""
    watching: TelemetryExport = request.app.state.watching
    return Response(await anyio.to_thread.run_sync(watching.text), headers={"Content-Type": CONTENT_TYPE})
