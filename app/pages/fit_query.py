"""Largest batch sizes of stored fits, joined to the rows of the dashboard.

A fit is joined by model name, as its plan belongs to a graph of another batch size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from app.store.savings import made_by
from app.store.store import Store
from app.store.tables import graphs, plans, result_plans, results

if TYPE_CHECKING:
    from app.pages.savings_query import SavingsFilter

BATCH = "batch"
MAX_FITS = 10_000
JOIN_COLUMNS = ("model", "device", "runtime", "counts")  # equal for a fit and its dashboard row


class LargestBatches:
    """Largest batch per planner, for each combination of `JOIN_COLUMNS`."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]):
        """`rows`: `JOIN_COLUMNS`, planner, size, budget_bytes and plan_id, sorted by descending size."""
        self._fits: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for row in rows:
            self._fits.setdefault(tuple(row[name] for name in JOIN_COLUMNS), []).append(row)

    def fit_for(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The fit for a dashboard row: by the same planner, else the largest; None without one."""
        fits = self._fits.get(tuple(row[name] for name in JOIN_COLUMNS), [])
        return next((fit for fit in fits if fit["planner"] == row["planner"]), fits[0] if fits else None)

    def largest(self) -> list[Mapping[str, Any]]:
        """The largest fit of each combination of `JOIN_COLUMNS`, sorted by model name."""
        return sorted((fits[0] for fits in self._fits.values()), key=lambda fit: (fit["model"], -fit["size"]))

    def with_largest_batch(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The rows with `fit`, `largest_batch` and `largest_batch_bytes` (its memory); None without a stored fit."""
        joined = []
        for row in rows:
            fit = self.fit_for(row)
            size, memory = (None, None) if fit is None else (fit["size"], fit["budget_bytes"])
            joined.append({**row, "largest_batch": size, "largest_batch_bytes": memory, "fit": fit})
        return joined


def best_fits(filters: SavingsFilter, own: sa.ColumnElement[bool] | None) -> sa.Subquery:
    """The largest fit per planner and `JOIN_COLUMNS`, filtered by model, planner, device and runtime."""
    columns = (graphs.c.name, plans.c.device, plans.c.runtime, plans.c.counts, plans.c.planner)
    rank = sa.func.row_number().over(
        partition_by=columns, order_by=(results.c.size.desc(), plans.c.budget_bytes, plans.c.id)
    )
    fits = (
        sa.select(
            graphs.c.name.label("model"),
            *columns[1:],
            results.c.size,
            plans.c.budget_bytes,
            plans.c.id.label("plan_id"),
            rank.label("rank"),
        )
        .select_from(results)
        .join(result_plans, result_plans.c.result_id == results.c.id)
        .join(plans, plans.c.id == result_plans.c.plan_id)
        .join(graphs, graphs.c.id == plans.c.graph_id)
        .where(results.c.kind == "fit", results.c.grow == BATCH, results.c.size.is_not(None))
    )
    equal = {"planner": plans.c.planner, "device": plans.c.device, "runtime": plans.c.runtime}
    fits = fits.where(*(column == getattr(filters, name) for name, column in equal.items() if getattr(filters, name)))
    if filters.model:
        fits = fits.where(graphs.c.name.icontains(filters.model, autoescape=True))
    if own is not None:
        fits = fits.where(own)
    ranked = fits.subquery()
    return sa.select(ranked).where(ranked.c.rank == 1).subquery()


def largest_size_by(fits: sa.Subquery, by: tuple[str, ...]) -> sa.Subquery:
    """The largest size for each combination of `by`."""
    columns = [fits.c[name] for name in by]
    return sa.select(*columns, sa.func.max(fits.c.size).label("size")).group_by(*columns).subquery()


def largest_batches(store: Store, tenant: str | None, filters: SavingsFilter) -> LargestBatches:
    """Stored fits that match the filters, among the operations of `owned` (None: all)."""
    fits = best_fits(filters, None if tenant is None else made_by(tenant, plans.c.id))
    best = sa.select(fits).order_by(fits.c.size.desc(), fits.c.plan_id).limit(MAX_FITS)
    with store.reading() as connection:
        return LargestBatches([dict(row) for row in connection.execute(best).mappings()])
