"""Request ids, in the response header `X-Request-Id` and in log lines; the access log; unhandled errors."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

log = logging.getLogger(__name__)

REQUEST_ID = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
QUIET_PATHS = frozenset({"/livez", "/readyz", "/metrics"})
MAX_PATH_LENGTH = 200


class RequestIdMiddleware:
    """ASGI middleware: uses the `X-Request-Id` of the client if it matches REQUEST_ID, else generates one.

    `failed` builds the response to an unhandled exception, unless a response was started.
    """

    def __init__(self, app: ASGIApp, failed: Callable[[Request, Exception], Awaitable[Response]]):
        self.app, self._failed = app, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_ids = [value for name, value in scope["headers"] if name == b"x-request-id"]
        is_valid = len(request_ids) == 1 and REQUEST_ID.fullmatch(request_ids[0])
        id = request_ids[0] if is_valid else secrets.token_hex(8).encode()
        began, status, location = time.monotonic(), 0, ""

        async def send_with_id(message: Message) -> None:
            nonlocal status, location
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", ()))
                location = next((value.decode("latin-1") for name, value in headers if name.lower() == b"location"), "")
                message = {**message, "headers": [*headers, (b"x-request-id", id)]}
            await send(message)

        with bound_contextvars(request=id.decode()):
            try:
                await self.app(scope, receive, send_with_id)
            except Exception as error:
                if status:
                    raise
                await (await self._failed(Request(scope), error))(scope, receive, send_with_id)
            finally:
                quiet = logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO
                level = logging.WARNING if status >= 500 else quiet
                log.log(
                    level,
                    "event=answered method=%s path=%s status=%s seconds=%s location=%s",
                    scope["method"],
                    scope["path"][:MAX_PATH_LENGTH],
                    status or None,
                    time.monotonic() - began,
                    location or None,
                )
