"""`/assets`: style sheets, scripts and vendored files, under a path with a hash of their content."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from fastapi import APIRouter, Request, Response

from app.api.routes.dependencies import CACHE_FOREVER
from app.api.wire.negotiation import etag_matches
from app.errors import NotFound
from app.pages.shell.js_bundle import bundle

router = APIRouter(include_in_schema=False)

PAGES = Path(__file__).parents[1]
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
#: Content security policy of a file opened on its own; SVGs contain styles.
ASSET_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@functools.cache
def asset_files() -> dict[str, bytes]:
    """Name in pages (`css/remat.css`) -> content; scripts are bundled with their imports."""
    own = {
        path.relative_to(STATIC).as_posix(): path for path in sorted(STATIC.rglob("*")) if path.suffix in MEDIA_TYPES
    }
    files = {name: path.read_bytes() for name, path in (own | VENDORED).items()}
    scripts = {Path(name).stem: data.decode() for name, data in files.items() if name.startswith("js/")}
    return files | {f"js/{name}.js": bundle(name, scripts).encode() for name in scripts}


@functools.cache
def assets_digest() -> str:
    """Hash of all files: one for all, so that scripts can import each other by relative paths."""
    digest = hashlib.sha256()
    for name, data in sorted(asset_files().items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    return digest.hexdigest()[:16]


def asset_url(name: str) -> str:
    """URL path of a file. Raises KeyError for an unknown name."""
    asset_files()[name]
    return f"/assets/{assets_digest()}/{name}"


@router.get("/assets/{version}/{name:path}")
async def serve_asset(request: Request, version: str, name: str) -> Response:
    """A file; cached forever if `version` is the current hash, else not cached."""
    data = asset_files().get(name)
    if data is None:
        raise NotFound(f"no asset {name[:80]!r}")
    headers = {
        "Cache-Control": CACHE_FOREVER if version == assets_digest() else "no-cache",
        "Content-Security-Policy": ASSET_POLICY,
        "ETag": f'"{assets_digest()}"',
        "X-Content-Type-Options": "nosniff",
    }
    if etag_matches(request.headers.get("if-none-match", ""), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=MEDIA_TYPES[Path(name).suffix])
