"""Storage of API keys, grants, quotas, sessions and the audit log: the protocol, and SQLite in the data folder.

Other processes may create and revoke keys concurrently, so nothing is cached between calls.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from app.api.auth.api_keys import ApiKey, Quotas
from app.atomic_files import CannotWrite
from app.errors import NotFound

DAY_S = 86_400
MAX_AUDIT_ROWS = 1_000_000  # older lines of the audit log are deleted; about 200 bytes each
DATABASE_FILE = "access.sqlite"
SCHEMA_SQL = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, hash BLOB NOT NULL, name TEXT NOT NULL, tenant TEXT NOT NULL, scopes TEXT NOT NULL,
    quotas TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL, revoked_at REAL);
CREATE TABLE IF NOT EXISTS grants (
    tenant TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (tenant, kind, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS solves (
    id TEXT NOT NULL, key_id TEXT NOT NULL, at REAL NOT NULL, seconds REAL NOT NULL, ended INTEGER NOT NULL,
    PRIMARY KEY (key_id, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audit (
    at REAL NOT NULL, key_id TEXT, tenant TEXT, peer TEXT, method TEXT NOT NULL, path TEXT NOT NULL,
    status INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (hash BLOB PRIMARY KEY, key_id TEXT NOT NULL, ends_at REAL NOT NULL) WITHOUT ROWID;
"""


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


class KeyStore(Protocol):
    """Protocol of the storage. Thread-safe; writes are committed on return, or raise CannotWrite."""

    def add(self, key: ApiKey) -> None: ...

    def key(self, id: str) -> ApiKey | None: ...

    def all_keys(self) -> list[ApiKey]:
        """All keys, oldest first."""

    def revoke(self, id: str, now: float) -> ApiKey:
        """The revoked key. Raises NotFound."""

    def grant(self, tenant: str, kind: str, id: str) -> None:
        """Give the tenant access to a resource."""

    def granted(self, tenant: str, kind: str, ids: Collection[str]) -> set[str]:
        """The subset of `ids` granted to the tenant."""

    def grants(self, tenant: str, kind: str) -> list[str]:
        """Ids of all resources of that kind granted to the tenant."""

    def owners(self, kind: str, id: str) -> set[str]:
        """Tenants that have access to a resource."""

    def withdraw(self, tenant: str, kind: str, ids: Collection[str]) -> None:
        """Take access to resources away from the tenant."""

    def charge(self, key_id: str, id: str, seconds: float, now: float) -> None:
        """Charge a started solve with its maximum time; a known solve is not charged twice."""

    def settle(self, key_id: str, id: str, seconds: float) -> None:
        """Replace the charge of an ended solve by its actual time."""

    def running(self, key_id: str) -> list[str]:
        """Ids of solves that are not settled."""

    def spent(self, key_id: str, now: float) -> float:
        """Seconds charged since midnight UTC."""

    def open_session(self, hash: bytes, key_id: str, ends_at: float, now: float) -> None:
        """Store a session by the SHA-256 of its cookie, and delete expired sessions."""

    def session(self, hash: bytes) -> tuple[str, float] | None:
        """(id of the key, expiry in Unix seconds) of the session."""

    def close_session(self, hash: bytes) -> None:
        """Delete the session."""

    def record(self, entry: AuditEntry) -> None:
        """Append a line to the audit log."""

    def entries(self, limit: int) -> list[AuditEntry]:
        """The latest lines of the audit log, newest first."""


