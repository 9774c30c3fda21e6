"""API keys `remat_ID_SECRET` with scopes and quotas; only a hash of the secret is stored.

A secret has 256 random bits, so a plain SHA-256 suffices; brute force is infeasible, unlike for passwords.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

KEY_PATTERN = re.compile(r"remat_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
#: Scope -> description.
SCOPES = {
    "read": "see the tenant's graphs, plans and operations",
    "plan": "post graphs, request plans and cancel them",
    "operator": "see the savings of all tenants",
}
DEFAULT_SCOPES = frozenset({"read", "plan"})  # default scopes of a new key


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits of one key; None: the limit of the service."""

    nodes: int | None = None  # per graph
    bytes: int | None = None  # per decompressed request
    solves: int | None = None  # concurrent
    solver_seconds: float | None = None  # per day, UTC


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored API key; times are Unix seconds."""

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
    """(text of the key, which is shown once; the key to store)."""
    id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return f"remat_{id}_{secret}", ApiKey(id, hash_secret(secret), name, tenant, scopes, quotas, now, expires_at)


def split_key(text: str) -> tuple[str, str] | None:
    """(id, secret) of a well-formed key; else None."""
    match = KEY_PATTERN.fullmatch(text)
    return None if match is None else (match[1], match[2])


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def verify_secret(secret: str, key: ApiKey | None) -> bool:
    """Whether the secret belongs to the key, in constant time also for unknown keys."""
    stored = bytes(32) if key is None else key.hash
    return hmac.compare_digest(hash_secret(secret), stored) and key is not None
