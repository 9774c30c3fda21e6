"""Deletion of a graph and of what was made of it: plans, curves, fits, operations, batch items, and their blobs.

Of a graph that other tenants own as well, the row and the plans remain; the operations, results, batch items,
measurements, tags and notes of the tenant are deleted.
"""

from __future__ import annotations

import sqlalchemy as sa

from app.errors import InUse
from app.store.access_tables import graph_owners, result_owners
from app.store.batch_tables import batches, items
from app.store.maintenance.garbage_collection import remove_unreferenced
from app.store.store import Store
from app.store.tables import (
    graphs,
    measurements,
    operations,
    plan_notes,
    plan_tags,
    plans,
    questions,
    result_plans,
    results,
    sections,
)


def delete_graph(store: Store, graph_id: str, tenant: str | None) -> None:
    """Delete the graph and what was made of it; if other tenants own it as well, only what is of `tenant` alone.

    Raises InUse while operations or batch items on the graph are unfinished, CannotWrite, Unavailable.
    """
    with store.writing() as connection:
        deletion = _Deletion(connection, graph_id, tenant)
        deletion.require_idle()
        blobs = deletion.blobs()
        deletion.delete()
    remove_unreferenced(store, blobs)


def fitted_graphs(store: Store, graph_id: str, tenant: str | None) -> list[str]:
    """Ids of the graphs that fits of the tenant on this graph made, at their largest size."""
    plan_of_result = result_plans.join(plans, plans.c.id == result_plans.c.plan_id)
    query = (
        sa.select(plans.c.graph_id)
        .select_from(operations.join(plan_of_result, operations.c.found == result_plans.c.result_id))
        .where(operations.c.graph_id == graph_id, operations.c.kind == "fit", plans.c.graph_id != graph_id)
        .where(operations.c.tenant.is_not_distinct_from(tenant))
        .distinct()
    )
    with store.reading() as connection:
        return list(connection.scalars(query))


class _Deletion:
    """Deletion of one graph in an open transaction."""

    def __init__(self, connection: sa.Connection, graph_id: str, tenant: str | None):
        self.connection, self.graph_id, self.tenant = connection, graph_id, tenant
        others = sa.select(graph_owners).where(graph_owners.c.graph_id == graph_id, graph_owners.c.tenant != tenant)
        self.shared = shared = tenant is not None and connection.execute(others.limit(1)).first() is not None
        self._plans = sa.select(plans.c.id).where(plans.c.graph_id == graph_id)
        of_plans = sa.select(result_plans.c.result_id).where(result_plans.c.plan_id.in_(self._plans))
        self._operations = (operations.c.graph_id == graph_id) | operations.c.found.in_(of_plans)
        self._operations |= operations.c.result.in_(self._plans)
        self._items = (items.c.graph_id == graph_id) | items.c.plan_id.in_(self._plans)
        if shared:
            self._operations &= operations.c.tenant == tenant
            own = sa.select(batches.c.id).where(batches.c.tenant == tenant)
            self._items &= items.c.batch_id.in_(own)
        found = sa.select(operations.c.id, operations.c.found, operations.c.asked).where(self._operations)
        self._found = connection.execute(found).all()
        self.question_ids = {row.asked for row in self._found if row.asked is not None}
        made = {row.found for row in self._found if row.found is not None}
        self.result_ids = made if shared else made | set(connection.scalars(of_plans))

    def require_idle(self) -> None:
        """Raises InUse unless all operations and batch items are finished."""
        busy = sa.select(operations.c.id).where(self._operations, operations.c.ended_at.is_(None)).limit(1)
        if (id := self.connection.scalar(busy)) is not None:
            raise InUse(f"operation {id} on the graph is unfinished; wait for its end, or cancel it")
        busy = sa.select(items.c.batch_id).where(self._items, items.c.state.in_(["queued", "running"])).limit(1)
        if (id := self.connection.scalar(busy)) is not None:
            raise InUse(f"batch {id} has unfinished items on the graph; wait for its end, or cancel it")

    def blobs(self) -> list[str]:
        """Keys of all blobs that may lose their last reference."""
        queries = [
            sa.select(graphs.c.blob).where(graphs.c.id == self.graph_id),
            sa.select(plans.c.figures).where(plans.c.graph_id == self.graph_id),
            sa.select(sections.c.blob).where(sections.c.plan_id.in_(self._plans)),
            sa.select(results.c.blob).where(results.c.id.in_(self.result_ids)),
        ]
        return [*self.question_ids, *(key for query in queries for key in self.connection.scalars(query))]

    def delete(self) -> None:
        """Delete referencing rows before referenced rows; the rest goes by cascade."""
        run = self.connection.execute
        run(sa.delete(operations).where(operations.c.id.in_([row.id for row in self._found])))
        used = sa.exists().where(operations.c.asked == questions.c.id)
        run(sa.delete(questions).where(questions.c.id.in_(self.question_ids), ~used))
        self._delete_items()
        own_result = result_owners.c.tenant == self.tenant
        run(sa.delete(result_owners).where(result_owners.c.result_id.in_(self.result_ids), own_result))
        known = sa.exists().where(operations.c.found == results.c.id)  # of another operation
        owned = sa.exists().where(result_owners.c.result_id == results.c.id, sa.literal(self.shared))
        run(sa.delete(results).where(results.c.id.in_(self.result_ids), ~known, ~owned))
        if self.shared:
            for table in (measurements, plan_tags, plan_notes):
                own = table.c.tenant == self.tenant, table.c.plan_id.in_(self._plans)
                run(sa.delete(table).where(*own))
            own_graph = graph_owners.c.graph_id == self.graph_id, graph_owners.c.tenant == self.tenant
            run(sa.delete(graph_owners).where(*own_graph))
            return
        run(sa.delete(plans).where(plans.c.graph_id == self.graph_id))
        run(sa.delete(graphs).where(graphs.c.id == self.graph_id))

    def _delete_items(self) -> None:
        """Delete the items on the graph; batches without items left are deleted too."""
        run = self.connection.execute
        changed = list(self.connection.scalars(sa.select(items.c.batch_id).where(self._items).distinct()))
        run(sa.delete(items).where(self._items))
        left = sa.select(sa.func.count()).where(items.c.batch_id == batches.c.id).scalar_subquery()
        run(sa.update(batches).where(batches.c.id.in_(changed)).values(total=left))
        run(sa.delete(batches).where(batches.c.id.in_(changed), batches.c.total == 0))
