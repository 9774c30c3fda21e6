"""The door before everything else: it counts who is inside, and turns away what would be too much."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.service.admission import HELD, Admission, Held
from app.api.wire.open_paths import is_open
from app.errors import AppError, tell

BRINGING = frozenset({"POST", "PUT", "PATCH"})


class Door:
    """ASGI middleware: so many requests at a time, and none that brings work while memory runs low."""

    def __init__(self, app: ASGIApp, admission: Admission):
        self.app, self.admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        admission, held = self.admission, Held(self.admission)
        scope[HELD] = held
        counts = not is_open(scope["path"])
        try:
            if counts:
                admission.demand_requests()
            if scope["method"] in BRINGING:
                admission.demand_memory()
        except AppError as error:
            await tell(error, scope["path"], send)
            return
        admission.requests += counts
        try:
            await self.app(scope, receive, send)
        finally:
            admission.requests -= counts
            held.give(held.bytes)
