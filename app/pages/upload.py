"""`/upload`: form that uploads a model and requests a plan; its script opens the job or the plan."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Request, Response

from app import catalogue
from app.api.routes.dependencies import ServiceDep
from app.pages.samples import SAMPLE
from app.pages.shell.frame import PageRoute, render_page
from planner.request.target_runtime import RUNTIMES

router = APIRouter(include_in_schema=False, route_class=PageRoute)

DEFAULT_DEVICE = "a100-80gb"


@router.get("/upload")
async def upload(request: Request, service: ServiceDep) -> Response:
    """The form; its script posts to /v1/graphs, then to /v1/plans."""
    planners = await anyio.to_thread.run_sync(catalogue.planners)
    devices = await anyio.to_thread.run_sync(catalogue.devices)
    return render_page(
        request,
        "upload.html",
        title="Upload",
        here="/upload",
        planners=planners,
        devices=devices,
        device=DEFAULT_DEVICE,
        runtimes=list(RUNTIMES.values()),
        max_seconds=service.settings.search_seconds,
        sample=SAMPLE,
        max_bytes=service.settings.body_bytes,
    )
