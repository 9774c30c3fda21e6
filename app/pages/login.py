"""`/login`: exchange an API key for a session. The key is never in a page or cookie."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs, urlsplit

import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response

from app.api.auth import sessions
from app.api.auth.api_keys import ApiKey
from app.api.auth.key_store import AuditEntry
from app.api.auth.tenant_view import AccessControl
from app.api.routes.dependencies import ServiceDep
from app.api.wire.request_body import read_body
from app.errors import OutOfScope
from app.pages.shell.frame import PageRoute, render_page

router = APIRouter(include_in_schema=False, route_class=PageRoute)

MAX_FORM_BYTES = 4096
NextPath = Annotated[str, Query(max_length=2000)]


@router.get("/login")
async def login(request: Request, next: NextPath = "/") -> Response:
    """The form; a redirect if the service requires no keys."""
    if _access(request) is None:
        return Response(status_code=303, headers={"Location": _local_path(next)})
    return _login_form(request, next)


@router.post("/login")
async def create_session(request: Request, service: ServiceDep) -> Response:
    """Start a session for a valid key."""
    demand_same_origin(request)
    access = _access(request)
    body = await read_body(request, service.settings.model_copy(update={"body_bytes": MAX_FORM_BYTES}))
    form = parse_qs(body.decode(errors="replace"))
    key_text, next = (form.get(name, [""])[0] for name in ("key", "next"))
    if access is None:
        return Response(status_code=303, headers={"Location": _local_path(next)})
    key = await anyio.to_thread.run_sync(sessions.find_key, access.key_store, key_text.strip())
    peer = request.client.host if request.client else None
    if key is None or key.state(access.clock()) != "good":
        await anyio.to_thread.run_sync(_record_failure, access, key, peer)
    if key is None:
        return _login_form(request, next, "Unknown key. Copy the whole key; it has the form remat_…_…")
    if (state := key.state(access.clock())) != "good":
        reason = "has expired" if state == "expired" else "was revoked"
        return _login_form(request, next, f"Key {key.id} {reason}. Ask the operator of this service for a new key.")
    secret = await anyio.to_thread.run_sync(_create_session, access, key, peer)
    response = Response(status_code=303, headers={"Location": _local_path(next), "Cache-Control": "no-store"})
    response.set_cookie(
        sessions.COOKIE,
        secret,
        max_age=sessions.SESSION_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
async def end_session(request: Request) -> Response:
    """End the session."""
    demand_same_origin(request)
    access, secret = _access(request), request.cookies.get(sessions.COOKIE)
    if access is not None and secret:
        await anyio.to_thread.run_sync(sessions.end, access.key_store, secret)
    response = Response(status_code=303, headers={"Location": "/login", "Cache-Control": "no-store"})
    response.delete_cookie(sessions.COOKIE, httponly=True, samesite="strict")
    return response


def demand_same_origin(request: Request) -> None:
    """Raise OutOfScope for a request that a page of another site sent (CSRF)."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none") or (origin and urlsplit(origin).netloc != request.headers.get("host")):
        raise OutOfScope("cross-site request; open this service's own page and submit the form there")


def _login_form(request: Request, next: str, error: str = "") -> Response:
    return render_page(
        request,
        "login.html",
        title="Log in",
        here="/login",
        status=401 if error else 200,
        next=_local_path(next),
        error=error,
    )


def _create_session(access: AccessControl, key: ApiKey, peer: str | None) -> str:
    secret = sessions.begin(access.key_store, key, access.clock())
    access.key_store.record(AuditEntry(access.clock(), key.id, key.tenant, peer, "POST", "/login", 303))
    return secret


def _record_failure(access: AccessControl, key: ApiKey | None, peer: str | None) -> None:
    """Audit a failed login; a flood of them is audited in part."""
    if access.may_audit(None):
        id, tenant = (None, None) if key is None else (key.id, key.tenant)
        access.key_store.record(AuditEntry(access.clock(), id, tenant, peer, "POST", "/login", 401))


def _local_path(path: str) -> str:
    """The path if it belongs to this service, else the dashboard."""
    plain = path.isascii() and path.isprintable() and "\\" not in path
    return path if plain and path.startswith("/") and not path.startswith("//") else "/"


def _access(request: Request) -> AccessControl | None:
    access: AccessControl | None = request.app.state.access
    return access
