"""Operations as rows of the store."""

from __future__ import annotations

from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app.errors import NotFound
from app.jobs.port import FINISHED, Operation
from app.store.store import Store
from app.store.tables import operations


def add(store: Store, operation: Operation) -> None:
    """Keep a new operation. Raises NotFound when its graph has gone, CannotWrite, Unavailable."""
    try:
        with store.writing() as connection:
            connection.execute(sa.insert(operations).values(asdict(operation)))
    except IntegrityError as error:
        raise NotFound(f"there is no graph {operation.graph_id}; post it to /v1/graphs first") from error


def save(store: Store, operation: Operation) -> None:
    """Keep what the operation says now. Raises CannotWrite, Unavailable."""
    with store.writing() as connection:
        connection.execute(sa.update(operations).where(operations.c.id == operation.id).values(asdict(operation)))


def find(store: Store, id: str) -> Operation:
    """The operation as last saved. Raises NotFound."""
    return Operation(**store.row(operations, id))


def page(store: Store, after: str | None, limit: int, state: str | None) -> list[Operation]:
    """At most `limit` of them, newest first, older than `after`."""
    asked = sa.select(operations).order_by(operations.c.id.desc()).limit(limit)
    if after is not None:
        asked = asked.where(operations.c.id < after)
    if state is not None:
        asked = asked.where(operations.c.state == state)
    return _all(store, asked)


def unfinished(store: Store) -> list[Operation]:
    """Every operation that has not ended, oldest first."""
    return _all(store, sa.select(operations).where(operations.c.state.not_in(FINISHED)).order_by(operations.c.id))


def _all(store: Store, asked: sa.Select[tuple[object, ...]]) -> list[Operation]:
    with store.reading() as connection:
        return [Operation(**row) for row in connection.execute(asked).mappings()]
