"""`/docs/assets`: vendored files of Swagger UI for the page `/docs`. `/problems`: error codes."""

from __future__ import annotations

from html import escape
from pathlib import Path

import msgspec
from fastapi import APIRouter, Request, Response

from app import catalogue
from app.api.wire.negotiation import negotiate
from app.errors import NotFound

router = APIRouter(include_in_schema=False)

ASSETS = Path(__file__).parents[2] / "pages" / "vendor" / "swagger-ui"
MEDIA = {".js": "text/javascript", ".css": "text/css"}
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; base-uri 'none'"
)

#: Page of one error code.
PROBLEM_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>remat: {code}</title>
<link rel="icon" href="data:,">
</head>
<body>
<h1><code>{code}</code></h1>
<dl>{rows}</dl>
<p><a href="/docs">HTTP interface</a></p>
</body>
</html>
"""


def _response(data: bytes, media_type: str) -> Response:
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
    return Response(data, headers=headers, media_type=media_type)


@router.get("/docs/assets/{name}")
def asset(request: Request, name: str) -> Response:
    """A vendored file."""
    path = ASSETS / name
    if path.suffix not in MEDIA or path.parent != ASSETS or not path.is_file():
        raise NotFound(f"no asset {name[:80]!r}")
    return _response(path.read_bytes(), MEDIA[path.suffix])


@router.get("/problems/{code}")
def problem(request: Request, code: str) -> Response:
    """Status, meaning and remedy of an error code, the `type` of problem objects; as HTML or JSON."""
    known = catalogue.problem_codes()
    if code not in known:
        raise NotFound(f"no error code {code[:80]!r}")
    record = {"code": code, **known[code]}
    if negotiate(request.headers.get("accept", ""), ["application/json", "text/html"]) == "application/json":
        return Response(msgspec.json.encode(record), media_type="application/json", headers={"Vary": "Accept"})
    rows = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in known[code].items() if value)
    page = _response(PROBLEM_PAGE.format(code=escape(code), rows=rows).encode(), "text/html")
    page.headers["Vary"] = "Accept"
    return page
