"""`/assets`: style, scripts and vendored files, under a path that names their content."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from fastapi import APIRouter, Request, Response

from app.api.routes.dependencies import CACHE_FOREVER
from app.api.wire.negotiation import etag_matches
from app.errors import NotFound
from app.pages.js_bundle import bundle

router = APIRouter(include_in_schema=False)

PAGES = Path(__file__).parent
STATIC = PAGES / "static"
VENDORED = {
    "vendor/htmx/htmx.min.js": PAGES / "vendor/htmx/htmx.min.js",
    "vendor/uplot/uPlot.iife.min.js": PAGES / "vendor/uplot/uPlot.iife.min.js",
    "vendor/uplot/uPlot.min.css": PAGES / "vendor/uplot/uPlot.min.css",
}
MEDIA_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # for who opens a file by itself; SVGs have styles in them


@functools.cache
def asset_files() -> dict[str, bytes]:
    """Every file there is, by the name that pages call it: `css/remat.css`; scripts with what they import inside."""
    own = {
        path.relative_to(STATIC).as_posix(): path for path in sorted(STATIC.rglob("*")) if path.suffix in MEDIA_TYPES
    }
    found = {name: path.read_bytes() for name, path in (own | VENDORED).items()}
    scripts = {Path(name).stem: data.decode() for name, data in found.items() if name.startswith("js/")}
    return found | {f"js/{name}.js": bundle(name, scripts).encode() for name in scripts}


@functools.cache
def assets_digest() -> str:
    """Names the content of all files, so that scripts may import others later by relative paths."""
    said = hashlib.sha256()
    for name, data in sorted(asset_files().items()):
        said.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    return said.hexdigest()[:16]


def asset_url(name: str) -> str:
    """Where a file is served. Raises KeyError for one that is not there."""
    asset_files()[name]
    return f"/assets/{assets_digest()}/{name}"


@router.get("/assets/{version}/{name:path}")
async def serve_asset(request: Request, version: str, name: str) -> Response:
    """A file; kept for good by who asked for this content, and by nobody who asked for another."""
    data = asset_files().get(name)
    if data is None:
        raise NotFound(f"there is no asset {name[:80]!r}")
    headers = {
        "Cache-Control": CACHE_FOREVER if version == assets_digest() else "no-cache",
        "Content-Security-Policy": POLICY,
        "ETag": f'"{assets_digest()}"',
        "X-Content-Type-Options": "nosniff",
    }
    if etag_matches(request.headers.get("if-none-match", ""), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=MEDIA_TYPES[Path(name).suffix])
