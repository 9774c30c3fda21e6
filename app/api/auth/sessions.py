"""Browser sessions: a random cookie refers to an API key, which itself appears in no page and no cookie.

Only a hash of the cookie is stored. The CSRF token is derived from the cookie, so other sites cannot forge it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie

from app.api.auth.api_keys import ApiKey, hash_secret, split_key, verify_secret
from app.api.auth.key_store import KeyStore

COOKIE = "remat_session"
CSRF_HEADER = b"x-csrf-token"
SESSION_S = 12 * 3600


def find_key(key_store: KeyStore, text: str) -> ApiKey | None:
    """The key of the text `remat_ID_SECRET`, valid or not; None: unknown to this service."""
    id, secret = split_key(text) or ("", "")
    key = key_store.key(id)
    return key if verify_secret(secret, key) else None


def begin(key_store: KeyStore, key: ApiKey, now: float) -> str:
    """The secret of a new session; expired sessions are deleted."""
    secret = secrets.token_urlsafe(32)
    ends = now + SESSION_S if key.expires_at is None else min(now + SESSION_S, key.expires_at)
    key_store.open_session(hash_secret(secret), key.id, ends, now)
    return secret


def session_key(key_store: KeyStore, secret: str, now: float) -> ApiKey | None:
    """The key of a session, valid or not; None: unknown or expired session."""
    session = key_store.session(hash_secret(secret))
    return None if session is None or now >= session[1] else key_store.key(session[0])


def end(key_store: KeyStore, secret: str) -> None:
    """End the session of the cookie."""
    key_store.close_session(hash_secret(secret))


def csrf_token(secret: str) -> str:
    """The CSRF token of the session, required for unsafe methods."""
    return hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def verify_csrf_token(token: str, secret: str) -> bool:
    return hmac.compare_digest(token.encode(), csrf_token(secret).encode())


def session_secret(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The session secret in the cookies of a request."""
    for name, value in headers:
        if name == b"cookie":
            try:
                cookie = SimpleCookie(value.decode("latin-1")).get(COOKIE)
            except CookieError:
                continue
            if cookie is not None and cookie.value:
                return cookie.value
    return None
