"""Models whose peak grew: the newest plan of a request, compared with the one before.

Two plans are compared if they have the same model name, batch, input shapes, request, device and runtime. The newest is
that of the graph posted last, so that going back to an earlier version of a model ends the alert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from app.pages.savings_query import GOAL, SavingsFilter, SavingsQuery
from app.store.store import Store
from app.store.tables import graphs, plans

MAX_GROWN = 100  # plans
#: Equal for two plans that are compared; a request has budget, device and runtime in it, and short keys sort fast.
SAME = (plans.c.request, graphs.c.name, plans.c.planner, plans.c.batch, sa.cast(plans.c.inputs, sa.Text))
OLDEST_FIRST = (graphs.c.seen_at, plans.c.created_at, plans.c.id)
#: Peaks that are compared; of a plan whose first peak grew, the second is not listed.
PEAKS = ("baseline_peak_bytes", "peak_bytes")


@dataclass(frozen=True, slots=True)
class Growth:
    """A peak of the newest plan that is higher than that of the plan before."""

    model: str
    shape: Mapping[str, Any]  # batch and inputs
    goal: str
    planner: str
    is_baseline: bool  # the peak without recomputation, which all goals and planners share
    before_id: str
    after_id: str
    before_bytes: int
    after_bytes: int

    @property
    def growth(self) -> float:
        """Growth as a fraction of the peak before."""
        return self.after_bytes / self.before_bytes - 1 if self.before_bytes else 0.0


def grown_peaks(store: Store, tenant: str | None, filters: SavingsFilter) -> list[Growth]:
    """The largest growth first; of a growing baseline one plan. Filters by time, tag and outcome do not apply."""
    conditions = SavingsQuery(store, tenant).conditions(replace(filters, since="", until="", tag=""))
    columns = (plans.c.id, *(plans.c[name] for name in PEAKS))
    before = (
        sa.func.lag(column).over(partition_by=SAME, order_by=OLDEST_FIRST).label(f"before_{column.name}")
        for column in columns
    )
    every = (
        sa.select(
            graphs.c.name.label("model"),
            plans.c.batch,
            plans.c.inputs,
            GOAL.label("goal"),
            plans.c.planner,
            *columns,
            *before,
            sa.func.lead(plans.c.id).over(partition_by=SAME, order_by=OLDEST_FIRST).label("after_id"),
        )
        .join(graphs, graphs.c.id == plans.c.graph_id)
        .where(plans.c.request.is_not(None), *conditions)
        .subquery()
    )
    grew = sa.or_(*(every.c[name] > every.c[f"before_{name}"] for name in PEAKS))
    query = sa.select(every).where(every.c.after_id.is_(None), grew).order_by(every.c.id).limit(MAX_GROWN)
    with store.reading() as connection:
        found = [_growth(dict(row)) for row in connection.execute(query).mappings()]
    return sorted(_each_baseline_once(found), key=lambda each: (-each.growth, each.after_id))


def _growth(row: Mapping[str, Any]) -> Growth:
    name = next(name for name in PEAKS if row[name] > row[f"before_{name}"])
    return Growth(
        model=row["model"],
        shape={"batch": row["batch"], "inputs": row["inputs"]},
        goal=row["goal"],
        planner=row["planner"],
        is_baseline=name == PEAKS[0],
        before_id=row["before_id"],
        after_id=row["id"],
        before_bytes=row[f"before_{name}"],
        after_bytes=row[name],
    )


def _each_baseline_once(found: list[Growth]) -> list[Growth]:
    """Without plans of other goals and planners of which the same baseline grew."""
    first: dict[Any, Growth] = {}
    for each in found:
        key = (each.model, str(each.shape), each.before_bytes, each.after_bytes) if each.is_baseline else each.after_id
        first.setdefault(key, each)
    return list(first.values())
