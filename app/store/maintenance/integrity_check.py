"""Integrity check of all rows and blobs of a store: content, consistency and references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sa

from app.errors import AppError
from app.store.batch_tables import batches, items
from app.store.blobs import KEY, blob_key
from app.store.maintenance.garbage_collection import referenced
from app.store.measurements import measurement_columns
from app.store.states import RESULT_PATHS, STATES
from app.store.store import Store
from app.store.tables import (
    graphs,
    measurements,
    operations,
    plan_columns,
    plans,
    questions,
    result_plans,
    results,
    sections,
)

MAX_FAULTS = 100  # faults listed in the report
CHUNK_SIZE = 200


@dataclass(slots=True)
class IntegrityReport:
    """Number of checked rows and blobs by kind, and the faults report."""

    graphs: int = 0
    plans: int = 0
    results: int = 0
    measurements: int = 0
    operations: int = 0
    batches: int = 0
    items: int = 0
    blobs: int = 0
    blob_bytes: int = 0  # compressed
    unnamed_blobs: int = 0  # not referenced by a row: garbage, or the row is about to be written
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0

    def add_fault(self, message: str) -> None:
        self.fault_count += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(message)


def check_integrity(store: Store) -> IntegrityReport:
    """Check all rows and blobs; read-only. Raises Unavailable, CannotWrite if the database cannot be read."""
    report = IntegrityReport()
    _database(store, report)
    for row in _rows(store, graphs):
        report.graphs += 1
        _graph(store, row, report)
    for row in _rows(store, plans):
        report.plans += 1
        _plan(store, row, report)
    for row in _rows(store, results):
        report.results += 1
        _result(store, row, report)
    for row in _rows(store, measurements):
        report.measurements += 1
        figures = measurement_columns(row["kind"], row["document"])
        for column, value in figures.items():
            if row[column] != value:
                document = f"but the document has {value!r}"
                report.add_fault(f"measurement {row['id']}: column {column} is {row[column]!r}, {document}")
    for row in _rows(store, questions):
        _read(store, f"input {row['id']}", row["id"], report)
    for row in _rows(store, operations):
        report.operations += 1
        _operation(row, report)
    for row in _rows(store, batches):
        report.batches += 1
        _batch(store, row, report)
    _blobs(store, report)
    return report


def _database(store: Store, report: IntegrityReport) -> None:
    """Integrity and foreign key checks of SQLite; PostgreSQL maintains its own."""
    if store.is_sqlite:
        with store.reading() as connection:
            for (message,) in connection.execute(sa.text("PRAGMA integrity_check")):
                if message != "ok":
                    report.add_fault(f"database: {message}")
            for table, rowid, parent, _ in connection.execute(sa.text("PRAGMA foreign_key_check")):
                report.add_fault(f"{table} row {rowid}: references a missing row of {parent}")


def _rows(store: Store, table: sa.Table) -> Iterator[dict[str, Any]]:
    """All rows by ascending id, in short transactions so that writers are not blocked."""
    (key,), last = table.primary_key.columns, ""
    while True:
        with store.reading() as connection:
            query = sa.select(table).where(key > last).order_by(key).limit(CHUNK_SIZE)
            rows = [dict(row) for row in connection.execute(query).mappings()]
        yield from rows
        if len(rows) < CHUNK_SIZE:
            return
        last = rows[-1][key.name]


def _read(store: Store, what: str, key: str, report: IntegrityReport) -> bytes | None:
    """Bytes of a referenced blob; None, with a fault, if missing or damaged."""
    try:
        data = store.blobs.get(key)
    except AppError as error:
        report.add_fault(f"{what}: {error}")
        return None
    if blob_key(data) != key:
        report.add_fault(f"{what}: blob {key} does not match its hash")
        return None
    return data


def _graph(store: Store, row: Mapping[str, Any], report: IntegrityReport) -> None:
    what = f"graph {row['id']}"
    if row["blob"] != row["id"]:
        report.add_fault(f"{what}: references blob {row['blob']}, not the blob of its id")
    data = _read(store, what, row["blob"], report)
    if data is not None:
        _json(what, data, report)


def _plan(store: Store, row: Mapping[str, Any], report: IntegrityReport) -> None:
    what = f"plan {row['id']}"
    with store.reading() as connection:
        rows = connection.execute(sa.select(sections.c.name, sections.c.blob).where(sections.c.plan_id == row["id"]))
        blobs = [(name, blob) for name, blob in rows]
    for name, blob in blobs:
        data = _read(store, f"{what}, {name}", blob, report)
        if data is not None:
            _json(f"{what}, {name}", data, report)
    data = _read(store, what, row["figures"], report)
    figures = None if data is None else _json(what, data, report)
    if figures is None:
        return
    if figures.get("id") != row["id"]:
        report.add_fault(f"{what}: its report has the id {str(figures.get('id'))[:80]}")
    try:
        expected = plan_columns(figures)
    except (KeyError, TypeError) as error:
        report.add_fault(f"{what}: its report lacks {error}")
        return
    if row["request"] is None:  # stored before revision 0015
        del expected["request"]
    for column, value in expected.items():
        if row[column] != value:
            report.add_fault(f"{what}: column {column} is {row[column]!r}, but the report has {value!r}")


def _result(store: Store, row: Mapping[str, Any], report: IntegrityReport) -> None:
    what = f"{row['kind']} {row['id']}"
    data = _read(store, what, row["blob"], report)
    document = None if data is None else _json(what, data, report)
    if document is None:
        return
    with store.reading() as connection:
        query = sa.select(result_plans.c.plan_id).where(result_plans.c.result_id == row["id"])
        in_rows = {f"/v1/plans/{id}" for id in connection.scalars(query)}
    in_document = {place.get("plan") for place in document.get("points", [document])} - {None}
    if in_document != in_rows:
        counts = f"{len(in_document)} in the document, {len(in_rows)} in result_plans"
        report.add_fault(f"{what}: its document and rows reference different plans ({counts})")


def _operation(row: Mapping[str, Any], report: IntegrityReport) -> None:
    what, state = f"operation {row['id']}", row["state"]
    ended = state in ("succeeded", "failed", "cancelled")
    if state not in STATES:
        report.add_fault(f"{what}: unknown state {state[:80]!r}")
    if ended != (row["ended_at"] is not None):
        report.add_fault(f"{what}: {state}, but ended_at is {row['ended_at']}")
    has, other = ("result", "found") if row["kind"] == "plan" else ("found", "result")
    if row["kind"] not in RESULT_PATHS:
        report.add_fault(f"{what}: unknown kind {row['kind'][:80]!r}")
    if state == "succeeded" and row[has] is None:
        report.add_fault(f"{what}: succeeded, but has no {row['kind']}")
    if row[other] is not None:
        report.add_fault(f"{what}: kind {row['kind']}, but column {other} is set")
    if state == "failed" and row["error"] is None:
        report.add_fault(f"{what}: failed, but has no error")


def _batch(store: Store, row: Mapping[str, Any], report: IntegrityReport) -> None:
    """Check a batch and its items. The deletion of a graph leaves gaps in their numbers, and lowers `total`."""
    what, last, gap = f"batch {row['id']}", -1, None
    count = unended = 0
    while True:
        query = sa.select(items).where(items.c.batch_id == row["id"], items.c.number > last)
        with store.reading() as connection:
            rows = list(connection.execute(query.order_by(items.c.number).limit(CHUNK_SIZE)).mappings())
        for item in rows:
            count += 1
            unended += item["ended_at"] is None
            _item(f"{what}, item {item['number']}", dict(item), report)
            if gap is None and item["number"] != last + 1:
                gap = last + 1
            last = item["number"]
        if len(rows) < CHUNK_SIZE:
            break
    report.items += count
    if count != row["total"]:
        missing = f"; item {gap} is missing" if gap is not None else ""
        report.add_fault(f"{what}: has {count} items, not {row['total']}{missing}")
    if (row["ended_at"] is not None) != (row["state"] in ("succeeded", "cancelled")):
        report.add_fault(f"{what}: {row['state'][:80]}, but ended_at is {row['ended_at']}")
    if row["ended_at"] is not None and unended:
        report.add_fault(f"{what}: has ended, but {unended} of its items have not")


def _item(what: str, row: Mapping[str, Any], report: IntegrityReport) -> None:
    state = row["state"]
    if state not in STATES:
        report.add_fault(f"{what}: unknown state {state[:80]!r}")
    if (row["ended_at"] is not None) != (state in ("succeeded", "failed", "cancelled")):
        report.add_fault(f"{what}: {state}, but ended_at is {row['ended_at']}")
    for required_state, column, problem in (
        ("succeeded", "plan_id", "has no plan"),
        ("failed", "error", "has no error"),
        ("running", "operation_id", "has no operation"),
    ):
        if state == required_state and row[column] is None:
            report.add_fault(f"{what}: {state}, but {problem}")


def _blobs(store: Store, report: IntegrityReport) -> None:
    for batch in store.blobs.scan():
        keys = [key for key, _ in batch if KEY.fullmatch(key)]
        with store.reading() as connection:
            known = referenced(connection, keys)
        for key, size in batch:
            report.blobs, report.blob_bytes = report.blobs + 1, report.blob_bytes + size
            if not KEY.fullmatch(key):
                report.add_fault(f"blobs: {key[:200]!r} is not a blob")
            elif key not in known:
                report.unnamed_blobs += 1
                _read(store, f"blob {key}", key, report)


def _json(what: str, data: bytes, report: IntegrityReport) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        report.add_fault(f"{what}: not JSON: {error}")
        return None
