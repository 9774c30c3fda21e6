"""Sessions of browsers: a random cookie stands for a key, which never comes into a page or a cookie itself.

Only a hash of the cookie is kept. What scripts send back with a change is derived from the cookie, so a page of
another site, which sees neither, cannot make one.
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


def find_key(vault: KeyStore, text: str) -> ApiKey | None:
    """The key that `remat_ID_SECRET` is, good or not; None: it is none of this service."""
    id, secret = split_key(text) or ("", "")
    key = vault.key(id)
    return key if verify_secret(secret, key) else None


def begin(vault: KeyStore, key: ApiKey, now: float) -> str:
    """The secret of a new session; older ones that have ended are forgotten."""
    secret = secrets.token_urlsafe(32)
    ends = now + SESSION_S if key.expires_at is None else min(now + SESSION_S, key.expires_at)
    vault.open_session(hash_secret(secret), key.id, ends, now)
    return secret


def session_key(vault: KeyStore, secret: str, now: float) -> ApiKey | None:
    """The key that a session stands for, good or not; None: there is no such session, or it has ended."""
    found = vault.session(hash_secret(secret))
    return None if found is None or now >= found[1] else vault.key(found[0])


def end(vault: KeyStore, secret: str) -> None:
    """From now on the cookie stands for nothing."""
    vault.close_session(hash_secret(secret))


def csrf_token(secret: str) -> str:
    """What comes with every change that the session asks for."""
    return hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def verify_csrf_token(token: str, secret: str) -> bool:
    return hmac.compare_digest(token.encode(), csrf_token(secret).encode())


def session_secret(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The session's secret among the headers of a request."""
    for name, value in headers:
        if name == b"cookie":
            try:
                found = SimpleCookie(value.decode("latin-1")).get(COOKIE)
            except CookieError:
                continue
            if found is not None and found.value:
                return found.value
    return None
