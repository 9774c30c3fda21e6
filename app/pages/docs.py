"""`/docs`: the OpenAPI document in Swagger UI within the frame of the pages; no external requests."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.pages.shell.frame import PageRoute, render_page

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Swagger UI sets styles on elements, and has pictures in its style sheet.
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The documentation page."""
    return render_page(
        request,
        "docs.html",
        title="HTTP interface",
        here="/docs",
        headers={"Content-Security-Policy": POLICY},
        asks_keys=request.app.state.access is not None,
    )
