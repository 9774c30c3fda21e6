"""Ownership of graphs and results, and names scoped to one tenant.

A tenant owns graphs that it posted or derived, and the curves, fits and layouts that it requested; several tenants may
own the same content.
"""

from __future__ import annotations

import hashlib
from typing import Any

import sqlalchemy as sa

from app.store.access_tables import graph_owners, result_owners
from app.store.database import insert_if_absent
from app.store.store import Store
from app.store.tables import graphs, results

#: Table of owned rows -> column of their ids in the table of their owners.
_OWNED: dict[sa.Table, sa.Column[str]] = {graphs: graph_owners.c.graph_id, results: result_owners.c.result_id}


def scoped_name(tenant: str, text: str) -> str:
    """Name derived from `text` that is unique to the tenant."""
    return hashlib.sha256(f"{tenant}\0{text}".encode()).hexdigest()


def insert_owner(connection: sa.Connection, table: sa.Table, id: str, tenant: str | None) -> None:
    """Make the tenant an owner of the row of `graphs` or `results`; None: no authentication, nothing to do."""
    if tenant is not None:
        column = _OWNED[table]
        connection.execute(insert_if_absent(connection, column.table), {"tenant": tenant, column.name: id})


def owns(store: Store, table: sa.Table, id: str, tenant: str) -> bool:
    """Whether the tenant owns the row of `graphs` or `results`."""
    with store.reading() as connection:
        return connection.scalar(_IS_OWNED[table], {"of_id": id, "of_tenant": tenant}) is not None


def owned_ids(table: sa.Table, tenant: str) -> sa.Select[Any]:
    """Query of the ids of all rows of `graphs` or `results` that the tenant owns."""
    column = _OWNED[table]
    return sa.select(column).where(column.table.c.tenant == tenant)


# Statements built once: building one takes longer than SQLite takes to execute it.
_IS_OWNED = {
    table: sa.select(column).where(column == sa.bindparam("of_id"), column.table.c.tenant == sa.bindparam("of_tenant"))
    for table, column in _OWNED.items()
}
