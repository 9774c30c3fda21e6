"""Fair share of the event loop: the requests of one credential that begin at the same time wait for each other.

A thousand requests that one client sends at once would else be a thousand tasks before those of anybody else.
"""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.wire.open_paths import is_open

BEGINNING = 8  # requests of one credential that begin at the same time
BEGINNING_S = 0.05  # a request that has not been answered by then, such as a wait, makes room for the next one
CREDENTIALS = frozenset({b"authorization", b"cookie"})


class FairShareMiddleware:
    """ASGI middleware. At most BEGINNING requests of each credential begin; the others stand in a line of their own.

    A request begins until its response starts, and for at most BEGINNING_S. The credential is not verified yet, so
    only who knows all of it can stand in its line. Requests to open paths never wait. For one event loop.
    """

    def __init__(self, app: ASGIApp):
        self.app = app
        self._lines: dict[bytes, _Line] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope["path"]):
            await self.app(scope, receive, send)
            return
        credential = b"\n".join(value for name, value in scope["headers"] if name in CREDENTIALS)
        line = self._lines.setdefault(credential, _Line())
        line.requests += 1
        try:
            await line.wait()
            await self._begin(line, scope, receive, send)
        finally:
            line.requests -= 1
            if not line.requests:
                del self._lines[credential]

    async def _begin(self, line: _Line, scope: Scope, receive: Receive, send: Send) -> None:
        turn = _Turn(line)
        timer = asyncio.get_running_loop().call_later(BEGINNING_S, turn.end)

        async def answer(message: Message) -> None:
            turn.end()
            await send(message)

        try:
            await self.app(scope, receive, answer)
        finally:
            timer.cancel()
            turn.end()


class _Line:
    """The requests of one credential: some that begin, others that wait."""

    def __init__(self) -> None:
        self.requests = self._beginning = 0
        self._waiting = deque[asyncio.Future[None]]()

    async def wait(self) -> None:
        """Wait for a turn, in the order of arrival."""
        if self._beginning < BEGINNING:
            self._beginning += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn came together with the cancellation
                self.pass_on()
            raise

    def pass_on(self) -> None:
        """Hand a turn that ends to the next request."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._beginning -= 1


class _Turn:
    """One turn in a line, which ends once."""

    def __init__(self, line: _Line):
        self._line: _Line | None = line

    def end(self) -> None:
        """End the turn, if it has not ended."""
        line, self._line = self._line, None
        if line is not None:
            line.pass_on()
