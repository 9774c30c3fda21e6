"""The HTTP service. `create_app(settings)` puts it together; each path is a file in `routes/`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
import msgspec
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match

from app.api.auth.batch_access import BatchKeyStore
from app.api.auth.middleware import AuthMiddleware
from app.api.auth.tenant_view import AccessControl
from app.api.middleware.admission import AdmissionMiddleware
from app.api.middleware.head import HeadMiddleware
from app.api.middleware.request_id import RequestIdMiddleware
from app.api.routes import ROUTERS, only_known_parameters
from app.api.service.service import Service
from app.api.wire import openapi
from app.atomic_files import CannotWrite
from app.catalogue import versions
from app.errors import PROBLEM_TYPE, AppError, ProblemDetails, headers_of, problem_body, to_problem
from app.pages.frame import error_page, wants_page
from app.pages.routes import PAGES
from app.settings import Settings
from app.telemetry import export
from graph.cancellation import CancellationError
from graph.errors import Finding, GraphError
from planner.errors import PlannerError

log = logging.getLogger(__name__)

TITLES = {404: ("not_found", "There is no such path"), 405: ("method_not_allowed", "This path has other methods")}


def create_app(settings: Settings | None = None, access: AccessControl | None = None) -> FastAPI:
    """The application over the store that `settings` name; its work ends with the lifespan.

    With `access` every caller needs a key and sees what is their tenant's.
    """
    service = Service(settings or Settings())
    watching = export.start(service.settings.otlp_url)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(service.close)
        await anyio.to_thread.run_sync(watching.flush)

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
            "meter_provider": watching.requests,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    app.state.service, app.state.watching, app.state.access = service, watching, access
    if access is not None:  # the last one added stands before the others
        access.key_store = BatchKeyStore(access.key_store, service.store)
        app.add_middleware(AuthMiddleware, access=access)
    app.add_middleware(AdmissionMiddleware, admission=service.admission)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(RequestIdMiddleware, failed=_failed)
    for router in (*ROUTERS, *PAGES):
        app.include_router(router)
    for kind in (AppError, ProblemDetails, GraphError, PlannerError, CannotWrite, CancellationError):
        app.add_exception_handler(kind, _told)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.openapi = lambda: openapi.openapi_document(app)  # type: ignore[method-assign]
    return app


def _answer(body: dict[str, object], headers: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(body), int(str(body["status"])), headers, PROBLEM_TYPE)


async def _told(request: Request, error: Exception) -> Response:
    return _answer(to_problem(error, request.url.path), headers_of(error))


async def _failed(request: Request, error: Exception) -> Response:
    log.error("path=%s event=failed", request.url.path, exc_info=error)
    return _answer(to_problem(error, request.url.path), {})


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, title = TITLES.get(error.status_code, ("refused", str(error.detail)))
    detail = f"{request.method} {request.url.path[:200]} is not answered; /docs lists what is"
    body = problem_body(error.status_code, code, title, detail, request.url.path)
    headers = dict(error.headers or {})
    if error.status_code == 405 and (allowed := _methods(request)):
        headers["Allow"] = ", ".join(allowed)
    return error_page(request, body, headers) if wants_page(request) else _answer(body, headers)


def _methods(request: Request) -> list[str]:
    """Those of the path, where a route of it answers another one only; empty where one answers this one too.

    Starlette tells those of the first of its routes alone.
    """
    routes = [route for router in (*ROUTERS, *PAGES) for route in router.routes if isinstance(route, APIRoute)]
    found = [(route, route.matches(request.scope)[0]) for route in routes]
    partly = [route for route, match in found if match is Match.PARTIAL]
    if not partly or any(match is Match.FULL for _, match in found):
        return []
    found_methods = set[str]().union(*(route.methods or () for route in partly if route.path == partly[0].path))
    return sorted(found_methods | ({"HEAD"} if "GET" in found_methods else set()))


async def _invalid(request: Request, error: Exception) -> Response:
    """Parameters of the path, the query and headers; bodies are read by the routes."""
    assert isinstance(error, RequestValidationError)
    findings = [
        Finding(
            "bad_parameter",
            ".".join(str(part) for part in fault["loc"]),
            repr(fault.get("input"))[:80],
            str(fault["msg"]),
            "correct the parameter",
        )
        for fault in error.errors()
    ]
    detail = "\n".join(str(finding) for finding in findings)
    body = problem_body(422, "bad_parameter", "A parameter breaks a rule", detail, request.url.path, findings=findings)
    return _answer(body, {})
