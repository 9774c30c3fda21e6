"""`remat serve`: the HTTP service in one process, until SIGTERM."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import functools
import gc
import ipaddress
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from app.api.auth.key_files import import_key_file
from app.api.auth.tenant_view import AccessControl
from app.api.main import create_app
from app.api.middleware.connection_limits import limited_protocol
from app.api.middleware.trusted_host import LOOPBACK_HOSTS
from app.cli.admin.process_settings import started_settings
from app.errors import BadUsage
from app.settings import Settings
from app.store.store import Store

MAX_SHUTDOWN_S = 60
TCP_TIMEOUT_MS = 60_000
THREAD_SWITCH_S = 0.001  # shorter than the default 0.005, so that parsing threads delay responses less
M_MMAP_THRESHOLD, MAPPED_BYTES = -3, 1 << 20  # glibc's malloc.h; blocks of so many bytes go back when they are freed


class DrainingServer(uvicorn.Server):
    """uvicorn server that prints its URL and drains the service on SIGINT or SIGTERM."""

    def __init__(self, config: uvicorn.Config, app: Any, url: str):
        super().__init__(config)
        self.service, self.url = app.state.service, url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self.service.jobs.start)
        await super().startup(sockets)
        gc.freeze()  # else a collection visits all that the imports left, which stops the event loop for 0.1 s
        if self.started:
            sys.stderr.write(f"listening on {self.url}\n")  # at once: `print` lets lines of other threads in between
            sys.stderr.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.drain()  # end event streams, refuse new work, finish running jobs
        # No super() call: uvicorn re-raises the signal at the end, so a drained service would exit with a failure.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def run(host: str, port: int, data: Path | None, auth: bool | None) -> int:
    """Exit code, after draining. `auth` None: require keys unless `host` is a loopback address."""
    settings = started_settings(data)
    requires_key = auth or (auth is None and not _is_loopback(host))
    control = functools.partial(_access_control, host) if requires_key else None
    sys.setswitchinterval(THREAD_SWITCH_S)
    _return_large_blocks()
    app = create_app(settings, control, _hosts(host, settings, requires_key))
    try:
        listener = _listener(host, port)
    except BadUsage:
        app.state.service.close()
        raise
    config = uvicorn.Config(
        app,
        http=limited_protocol(app.state.service.admission),
        ws="none",
        loop="asyncio",  # libuv accepts one connection in each iteration, so a burst delays new connections by seconds
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=MAX_SHUTDOWN_S,
        server_header=False,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=settings.proxies,
    )
    shown = f"[{host}]" if ":" in host else host
    server = DrainingServer(config, app, f"http://{shown}:{listener.getsockname()[1]}")
    server.run(sockets=[listener])
    return 0 if server.started else 4


def _return_large_blocks() -> None:
    """Let glibc return large blocks to the system: by default it keeps blocks of up to 32 MiB for the next bodies."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def _access_control(host: str, store: Store) -> AccessControl:
    """Access control with the keys of the store. Raises BadUsage without any valid key."""
    import_key_file(store)
    access = AccessControl(store)
    if not any(key.state(access.clock()) == "good" for key in access.key_store.all_keys()):
        cause = f"{host} is reachable from the network, and no valid API key exists"
        remedy = "create one with `remat keys create NAME`, listen on 127.0.0.1, or disable keys with --no-auth"
        raise BadUsage(f"{cause}; {remedy}", code="open_to_strangers")
    return access


def _hosts(host: str, settings: Settings, requires_key: bool) -> set[str] | None:
    """Hosts that requests may name; None: any. A key protects against DNS rebinding, as the browser has none."""
    if settings.allowed_hosts is not None:
        return {name.strip() for name in settings.allowed_hosts.split(",")}
    if requires_key or not _is_loopback(host):
        return None
    return {*LOOPBACK_HOSTS, f"[{host}]" if ":" in host else host}


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
        # Inherited by every connection. asyncio sets TCP_NODELAY only where `proto` is given, which it is not here;
        # without it the body of a response waits for the delayed acknowledgement of its head, 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Close a connection if the peer acknowledges no data for this long.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_TIMEOUT_MS)
        return listener
    except (OSError, OverflowError) as error:
        cause = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        number = getattr(error, "errno", None) or 0
        is_of_host = number < 0 or number == errno.EADDRNOTAVAIL  # negative: of the name service
        remedy = "name an address of this machine" if is_of_host else "choose another port, or 0 for any free port"
        raise BadUsage(f"cannot listen on {host} port {port}: {cause}; {remedy}", code="cannot_listen") from error
