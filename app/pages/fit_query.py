"""The largest batches that stored fits have found, for the rows of the dashboard.

A fit is asked about a model, and its plan is of that model at the size found: the two have their name in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from app.store.savings import OperationScope, in_scope
from app.store.store import Store
from app.store.tables import graphs, plans, result_plans, results
from planner.request.curve_and_fit_request import NOT_IN_FIT

if TYPE_CHECKING:
    from app.pages.savings_query import SavingsFilter

BATCH = "batch"
FIT_SEARCH_SECONDS = 20  # of a search that the page of a plan asks for
MAX_FITS = 10_000
JOIN_COLUMNS = ("model", "device", "runtime", "counts")  # of a fit and of a row that it is beside


class LargestBatches:
    """The largest batch by planner, of each model on the same terms."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]):
        """`rows` have ON, planner, size, budget_bytes and plan_id, the largest first."""
        self._by: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for row in rows:
            self._by.setdefault(tuple(row[name] for name in JOIN_COLUMNS), []).append(row)

    def beside(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What belongs beside a row of the dashboard: the fit by the same planner, else the largest there is."""
        same = self._by.get(tuple(row[name] for name in JOIN_COLUMNS), [])
        return next((fit for fit in same if fit["planner"] == row["planner"]), same[0] if same else None)

    def largest(self) -> list[Mapping[str, Any]]:
        """The largest of each model on each device, by name."""
        return sorted((fits[0] for fits in self._by.values()), key=lambda fit: (fit["model"], -fit["size"]))

    def with_largest_batch(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The rows with `largest_batch` and the memory it fits, null where no fit is stored."""
        found = []
        for row in rows:
            fit = self.beside(row)
            size, memory = (None, None) if fit is None else (fit["size"], fit["budget_bytes"])
            found.append({**row, "largest_batch": size, "largest_batch_bytes": memory, "fit": fit})
        return found


def fit_fields(report: Mapping[str, Any], graph_id: str) -> dict[str, Any]:
    """What asks for the largest batch on the terms of a plan; the memory is its device's until another is named."""
    left_out = {*NOT_IN_FIT, "budget", "max_overhead", "fits", "batch", "iterations"}
    terms = {name: said for name, said in report["request"].items() if name not in left_out}
    device = report["device"]
    memory = {"fits": device} if isinstance(device, str) else {}
    return terms | memory | {"graph_id": graph_id, "grow": BATCH, "search_seconds": FIT_SEARCH_SECONDS}


def best_fits(asked: SavingsFilter, own: sa.ColumnElement[bool] | None) -> sa.Subquery:
    """The largest fit of each planner of the models, planner, device and runtime asked for, on the terms ON."""
    terms = (graphs.c.name, plans.c.device, plans.c.runtime, plans.c.counts, plans.c.planner)
    place = sa.func.row_number().over(
        partition_by=terms, order_by=(results.c.size.desc(), plans.c.budget_bytes, plans.c.id)
    )
    every = (
        sa.select(
            graphs.c.name.label("model"),
            *terms[1:],
            results.c.size,
            plans.c.budget_bytes,
            plans.c.id.label("plan_id"),
            place.label("place"),
        )
        .select_from(results)
        .join(result_plans, result_plans.c.result_id == results.c.id)
        .join(plans, plans.c.id == result_plans.c.plan_id)
        .join(graphs, graphs.c.id == plans.c.graph_id)
        .where(results.c.kind == "fit", results.c.grow == BATCH, results.c.size.is_not(None))
    )
    equal = {"planner": plans.c.planner, "device": plans.c.device, "runtime": plans.c.runtime}
    every = every.where(*(column == getattr(asked, name) for name, column in equal.items() if getattr(asked, name)))
    if asked.model:
        every = every.where(graphs.c.name.icontains(asked.model, autoescape=True))
    if own is not None:
        every = every.where(own)
    found = every.subquery()
    return sa.select(found).where(found.c.place == 1).subquery()


def largest_size_by(fits: sa.Subquery, by: tuple[str, ...]) -> sa.Subquery:
    """The largest size for each combination of `by`."""
    terms = [fits.c[name] for name in by]
    return sa.select(*terms, sa.func.max(fits.c.size).label("size")).group_by(*terms).subquery()


def largest_batches(store: Store, owned: OperationScope | None, asked: SavingsFilter) -> LargestBatches:
    """What fits of the models, planner, device and runtime asked for have found; of those owned only."""
    found = best_fits(asked, None if owned is None else in_scope(store, owned, plans.c.id))
    best = sa.select(found).order_by(found.c.size.desc(), found.c.plan_id).limit(MAX_FITS)
    with store.reading() as connection:
        return LargestBatches([dict(row) for row in connection.execute(best).mappings()])
