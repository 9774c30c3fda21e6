"""Every row and every blob of a store looked at: does each say what it should, and is all there that is named?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sa

from app.errors import AppError
from app.store.batch_tables import batches, items
from app.store.blobs import KEY, blob_key
from app.store.garbage_collection import referenced
from app.store.states import RESULT_PATHS, STATES
from app.store.store import Store
from app.store.tables import graphs, operations, plan_columns, plans, questions, result_plans, results, sections

MAX_FAULTS = 100  # faults that are told
CHUNK_SIZE = 200


@dataclass(slots=True)
class IntegrityReport:
    """What was looked at, and what is wrong with it."""

    graphs: int = 0
    plans: int = 0
    results: int = 0
    operations: int = 0
    batches: int = 0
    items: int = 0
    blobs: int = 0
    blob_bytes: int = 0  # as stored
    unnamed_blobs: int = 0  # no row names them: garbage, or their row is about to be written
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0

    def add_fault(self, said: str) -> None:
        self.fault_count += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(said)


def check_integrity(store: Store) -> IntegrityReport:
    """Reads everything; changes nothing. Raises Unavailable, CannotWrite when the database cannot be read at all."""
    found = IntegrityReport()
    _database(store, found)
    for row in _rows(store, graphs):
        found.graphs += 1
        _graph(store, row, found)
    for row in _rows(store, plans):
        found.plans += 1
        _plan(store, row, found)
    for row in _rows(store, results):
        found.results += 1
        _result(store, row, found)
    for row in _rows(store, questions):
        _read(store, f"question {row['id']}", row["id"], found)
    for row in _rows(store, operations):
        found.operations += 1
        _operation(row, found)
    for row in _rows(store, batches):
        found.batches += 1
        _batch(store, row, found)
    _blobs(store, found)
    return found


def _database(store: Store, found: IntegrityReport) -> None:
    """What SQLite itself finds; PostgreSQL keeps its own pages and constraints."""
    if store.is_sqlite:
        with store.reading() as connection:
            for (said,) in connection.execute(sa.text("PRAGMA integrity_check")):
                if said != "ok":
                    found.add_fault(f"database: {said}")
            for table, rowid, parent, _ in connection.execute(sa.text("PRAGMA foreign_key_check")):
                found.add_fault(f"{table} row {rowid}: names a row of {parent} that is not there")


def _rows(store: Store, table: sa.Table) -> Iterator[dict[str, Any]]:
    """Every row by ascending id, some at a time: nobody who writes waits for the end."""
    (key,), last = table.primary_key.columns, ""
    while True:
        with store.reading() as connection:
            some = sa.select(table).where(key > last).order_by(key).limit(CHUNK_SIZE)
            rows = [dict(row) for row in connection.execute(some).mappings()]
        yield from rows
        if len(rows) < CHUNK_SIZE:
            return
        last = rows[-1][key.name]


def _read(store: Store, what: str, key: str, found: IntegrityReport) -> bytes | None:
    """Bytes of a blob that a row names; a fault where there are none, or others."""
    try:
        data = store.blobs.get(key)
    except AppError as error:
        found.add_fault(f"{what}: {error}")
        return None
    if blob_key(data) != key:
        found.add_fault(f"{what}: blob {key} holds other bytes than its name says")
        return None
    return data


def _graph(store: Store, row: Mapping[str, Any], found: IntegrityReport) -> None:
    what = f"graph {row['id']}"
    if row["blob"] != row["id"]:
        found.add_fault(f"{what}: names blob {row['blob']}, and a graph's id is the hash of its document")
    data = _read(store, what, row["blob"], found)
    if data is not None:
        _json(what, data, found)


def _plan(store: Store, row: Mapping[str, Any], found: IntegrityReport) -> None:
    what = f"plan {row['id']}"
    with store.reading() as connection:
        parts = connection.execute(sa.select(sections.c.name, sections.c.blob).where(sections.c.plan_id == row["id"]))
        named_parts = [(name, blob) for name, blob in parts]
    for name, blob in named_parts:
        data = _read(store, f"{what}, {name}", blob, found)
        if data is not None:
            _json(f"{what}, {name}", data, found)
    data = _read(store, what, row["figures"], found)
    figures = None if data is None else _json(what, data, found)
    if figures is None:
        return
    if figures.get("id") != row["id"]:
        found.add_fault(f"{what}: its report is of plan {str(figures.get('id'))[:80]}")
    try:
        said = plan_columns(figures)
    except (KeyError, TypeError) as error:
        found.add_fault(f"{what}: its report lacks {error}")
        return
    for column, value in said.items():
        if row[column] != value:
            found.add_fault(f"{what}: column {column} is {row[column]!r}, and its report says {value!r}")


def _result(store: Store, row: Mapping[str, Any], found: IntegrityReport) -> None:
    what = f"{row['kind']} {row['id']}"
    data = _read(store, what, row["blob"], found)
    document = None if data is None else _json(what, data, found)
    if document is None:
        return
    with store.reading() as connection:
        asked = sa.select(result_plans.c.plan_id).where(result_plans.c.result_id == row["id"])
        named_plans = {f"/v1/plans/{id}" for id in connection.scalars(asked)}
    said = {place.get("plan") for place in document.get("points", [document])} - {None}
    if said != named_plans:
        found.add_fault(f"{what}: its document names {len(said)} plans, and its rows {len(named_plans)}, not the same")


def _operation(row: Mapping[str, Any], found: IntegrityReport) -> None:
    what, state = f"operation {row['id']}", row["state"]
    ended = state in ("succeeded", "failed", "cancelled")
    if state not in STATES:
        found.add_fault(f"{what}: its state is {state[:80]!r}")
    if ended != (row["ended_at"] is not None):
        found.add_fault(f"{what}: {state}, and ended at {row['ended_at']}")
    has, other = ("result", "found") if row["kind"] == "plan" else ("found", "result")
    if row["kind"] not in RESULT_PATHS:
        found.add_fault(f"{what}: its kind is {row['kind'][:80]!r}")
    if state == "succeeded" and row[has] is None:
        found.add_fault(f"{what}: succeeded, and has no {row['kind']}")
    if row[other] is not None:
        found.add_fault(f"{what}: is a {row['kind']}, and names something else in {other}")
    if state == "failed" and row["error"] is None:
        found.add_fault(f"{what}: failed, and does not say why")


def _batch(store: Store, row: Mapping[str, Any], found: IntegrityReport) -> None:
    what, last = f"batch {row['id']}", -1
    unended = 0
    while True:
        some = sa.select(items).where(items.c.batch_id == row["id"], items.c.number > last)
        with store.reading() as connection:
            rows = list(connection.execute(some.order_by(items.c.number).limit(CHUNK_SIZE)).mappings())
        for item in rows:
            found.items, last = found.items + 1, last + 1
            unended += item["ended_at"] is None
            _item(f"{what}, item {item['number']}", dict(item), found)
            if item["number"] != last:
                found.add_fault(f"{what}: item {last} is not there")
                last = item["number"]
        if len(rows) < CHUNK_SIZE:
            break
    if last + 1 != row["total"]:
        found.add_fault(f"{what}: has {last + 1} items, not {row['total']}")
    if (row["ended_at"] is not None) != (row["state"] in ("succeeded", "cancelled")):
        found.add_fault(f"{what}: {row['state'][:80]}, and ended at {row['ended_at']}")
    if row["ended_at"] is not None and unended:
        found.add_fault(f"{what}: has ended, and {unended} of its items have not")


def _item(what: str, row: Mapping[str, Any], found: IntegrityReport) -> None:
    state = row["state"]
    if state not in STATES:
        found.add_fault(f"{what}: its state is {state[:80]!r}")
    if (row["ended_at"] is not None) != (state in ("succeeded", "failed", "cancelled")):
        found.add_fault(f"{what}: {state}, and ended at {row['ended_at']}")
    for wanted, column, said in (
        ("succeeded", "plan_id", "has no plan"),
        ("failed", "error", "does not say why"),
        ("running", "operation_id", "nothing solves it"),
    ):
        if state == wanted and row[column] is None:
            found.add_fault(f"{what}: {state}, and {said}")


def _blobs(store: Store, found: IntegrityReport) -> None:
    for batch in store.blobs.scan():
        keys = [key for key, _ in batch if KEY.fullmatch(key)]
        with store.reading() as connection:
            known = referenced(connection, keys)
        for key, size in batch:
            found.blobs, found.blob_bytes = found.blobs + 1, found.blob_bytes + size
            if not KEY.fullmatch(key):
                found.add_fault(f"blobs: {key[:200]!r} is no blob")
            elif key not in known:
                found.unnamed_blobs += 1
                _read(store, f"blob {key}", key, found)


def _json(what: str, data: bytes, found: IntegrityReport) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        found.add_fault(f"{what}: not JSON: {error}")
        return None
