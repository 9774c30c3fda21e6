"""`/livez`, `/readyz`, `/version`, `/metrics`."""

from __future__ import annotations

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Request, Response

from app.api.routes.dependencies import ServiceDep
from app.api.wire.openapi import problem_docs, ref, response_docs
from app.catalogue import versions
from app.errors import Unavailable
from app.telemetry.export import CONTENT_TYPE, TelemetryExport

router = APIRouter(tags=["health"])


@router.get(
    "/livez",
    response_class=Response,
    responses=response_docs(200, "The process is alive", {"application/json": ref("Health")}) | problem_docs(422),
)
async def livez() -> Response:
    """Liveness of the process."""
    return Response(b'{"status":"ok"}', media_type="application/json")


@router.get(
    "/readyz",
    response_class=Response,
    responses=response_docs(200, "Ready for work", {"application/json": ref("Health")}) | problem_docs(422),
)
async def readyz(service: ServiceDep) -> Response:
    """Readiness: not draining; the store is writable and its schema is current, as probed once a second."""
    if service.draining:
        raise Unavailable("the service is shutting down", headers={"Retry-After": "5"})
    await service.readiness.require()
    return Response(b'{"status":"ready"}', media_type="application/json")


@router.get(
    "/version",
    response_class=Response,
    responses=response_docs(200, "Versions", {"application/json": ref("Version")}) | problem_docs(422),
)
async def version() -> Response:
    """Versions of remat, its formats, and the libraries that plans depend on."""
    return Response(msgspec.json.encode(versions()), media_type="application/json")


@router.get(
    "/metrics",
    response_class=Response,
    responses=response_docs(200, "Prometheus metrics", {"application/openmetrics-text": {"type": "string"}})
    | problem_docs(422),
)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus: requests, solves, queues, jobs, savings and errors, over all tenants."""
    telemetry: TelemetryExport = request.app.state.watching
    return Response(await anyio.to_thread.run_sync(telemetry.text), headers={"Content-Type": CONTENT_TYPE})
