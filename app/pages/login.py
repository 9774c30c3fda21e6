"""`/login`: a key for a session. The key goes into no page and no cookie."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs, urlsplit

import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response

from app.api.auth import sessions
from app.api.auth.api_keys import Key
from app.api.auth.key_store import Entry
from app.api.auth.tenant_view import Access
from app.api.routes.dependencies import Serving
from app.api.wire.request_body import body_of
from app.errors import OutOfScope
from app.pages.frame import PageRoute, page

router = APIRouter(include_in_schema=False, route_class=PageRoute)

LONGEST = 4096  # bytes of the form
Next = Annotated[str, Query(max_length=2000)]


@router.get("/login")
async def login(request: Request, next: Next = "/") -> Response:
    """The form; without keys there is nothing to ask for."""
    if _access(request) is None:
        return Response(status_code=303, headers={"Location": _own_place(next)})
    return _asked(request, next)


@router.post("/login")
async def begin(request: Request, service: Serving) -> Response:
    """A session for whoever brings a good key."""
    demand_same_origin(request)
    access = _access(request)
    body = await body_of(request, service.settings.model_copy(update={"body_bytes": LONGEST}))
    form = parse_qs(body.decode(errors="replace"))
    given, next = (form.get(name, [""])[0] for name in ("key", "next"))
    if access is None:
        return Response(status_code=303, headers={"Location": _own_place(next)})
    key = await anyio.to_thread.run_sync(sessions.key_in, access.vault, given.strip())
    if key is None:
        return _asked(request, next, "That is no key of this service. One looks like remat_…_…; copy all of it.")
    if (state := key.state(access.clock())) != "good":
        said = "has expired" if state == "expired" else "was revoked"
        return _asked(request, next, f"Key {key.id} {said}. Ask whoever runs this service for another.")
    secret = await anyio.to_thread.run_sync(_begin, access, key, request.client.host if request.client else None)
    answer = Response(status_code=303, headers={"Location": _own_place(next), "Cache-Control": "no-store"})
    answer.set_cookie(
        sessions.COOKIE,
        secret,
        max_age=sessions.LASTS_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/logout")
async def end(request: Request) -> Response:
    """The session ends."""
    demand_same_origin(request)
    access, secret = _access(request), request.cookies.get(sessions.COOKIE)
    if access is not None and secret:
        await anyio.to_thread.run_sync(sessions.end, access.vault, secret)
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
    return page(request, "login.html", title="Key", status=401 if wrong else 200, next=_own_place(next), wrong=wrong)


def _begin(access: Access, key: Key, peer: str | None) -> str:
    secret = sessions.begin(access.vault, key, access.clock())
    access.vault.record(Entry(access.clock(), key.id, key.tenant, peer, "POST", "/login", 303))
    return secret


def _own_place(place: str) -> str:
    """The place, where it is one of this service; else the dashboard."""
    plain = place.isascii() and place.isprintable() and "\\" not in place
    return place if plain and place.startswith("/") and not place.startswith("//") else "/"


def _access(request: Request) -> Access | None:
    access: Access | None = request.app.state.access
    return access
