"""API keys: `remat_ID_SECRET`. Of the secret only a hash is kept; what it may do stands beside it.

A secret is 256 random bits, so one SHA-256 keeps it safe: nobody tries 2^256 of them, as one would passwords.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

KEY_PATTERN = re.compile(r"remat_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
#: What a key may be good for.
SCOPES = {
    "read": "see the tenant's graphs, plans and operations",
    "plan": "post graphs, ask for plans and stop them",
    "operator": "see what the plans of all tenants save",
}
DEFAULT_SCOPES = frozenset({"read", "plan"})  # what a key has unless told


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits of one key; None: those of the service."""

    nodes: int | None = None  # of one graph
    bytes: int | None = None  # of one request, decompressed
    solves: int | None = None  # at a time
    solver_seconds: float | None = None  # a day, UTC


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key; times are seconds since 1970."""

    id: str
    hash: bytes  # SHA-256 of the secret
    name: str
    tenant: str
    scopes: frozenset[str]
    quotas: Quotas
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def state(self, now: float) -> str:
        """ "good", "expired" or "revoked"."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else "good"


def new_key(
    name: str, tenant: str, scopes: frozenset[str], quotas: Quotas, now: float, expires_at: float | None = None
) -> tuple[str, ApiKey]:
    """A key as it is told once, and what is kept of it."""
    id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return f"remat_{id}_{secret}", ApiKey(id, hash_secret(secret), name, tenant, scopes, quotas, now, expires_at)


def split_key(text: str) -> tuple[str, str] | None:
    """(id, secret) of something that looks like a key."""
    found = KEY_PATTERN.fullmatch(text)
    return None if found is None else (found[1], found[2])


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def verify_secret(secret: str, key: ApiKey | None) -> bool:
    """Whether the secret is the key's, told in a time that gives away neither much of it nor whether it exists."""
    kept = bytes(32) if key is None else key.hash
    return hmac.compare_digest(hash_secret(secret), kept) and key is not None
