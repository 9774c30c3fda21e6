"""`/`: what plans save."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.pages.frame import PageRoute, page
from app.routes.common import Serving

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/")
async def dashboard(request: Request, service: Serving) -> Response:
    """The dashboard."""
    return page(request, "dashboard.html", title="Savings", here="/")
