"""`remat serve`: the HTTP service in one process, until SIGTERM."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from app.api.auth.key_store import SqliteKeyStore
from app.api.auth.tenant_view import AccessControl
from app.api.main import create_app
from app.api.middleware.connection_limits import limited_protocol
from app.errors import BadUsage
from app.settings import Settings
from app.telemetry import logs

MAX_SHUTDOWN_S = 60
TCP_TIMEOUT_MS = 60_000
THREAD_SWITCH_S = 0.001  # a thread that parses gives way to who is waiting for an answer


class DrainingServer(uvicorn.Server):
    """uvicorn that says where it listens, and tells the service to drain when it is asked to stop."""

    def __init__(self, config: uvicorn.Config, app: Any, url: str):
        super().__init__(config)
        self.service, self.url = app.state.service, url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self.service.jobs.start)
        await super().startup(sockets)
        if self.started:
            print(f"listening on {self.url}", file=sys.stderr, flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.drain()  # event streams end, new work is refused, what runs is finished
        # Not uvicorn's own way, which raises the signal again at the end: a drained service has not failed.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def run(host: str, port: int, data: Path | None, auth: bool | None) -> int:
    """Exit code, once drained. `auth` None: keys are asked for unless nobody but this machine reaches the address."""
    given: dict[str, Any] = {} if data is None else {"data": data}
    settings = Settings(**given)
    access = _access(host, settings) if auth or (auth is None and not _is_loopback(host)) else None
    logs.start(settings.log_level)
    sys.setswitchinterval(THREAD_SWITCH_S)
    listener = _listener(host, port)
    app = create_app(settings, access)
    config = uvicorn.Config(
        app,
        http=limited_protocol(app.state.service.admission),
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=MAX_SHUTDOWN_S,
        server_header=False,
    )
    shown = f"[{host}]" if ":" in host else host
    server = DrainingServer(config, app, f"http://{shown}:{listener.getsockname()[1]}")
    server.run(sockets=[listener])
    return 0 if server.started else 4


def _access(host: str, settings: Settings) -> AccessControl:
    """Keys as they are kept beside the data. Raises BadUsage when there is none that lets anybody in."""
    access = AccessControl(SqliteKeyStore(settings.data))
    if not any(key.state(access.clock()) == "good" for key in access.key_store.all_keys()):
        said = f"{host} may be reached by strangers, and there is no key to let others in"
        remedy = "make one with `remat keys create NAME`, listen on 127.0.0.1, or add --no-auth to let everybody in"
        raise BadUsage(f"{said}; {remedy}", code="open_to_strangers")
    return access


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=512)
        # Of every connection: who acknowledges nothing of an answer for so long is gone.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_TIMEOUT_MS)
        return listener
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or error
        raise BadUsage(
            f"cannot listen on {host} port {port}: {said}; name another, 0 picks a free port", code="cannot_listen"
        ) from error
