"""Measurements of plans: what steps under a plan took, posted by those who ran them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from app.store.database import insert_if_absent
from app.store.records import now
from app.store.store import Store
from app.store.tables import measurements, plans

MAX_PER_PLAN = 100  # of a tenant; the oldest are deleted
STEP, SNAPSHOT = "step", "snapshot"


def save_measurement(
    store: Store, plan_id: str, tenant: str | None, kind: str, document: Mapping[str, Any]
) -> dict[str, Any]:
    """The stored measurement of a plan; a document that is stored already is not stored again. Raises NotFound."""
    store.row(plans, plan_id)
    subject = msgspec.json.encode([plan_id, tenant, document], order="deterministic")
    row = {
        "id": hashlib.sha256(subject).hexdigest(),
        "plan_id": plan_id,
        "tenant": tenant,
        "kind": kind,
        **measurement_columns(kind, document),
        "document": document,
        "created_at": now(),
    }
    oldest = _of(plan_id, tenant).with_only_columns(measurements.c.id).offset(MAX_PER_PLAN)
    with store.writing() as connection:
        connection.execute(insert_if_absent(connection, measurements), row)
        connection.execute(sa.delete(measurements).where(measurements.c.id.in_(list(connection.scalars(oldest)))))
        stored = connection.execute(sa.select(measurements).where(measurements.c.id == row["id"])).mappings().one()
    return _wire(stored)


def measurement_columns(kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of `measurements` from a document."""
    if kind == STEP:
        return {name: document["plan"][name] for name in ("peak_bytes", "seconds")}
    return {"peak_bytes": document["peak_bytes"], "seconds": None}


def measurements_of(store: Store, plan_id: str, tenant: str | None) -> list[dict[str, Any]]:
    """The measurements of a plan, newest first: those of the tenant, or without authentication all. Raises NotFound."""
    store.row(plans, plan_id)
    with store.reading() as connection:
        return [_wire(row) for row in connection.execute(_of(plan_id, tenant).limit(MAX_PER_PLAN)).mappings()]


def latest_steps(tenant: str | None) -> sa.Subquery:
    """Peak and seconds of the newest measured steps of each plan, as columns of a query; of all tenants for None."""
    own = [] if tenant is None else [measurements.c.tenant == tenant]
    newest_first = measurements.c.created_at.desc(), measurements.c.id
    rank = sa.func.row_number().over(partition_by=measurements.c.plan_id, order_by=newest_first).label("rank")
    steps = sa.select(measurements, rank).where(measurements.c.kind == STEP, *own).subquery()
    columns = (steps.c.plan_id, steps.c.peak_bytes, steps.c.seconds)
    return sa.select(*columns).where(steps.c.rank == 1).subquery("measured")


def _of(plan_id: str, tenant: str | None) -> sa.Select[Any]:
    own = [] if tenant is None else [measurements.c.tenant == tenant]
    newest_first = measurements.c.created_at.desc(), measurements.c.id
    return sa.select(measurements).where(measurements.c.plan_id == plan_id, *own).order_by(*newest_first)


def _wire(row: sa.RowMapping) -> dict[str, Any]:
    document = row["document"]
    return {
        "id": row["id"],
        "plan": f"/v1/plans/{row['plan_id']}",
        "kind": row["kind"],
        "created_at": row["created_at"],
        row["kind"]: document,
    }
