"""Models whose peak grew: the newest version of a model, compared with the version before.

Plans of two versions are compared if they have the same model name, batch, input shapes, request (budget or overhead,
device and runtime included) and planner. Points of curves and plans of fits, whose searches share their time, are
compared among themselves. Of a version planned several times the lowest peak counts, as searches differ. The newest
version is the graph posted last, so that going back to an earlier version of a model ends the alert.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.pages.savings_query import GOAL, SavingsFilter, SavingsQuery
from app.store.store import Store
from app.store.tables import graphs, plans, result_plans

MAX_GROWN = 100  # plans
#: Equal for two plans that are compared; `request` is a hash of the request fields.
SAME = (
    plans.c.request,
    graphs.c.name,
    plans.c.planner,
    plans.c.batch,
    sa.cast(plans.c.inputs, sa.Text),
    plans.c.id.in_(sa.select(result_plans.c.plan_id)),
)


@dataclass(frozen=True, slots=True)
class Growth:
    """A peak of the newest version that is higher than that of the version before."""

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


class Version(NamedTuple):
    """A graph with its plan of the lowest peak; versions compare by the time at which the graph was posted last."""

    seen_at: str
    graph_id: str
    peak_bytes: int
    plan_id: str
    baseline_bytes: int


def grown_peaks(store: Store, tenant: str | None, filters: SavingsFilter) -> list[Growth]:
    """The largest growth first; of a growing baseline one plan. Filters by time, tag and outcome do not apply."""
    conditions = SavingsQuery(store, tenant).conditions(replace(filters, since="", until="", tag=""))
    version = (graphs.c.seen_at, plans.c.graph_id, plans.c.peak_bytes, plans.c.id, plans.c.baseline_peak_bytes)
    every = (
        sa.select(*version, *SAME)
        .join(graphs, graphs.c.id == plans.c.graph_id)
        .where(plans.c.request.is_not(None), *conditions)
    )
    described = sa.select(
        plans.c.id, graphs.c.name.label("model"), plans.c.batch, plans.c.inputs, GOAL.label("goal"), plans.c.planner
    ).join(graphs, graphs.c.id == plans.c.graph_id)
    with store.reading() as connection:
        pairs = {
            after.plan_id: (before, after)
            for before, after in _newest_two(connection.execute(every))
            if after.peak_bytes > before.peak_bytes or after.baseline_bytes > before.baseline_bytes
        }
        some = plans.c.id.in_(sorted(pairs)[:MAX_GROWN])
        rows = connection.execute(described.where(some)).mappings()
        found = [_growth(dict(row), *pairs[row["id"]]) for row in rows]
    return sorted(_each_baseline_once(found), key=lambda each: (-each.growth, each.after_id))


def _newest_two(rows: Iterable[sa.Row[Any]]) -> Iterator[tuple[Version, Version]]:
    """(version before, newest version) for each value of `SAME`. In Python: windows of SQLite take twice the time."""
    groups: dict[tuple[Any, ...], dict[tuple[str, str], Version]] = {}
    count = len(Version._fields)
    for row in rows:
        version, versions = Version(*row[:count]), groups.setdefault(tuple(row[count:]), {})
        versions[version[:2]] = min(version, versions.get(version[:2], version))
    for versions in groups.values():
        if len(versions) > 1:
            before, after = sorted(versions.values())[-2:]
            yield before, after


def _growth(row: Mapping[str, Any], before: Version, after: Version) -> Growth:
    is_baseline = after.baseline_bytes > before.baseline_bytes
    return Growth(
        model=row["model"],
        shape={"batch": row["batch"], "inputs": row["inputs"]},
        goal=row["goal"],
        planner=row["planner"],
        is_baseline=is_baseline,
        before_id=before.plan_id,
        after_id=after.plan_id,
        before_bytes=before.baseline_bytes if is_baseline else before.peak_bytes,
        after_bytes=after.baseline_bytes if is_baseline else after.peak_bytes,
    )


def _each_baseline_once(found: list[Growth]) -> list[Growth]:
    """Without plans of other goals and planners of which the same baseline grew."""
    first: dict[Any, Growth] = {}
    for each in found:
        key = (each.model, str(each.shape), each.before_bytes, each.after_bytes) if each.is_baseline else each.after_id
        first.setdefault(key, each)
    return list(first.values())
