"""Tags and notes of plans. A tenant reads and writes its own; without authentication the tenant is empty text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from app.errors import NotFound
from app.store.store import Store
from app.store.tables import plan_notes, plan_tags, plans, without_nul

MAX_KNOWN_TAGS = 200  # options of a filter


def annotate(
    store: Store, plan_id: str, tenant: str | None, tags: Sequence[str] | None = None, note: str | None = None
) -> dict[str, Any]:
    """Replace tags and note of a plan, each unless None, and return both as stored. Raises NotFound."""
    store.row(plans, plan_id)
    key = {"plan_id": plan_id, "tenant": tenant or ""}
    with store.writing() as connection:
        # Locked, so that concurrent changes are not mixed and the plan is not deleted meanwhile.
        if connection.scalar(sa.select(plans.c.id).where(plans.c.id == plan_id).with_for_update()) is None:
            raise NotFound(f"no plan {plan_id[:80]!r}")
        if tags is not None:
            _replace(connection, plan_tags, key, [{"tag": tag} for tag in dict.fromkeys(tags)])
        if note is not None:
            _replace(connection, plan_notes, key, [{"note": without_nul(note)}] if note.strip() else [])
        return _annotations(connection, [plan_id], key["tenant"])[plan_id]


def _replace(connection: sa.Connection, table: sa.Table, key: dict[str, str], rows: Sequence[dict[str, str]]) -> None:
    connection.execute(sa.delete(table).where(*(table.c[name] == value for name, value in key.items())))
    if rows:
        connection.execute(sa.insert(table), [key | row for row in rows])


def annotations_of(store: Store, plan_ids: Iterable[str], tenant: str | None) -> dict[str, dict[str, Any]]:
    """Plan id -> {"tags", "note"}: its tags in alphabetical order, and its note or None."""
    with store.reading() as connection:
        return _annotations(connection, list(plan_ids), tenant or "")


def _annotations(connection: sa.Connection, plan_ids: Sequence[str], tenant: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {id: {"tags": [], "note": None} for id in plan_ids}
    for table in (plan_tags, plan_notes):
        of_plans = table.c.tenant == tenant, table.c.plan_id.in_(plan_ids)
        for row in connection.execute(sa.select(table).where(*of_plans)):
            if table is plan_notes:
                found[row.plan_id]["note"] = row.note
            else:
                found[row.plan_id]["tags"].append(row.tag)
    for each in found.values():
        each["tags"].sort()
    return found


def has_tag(plan: sa.ColumnElement[str], tag: str, tenant: str | None) -> sa.ColumnElement[bool]:
    """SQL condition that the tenant has tagged the plan."""
    return plan.in_(sa.select(plan_tags.c.plan_id).where(plan_tags.c.tenant == (tenant or ""), plan_tags.c.tag == tag))


def known_tags(store: Store, tenant: str | None) -> list[str]:
    """Tags of the tenant, in alphabetical order."""
    tags = sa.select(plan_tags.c.tag).where(plan_tags.c.tenant == (tenant or "")).distinct()
    with store.reading() as connection:
        return sorted(connection.scalars(tags.order_by(plan_tags.c.tag).limit(MAX_KNOWN_TAGS)))
