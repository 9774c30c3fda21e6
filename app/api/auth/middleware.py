"""Authentication middleware: checks API key or session and scope, and writes the audit log."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.auth import sessions
from app.api.auth.api_keys import ApiKey
from app.api.auth.audit_log import AuditLog
from app.api.auth.key_store import AuditEntry
from app.api.auth.rate_limit import RateLimiter
from app.api.auth.tenant_view import AccessControl, Caller
from app.api.wire.open_paths import is_open
from app.atomic_files import CannotWrite
from app.errors import AppError, Busy, OutOfScope, Unauthenticated, send_problem

CALLER = "remat.caller"  # key of the ASGI scope, which clients cannot set
CSRF = "remat.csrf"  # key of the ASGI scope: CSRF token of the session
OPERATOR_PATHS = frozenset({"/metrics"})  # sums over all tenants
#: Sums over the plans of the tenant, or of all tenants for operators.
AGGREGATE_PATHS = frozenset({"/v1/savings", "/", "/savings.csv", "/trends.json"})
OWN_PATH = "/v1/me"  # of the key itself, whatever its scopes are
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
AUDITED_STATUSES = frozenset({401, 403, 404, 413, 429})
MAX_PATH_LENGTH = 500
MAX_IDEMPOTENCY_KEY = 255  # longer keys are rejected by the routes


class AuthMiddleware:
    """ASGI middleware. Requests without a valid key reach open paths only, such as health checks."""

    def __init__(self, app: ASGIApp, access: AccessControl, limiter: RateLimiter):
        self.app, self.access, self._limiter = app, access, limiter
        self._audit_log = AuditLog(access.key_store)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # not supported
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http" or is_open(scope["path"]):
            await self.app(scope, receive, send)
            return
        audited = _AuditedRequest(scope, send)
        try:
            caller, token = await anyio.to_thread.run_sync(self._caller, scope)
        except Unauthenticated as error:
            await _challenge(error, scope, audited.send)
        except (AppError, CannotWrite) as error:
            await send_problem(error, scope["path"], audited.send)
        else:
            audited.key = caller.key
            allowed, audited.rate = self._limiter.take(caller.key.id)
            if not allowed:
                await send_problem(self._too_fast(), scope["path"], audited.send)
                return
            known = {CALLER: caller, CSRF: token, "headers": _scope_idempotency_keys(scope["headers"], caller)}
            await self.app({**scope, **known}, receive, audited.send)
        finally:
            if self._is_audited(audited):
                with anyio.CancelScope(shield=True):  # audited even if the client disconnects
                    await self._audit_log.write(audited.entry(self.access.clock()))

    def _too_fast(self) -> Busy:
        limit = {"name": "REMAT_REQUESTS_PER_SECOND", "value": self._limiter.per_second}
        return Busy(
            f"the key sends more than {self._limiter.per_second:g} requests a second; send fewer, or raise "
            "REMAT_REQUESTS_PER_SECOND",
            limit=limit,
        )

    def _is_audited(self, request: _AuditedRequest) -> bool:
        """Whether the request changed something, or was refused and the limit for these is not reached."""
        is_unsafe = request.method not in SAFE_METHODS
        if is_unsafe and request.key is not None and request.status < 400:
            return True
        return (is_unsafe or request.status in AUDITED_STATUSES) and self.access.may_audit(request.key)

    def _caller(self, scope: Scope) -> tuple[Caller, str]:
        """The caller, and the CSRF token of the session or "". Raises Unauthenticated, OutOfScope."""
        authorization = [value for name, value in scope["headers"] if name == b"authorization"]
        secret = None if authorization else sessions.session_secret(scope["headers"])
        if secret is None:
            key, token = self._key_of_header(authorization), ""
        else:
            key, token = self._key_of_session(scope, secret), sessions.csrf_token(secret)
        self._require_valid(key)
        needed = (
            "operator" if scope["path"] in OPERATOR_PATHS else "read" if scope["method"] in SAFE_METHODS else "plan"
        )
        is_for_operators = scope["path"] in AGGREGATE_PATHS and "operator" in key.scopes
        if needed not in key.scopes and not is_for_operators and scope["path"] != OWN_PATH:
            scopes, request = ", ".join(sorted(key.scopes)), f"{scope['method']} {scope['path'][:80]}"
            raise OutOfScope(f"{request} needs scope {needed}; key {key.id} has {scopes}")
        return Caller(self.access, key), token

    def _key_of_header(self, authorization: list[bytes]) -> ApiKey:
        """The key in the Authorization header. Raises Unauthenticated."""
        if not authorization:
            raise Unauthenticated(
                "an API key is required; send Authorization: Bearer KEY; `remat keys create` makes keys",
                headers={"WWW-Authenticate": 'Bearer realm="remat"'},
            )
        scheme, _, text = authorization[0].decode("latin-1").strip().partition(" ")
        key = (
            sessions.find_key(self.access.key_store, text.strip())
            if len(authorization) == 1 and scheme.lower() == "bearer"
            else None
        )
        if key is None:
            message = "invalid API key; send one header Authorization: Bearer KEY"
            raise _invalid_token(message, code="bad_key")
        return key

    def _key_of_session(self, scope: Scope, secret: str) -> ApiKey:
        """The key of a browser session. Raises Unauthenticated, OutOfScope."""
        key = sessions.session_key(self.access.key_store, secret, self.access.clock())
        if key is None:
            raise _invalid_token("the session has expired; log in at /login", code="no_session")
        sent = next((value for name, value in scope["headers"] if name == sessions.CSRF_HEADER), b"")
        if scope["method"] not in SAFE_METHODS and not sessions.verify_csrf_token(sent.decode("latin-1"), secret):
            raise OutOfScope("missing or invalid CSRF token; reload the page", code="bad_token")
        return key

    def _require_valid(self, key: ApiKey) -> None:
        """Raises Unauthenticated for an expired or revoked key."""
        state, remedy = key.state(self.access.clock()), "request a new key; `remat keys create` makes keys"
        if state == "expired":
            raise _invalid_token(f"key {key.id} has expired; {remedy}", code="expired_key")
        if state == "revoked":
            raise _invalid_token(f"key {key.id} was revoked; {remedy}", code="revoked_key")


async def _challenge(error: Unauthenticated, scope: Scope, send: Send) -> None:
    """Redirect browsers to the login page; send other clients the problem object."""
    headers = dict(scope["headers"])
    here = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
    if scope["method"] != "GET" or here.startswith("/v1/") or b"text/html" not in headers.get(b"accept", b""):
        await send_problem(error, scope["path"], send)
        return
    is_part = b"hx-request" in headers  # htmx: redirect the page, not the fragment
    location = b"/login" if is_part else b"/login?next=" + quote(here, safe="/").encode()
    raw = [(b"hx-redirect" if is_part else b"location", location), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 401 if is_part else 303, "headers": raw})
    await send({"type": "http.response.body", "body": b""})


def _invalid_token(message: str, code: str) -> Unauthenticated:
    headers = {"WWW-Authenticate": 'Bearer realm="remat", error="invalid_token"'}
    return Unauthenticated(message, code=code, headers=headers)


def _scope_idempotency_keys(headers: list[tuple[bytes, bytes]], caller: Caller) -> list[tuple[bytes, bytes]]:
    """The headers, with idempotency keys scoped to the tenant."""
    return [
        (name, caller.own(value.decode("latin-1")).encode())
        if name == b"idempotency-key" and 0 < len(value) <= MAX_IDEMPOTENCY_KEY
        else (name, value)
        for name, value in headers
    ]


class _AuditedRequest:
    """Collects the audit entry of a request, and marks its response as private."""

    def __init__(self, scope: Scope, send: Send):
        peer = scope.get("client")
        self.peer: str | None = peer[0] if peer else None
        self.method, self.path = str(scope["method"]), str(scope["path"])[:MAX_PATH_LENGTH]
        self.key: ApiKey | None = None
        self.status = 0  # no response sent
        self.rate = list[tuple[bytes, bytes]]()  # headers
        self._send = send

    def entry(self, now: float) -> AuditEntry:
        id, tenant = (None, None) if self.key is None else (self.key.id, self.key.tenant)
        return AuditEntry(now, id, tenant, self.peer, self.method, self.path, self.status)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*_private(message), *self.rate]}
        await self._send(message)


def _private(message: MutableMapping[str, Any]) -> list[tuple[bytes, bytes]]:
    headers = [
        (name, value.replace(b"public", b"private") if name.lower() == b"cache-control" else value)
        for name, value in message.get("headers", ())
    ]
    return [*headers, (b"vary", b"Authorization, Cookie")]
