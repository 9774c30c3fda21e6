"""Sessions of browsers: a random cookie stands for a key, which never comes into a page or a cookie itself.

Only a hash of the cookie is kept. What scripts send back with a change is derived from the cookie, so a page of
another site, which sees neither, cannot make one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie

from app.api.auth.api_keys import Key, hashed, is_secret_of, parts_of
from app.api.auth.key_store import Vault

COOKIE = "remat_session"
HEADER = b"x-csrf-token"
LASTS_S = 12 * 3600


def key_in(vault: Vault, text: str) -> Key | None:
    """The key that `remat_ID_SECRET` is, good or not; None: it is none of this service."""
    id, secret = parts_of(text) or ("", "")
    key = vault.key(id)
    return key if is_secret_of(secret, key) else None


def begin(vault: Vault, key: Key, now: float) -> str:
    """The secret of a new session; older ones that have ended are forgotten."""
    secret = secrets.token_urlsafe(32)
    ends = now + LASTS_S if key.expires_at is None else min(now + LASTS_S, key.expires_at)
    vault.open_session(hashed(secret), key.id, ends, now)
    return secret


def key_of(vault: Vault, secret: str, now: float) -> Key | None:
    """The key that a session stands for, good or not; None: there is no such session, or it has ended."""
    found = vault.session(hashed(secret))
    return None if found is None or now >= found[1] else vault.key(found[0])


def end(vault: Vault, secret: str) -> None:
    """From now on the cookie stands for nothing."""
    vault.close_session(hashed(secret))


def token_of(secret: str) -> str:
    """What comes with every change that the session asks for."""
    return hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def is_token_of(token: str, secret: str) -> bool:
    return hmac.compare_digest(token.encode(), token_of(secret).encode())


def secret_in(headers: list[tuple[bytes, bytes]]) -> str | None:
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
