"""The database: SQLite in the data folder, or PostgreSQL by URL; its faults in words; its migrations."""

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

# Imports inside functions: alembic is loaded when a schema is compared or migrated.

DATABASE_FILE = "remat.sqlite"
BUSY_SECONDS = 30.0  # a writer waits so long for the other
CONNECT_SECONDS = 5
RETRY = {"Retry-After": "5"}
MIGRATIONS = Path(__file__).parent / "migrations"
SQLITE_WRITES = {"remat_writes": True}

#: First letters of SQLite's error names, and the first match's remedy.
SQLITE_UNWRITABLE = {
    "SQLITE_FULL": "free space there; nothing half written is left",
    "SQLITE_IOERR": "look for a full or failing disk there; nothing half written is left",
    "SQLITE_READONLY": "name a place you may write to",
    "SQLITE_CANTOPEN": "name a place you may write to",
    "SQLITE_PERM": "name a place you may write to",
}
POSTGRES_UNWRITABLE = {"53100": "the disk of the database is full", "25006": "the database is read-only"}


def engine_of(url: str | None, data: Path) -> sa.Engine:
    """The engine: PostgreSQL where a URL says so, else SQLite in the folder. Connects when first used."""
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
        raise BadUsage(f"REMAT_DATABASE_URL begins with {scheme[:20]!r}; write postgresql://USER@HOST/NAME")
    postgres: dict[str, Any] = {
        "options": "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3",  # dead hosts
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
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A writer takes its lock at once: one that began as a reader could not, after another wrote.
    writes = connection.get_execution_options().get("remat_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextlib.contextmanager
def translate_errors(engine: sa.Engine) -> Iterator[None]:
    """Raises CannotWrite or Unavailable in words for what goes wrong below; a broken constraint passes as it is."""
    try:
        yield
    except IntegrityError:
        raise
    except TimeoutError as error:
        said: Exception = Unavailable("every connection to the database is in use; ask again", headers=RETRY)
        metrics.count_store_error("database", said)
        raise said from error
    except DBAPIError as error:
        said = _in_words(engine, error)
        metrics.count_store_error("database", said)
        raise said from error


def _in_words(engine: sa.Engine, error: DBAPIError) -> Exception:
    said = str(error.orig).strip().split("\n", 1)[0]
    name = getattr(error.orig, "sqlite_errorname", "")
    place = engine.url.database if engine.dialect.name == "sqlite" else engine.url.render_as_string()
    for start, remedy in SQLITE_UNWRITABLE.items():
        if name.startswith(start):
            return CannotWrite(f"cannot write {place}: {said}; {remedy}")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Unavailable(f"{place} was being written to for {BUSY_SECONDS:g} s; ask again", headers=RETRY)
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        remedy = "stop the service and put a backup in its place"
        return Unavailable(f"{place} is damaged: {said}; {remedy}", code="damaged")
    state = getattr(error.orig, "sqlstate", None)
    if state in POSTGRES_UNWRITABLE:
        return CannotWrite(f"cannot write {place}: {POSTGRES_UNWRITABLE[state]}")
    if engine.dialect.name == "postgresql" and _lost(error, state):
        return Unavailable(f"{place} cannot be reached: {said}", headers=RETRY)
    return error


def _lost(error: DBAPIError, state: str | None) -> bool:
    """Whether asking again may help: a lost connection (no SQLSTATE, or class 08, 53 or 57), or a deadlock (40)."""
    return error.connection_invalidated or (
        isinstance(error, sa.exc.OperationalError) and (state is None or state[:2] in ("08", "40", "53", "57"))
    )


def insert(connection: sa.Connection, table: sa.Table) -> Any:
    """INSERT of the connection's dialect, which knows ON CONFLICT."""
    return _insert(connection.dialect.name, table)


def insert_if_absent(connection: sa.Connection, table: sa.Table) -> Any:
    """INSERT of rows, given as it is executed, that changes none which is there."""
    return _unless_there(connection.dialect.name, table)


def upsert_seen(connection: sa.Connection, table: sa.Table) -> Any:
    """As `insert_if_absent`, for rows with an id: one that is there is `seen_at` the new time."""
    return _seen_again(connection.dialect.name, table)


# Made once: making a statement takes longer than SQLite takes to execute it.
@functools.cache
def _insert(dialect: str, table: sa.Table) -> Any:
    from sqlalchemy.dialects import postgresql, sqlite

    return (sqlite if dialect == "sqlite" else postgresql).insert(table)


@functools.cache
def _unless_there(dialect: str, table: sa.Table) -> Any:
    return _insert(dialect, table).on_conflict_do_nothing()


@functools.cache
def _seen_again(dialect: str, table: sa.Table) -> Any:
    made = _insert(dialect, table)
    return made.on_conflict_do_update(index_elements=["id"], set_={"seen_at": made.excluded.seen_at})


def migrate(engine: sa.Engine) -> tuple[str | None, str]:
    """(revision before, revision after): brings the tables to what this program knows. Raises Unavailable."""
    from alembic import command

    with translate_errors(engine), _remaking(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('remat migrate'))"))
        before, after = _revisions(connection)
        if before != after:
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        return before, after


@contextlib.contextmanager
def _remaking(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction in which SQLite, that cannot change a column, lets a table be made anew.

    Dropping the old one would else take with it what names its rows. https://sqlite.org/lang_altertable.html, 7
    """
    if engine.dialect.name != "sqlite":
        with engine.begin() as connection:
            yield connection
        return
    with engine.execution_options(**SQLITE_WRITES).connect() as connection:
        sqlite: Any = connection.connection.driver_connection
        sqlite.execute("PRAGMA foreign_keys=OFF")
        try:
            with connection.begin():
                yield connection
                dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
                if dangling is not None:
                    said = f"a row of {dangling[0]} names one of {dangling[2]} that is not there"
                    raise Unavailable(f"{engine.url.database} is damaged: {said}", code="damaged")
        finally:
            sqlite.execute("PRAGMA foreign_keys=ON")


def require_current_schema(engine: sa.Engine) -> None:
    """Raises Unavailable unless the tables are what this program knows."""
    with translate_errors(engine), engine.connect() as connection:
        before, after = _revisions(connection)
    if before != after:
        has = "no tables yet" if before is None else f"tables of revision {before}, not {after}"
        raise Unavailable(f"the database has {has}; run remat migrate", code="not_migrated")


def _revisions(connection: sa.Connection) -> tuple[str | None, str]:
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_config())
    before, after = MigrationContext.configure(connection).get_current_revision(), scripts.get_current_head()
    assert after is not None
    if before not in {None, *(script.revision for script in scripts.walk_revisions())}:
        said = f"the database is of a newer remat (revision {before}; this one knows {after})"
        raise Unavailable(f"{said}; run that one, or name another place", code="newer_store")
    return before, after


def _config() -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
