"""Import of the key file of older versions, `access.sqlite` in the data folder, into the database of the store."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from app.atomic_files import CannotWrite
from app.store.access_tables import api_keys, audit, charges, sessions
from app.store.database import insert_if_absent
from app.store.store import Store
from app.store.tables import graphs, operations, plans, result_plans, results
from app.store.tenancy import insert_owner

KEY_FILE = "access.sqlite"
IMPORTED_FILE = "access.sqlite.imported"
CHUNK_SIZE = 500
Rows = dict[str, list[dict[str, Any]]]  # by table of the key file
T = TypeVar("T")

log = logging.getLogger(__name__)


def import_key_file(store: Store) -> None:
    """Import the key file of the data folder, if there is one, and rename it. Rows of the database win.

    Interrupted or run by two processes at once, it imports every row once. Raises CannotWrite, Unavailable.
    """
    path = store.data / KEY_FILE
    if not path.exists():
        return
    found = _read(path)
    with store.writing() as connection:
        for table, rows in ((api_keys, _keys(found)), (charges, _charges(found)), (sessions, found["sessions"])):
            for some in _chunks(rows):
                connection.execute(insert_if_absent(connection, table), some)
        _import_grants(connection, found["grants"])
        _import_audit(connection, found["audit"])
    try:
        path.rename(path.with_name(IMPORTED_FILE))
    except OSError as error:
        raise CannotWrite(f"cannot rename {path}, which is imported: {error.strerror}; rename or remove it") from error
    counts = " ".join(f"{name}={len(rows)}" for name, rows in found.items())
    log.warning("event=key_file_imported file=%s renamed=%s %s", path, IMPORTED_FILE, counts)


def _read(path: Path) -> Rows:
    """All rows of the key file. Raises CannotWrite."""
    try:
        connection = sqlite3.connect(path, timeout=30)
        try:
            connection.row_factory = sqlite3.Row
            names = ("keys", "grants", "solves", "sessions", "audit")
            return {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in names}
        finally:
            connection.close()
    except sqlite3.Error as error:
        message = f"cannot read the API keys in {path}: {error}; restore a backup, or remove it to start without keys"
        raise CannotWrite(message) from error


def _keys(found: Rows) -> list[dict[str, Any]]:
    return [row | {"scopes": row["scopes"].split(), "quotas": json.loads(row["quotas"])} for row in found["keys"]]


def _charges(found: Rows) -> list[dict[str, Any]]:
    names = {"id": "id", "key_id": "key_id", "at": "at", "seconds": "seconds"}
    return [
        {name: row[old] for name, old in names.items()} | {"settled": bool(row["ended"])} for row in found["solves"]
    ]


def _import_grants(connection: sa.Connection, grants: Sequence[dict[str, Any]]) -> None:
    """Owners of graphs and results, and tenants of operations that have none; ids that are gone are skipped."""
    granted = defaultdict[tuple[str, str], list[str]](list)
    for row in grants:
        granted[row["kind"], row["tenant"]].append(row["id"])
    for (kind, tenant), ids in granted.items():
        for some in _chunks(ids):
            if kind == "operations":
                _import_operations(connection, tenant, some)
            else:
                table = {"graphs": graphs, "results": results}[kind]
                for id in connection.scalars(sa.select(table.c.id).where(table.c.id.in_(some))).all():
                    insert_owner(connection, table, id, tenant)


def _import_operations(connection: sa.Connection, tenant: str, ids: Collection[str]) -> None:
    """The tenant of operations, and with it the owner of their results and of the graphs of those."""
    old = operations.c.id.in_(ids), operations.c.tenant.is_(None)
    changed = sa.update(operations).where(*old).values(tenant=tenant).returning(operations.c.found)
    for result_id in {id for id in connection.scalars(changed).all() if id is not None}:
        insert_owner(connection, results, result_id, tenant)
        for graph_id in _graphs_of(connection, result_id):
            insert_owner(connection, graphs, graph_id, tenant)


def _graphs_of(connection: sa.Connection, result_id: str) -> Iterator[str]:
    made_of = sa.select(plans.c.graph_id).join(result_plans).where(result_plans.c.result_id == result_id)
    return iter(connection.scalars(made_of.distinct()).all())


def _import_audit(connection: sa.Connection, entries: Sequence[dict[str, Any]]) -> None:
    """The lines in their order, unless they were imported by a start that was interrupted before the renaming."""
    if not entries:
        return
    last = [audit.c[name].is_not_distinct_from(value) for name, value in entries[-1].items()]
    if connection.scalar(sa.select(audit.c.id).where(*last).limit(1)) is None:
        for some in _chunks(entries):
            connection.execute(sa.insert(audit), some)


def _chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    return (rows[start : start + CHUNK_SIZE] for start in range(0, len(rows), CHUNK_SIZE))
