"""Check of the Host header against DNS rebinding: a foreign page whose name resolves to this machine is refused."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import UnknownHost, send_problem

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


class TrustedHostMiddleware:
    """ASGI middleware: requests need a Host of `hosts`, with any port. A proxy in front keeps the Host or names it."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]):
        self.app, self._hosts = app, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            sent = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(sent) != 1 or host_of(sent[0]) not in self._hosts:
                known = ", ".join(sorted(self._hosts))
                message = f"host {', '.join(sent)[:80]!r} is not one of {known}; set REMAT_ALLOWED_HOSTS to allow it"
                await send_problem(UnknownHost(message), scope["path"], send)
                return
        await self.app(scope, receive, send)


def host_of(header: str) -> str:
    """The host in lower case without its port; an IPv6 address keeps its brackets."""
    name, colon, port = header.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else header.strip().lower()
