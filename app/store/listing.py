"""Pages of stored graphs, plans and results, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.store.store import Store
from app.store.tables import graphs, plans, result_plans, results
from app.store.tags_and_notes import annotations_of, has_tag
from app.store.tenancy import owned_ids

CURSOR_PATTERN = r"^[0-9TZ:.-]{24}~[0-9a-f]{64}$"  # creation time and id of the last row of a page
GRAPH_FIELDS = ("id", "name", "graph_name", "inputs", "batch", "nodes", "values", "format", "created_at")
GRAPH_COLUMNS = tuple(graphs.c[name] for name in GRAPH_FIELDS)
PLAN_COLUMNS = (
    plans.c.id,
    graphs.c.name.label("model"),
    *(
        plans.c[name]
        for name in (
            "graph_id",
            "inputs",
            "batch",
            "planner",
            "status",
            "runtime",
            "device",
            "counts",
            "budget",
            "budget_bytes",
            "max_overhead",
            "baseline_peak_bytes",
            "peak_bytes",
            "arena_bytes",
            "saved_bytes",
            "saved",
            "seconds",
            "overhead",
            "bound_overhead",
            "gap",
            "created_at",
        )
    ),
)
#: Name and id of the graph of a result; null: a layout, or a fit that found no size.
_OF_RESULT = (
    sa.select(graphs)
    .select_from(graphs.join(plans).join(result_plans))
    .where(result_plans.c.result_id == results.c.id)
    .correlate(results)
    .limit(1)
)
RESULT_COLUMNS = (
    results.c.id,
    *(
        _OF_RESULT.with_only_columns(column).scalar_subquery().label(label)
        for label, column in (
            ("model", graphs.c.name),
            ("graph_id", graphs.c.id),
            ("inputs", graphs.c.inputs),
            ("batch", graphs.c.batch),
        )
    ),
    results.c.created_at,
)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """At most `limit` rows after `cursor`, created at `since` or later."""

    limit: int
    cursor: str | None = None
    since: str | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """One page; `next` is the cursor of the next page, None on the last."""

    rows: list[dict[str, Any]]
    next: str | None


def page_of_graphs(store: Store, page: PageRequest, tenant: str | None, only: Mapping[str, str | None]) -> Rows:
    """Graphs of the tenant (None: all) whose columns equal the values of `only` that are not None."""
    query = sa.select(*GRAPH_COLUMNS).where(*_equal(graphs, only))
    if tenant is not None:
        query = query.where(graphs.c.id.in_(owned_ids(graphs, tenant)))
    return _page(store, graphs, query, page)


def page_of_plans(
    store: Store,
    page: PageRequest,
    tenant: str | None,
    only: Mapping[str, str | None],
    model: str | None = None,
    tag: str | None = None,
) -> Rows:
    """Plans as in `page_of_graphs`, of graphs of the name `model` and with the tag, each with its tags and note."""
    query = sa.select(*PLAN_COLUMNS).join(graphs, graphs.c.id == plans.c.graph_id).where(*_equal(plans, only))
    if model is not None:
        query = query.where(graphs.c.name == model)
    if tenant is not None:
        query = query.where(plans.c.graph_id.in_(owned_ids(graphs, tenant)))
    if tag is not None:
        query = query.where(has_tag(plans.c.id, tag, tenant))
    found = _page(store, plans, query, page)
    annotations = annotations_of(store, [row["id"] for row in found.rows], tenant)
    return Rows([row | annotations[row["id"]] for row in found.rows], found.next)


def page_of_results(
    store: Store, page: PageRequest, tenant: str | None, kind: str, graph_id: str | None = None
) -> Rows:
    """Curves, fits or layouts of the tenant (None: all); those with a plan of that graph, if one is given."""
    grows = (results.c.grow, results.c.size) if kind == "fit" else ()
    columns = [results.c.id, results.c.created_at] if kind == "layout" else RESULT_COLUMNS
    query = sa.select(*columns, *grows).where(results.c.kind == kind)
    if graph_id is not None:
        of_graph = (
            sa.select(result_plans.c.result_id)
            .join(plans, plans.c.id == result_plans.c.plan_id)
            .where(plans.c.graph_id == graph_id)
        )
        query = query.where(results.c.id.in_(of_graph))
    if tenant is not None:
        query = query.where(results.c.id.in_(owned_ids(results, tenant)))
    return _page(store, results, query, page)


def _equal(table: sa.Table, only: Mapping[str, str | None]) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in only.items() if value is not None]


def _page(store: Store, table: sa.Table, query: sa.Select[Any], page: PageRequest) -> Rows:
    at, id = table.c.created_at, table.c.id
    if page.since is not None:
        query = query.where(at >= page.since)
    if page.cursor is not None:
        last_at, _, last_id = page.cursor.partition("~")
        query = query.where((at < last_at) | ((at == last_at) & (id < last_id)))
    with store.reading() as connection:
        found = connection.execute(query.order_by(at.desc(), id.desc()).limit(page.limit + 1)).mappings()
        rows = [dict(row) for row in found]
    if len(rows) <= page.limit:
        return Rows(rows, None)
    last = rows[page.limit - 1]
    return Rows(rows[: page.limit], f"{last['created_at']}~{last['id']}")
