"""The database engine (SQLite in the data folder, or PostgreSQL by URL), and translation of its errors."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, TimeoutError

from app.atomic_files import CannotWrite
from app.errors import BadUsage, Unavailable
from app.telemetry import metrics

# Imports inside functions: dialects are loaded by the first insert.

DATABASE_FILE = "remat.sqlite"
BUSY_SECONDS = 30.0  # timeout of the SQLite write lock
CONNECT_SECONDS = 5
RETRY = {"Retry-After": "5"}
SQLITE_WRITES = {"remat_writes": True}

#: Prefix of a SQLite error name -> remedy; the first match wins.
SQLITE_UNWRITABLE = {
    "SQLITE_FULL": "free disk space; no partial data is left",
    "SQLITE_IOERR": "check for a full or failing disk; no partial data is left",
    "SQLITE_READONLY": "choose a writable path",
    "SQLITE_CANTOPEN": "choose a writable path",
    "SQLITE_PERM": "choose a writable path",
}
POSTGRES_UNWRITABLE = {"53100": "the disk of the database is full", "25006": "the database is read-only"}


def engine_of(url: str | None, data: Path) -> sa.Engine:
    """Engine for PostgreSQL at `url`, or for SQLite in the folder `data` if None. Connects on first use."""
    common: dict[str, Any] = {
        "json_serializer": lambda value: msgspec.json.encode(value).decode(),
        "json_deserializer": msgspec.json.decode,
        "pool_timeout": 10,
    }
    if url is None:
        arguments = {"timeout": BUSY_SECONDS, "check_same_thread": False}
        engine = sa.create_engine(
            f"sqlite:///{data / DATABASE_FILE}", connect_args=arguments, max_overflow=64, **common
        )
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    scheme, _, rest = url.partition("://")
    if scheme not in ("postgresql", "postgres"):
        raise BadUsage(f"REMAT_DATABASE_URL: unknown scheme {scheme[:20]!r}; use postgresql://USER@HOST/NAME")
    postgres: dict[str, Any] = {
        "options": "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3",
        "connect_timeout": CONNECT_SECONDS,
        "tcp_user_timeout": 10_000,
        "application_name": "remat",
    }
    return sa.create_engine(
        f"postgresql+psycopg://{rest}",
        connect_args=postgres,
        pool_size=10,
        max_overflow=20,
        pool_pre_ping=True,
        **common,
    )


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # `_begin_sqlite` issues BEGIN
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: sa.Connection) -> None:
    # BEGIN IMMEDIATE takes the write lock at once; upgrading a read lock fails after a concurrent write.
    writes = connection.get_execution_options().get("remat_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextlib.contextmanager
def translate_errors(engine: sa.Engine) -> Iterator[None]:
    """Translate database errors to CannotWrite or Unavailable; IntegrityError passes unchanged."""
    try:
        yield
    except IntegrityError:
        raise
    except TimeoutError as error:
        translated: Exception = Unavailable("all database connections are in use; retry", headers=RETRY)
        metrics.count_store_error("database", translated)
        raise translated from error
    except DBAPIError as error:
        translated = _translated(engine, error)
        metrics.count_store_error("database", translated)
        raise translated from error


def _translated(engine: sa.Engine, error: DBAPIError) -> Exception:
    reason = str(error.orig).strip().split("\n", 1)[0]
    name = getattr(error.orig, "sqlite_errorname", "")
    place = engine.url.database if engine.dialect.name == "sqlite" else engine.url.render_as_string()
    for prefix, remedy in SQLITE_UNWRITABLE.items():
        if name.startswith(prefix):
            return CannotWrite(f"cannot write {place}: {reason}; {remedy}")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Unavailable(f"{place} was locked by another writer for {BUSY_SECONDS:g} s; retry", headers=RETRY)
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        remedy = "stop the service and restore a backup"
        return Unavailable(f"{place} is damaged: {reason}; {remedy}", code="damaged")
    state = getattr(error.orig, "sqlstate", None)
    if state in POSTGRES_UNWRITABLE:
        return CannotWrite(f"cannot write {place}: {POSTGRES_UNWRITABLE[state]}")
    if engine.dialect.name == "postgresql" and _is_transient(error, state):
        return Unavailable(f"{place} is unreachable: {reason}", headers=RETRY)
    return error


def _is_transient(error: DBAPIError, state: str | None) -> bool:
    """Whether a retry may help: a lost connection (no SQLSTATE; classes 08, 53, 57), a deadlock (40) or a lock (55)."""
    return error.connection_invalidated or (
        isinstance(error, sa.exc.OperationalError) and (state is None or state[:2] in ("08", "40", "53", "55", "57"))
    )


def insert(connection: sa.Connection, table: sa.Table) -> Any:
    """INSERT of the connection's dialect, with ON CONFLICT support."""
    return _insert(connection.dialect.name, table)


def insert_if_absent(connection: sa.Connection, table: sa.Table) -> Any:
    """INSERT ... ON CONFLICT DO NOTHING; pass the rows to `execute`."""
    return _insert_if_absent(connection.dialect.name, table)


def upsert_seen(connection: sa.Connection, table: sa.Table) -> Any:
    """As `insert_if_absent`, for rows with an id; updates `seen_at` of an existing row."""
    return _upsert_seen(connection.dialect.name, table)


# Cached: building a statement takes longer than SQLite takes to execute it.
@functools.cache
def _insert(dialect: str, table: sa.Table) -> Any:
    from sqlalchemy.dialects import postgresql, sqlite

    return (sqlite if dialect == "sqlite" else postgresql).insert(table)


@functools.cache
def _insert_if_absent(dialect: str, table: sa.Table) -> Any:
    return _insert(dialect, table).on_conflict_do_nothing()


@functools.cache
def _upsert_seen(dialect: str, table: sa.Table) -> Any:
    statement = _insert(dialect, table)
    return statement.on_conflict_do_update(index_elements=["id"], set_={"seen_at": statement.excluded.seen_at})
