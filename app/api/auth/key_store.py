"""Storage of API keys, charges of quotas, sessions and the audit log, in the database of the store.

All processes of a store share them. Other processes may create and revoke keys concurrently, so nothing is cached
between calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from app.api.auth.api_keys import ApiKey, Quotas
from app.errors import NotFound
from app.store.access_tables import api_keys, audit, charges, sessions
from app.store.database import insert_if_absent
from app.store.store import Store

DAY_S = 86_400
MAX_AUDIT_ROWS = 1_000_000  # older lines of the audit log are deleted; about 200 bytes each


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit log: a request with an unsafe method, or a rejected request."""

    at: float
    key_id: str | None
    tenant: str | None
    peer: str | None
    method: str
    path: str
    status: int


class KeyStore:
    """Thread-safe; writes are committed on return, or raise CannotWrite or Unavailable."""

    def __init__(self, store: Store):
        self._store = store

    def add(self, key: ApiKey) -> None:
        with self._store.writing() as connection:
            connection.execute(sa.insert(api_keys), key_row(key))

    def key(self, id: str) -> ApiKey | None:
        with self._store.reading() as connection:
            row = connection.execute(_KEY, {"of_id": id}).first()
        return None if row is None else _key(row)

    def all_keys(self) -> list[ApiKey]:
        """All keys, oldest first."""
        with self._store.reading() as connection:
            return list(map(_key, connection.execute(_ALL_KEYS)))

    def revoke(self, id: str, now: float) -> ApiKey:
        """The revoked key. Raises NotFound."""
        revoked = sa.update(api_keys).where(api_keys.c.id == id, api_keys.c.revoked_at.is_(None))
        with self._store.writing() as connection:
            connection.execute(revoked.values(revoked_at=now))
        key = self.key(id)
        if key is None:
            raise NotFound(f"no key {id[:80]!r}; `remat keys list` shows all ids")
        return key

    @contextlib.contextmanager
    def quota_lock(self, key_id: str) -> Iterator[None]:
        """Exclude the other processes that charge this key; with SQLite, one process serves at a time."""
        if self._store.is_sqlite:
            yield
            return
        with self._store.reading() as connection:
            connection.execute(_LOCK_QUOTA, {"of_key": key_id})
            yield

    def charge(self, key_id: str, id: str, seconds: float, now: float) -> None:
        """Charge a started solve with its maximum time; a known solve is not charged twice."""
        row = {"key_id": key_id, "id": id, "at": now, "seconds": seconds, "settled": False}
        with self._store.writing() as connection:
            connection.execute(insert_if_absent(connection, charges), row)

    def settle(self, key_id: str, id: str, seconds: float) -> None:
        """Replace the charge of an ended solve by its actual time."""
        which = charges.c.key_id == key_id, charges.c.id == id
        with self._store.writing() as connection:
            connection.execute(sa.update(charges).where(*which).values(seconds=seconds, settled=True))

    def running(self, key_id: str) -> list[str]:
        """Ids of solves that are not settled."""
        with self._store.reading() as connection:
            return list(connection.scalars(_RUNNING, {"of_key": key_id}))

    def spent(self, key_id: str, now: float) -> float:
        """Seconds charged since midnight UTC."""
        with self._store.reading() as connection:
            return float(connection.scalar(_SPENT, {"of_key": key_id, "since": now // DAY_S * DAY_S}) or 0.0)

    def open_session(self, hash: bytes, key_id: str, ends_at: float, now: float) -> None:
        """Store a session by the SHA-256 of its cookie, and delete expired sessions."""
        with self._store.writing() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.ends_at <= now))
            connection.execute(sa.insert(sessions), {"hash": hash, "key_id": key_id, "ends_at": ends_at})

    def session(self, hash: bytes) -> tuple[str, float] | None:
        """(id of the key, expiry in Unix seconds) of the session."""
        with self._store.reading() as connection:
            row = connection.execute(_SESSION, {"of_hash": hash}).first()
        return None if row is None else (row.key_id, row.ends_at)

    def close_session(self, hash: bytes) -> None:
        """Delete the session."""
        with self._store.writing() as connection:
            connection.execute(sa.delete(sessions).where(sessions.c.hash == hash))

    def record(self, *entries: AuditEntry) -> None:
        """Append lines to the audit log."""
        with self._store.writing() as connection:
            connection.execute(sa.insert(audit), [asdict(entry) for entry in entries])
            connection.execute(_DELETE_AUDIT, {"rows": MAX_AUDIT_ROWS})

    def entries(self, limit: int, tenant: str | None = None) -> list[AuditEntry]:
        """The latest lines of the audit log, newest first; of that tenant unless None."""
        query = sa.select(*audit.c[*AuditEntry.__slots__]).order_by(audit.c.id.desc()).limit(limit)
        if tenant is not None:
            query = query.where(audit.c.tenant == tenant)
        with self._store.reading() as connection:
            return [AuditEntry(*row) for row in connection.execute(query)]


def key_row(key: ApiKey) -> dict[str, object]:
    """The key as a row of `api_keys`."""
    return {name: getattr(key, name) for name in ApiKey.__slots__} | {
        "scopes": sorted(key.scopes),
        "quotas": asdict(key.quotas),
    }


def _key(row: sa.Row[tuple[object, ...]]) -> ApiKey:
    values = dict(row._mapping)
    return ApiKey(**values | {"scopes": frozenset(values["scopes"]), "quotas": Quotas(**values["quotas"])})


# Statements built once: building one takes longer than SQLite takes to execute it.
_KEY = sa.select(api_keys).where(api_keys.c.id == sa.bindparam("of_id"))
_ALL_KEYS = sa.select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)
_LOCK_QUOTA = sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(sa.bindparam("of_key", type_=sa.Text))))
_OF_KEY = charges.c.key_id == sa.bindparam("of_key")
_RUNNING = sa.select(charges.c.id).where(_OF_KEY, ~charges.c.settled)
_SPENT = sa.select(sa.func.sum(charges.c.seconds)).where(_OF_KEY, charges.c.at >= sa.bindparam("since"))
_SESSION = sa.select(sessions.c.key_id, sessions.c.ends_at).where(sessions.c.hash == sa.bindparam("of_hash"))
_LAST_AUDIT = sa.select(sa.func.max(audit.c.id)).scalar_subquery()
_DELETE_AUDIT = sa.delete(audit).where(audit.c.id <= _LAST_AUDIT - sa.bindparam("rows"))
