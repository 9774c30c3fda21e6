"""The gate before every path: it finds the key, what it is good for, and writes down what was done with it."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import sessions
from app.api.auth.api_keys import ApiKey
from app.api.auth.key_store import AuditEntry
from app.api.auth.tenant_view import AccessControl, Caller
from app.api.wire.open_paths import is_open
from app.atomic_files import CannotWrite
from app.errors import AppError, OutOfScope, Unauthenticated, send_problem

log = logging.getLogger(__name__)

CALLER = "remat.caller"  # in the scope of a request, where no header reaches
CSRF = "remat.csrf"  # there too: what scripts of a session's pages send back with a change
OPERATOR_PATHS = frozenset({"/metrics"})  # sums over every tenant
#: Over the tenant's plans, and over all for operators.
AGGREGATE_PATHS = frozenset({"/v1/savings", "/", "/savings.csv", "/trends.json"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
AUDITED_STATUSES = frozenset({401, 403, 404, 413, 429})
MAX_PATH_LENGTH = 500
MAX_IDEMPOTENCY_KEY = 255  # a longer one is for the route to refuse
MAX_ANONYMOUS_AUDITS = 60  # requests without a good key that are written down in a minute


class AuthMiddleware:
    """ASGI middleware. Without a good key nothing behind it is reached, but for what says how the service is."""

    def __init__(self, app: ASGIApp, access: AccessControl):
        self.app, self.access = app, access
        self._minute = self._strangers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # nothing here speaks it
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http" or is_open(scope["path"]):
            await self.app(scope, receive, send)
            return
        visit = _AuditedRequest(scope, send)
        try:
            caller, token = await anyio.to_thread.run_sync(self._caller, scope)
        except Unauthenticated as error:
            await _ask_for_key(error, scope, visit.send)
        except (AppError, CannotWrite) as error:
            await send_problem(error, scope["path"], visit.send)
        else:
            visit.key = caller.key
            known = {CALLER: caller, CSRF: token, "headers": _scope_idempotency_keys(scope["headers"], caller)}
            await self.app({**scope, **known}, receive, visit.send)
        finally:
            if scope["method"] not in SAFE_METHODS or visit.status in AUDITED_STATUSES:
                with anyio.CancelScope(shield=True):  # who hangs up is written down all the same
                    await anyio.to_thread.run_sync(self._write, visit)

    def _write(self, visit: _AuditedRequest) -> None:
        if visit.key is None and not self._may_note():
            return
        try:
            self.access.key_store.record(visit.entry(self.access.clock()))
        except CannotWrite:
            log.exception("event=not_audited method=%s path=%s status=%s", visit.method, visit.path, visit.status)

    def _may_note(self) -> bool:
        """Whether one more stranger is written down in this minute: nobody fills the disk by knocking."""
        minute = int(self.access.clock() // 60)
        if minute != self._minute:
            self._minute, self._strangers = minute, 0
        self._strangers += 1
        return self._strangers <= MAX_ANONYMOUS_AUDITS

    def _caller(self, scope: Scope) -> tuple[Caller, str]:
        """Who asks, and the token of their session, empty without one. Raises Unauthenticated, OutOfScope."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        secret = None if given else sessions.session_secret(scope["headers"])
        if secret is None:
            key, token = self._named(given), ""
        else:
            key, token = self._of_session(scope, secret), sessions.csrf_token(secret)
        self._demand_good(key)
        needed = (
            "operator" if scope["path"] in OPERATOR_PATHS else "read" if scope["method"] in SAFE_METHODS else "plan"
        )
        if needed not in key.scopes and not (scope["path"] in AGGREGATE_PATHS and "operator" in key.scopes):
            has, asked = ", ".join(sorted(key.scopes)), f"{scope['method']} {scope['path'][:80]}"
            raise OutOfScope(f"{asked} needs a key of scope {needed}; {key.id} has {has}")
        return Caller(self.access, key), token

    def _named(self, given: list[bytes]) -> ApiKey:
        """The key in the header. Raises Unauthenticated."""
        if not given:
            raise Unauthenticated(
                "this service asks for a key; send Authorization: Bearer KEY, made by `remat keys create`",
                headers={"WWW-Authenticate": 'Bearer realm="remat"'},
            )
        scheme, _, text = given[0].decode("latin-1").strip().partition(" ")
        key = (
            sessions.find_key(self.access.key_store, text.strip())
            if len(given) == 1 and scheme.lower() == "bearer"
            else None
        )
        if key is None:
            said = "the key is not one of this service; send it as Authorization: Bearer KEY, once"
            raise _unknown(said, code="bad_key")
        return key

    def _of_session(self, scope: Scope, secret: str) -> ApiKey:
        """The key that a browser's session stands for. Raises Unauthenticated, OutOfScope."""
        key = sessions.session_key(self.access.key_store, secret, self.access.clock())
        if key is None:
            raise _unknown("the session has ended; begin another at /login", code="no_session")
        sent = next((value for name, value in scope["headers"] if name == sessions.CSRF_HEADER), b"")
        if scope["method"] not in SAFE_METHODS and not sessions.verify_csrf_token(sent.decode("latin-1"), secret):
            said = "a change that a session asks for comes with the token of its page; load the page again"
            raise OutOfScope(said, code="bad_token")
        return key

    def _demand_good(self, key: ApiKey) -> None:
        """Raises Unauthenticated for a key that is good no more."""
        state, remedy = key.state(self.access.clock()), "ask for another; `remat keys create` makes them"
        if state == "expired":
            raise _unknown(f"key {key.id} has expired; {remedy}", code="expired_key")
        if state == "revoked":
            raise _unknown(f"key {key.id} was revoked; {remedy}", code="revoked_key")


