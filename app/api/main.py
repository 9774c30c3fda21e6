"""The HTTP service: `create_app(settings)` assembles middleware, routes and error handlers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import anyio.to_thread
import msgspec
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match

from app.api.auth.fair_share import FairShareMiddleware
from app.api.auth.middleware import AuthMiddleware
from app.api.auth.rate_limit import RateLimiter
from app.api.auth.tenant_view import AccessControl
from app.api.middleware.compression import CompressionMiddleware
from app.api.middleware.head import HeadMiddleware
from app.api.middleware.request_admission import AdmissionMiddleware
from app.api.middleware.request_id import RequestIdMiddleware
from app.api.middleware.trusted_host import TrustedHostMiddleware
from app.api.routes import ROUTERS, only_known_parameters
from app.api.routes.dependencies import parameter_problem
from app.api.service.service import Service
from app.api.wire import openapi
from app.atomic_files import CannotWrite
from app.catalogue import versions
from app.errors import PROBLEM_TYPE, AppError, ProblemDetails, headers_of, problem_body, to_problem
from app.pages.routes import PAGES
from app.pages.shell.frame import error_page, wants_page
from app.settings import Settings
from app.store.store import Store
from app.telemetry import export
from graph.cancellation import CancellationError
from graph.errors import GraphError
from planner.errors import PlannerError

log = logging.getLogger(__name__)

TITLES = {404: ("not_found", "Not found"), 405: ("method_not_allowed", "Method not allowed")}


def create_app(
    settings: Settings | None = None,
    control: Callable[[Store], AccessControl] | None = None,
    hosts: Collection[str] | None = None,
) -> FastAPI:
    """The application over the store of `settings`; background work ends with the ASGI lifespan.

    With `control`, which makes the access control of the store, requests need an API key and see the resources of its
    tenant only. With `hosts`, requests need one of these hosts.
    """
    service = Service(settings or Settings())
    try:
        access = None if control is None else control(service.store)
    except BaseException:
        service.close()
        raise
    telemetry = export.start(service.settings.otlp_url)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(service.close)
        await anyio.to_thread.run_sync(telemetry.flush)

    app = FastAPI(
        title="remat",
        version=versions()["remat"],
        description="Memory planning and rematerialization for neural networks.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        dependencies=[Depends(only_known_parameters)],
        telemetry={
            "meter_provider": telemetry.requests,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    app.state.service, app.state.watching, app.state.access = service, telemetry, access
    if access is not None:  # middleware added last runs first
        app.add_middleware(AuthMiddleware, access=access, limiter=RateLimiter(service.settings.requests_per_second))
    app.add_middleware(AdmissionMiddleware, admission=service.admission)
    app.add_middleware(CompressionMiddleware)
    app.add_middleware(HeadMiddleware)
    if hosts is not None:
        app.add_middleware(TrustedHostMiddleware, hosts=hosts)
    app.add_middleware(RequestIdMiddleware, failed=_internal_error)
    if access is not None:
        app.add_middleware(FairShareMiddleware)
    for router in (*ROUTERS, *PAGES):
        app.include_router(router)
    for kind in (AppError, ProblemDetails, GraphError, PlannerError, CannotWrite, CancellationError):
        app.add_exception_handler(kind, _known_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(HTTPException, _http_error)
    app.openapi = lambda: openapi.openapi_document(app)  # type: ignore[method-assign]
    return app


def _problem_response(body: dict[str, object], headers: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(body), int(str(body["status"])), headers, PROBLEM_TYPE)


async def _known_error(request: Request, error: Exception) -> Response:
    return _problem_response(to_problem(error, request.url.path), headers_of(error))


async def _internal_error(request: Request, error: Exception) -> Response:
    log.error("path=%s event=failed", request.url.path, exc_info=error)
    return _problem_response(to_problem(error, request.url.path), {})


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, title = TITLES.get(error.status_code, ("refused", str(error.detail)))
    headers, reason = dict(error.headers or {}), "no such endpoint"
    if error.status_code == 405 and (allowed := _allowed_methods(request)):
        headers["Allow"] = ", ".join(allowed)
        reason = f"the methods of this path are {headers['Allow']}"
    detail = f"{request.method} {request.url.path[:200]}: {reason}; /docs lists the endpoints"
    body = problem_body(error.status_code, code, title, detail, request.url.path)
    return error_page(request, body, headers) if wants_page(request) else _problem_response(body, headers)


def _allowed_methods(request: Request) -> list[str]:
    """Methods of all routes of the path; empty if one of them matches the request.

    Starlette reports the methods of the first matching route only.
    """
    routes = [route for router in (*ROUTERS, *PAGES) for route in router.routes if isinstance(route, APIRoute)]
    matches = [(route, route.matches(request.scope)[0]) for route in routes]
    partial = [route for route, match in matches if match is Match.PARTIAL]
    if not partial or any(match is Match.FULL for _, match in matches):
        return []
    methods = set[str]().union(*(route.methods or () for route in partial if route.path == partial[0].path))
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


async def _invalid_parameters(request: Request, error: Exception) -> Response:
    """Response to invalid path, query or header parameters; routes parse bodies themselves."""
    assert isinstance(error, RequestValidationError)
    return _problem_response(parameter_problem(request, error), {})
