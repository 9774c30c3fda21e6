"""Where keys, what belongs to whom, and what was done are kept: the port, and a file of SQLite in the data folder.

Another process may make and revoke keys meanwhile: nothing is remembered between two questions.
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
    """One line of the audit log: what was asked to change something, or was refused."""

    at: float
    key_id: str | None
    tenant: str | None
    peer: str | None
    method: str
    path: str
    status: int


class KeyStore(Protocol):
    """Every method is safe from any thread. A write is there when the method returns, or raises CannotWrite."""

    def add(self, key: ApiKey) -> None: ...

    def key(self, id: str) -> ApiKey | None: ...

    def all_keys(self) -> list[ApiKey]:
        """Every key, oldest first."""

    def revoke(self, id: str, now: float) -> ApiKey:
        """The key, good for nothing from now on. Raises NotFound."""

    def grant(self, tenant: str, kind: str, id: str) -> None:
        """Make a thing the tenant's too."""

    def granted(self, tenant: str, kind: str, ids: Collection[str]) -> set[str]:
        """Those of the ids that are the tenant's."""

    def grants(self, tenant: str, kind: str) -> list[str]:
        """Ids of all things of that kind that are the tenant's."""

    def charge(self, key_id: str, id: str, seconds: float, now: float) -> None:
        """Count a solve that has begun, for as long as it may take; one that is counted already stays as it is."""

    def settle(self, key_id: str, id: str, seconds: float) -> None:
        """The solve has ended, and took so long."""

    def running(self, key_id: str) -> list[str]:
        """Ids of solves that have not been settled."""

    def spent(self, key_id: str, now: float) -> float:
        """Seconds counted since the day began."""

    def open_session(self, hash: bytes, key_id: str, ends_at: float, now: float) -> None:
        """Let a cookie with that SHA-256 stand for the key, and forget those that have ended."""

    def session(self, hash: bytes) -> tuple[str, float] | None:
        """(id of the key, when it ends) of the session."""

    def close_session(self, hash: bytes) -> None:
        """Forget the session."""

    def record(self, entry: AuditEntry) -> None:
        """Write a line of the audit log."""

    def entries(self, limit: int) -> list[AuditEntry]:
        """The latest lines, newest first."""


class SqliteKeyStore:
    """The port over a file of SQLite."""

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
        return next(map(_key, self._asked("SELECT * FROM keys WHERE id = ?", id)), None)

    def all_keys(self) -> list[ApiKey]:
        return list(map(_key, self._asked("SELECT * FROM keys ORDER BY created_at, id")))

    def revoke(self, id: str, now: float) -> ApiKey:
        with self._writing() as connection:
            connection.execute("UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (now, id))
        key = self.key(id)
        if key is None:
            raise NotFound(f"there is no key {id[:80]!r}; `remat keys list` has every id")
        return key

    def grant(self, tenant: str, kind: str, id: str) -> None:
        with self._writing() as connection:
            connection.execute("INSERT OR IGNORE INTO grants VALUES (?, ?, ?)", (tenant, kind, id))

    def granted(self, tenant: str, kind: str, ids: Collection[str]) -> set[str]:
        asked = "SELECT 1 FROM grants WHERE tenant = ? AND kind = ? AND id = ?"
        return {id for id in ids if self._asked(asked, tenant, kind, id)}

    def grants(self, tenant: str, kind: str) -> list[str]:
        return [id for (id,) in self._asked("SELECT id FROM grants WHERE tenant = ? AND kind = ?", tenant, kind)]

    def charge(self, key_id: str, id: str, seconds: float, now: float) -> None:
        with self._writing() as connection:
            connection.execute("INSERT OR IGNORE INTO solves VALUES (?, ?, ?, ?, 0)", (id, key_id, now, seconds))

    def settle(self, key_id: str, id: str, seconds: float) -> None:
        with self._writing() as connection:
            connection.execute(
                "UPDATE solves SET seconds = ?, ended = 1 WHERE key_id = ? AND id = ?", (seconds, key_id, id)
            )

    def running(self, key_id: str) -> list[str]:
        return [id for (id,) in self._asked("SELECT id FROM solves WHERE key_id = ? AND ended = 0", key_id)]

    def spent(self, key_id: str, now: float) -> float:
        asked = "SELECT COALESCE(SUM(seconds), 0) FROM solves WHERE key_id = ? AND at >= ?"
        return float(self._asked(asked, key_id, now // DAY_S * DAY_S)[0][0])

    def open_session(self, hash: bytes, key_id: str, ends_at: float, now: float) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM sessions WHERE ends_at <= ?", (now,))
            connection.execute("INSERT INTO sessions VALUES (?, ?, ?)", (hash, key_id, ends_at))

    def session(self, hash: bytes) -> tuple[str, float] | None:
        row = next(iter(self._asked("SELECT key_id, ends_at FROM sessions WHERE hash = ?", hash)), None)
        return None if row is None else (row[0], row[1])

    def close_session(self, hash: bytes) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM sessions WHERE hash = ?", (hash,))

    def record(self, entry: AuditEntry) -> None:
        with self._writing() as connection:
            connection.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?)", tuple(asdict(entry).values()))

    def entries(self, limit: int) -> list[AuditEntry]:
        return [AuditEntry(*row) for row in self._asked("SELECT * FROM audit ORDER BY rowid DESC LIMIT ?", limit)]

    def _asked(self, query: str, *parameters: str | float | bytes) -> list[tuple[Any, ...]]:
        try:
            return self._connection().execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise CannotWrite(f"cannot read {self.path}: {error}; mend the disk, or restore the file") from error

    def _connection(self) -> sqlite3.Connection:
        """This thread's own."""
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                # Nobody else reads it, or what stands beside. One that is there is not opened: closing it would end
                # the locks of every connection of this process, and another would take the log away under them.
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
                connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
            except (OSError, sqlite3.Error) as error:
                raise CannotWrite(f"cannot keep keys in {self.path}: {error}; name a place you may write to") from error
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
            raise CannotWrite(f"cannot write {self.path}: {error}; free space there, or make it writable") from error


def _key(row: tuple[Any, ...]) -> ApiKey:
    id, hash, name, tenant, scopes, quotas, created_at, expires_at, revoked_at = row
    limits = Quotas(**json.loads(quotas))
    return ApiKey(id, hash, name, tenant, frozenset(scopes.split()), limits, created_at, expires_at, revoked_at)
