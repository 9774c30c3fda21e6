"""HEAD requests: the response of GET without content (RFC 9110, section 9.3.2)."""

from __future__ import annotations

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMiddleware:
    """ASGI middleware that turns HEAD into GET and drops the body; a stream ends with its first chunk."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        async with anyio.create_task_group() as tasks:

            async def send_without_body(message: Message) -> None:
                if message["type"] == "http.response.body":
                    await send({"type": "http.response.body", "body": b""})
                    tasks.cancel_scope.cancel()
                else:
                    await send(message)

            await self.app({**scope, "method": "GET"}, receive, send_without_body)
