"""Lookup of stored plans of equivalent graphs: graphs that differ in names only.

request ──▶ graphs of the same form ──▶ their stored plans of the same tenant ──▶ relabeled in a child (`relabel.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import sqlalchemy as sa

from app.jobs.answers.relabel import relabel_fields
from app.settings import Settings
from app.store import records
from app.store.batch_tables import batches, items
from app.store.store import Store
from app.store.tenancy import scoped_name

_TENANT = (
    sa.select(batches.c.tenant)
    .join(items, items.c.batch_id == batches.c.id)
    .where(items.c.operation_id == sa.bindparam("operation_id"))
    .limit(1)
)


def relabel_payload(
    store: Store, settings: Settings, graph_id: str, fields: Mapping[str, Any], own: Callable[[str], str]
) -> dict[str, Any] | None:
    """Payload of the child task "retell": the request, and the same request on an equivalent graph with its plan.

    `own` scopes a request key to the tenant. None: no stored plan of an equivalent graph. Raises NotFound.
    """
    document = partial(records.document_of, store, graph_id)
    candidates = {}
    for other_id in records.equivalent_graphs(store, graph_id):
        relabeled = relabel_fields(fields, document, partial(store.blobs.get, other_id))
        if relabeled is not None:
            candidates[own(records.request_key(other_id, relabeled))] = other_id, relabeled
    plan_ids = records.find_answers(store, candidates) if candidates else {}
    for key, plan_id in plan_ids.items():
        payload = records.solve_payload(store, graph_id, fields)
        other = records.solve_payload(store, *candidates[key])
        figures, sections = records.plan_parts(store, plan_id)
        limits = asdict(settings.limits())
        return payload | {"theirs": other, "figures": figures, "sections": sections, "limits": limits}
    return None


def item_key_scope(store: Store, operation_id: str) -> Callable[[str], str] | None:
    """Function that scopes request keys to the tenant of the operation's batch; None: not an operation of a batch."""
    with store.reading() as connection:
        row = connection.execute(_TENANT, {"operation_id": operation_id}).first()
    if row is None:
        return None
    return str if row.tenant is None else partial(scoped_name, row.tenant)
