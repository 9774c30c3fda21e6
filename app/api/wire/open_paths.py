"""Paths that need no API key."""

from __future__ import annotations

OPEN_PATHS = frozenset({"/livez", "/readyz", "/version", "/openapi.json", "/docs", "/login", "/logout"})


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(("/docs/", "/assets/", "/problems/"))
