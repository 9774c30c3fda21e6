"""Garbage collection of a store that may be in use: expired rows, then unreferenced blobs.

Referencing rows are deleted before referenced rows. A blob is checked and removed while commits of rows that reference
blobs are locked out; `Store.writing` checks after its commit that its blobs still exist.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from app.store.access_tables import charges
from app.store.batch_tables import batches, items
from app.store.blobs import GRACE, KEY
from app.store.store import Store
from app.store.tables import (
    BLOB_COLUMNS,
    graphs,
    idempotency_keys,
    operations,
    plans,
    questions,
    result_plans,
    results,
    to_timestamp,
)

CHUNK_SIZE = 200  # rows or blobs per transaction
KEEP_CHARGES_S = 2 * 86_400  # quotas count the charges of one day


@dataclass(slots=True)
class CollectionCounts:
    """Number of deleted rows and blobs by kind."""

    idempotency_keys: int = 0
    batches: int = 0
    operations: int = 0
    results: int = 0
    plans: int = 0
    graphs: int = 0
    blobs: int = 0
    blob_bytes: int = 0  # compressed
    unfinished_files: int = 0


def collect(store: Store, keep_days: float | None, idempotency_days: float) -> CollectionCounts:
    """Delete rows older than the given ages (`keep_days` None: keep forever) and unreferenced blobs.

    Raises CannotWrite, Unavailable.
    """
    done = CollectionCounts()
    done.idempotency_keys = _delete(store, idempotency_keys, idempotency_keys.c.created_at < _before(idempotency_days))
    with store.writing() as connection:
        old = charges.c.settled, charges.c.at < time.time() - KEEP_CHARGES_S
        connection.execute(sa.delete(charges).where(*old))
    if keep_days is not None:
        until = _before(keep_days)
        done.batches = _delete(store, batches, batches.c.ended_at < until)
        solves = sa.exists().where(items.c.operation_id == operations.c.id, items.c.state == "running")
        done.operations = _delete(store, operations, operations.c.ended_at < until, ~solves)
        _delete(store, questions, ~sa.exists().where(operations.c.asked == questions.c.id))
        done.results = _delete(
            store, results, results.c.seen_at < until, ~sa.exists().where(operations.c.found == results.c.id)
        )
        done.plans = _delete(
            store,
            plans,
            plans.c.seen_at < until,
            ~sa.exists().where(operations.c.result == plans.c.id),
            ~sa.exists().where(result_plans.c.plan_id == plans.c.id),
            ~sa.exists().where(items.c.plan_id == plans.c.id),
        )
        done.graphs = _delete(
            store,
            graphs,
            graphs.c.seen_at < until,
            ~sa.exists().where(plans.c.graph_id == graphs.c.id),
            ~sa.exists().where(operations.c.graph_id == graphs.c.id),
            ~sa.exists().where(items.c.graph_id == graphs.c.id),
        )
    for batch in store.blobs.scan(older_than=GRACE):
        names = [(key, size) for key, size in batch if KEY.fullmatch(key)]
        for start in range(0, len(names), CHUNK_SIZE):
            _remove(store, names[start : start + CHUNK_SIZE], done)
    for path in store.blobs.partial_files():
        path.unlink(missing_ok=True)
        done.unfinished_files += 1
    return done


def referenced(connection: sa.Connection, keys: list[str]) -> set[str]:
    """The subset of `keys` that rows reference."""
    return {key for column in BLOB_COLUMNS for key in connection.scalars(sa.select(column).where(column.in_(keys)))}


def _delete(store: Store, table: sa.Table, *which: sa.ColumnElement[bool]) -> int:
    (key,) = table.primary_key.columns
    count = 0
    while True:
        try:
            with store.writing() as connection:
                ids = list(connection.scalars(sa.select(key).where(*which).limit(CHUNK_SIZE)))
                # The conditions are repeated: on PostgreSQL other transactions may commit in between.
                count += connection.execute(sa.delete(table).where(key.in_(ids), *which)).rowcount
        except IntegrityError:  # a concurrent commit references one of the rows; left to the next collection
            return count
        if len(ids) < CHUNK_SIZE:
            return count


def remove_unreferenced(store: Store, keys: Iterable[str]) -> None:
    """Remove those of the blobs that no row references, whatever their age. Raises CannotWrite, Unavailable."""
    remaining = list(dict.fromkeys(keys))
    for start in range(0, len(remaining), CHUNK_SIZE):
        chunk = remaining[start : start + CHUNK_SIZE]
        with _without_new_references(store) as connection:
            for key in set(chunk) - referenced(connection, chunk):
                store.blobs.remove(key)


def _remove(store: Store, names: list[tuple[str, int]], done: CollectionCounts) -> None:
    with _without_new_references(store) as connection:
        kept = referenced(connection, [key for key, _ in names])
        for key, size in names:
            age = store.blobs.age(key) if key not in kept else None
            if age is not None and age > GRACE:  # else rewritten since it was listed
                store.blobs.remove(key)
                done.blobs, done.blob_bytes = done.blobs + 1, done.blob_bytes + size


@contextmanager
def _without_new_references(store: Store) -> Iterator[sa.Connection]:
    """A transaction during which no other transaction commits a row that references a blob."""
    with store.writing() as connection:
        if not store.is_sqlite:  # SQLite has one writer at a time
            connection.execute(sa.text("LOCK TABLE graphs, plans, sections, results, questions IN SHARE MODE"))
        yield connection


def _before(days: float) -> str:
    return to_timestamp(datetime.now(UTC) - timedelta(days=days))
