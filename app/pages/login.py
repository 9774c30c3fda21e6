"""`/login`: a key for a session. The key goes into no page and no cookie."""

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
from app.pages.frame import PageRoute, render_page

router = APIRouter(include_in_schema=False, route_class=PageRoute)

MAX_FORM_BYTES = 4096  # bytes of the form
NextPath = Annotated[str, Query(max_length=2000)]


@router.get("/login")
async def login(request: Request, next: NextPath = "/") -> Response:
    """The form; without keys there is nothing to ask for."""
    if _access(request) is None:
        return Response(status_code=303, headers={"Location": _local_path(next)})
    return _asked(request, next)


@router.post("/login")
async def create_session(request: Request, service: ServiceDep) -> Response:
    """A session for whoever brings a good key."""
    demand_same_origin(request)
    access = _access(request)
    body = await read_body(request, service.settings.model_copy(update={"body_bytes": MAX_FORM_BYTES}))
    form = parse_qs(body.decode(errors="replace"))
    given, next = (form.get(name, [""])[0] for name in ("key", "next"))
    if access is None:
        return Response(status_code=303, headers={"Location": _local_path(next)})
    key = await anyio.to_thread.run_sync(sessions.find_key, access.key_store, given.strip())
    if key is None:
        return _asked(request, next, "That is no key of this service. One looks like remat_…_…; copy all of it.")
    if (state := key.state(access.clock())) != "good":
        said = "has expired" if state == "expired" else "was revoked"
        return _asked(request, next, f"Key {key.id} {said}. Ask whoever runs this service for another.")
    secret = await anyio.to_thread.run_sync(
        _create_session, access, key, request.client.host if request.client else None
    )
    answer = Response(status_code=303, headers={"Location": _local_path(next), "Cache-Control": "no-store"})
    answer.set_cookie(
        sessions.COOKIE,
        secret,
        max_age=sessions.SESSION_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/logout")
async def end_session(request: Request) -> Response:
    """The session ends."""
    demand_same_origin(request)
    access, secret = _access(request), request.cookies.get(sessions.COOKIE)
    if access is not None and secret:
        await anyio.to_thread.run_sync(sessions.end, access.key_store, secret)
    answer = Response(status_code=303, headers={"Location": "/login", "Cache-Control": "no-store"})
    answer.delete_cookie(sessions.COOKIE, httponly=True, samesite="strict")
    return answer


def demand_same_origin(request: Request) -> None:
    """Raises OutOfScope for a form that a page of another site sends."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none") or (origin and urlsplit(origin).netloc != request.headers.get("host")):
        raise OutOfScope("this was sent by a page of another site; open the page here and send it from there")


def _asked(request: Request, next: str, wrong: str = "") -> Response:
    return render_page(
        request, "login.html", title="Key", status=401 if wrong else 200, next=_local_path(next), wrong=wrong
    )


def _create_session(access: AccessControl, key: ApiKey, peer: str | None) -> str:
    secret = sessions.begin(access.key_store, key, access.clock())
    access.key_store.record(AuditEntry(access.clock(), key.id, key.tenant, peer, "POST", "/login", 303))
    return secret


def _local_path(place: str) -> str:
    """The place, where it is one of this service; else the dashboard."""
    plain = place.isascii() and place.isprintable() and "\\" not in place
    return place if plain and place.startswith("/") and not place.startswith("//") else "/"


def _access(request: Request) -> AccessControl | None:
    access: AccessControl | None = request.app.state.access
    return access