class SqliteKeyStore:
    """The protocol over a SQLite file."""

    def __init__(self, folder: Path):
        self.path = folder / DATABASE_FILE
        self._own = threading.local()
        with self._writing() as connection:
            for table in filter(str.strip, SCHEMA_SQL.split(";")):
                connection.execute(table)

    def add(self, key: ApiKey) -> None:
        row = (
            key.id,
            key.hash,
            key.name,
            key.tenant,
            " ".join(sorted(key.scopes)),
            json.dumps(asdict(key.quotas)),
            key.created_at,
            key.expires_at,
            key.revoked_at,
        )
        with self._writing() as connection:
            connection.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def key(self, id: str) -> ApiKey | None:
        return next(map(_key, self._rows("SELECT * FROM keys WHERE id = ?", id)), None)

    def all_keys(self) -> list[ApiKey]:
        return list(map(_key, self._rows("SELECT * FROM keys ORDER BY created_at, id")))

    def revoke(self, id: str, now: float) -> ApiKey:
        with self._writing() as connection:
            connection.execute("UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (now, id))
        key = self.key(id)
        if key is None:
            raise NotFound(f"no key {id[:80]!r}; `remat keys list` shows all ids")
        return key

    def grant(self, tenant: str, kind: str, id: str) -> None:
        with self._writing() as connection:
            connection.execute("INSERT OR IGNORE INTO grants VALUES (?, ?, ?)", (tenant, kind, id))

    def granted(self, tenant: str, kind: str, ids: Collection[str]) -> set[str]:
        query = "SELECT 1 FROM grants WHERE tenant = ? AND kind = ? AND id = ?"
        return {id for id in ids if self._rows(query, tenant, kind, id)}

    def grants(self, tenant: str, kind: str) -> list[str]:
        return [id for (id,) in self._rows("SELECT id FROM grants WHERE tenant = ? AND kind = ?", tenant, kind)]

    def owners(self, kind: str, id: str) -> set[str]:
        return {tenant for (tenant,) in self._rows("SELECT tenant FROM grants WHERE kind = ? AND id = ?", kind, id)}

    def withdraw(self, tenant: str, kind: str, ids: Collection[str]) -> None:
        query = "DELETE FROM grants WHERE tenant = ? AND kind = ? AND id = ?"
        with self._writing() as connection:
            connection.executemany(query, [(tenant, kind, id) for id in ids])

    def charge(self, key_id: str, id: str, seconds: float, now: float) -> None:
        with self._writing() as connection:
            connection.execute("INSERT OR IGNORE INTO solves VALUES (?, ?, ?, ?, 0)", (id, key_id, now, seconds))

    def settle(self, key_id: str, id: str, seconds: float) -> None:
        with self._writing() as connection:
            connection.execute(
                "UPDATE solves SET seconds = ?, ended = 1 WHERE key_id = ? AND id = ?", (seconds, key_id, id)
            )

    def running(self, key_id: str) -> list[str]:
        return [id for (id,) in self._rows("SELECT id FROM solves WHERE key_id = ? AND ended = 0", key_id)]

    def spent(self, key_id: str, now: float) -> float:
        query = "SELECT COALESCE(SUM(seconds), 0) FROM solves WHERE key_id = ? AND at >= ?"
        return float(self._rows(query, key_id, now // DAY_S * DAY_S)[0][0])

    def open_session(self, hash: bytes, key_id: str, ends_at: float, now: float) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM sessions WHERE ends_at <= ?", (now,))
            connection.execute("INSERT INTO sessions VALUES (?, ?, ?)", (hash, key_id, ends_at))

    def session(self, hash: bytes) -> tuple[str, float] | None:
        row = next(iter(self._rows("SELECT key_id, ends_at FROM sessions WHERE hash = ?", hash)), None)
        return None if row is None else (row[0], row[1])

    def close_session(self, hash: bytes) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM sessions WHERE hash = ?", (hash,))

    def record(self, entry: AuditEntry) -> None:
        with self._writing() as connection:
            connection.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?)", tuple(asdict(entry).values()))
            oldest = "DELETE FROM audit WHERE rowid <= (SELECT max(rowid) FROM audit) - ?"
            connection.execute(oldest, (MAX_AUDIT_ROWS,))

    def entries(self, limit: int) -> list[AuditEntry]:
        return [AuditEntry(*row) for row in self._rows("SELECT * FROM audit ORDER BY rowid DESC LIMIT ?", limit)]

    def _rows(self, query: str, *parameters: str | float | bytes) -> list[tuple[Any, ...]]:
        try:
            return self._connection().execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise CannotWrite(f"cannot read {self.path}: {error}; check the disk, or restore a backup") from error

    def _connection(self) -> sqlite3.Connection:
        """Connection of this thread."""
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # Created with mode 0600, which SQLite copies to the WAL. An existing file is not opened: closing a
                # descriptor drops the POSIX locks of all connections of this process.
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
                connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
            except (OSError, sqlite3.Error) as error:
                raise CannotWrite(f"cannot open {self.path} for API keys: {error}; choose a writable folder") from error
            self._own.connection = connection
        return connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection()
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise CannotWrite(f"cannot write {self.path}: {error}; free disk space, or make it writable") from error


def _key(row: tuple[Any, ...]) -> ApiKey:
    id, hash, name, tenant, scopes, quotas, created_at, expires_at, revoked_at = row
    limits = Quotas(**json.loads(quotas))
    return ApiKey(id, hash, name, tenant, frozenset(scopes.split()), limits, created_at, expires_at, revoked_at)
