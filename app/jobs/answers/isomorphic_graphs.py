"""Questions that are answered about a graph which differs in names alone.

question ──▶ graphs of its form ──▶ answers about them, of the same owner ──▶ what a child tells again (`retold.py`)
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
    .where(items.c.operation_id == sa.bindparam("asked"))
    .limit(1)
)


def relabel_payload(
    store: Store, settings: Settings, graph_id: str, fields: Mapping[str, Any], own: Callable[[str], str]
) -> dict[str, Any] | None:
    """What a child is told: the question, and the same about a twin of its graph with what answered it.

    `own` makes the key of a question that of whoever asks. None where no twin's is answered. Raises NotFound.
    """
    ours = partial(records.document_of, store, graph_id)
    asked = {}
    for twin in records.equivalent_graphs(store, graph_id):
        same = relabel_fields(fields, ours, partial(store.blobs.get, twin))
        if same is not None:
            asked[own(records.request_key(twin, same))] = twin, same
    found = records.find_answers(store, asked) if asked else {}
    for key, plan_id in found.items():
        told = records.solve_payload(store, graph_id, fields)
        theirs = records.solve_payload(store, *asked[key])
        figures, sections = records.plan_parts(store, plan_id)
        limits = asdict(settings.limits())
        return told | {"theirs": theirs, "figures": figures, "sections": sections, "limits": limits}
    return None


def item_key_scope(store: Store, operation_id: str) -> Callable[[str], str] | None:
    """What makes the keys of questions those of the batch whose item the operation answers; None: it answers none."""
    with store.reading() as connection:
        row = connection.execute(_TENANT, {"asked": operation_id}).first()
    if row is None:
        return None
    return str if row.tenant is None else partial(scoped_name, row.tenant)
