"""`/livez`, `/readyz`, `/version`, `/metrics`."""

from __future__ import annotations

import anyio.to_thread
import msgspec
from fastapi import APIRouter, Request, Response

from app.api.routes.dependencies import Serving
from app.api.wire.openapi import answers, problems, ref
from app.catalogue import versions
from app.errors import Unavailable
from app.store.database import demand_current
from app.telemetry.export import CONTENT_TYPE, Export

router = APIRouter(tags=["health"])


@router.get(
    "/livez",
    response_class=Response,
    responses=answers(200, "The process answers", {"application/json": ref("Health")}) | problems(422),
)
async def livez() -> Response:
    """Whether the process answers at all."""
    return Response(b'{"status":"ok"}', media_type="application/json")


@router.get(
    "/readyz",
    response_class=Response,
    responses=answers(200, "Work is taken", {"application/json": ref("Health")}) | problems(422),
)
async def readyz(service: Serving) -> Response:
    """Whether work is taken: not while draining, nor when nothing can be stored, or tables are of another program."""
    if service.draining:
        raise Unavailable("the service is being stopped", headers={"Retry-After": "5"})
    await anyio.to_thread.run_sync(demand_current, service.store.engine)
    await anyio.to_thread.run_sync(service.store.check)
    return Response(b'{"status":"ready"}', media_type="application/json")


@router.get(
    "/version",
    response_class=Response,
    responses=answers(200, "Versions", {"application/json": ref("Version")}) | problems(422),
)
async def version() -> Response:
    """Of the program, its formats and the libraries that plans depend on."""
    return Response(msgspec.json.encode(versions()), media_type="application/json")


@router.get(
    "/metrics",
    response_class=Response,
    responses=answers(200, "Every metric", {"application/openmetrics-text": {"type": "string"}}) | problems(422),
)
async def metrics(request: Request) -> Response:
    """What Prometheus reads: requests, solves, queues, jobs, savings, faults; of all tenants together."""
    watching: Export = request.app.state.watching
    return Response(await anyio.to_thread.run_sync(watching.text), headers={"Content-Type": CONTENT_TYPE})
