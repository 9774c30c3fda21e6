"""What every page has: the frame around it, its headers, and how it says that something went wrong.

    router = APIRouter(include_in_schema=False, route_class=PageRoute)

    @router.get("/jobs")
    async def jobs(request: Request, service: Serving) -> Response:
        return page(request, "jobs.html", title="Jobs", here="/jobs", rows=rows)

A template extends `base.html`, fills `main`, and names its scripts, which are modules in `static/js`:

    {% extends "base.html" %}
    {% set scripts = ["js/jobs.js"] %}
    {% block main %} ... {% endblock %}
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import jinja2
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from app.api.auth.middleware import CALLER, CSRF
from app.api.auth.tenant_view import Caller
from app.atomic_files import CannotWrite
from app.errors import AppError, ProblemDetails, headers_of, problem_body, to_problem
from app.pages import format_values
from app.pages.assets import asset_url
from app.render.text import UNITS
from graph.errors import GraphError
from planner.errors import PlannerError

log = logging.getLogger(__name__)

#: Nothing from elsewhere, no script or style inside a page, and no other page around one.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
}
NAVIGATION = (
    ("/", "Dashboard"),
    ("/jobs", "Jobs"),
    ("/batches", "Batches"),
    ("/upload", "Upload"),
    ("/compare", "Compare"),
    ("/docs", "HTTP"),
)
THEME_COOKIE = "remat_theme"  # a cookie that js/frame.js sets
PAGE_ERRORS = (AppError, ProblemDetails, GraphError, PlannerError, CannotWrite)

templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.globals |= {
    "UNITS": UNITS,
    "asset": asset_url,
    "unit_of": format_values.byte_unit_of,
    "span_of": format_values.time_unit_of,
}
templates.filters |= format_values.FILTERS


class PageRoute(APIRoute):
    """A path whose faults are pages too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await answer(request)
            except PAGE_ERRORS as error:
                return error_page(request, to_problem(error, request.url.path), headers_of(error))
            except RequestValidationError as error:
                said = "; ".join(f"{found['loc'][-1]}: {found['msg']}" for found in error.errors()[:5])
                return error_page(request, problem_body(422, "bad_parameter", "A parameter breaks a rule", said))
            except HTTPException:
                raise
            except Exception as error:
                log.error("path=%s event=failed", request.url.path, exc_info=error)
                return error_page(request, to_problem(error, request.url.path))

        return handler


def render_page(
    request: Request,
    template: str,
    *,
    title: str,
    here: str = "",
    status: int = 200,
    embed: bool = False,
    headers: dict[str, str] | None = None,
    **said: Any,
) -> Response:
    """A template within the frame. `here` is the place of the navigation it belongs to.

    With `embed` there is no navigation and other sites may frame the page; it must then offer nothing that acts.
    """
    caller: Caller | None = request.scope.get(CALLER)
    text = templates.get_template(template).render(
        title=title,
        here=here,
        places=NAVIGATION,
        embed=embed,
        caller=caller,
        csrf=csrf_token(request),
        theme=theme_of(request),
        origin=str(request.base_url).rstrip("/"),
        **said,
    )
    policy = CONTENT_SECURITY_POLICY.format(ancestors="*" if embed else "'none'")
    return Response(
        text, status, HEADERS | {"Content-Security-Policy": policy} | (headers or {}), "text/html; charset=utf-8"
    )


def render_fragment(request: Request, template: str, **said: Any) -> Response:
    """A piece of a page, for a script that puts it in its place."""
    caller: Caller | None = request.scope.get(CALLER)
    text = templates.get_template(template).render(caller=caller, csrf=csrf_token(request), **said)
    policy = CONTENT_SECURITY_POLICY.format(ancestors="'none'")
    return Response(text, 200, HEADERS | {"Content-Security-Policy": policy}, "text/html; charset=utf-8")


def error_page(request: Request, said: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    """A page that says what is so, and what to do."""
    status = int(said["status"])
    return render_page(request, "fault.html", title=said["title"], status=status, headers=headers, said=said)


def wants_page(request: Request) -> bool:
    """Whether a person has gone there, not a program."""
    return not request.url.path.startswith("/v1/") and "text/html" in request.headers.get("accept", "")


def theme_of(request: Request) -> str:
    """The colours that the reader has chosen here before; empty: those of the system."""
    chosen = request.cookies.get(THEME_COOKIE, "")
    return chosen if chosen in ("light", "dark") else ""


def csrf_token(request: Request) -> str:
    """What a script sends back with whatever changes something; empty where no session is."""
    token: str = request.scope.get(CSRF, "")
    return token
