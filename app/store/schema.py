"""The schema's revision: read, required, upgraded.

| revision of the database | this version |
| --- | --- |
| older than its own | serves after `remat migrate` |
| its own | serves |
| newer, by additive migrations only | serves: a rolling upgrade, old and new versions side by side |
| newer, not additive | refuses |

An additive migration says `ADDITIVE = True`: what older versions read and write stays as it is (new tables and indexes;
new columns that are null or have a default). The table `schema_support` names the oldest version that still serves.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from app.errors import Unavailable
from app.store.database import RETRY, SQLITE_WRITES, translate_errors
from app.store.tables import schema_support

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

log = logging.getLogger(__name__)
logging.getLogger("alembic").setLevel(logging.WARNING)  # logs each reading of a revision, as of readiness probes

# Imports inside functions: alembic is loaded only to compare or migrate a schema.

MIGRATIONS = Path(__file__).parent / "migrations"
#: Of a migration on PostgreSQL for a table that is in use; every other statement on the table waits behind it.
LOCK_SECONDS = 5
#: Connections of other processes of remat, which each name themselves; see `database.engine_of`.
OTHER_CONNECTIONS = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'remat'"
    " AND datname = current_database() AND pid <> pg_backend_pid()"
)


def migrate(engine: sa.Engine) -> tuple[str | None, str]:
    """Upgrade the schema to this version's revision; returns (revision before, revision after).

    Raises Unavailable, also if the migration is not additive and other processes of remat are connected.
    """
    from alembic import command

    with translate_errors(engine), _schema_transaction(engine) as connection:
        is_shared = engine.dialect.name == "postgresql"
        if is_shared:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('remat migrate'))"))
            connection.execute(sa.text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        scripts = _scripts()
        before, after = _revisions(connection, scripts)
        if before == after:
            return before, after
        oldest = _oldest_supported(scripts)
        if is_shared and before is not None and not _is_additive(scripts, before, oldest):
            _require_no_others(connection, before, after)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.execute(schema_support.delete())
        connection.execute(schema_support.insert().values(oldest_revision=oldest))
        log.info("event=migrated revision_before=%s revision=%s", before, after)
        return before, after


def is_current_schema(engine: sa.Engine) -> bool:
    """Whether this version can serve the schema as it is. Raises Unavailable."""
    with translate_errors(engine), engine.connect() as connection:
        before, after = _revisions(connection, _scripts())
    return before == after


def require_current_schema(engine: sa.Engine) -> None:
    """Raises Unavailable unless this version can serve the schema as it is."""
    with translate_errors(engine), engine.connect() as connection:
        before, after = _revisions(connection, _scripts())
    if before != after:
        state = "no schema" if before is None else f"schema revision {before}, not {after}"
        raise Unavailable(f"the database has {state}; run remat migrate", code="not_migrated")


@contextlib.contextmanager
def _schema_transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction for migrations, without foreign key actions on SQLite.

    SQLite changes a column by recreating the table; dropping the old table would cascade to the rows that reference
    it. See https://sqlite.org/lang_altertable.html, section 7.
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
                    message = f"a row of {dangling[0]} references a missing row of {dangling[2]}"
                    raise Unavailable(f"{engine.url.database} is damaged: {message}", code="damaged")
        finally:
            sqlite.execute("PRAGMA foreign_keys=ON")


def _revisions(connection: sa.Connection, scripts: ScriptDirectory) -> tuple[str | None, str]:
    """Revision of the database, and the one it must have: the same if a newer version left it usable."""
    from alembic.migration import MigrationContext

    before, after = MigrationContext.configure(connection).get_current_revision(), scripts.get_current_head()
    assert after is not None
    known = {script.revision for script in scripts.walk_revisions()}
    if before is None or before in known:
        return before, after
    has_support = sa.inspect(connection).has_table(schema_support.name)
    if has_support and connection.execute(sa.select(schema_support.c.oldest_revision)).scalar() in known:
        return before, before
    message = f"the database was written by a newer version of remat (revision {before}, this version has {after})"
    raise Unavailable(f"{message}; upgrade remat, or use another database", code="newer_store")


def _oldest_supported(scripts: ScriptDirectory) -> str:
    """The newest revision that is not additive: versions with it serve the head as well."""
    return next(script.revision for script in scripts.walk_revisions() if not getattr(script.module, "ADDITIVE", False))


def _is_additive(scripts: ScriptDirectory, before: str, oldest: str) -> bool:
    """Whether all migrations after `before` are additive."""
    return any(script.revision == oldest for script in scripts.walk_revisions(head=before))


def _require_no_others(connection: sa.Connection, before: str, after: str) -> None:
    if count := connection.execute(OTHER_CONNECTIONS).scalar():
        message = f"the migration from {before} to {after} changes what {count} connections of running processes use"
        remedy = "stop the workers and services of this database, and run remat migrate again"
        raise Unavailable(f"{message}; {remedy}", code="database_in_use", headers=RETRY)


def _scripts() -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config())


def _config() -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("recursive_version_locations", "true")  # ten revisions a folder
    return config
