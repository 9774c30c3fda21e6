"""Fair share of the event loop: of the requests of one credential only a few begin at the same time.

Otherwise a thousand requests that one client sends at once run before the request that another client sends next.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.wire.open_paths import is_open

BEGINNING = 4  # requests of one credential that begin at the same time
BEGINNING_S = 0.05  # a request that has not been answered by then, such as a wait, makes room for the next one
CREDENTIALS = frozenset({b"authorization", b"cookie"})


class FairShareMiddleware:
    """ASGI middleware. At most BEGINNING requests of each credential begin; the others wait, in the order of arrival.

    A request begins until the first part of its response's body is sent, and for at most BEGINNING_S. The credential
    is not verified yet, so only who knows all of it can wait among its requests. Paths that need no credential have a
    line each, so that health checks wait for health checks only. The outermost middleware, since what runs before it
    runs for all requests of a burst at once. For one event loop.
    """

    def __init__(self, app: ASGIApp):
        self.app = app
        self._lines: dict[bytes | str, _Line] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        name = _name_of(scope)
        line = self._lines.setdefault(name, _Line(BEGINNING))
        line.requests += 1
        try:
            await line.acquire()
            await self._begin(line, scope, receive, send)
        finally:
            line.requests -= 1
            if not line.requests:
                del self._lines[name]

    async def _begin(self, line: _Line, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; its place in the line is released once."""
        with ExitStack() as place:
            place.callback(line.release)
            place.callback(asyncio.get_running_loop().call_later(BEGINNING_S, place.close).cancel)

            async def answer(message: Message) -> None:
                await send(message)
                if message["type"] == "http.response.body":
                    place.close()

            await self.app(scope, receive, answer)


def _name_of(scope: Scope) -> bytes | str:
    """Of the line of a request: its path if that needs no credential, else its credential."""
    path: str = scope["path"]
    return path if is_open(path) else b"\n".join(value for name, value in scope["headers"] if name in CREDENTIALS)


class _Line(asyncio.Semaphore):
    """The requests of one credential: those that begin, run and wait."""

    requests = 0
