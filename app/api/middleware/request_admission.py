"""Admission control: limits concurrent requests, and rejects POST when memory is low."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.service.process_admission import REQUEST_MEMORY, Admission, RequestMemory
from app.api.wire.open_paths import is_open
from app.errors import AppError, send_problem

METRICS_PATH = "/metrics"  # answered under overload too; it shows the cause
BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})


class AdmissionMiddleware:
    """ASGI middleware that applies `Admission` to every request."""

    def __init__(self, app: ASGIApp, admission: Admission):
        self.app, self.admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        admission, held = self.admission, RequestMemory(self.admission)
        scope[REQUEST_MEMORY] = held
        counts = not is_open(scope["path"]) and scope["path"] != METRICS_PATH
        try:
            if counts:
                admission.require_request_slot()
            if scope["method"] in BODY_METHODS:
                admission.require_memory()
        except AppError as error:
            await send_problem(error, scope["path"], send)
            return
        admission.requests += counts
        try:
            await self.app(scope, receive, send)
        finally:
            admission.requests -= counts
            held.end()
