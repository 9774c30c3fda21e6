"""A name for every request, in its answer, whatever goes wrong, and in every line of log about it."""

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
    """ASGI middleware: takes the client's `X-Request-Id` where it is a plain word, else makes one.

    What nobody has caught is answered by `failed`, unless an answer is under way already.
    """

    def __init__(self, app: ASGIApp, failed: Callable[[Request, Exception], Awaitable[Response]]):
        self.app, self._failed = app, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"x-request-id"]
        id = given[0] if len(given) == 1 and REQUEST_ID.fullmatch(given[0]) else secrets.token_hex(8).encode()
        began, status, place = time.monotonic(), 0, ""

        async def sent(message: Message) -> None:
            nonlocal status, place
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", ()))
                place = next((value.decode("latin-1") for name, value in headers if name.lower() == b"location"), "")
                message = {**message, "headers": [*headers, (b"x-request-id", id)]}
            await send(message)

        with bound_contextvars(request=id.decode()):
            try:
                await self.app(scope, receive, sent)
            except Exception as error:
                if status:
                    raise
                await (await self._failed(Request(scope), error))(scope, receive, sent)
            finally:
                level = (
                    logging.WARNING
                    if status >= 500
                    else logging.DEBUG
                    if scope["path"] in QUIET_PATHS
                    else logging.INFO
                )
                log.log(
                    level,
                    "event=answered method=%s path=%s status=%s seconds=%s location=%s",
                    scope["method"],
                    scope["path"][:MAX_PATH_LENGTH],
                    status or None,
                    time.monotonic() - began,
                    place or None,
                )
