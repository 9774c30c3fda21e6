"""Frame of every page: navigation, headers, content security policy, error pages.

    router = APIRouter(include_in_schema=False, route_class=PageRoute)

    @router.get("/jobs")
    async def jobs(request: Request, service: ServiceDep) -> Response:
        return render_page(request, "jobs.html", title="Jobs", here="/jobs", rows=rows)

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
from app.api.routes.dependencies import parameter_problem
from app.atomic_files import CannotWrite
from app.errors import AppError, ProblemDetails, headers_of, to_problem
from app.pages.shell import format_values
from app.pages.shell.assets import asset_url
from app.render.text import UNITS
from graph.errors import GraphError
from planner.errors import PlannerError

log = logging.getLogger(__name__)

#: Resources of this service only, no inline scripts or styles, and no framing by other sites.
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
THEME_COOKIE = "remat_theme"  # set by js/frame.js
PAGE_ERRORS = (AppError, ProblemDetails, GraphError, PlannerError, CannotWrite)

templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parents[1] / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.globals |= {
    "UNITS": UNITS,
    "asset": asset_url,
    "byte_unit_of": format_values.byte_unit_of,
    "time_unit_of": format_values.time_unit_of,
}
templates.filters |= format_values.FILTERS


class PageRoute(APIRoute):
    """A route whose errors are rendered as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await handle(request)
            except PAGE_ERRORS as error:
                return error_page(request, to_problem(error, request.url.path), headers_of(error))
            except RequestValidationError as error:
                return error_page(request, parameter_problem(request, error))
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
    **context: Any,
) -> Response:
    """The template within the frame; `here`: its path in the navigation.

    `embed`: without navigation, and other sites may frame the page, so it must not contain buttons with effects.
    """
    caller: Caller | None = request.scope.get(CALLER)
    text = templates.get_template(template).render(
        title=title,
        here=here,
        navigation=NAVIGATION,
        embed=embed,
        caller=caller,
        may_plan=_may_plan(caller),
        csrf=csrf_token(request),
        theme=theme_of(request),
        origin=origin_of(request),
        **context,
    )
    policy = CONTENT_SECURITY_POLICY.format(ancestors="*" if embed else "'none'")
    return Response(
        text, status, HEADERS | {"Content-Security-Policy": policy} | (headers or {}), "text/html; charset=utf-8"
    )


def render_fragment(request: Request, template: str, **context: Any) -> Response:
    """A part of a page, inserted by a script."""
    caller: Caller | None = request.scope.get(CALLER)
    text = templates.get_template(template).render(
        caller=caller, may_plan=_may_plan(caller), csrf=csrf_token(request), **context
    )
    policy = CONTENT_SECURITY_POLICY.format(ancestors="'none'")
    return Response(text, 200, HEADERS | {"Content-Security-Policy": policy}, "text/html; charset=utf-8")


def _may_plan(caller: Caller | None) -> bool:
    """Whether the caller may request, cancel and annotate; pages without that have no buttons that would be refused."""
    return caller is None or "plan" in caller.key.scopes


def error_page(request: Request, problem: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    """A page with the problem and what to do about it."""
    status = int(problem["status"])
    return render_page(request, "error.html", title=problem["title"], status=status, headers=headers, problem=problem)


def wants_page(request: Request) -> bool:
    """Whether the client is a browser: accepts HTML, and the path is not of the API."""
    return not request.url.path.startswith("/v1/") and "text/html" in request.headers.get("accept", "")


def theme_of(request: Request) -> str:
    """Colour scheme of the cookie; empty: that of the system."""
    theme = request.cookies.get(THEME_COOKIE, "")
    return theme if theme in ("light", "dark") else ""


def origin_of(request: Request) -> str:
    """Address of the service as the browser knows it: `https://host:port`."""
    return str(request.base_url).rstrip("/")


def csrf_token(request: Request) -> str:
    """Token that every changing request of a session must send; empty without a session."""
    token: str = request.scope.get(CSRF, "")
    return token