async def _ask_for_key(error: Unauthenticated, scope: Scope, send: Send) -> None:
    """Send people to the page that asks for a key, and programs the problem."""
    headers = dict(scope["headers"])
    here = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
    if scope["method"] != "GET" or here.startswith("/v1/") or b"text/html" not in headers.get(b"accept", b""):
        await send_problem(error, scope["path"], send)
        return
    is_part = b"hx-request" in headers  # its page goes, not the part alone
    place = b"/login" if is_part else b"/login?next=" + quote(here, safe="/").encode()
    raw = [(b"hx-redirect" if is_part else b"location", place), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 401 if is_part else 303, "headers": raw})
    await send({"type": "http.response.body", "body": b""})


def _unknown(said: str, code: str) -> Unauthenticated:
    return Unauthenticated(said, code=code, headers={"WWW-Authenticate": 'Bearer realm="remat", error="invalid_token"'})


def _scope_idempotency_keys(headers: list[tuple[bytes, bytes]], caller: Caller) -> list[tuple[bytes, bytes]]:
    """The headers, with idempotency keys that are the tenant's own."""
    return [
        (name, caller.own(value.decode("latin-1")).encode())
        if name == b"idempotency-key" and 0 < len(value) <= MAX_IDEMPOTENCY_KEY
        else (name, value)
        for name, value in headers
    ]


class _AuditedRequest:
    """What the audit log says of a request, and answers that no shared cache keeps."""

    def __init__(self, scope: Scope, send: Send):
        peer = scope.get("client")
        self.peer: str | None = peer[0] if peer else None
        self.method, self.path = str(scope["method"]), str(scope["path"])[:MAX_PATH_LENGTH]
        self.key: ApiKey | None = None
        self.status = 0  # nothing was answered
        self._send = send

    def entry(self, now: float) -> AuditEntry:
        id, tenant = (None, None) if self.key is None else (self.key.id, self.key.tenant)
        return AuditEntry(now, id, tenant, self.peer, self.method, self.path, self.status)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": _private(message)}
        await self._send(message)


def _private(message: MutableMapping[str, Any]) -> list[tuple[bytes, bytes]]:
    headers = [
        (name, value.replace(b"public", b"private") if name.lower() == b"cache-control" else value)
        for name, value in message.get("headers", ())
    ]
    return [*headers, (b"vary", b"Authorization, Cookie")]
