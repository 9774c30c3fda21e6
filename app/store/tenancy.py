"""Names scoped to one tenant."""

from __future__ import annotations

import hashlib


def scoped_name(tenant: str, text: str) -> str:
    """Name derived from `text` that is unique to the tenant."""
    return hashlib.sha256(f"{tenant}\0{text}".encode()).hexdigest()
