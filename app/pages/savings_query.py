"""Rows and sums of the dashboard, computed by the database: one row per request, with its best plan.

A request is a graph, a goal (budget, maximum overhead, or device memory), a planner, a device and a runtime. A row
compares its plan with the framework's default, known from every plan, and with checkpointing, if stored: the best plan
of the planner `segments` for the same graph, goal, device and runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from app.pages.fit_query import JOIN_COLUMNS, best_fits, largest_size_by
from app.store.measurements import latest_steps
from app.store.savings import made_by, sum_of_bytes
from app.store.store import Store
from app.store.tables import Timestamp, graphs, plans, to_timestamp
from app.store.tags_and_notes import has_tag, known_tags

CHECKPOINTING = "segments"
OVER_BUDGET = "over_budget"
MAX_CHOICES = 200  # options per filter
MAX_DAYS = 3660
MAX_CSV_ROWS = 10_000
COMPARABLE_BY = ("graph_id", "goal", "device", "runtime", "counts")  # equal for comparable plans
OUTCOMES = ("fits", "over", "proven")
#: Sort column -> its initial direction.
SORTS = {
    "model": "asc",
    "goal": "asc",
    "planner": "asc",
    "device": "asc",
    "outcome": "asc",
    "baseline_peak_bytes": "desc",
    "baseline_seconds": "desc",
    "peak_bytes": "desc",
    "seconds": "desc",
    "saved_bytes": "desc",
    "saved": "desc",
    "overhead": "asc",
    "checkpointing_peak_bytes": "desc",
    "checkpointing_overhead": "desc",
    "gap": "asc",
    "measured_peak_bytes": "desc",
    "largest_batch": "desc",
    "created_at": "desc",
}
#: Columns of the CSV, in order.
COLUMNS = (
    "model",
    "nodes",
    "batch",
    "goal",
    "planner",
    "device",
    "runtime",
    "counts",
    "outcome",
    "budget_bytes",
    "baseline_peak_bytes",
    "baseline_seconds",
    "peak_bytes",
    "arena_bytes",
    "seconds",
    "saved_bytes",
    "saved",
    "overhead",
    "checkpointing_peak_bytes",
    "checkpointing_seconds",
    "checkpointing_overhead",
    "gap",
    "measured_peak_bytes",
    "measured_seconds",
    "largest_batch",
    "largest_batch_bytes",
    "executed",
    "plan_id",
    "created_at",
)


@dataclass(frozen=True, slots=True)
class SavingsFilter:
    """Filters and sort order, as in the URL query of the page; an empty filter matches all."""

    model: str = ""  # substring of the name
    goal: str = ""
    planner: str = ""
    device: str = ""
    runtime: str = ""
    outcome: str = ""  # one of OUTCOMES
    since: str = ""  # first day, YYYY-MM-DD
    until: str = ""  # last day
    zone: str = ""  # IANA time zone of the days; empty: UTC
    tag: str = ""
    sort: str = "created_at"
    direction: str = "desc"
    page: int = 1

    def query(self, **changes: Any) -> dict[str, str]:
        """URL query with `changes` applied; defaults are omitted."""
        defaults, names = SavingsFilter(), {"since": "from", "until": "to"}
        values = {name: changes.get(name, getattr(self, name)) for name in SavingsFilter.__slots__}
        return {names.get(name, name): str(value) for name, value in values.items() if value != getattr(defaults, name)}


GOAL = sa.case(
    (plans.c.budget.is_not(None), plans.c.budget),
    (
        plans.c.max_overhead.is_not(None),
        sa.literal("overhead up to ")
        + sa.cast(sa.cast(plans.c.max_overhead * 100, sa.Integer), sa.Text)
        + sa.literal("%"),
    ),
    else_="device memory",
)
BEST_FIRST = (sa.case((plans.c.status == OVER_BUDGET, 1), else_=0), plans.c.overhead, plans.c.peak_bytes, plans.c.id)


class SavingsQuery:
    """Queries over the plans that a caller may see; one or two database queries per method."""

    def __init__(self, store: Store, tenant: str | None, writer: str | None = None):
        """`tenant`: whose plans, None for all. `writer`: whose tags."""
        self._store, self._writer = store, writer
        self._own = None if tenant is None else made_by(tenant, plans.c.id)
        self._measured = latest_steps(tenant)

    def rows(self, filters: SavingsFilter, limit: int, offset: int = 0) -> list[dict[str, Any]]:
        """Rows that match the filters, in their sort order."""
        return self.rows_and_sums(filters, limit, offset)[0]

    def sums(self, filters: SavingsFilter) -> dict[str, Any]:
        """Sums over all rows that match: plans that fit, bytes saved, time cost."""
        return self.rows_and_sums(filters, 0)[1]

    def rows_and_sums(
        self, filters: SavingsFilter, limit: int, offset: int = 0
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """`rows` and `sums`. Choosing the best plans is slow: done once, for both, without the columns shown only."""
        every = self._best(filters).subquery()
        best = sa.select(*(every.c[name] for name in {*SUMMED, filters.sort})).cte("best")
        page = sa.select(best.c.plan_id).order_by(*_order(best, filters)).limit(limit).offset(offset).cte("page")
        figures = _sums(best)
        sums = sa.select(*(figure.label(name) for name, figure in figures.items())).cte("sums")
        with self._store.reading() as connection:
            found = connection.execute(sa.select(sums, page).select_from(sums.outerjoin(page, sa.true()))).all()
            ids = [row.plan_id for row in found if row.plan_id is not None]
            shown = self._best(filters, plans.c.id.in_(ids)).subquery()
            rows = connection.execute(sa.select(shown).order_by(*_order(shown, filters))).mappings() if ids else ()
            totals = found[0]._mapping
            return (
                [dict(row) for row in rows],
                {name: float(totals[name]) if "seconds" in name else int(totals[name]) for name in figures},
            )

    def table(self, filters: SavingsFilter, names: Sequence[str], limit: int) -> list[sa.Row[Any]]:
        """The rows with the given columns only; null for columns that plans do not have."""
        best = self._best(filters).subquery("best")
        columns = (best.c[name] if name in best.c else sa.null().label(name) for name in names)
        with self._store.reading() as connection:
            return list(connection.execute(sa.select(*columns).order_by(*_order(best, filters)).limit(limit)))

    def by_day(self, filters: SavingsFilter) -> list[dict[str, Any]]:
        """Number and mean savings of the plans created on each day (UTC), oldest first."""
        day = _day(self._store)
        figures = (
            sa.func.count().label("plans"),
            sa.func.count(sa.case((plans.c.status == OVER_BUDGET, 1))).label("over_budget"),
            sum_of_bytes(plans.c.saved_bytes).label("saved_bytes"),
            sa.func.avg(plans.c.saved).label("saved"),
            sa.func.avg(plans.c.overhead).label("overhead"),
        )
        days = sa.select(day.label("day"), *figures).join(graphs, graphs.c.id == plans.c.graph_id)
        days = days.where(*self.conditions(filters)).group_by(day).order_by(day.desc()).limit(MAX_DAYS)
        with self._store.reading() as connection:
            return [dict(row) for row in connection.execute(days).mappings()][::-1]

    def choices(self) -> dict[str, list[str]]:
        """Options of each filter."""
        own = [] if self._own is None else [self._own]
        is_planned = sa.exists().where(plans.c.graph_id == graphs.c.id, *own)
        columns = {
            "goal": sa.select(GOAL.label("choice")).where(*own),
            "planner": sa.select(plans.c.planner.label("choice")).where(*own),
            "device": sa.select(plans.c.device.label("choice")).where(*own),
            "runtime": sa.select(plans.c.runtime.label("choice")).where(*own),
            "model": sa.select(graphs.c.name.label("choice")).where(is_planned),
        }
        choices: dict[str, list[str]] = {}
        with self._store.reading() as connection:
            for name, every in columns.items():
                found = connection.execute(every.distinct().order_by("choice").limit(MAX_CHOICES))
                choices[name] = [str(row.choice) for row in found]
        return choices | {"tag": known_tags(self._store, self._writer)}

    def conditions(self, filters: SavingsFilter) -> list[sa.ColumnElement[bool]]:
        """SQL conditions on plans and graphs for all filters but the outcome."""
        equal = {"goal": GOAL, "planner": plans.c.planner, "device": plans.c.device, "runtime": plans.c.runtime}
        conditions: list[sa.ColumnElement[bool]] = [] if self._own is None else [self._own]
        conditions += [column == getattr(filters, name) for name, column in equal.items() if getattr(filters, name)]
        if filters.model:
            conditions.append(graphs.c.name.icontains(filters.model, autoescape=True))
        created = sa.type_coerce(plans.c.created_at, Timestamp)
        if filters.since:
            conditions.append(created >= _midnight(filters.since, filters.zone))
        if filters.until:
            conditions.append(created < _midnight(filters.until, filters.zone, days=1))
        if filters.tag:
            conditions.append(has_tag(plans.c.id, filters.tag, self._writer))
        return conditions

    def _best(self, filters: SavingsFilter, chosen: sa.ColumnElement[bool] | None = None) -> sa.Select[Any]:
        """The best plan of each request, or the `chosen` plans, with checkpointing beside it."""
        every = self._with_figures(self._is_best(filters) if chosen is None else chosen)
        checkpointing = self._checkpointing(chosen)
        same = [every.c[name] == checkpointing.c[name] for name in COMPARABLE_BY]
        best = sa.select(
            *every.c,
            *(checkpointing.c[name].label(f"checkpointing_{name}") for name in ("peak_bytes", "seconds", "overhead")),
            checkpointing.c.status.label("checkpointing_status"),
        ).outerjoin(checkpointing, sa.and_(*same))
        if filters.sort == "largest_batch":
            best = self._with_largest(best, every, filters)
        outcome = {"fits": every.c.outcome != OVER_BUDGET, "over": every.c.outcome == OVER_BUDGET}
        if filters.outcome:
            best = best.where(outcome.get(filters.outcome, every.c.outcome == filters.outcome))
        return best

    def _is_best(self, filters: SavingsFilter) -> sa.ColumnElement[bool]:
        """SQL condition that a plan is the best of its request, among those that match the filters."""
        request = (plans.c.graph_id, GOAL, plans.c.planner, plans.c.device, plans.c.runtime, plans.c.counts)
        rank = sa.func.row_number().over(partition_by=request, order_by=BEST_FIRST).label("rank")
        ranked = sa.select(plans.c.id, rank)  # sorts ids only, not whole rows
        if filters.model:
            ranked = ranked.join(graphs, graphs.c.id == plans.c.graph_id)
        best = ranked.where(*self.conditions(filters)).subquery("ranked")
        return plans.c.id.in_(sa.select(best.c.id).where(best.c.rank == 1))

    def _with_figures(self, chosen: sa.ColumnElement[bool]) -> sa.Subquery:
        """The chosen plans with model and measured figures."""
        measured = self._measured.c
        return (
            sa.select(
                plans.c.id.label("plan_id"),
                plans.c.graph_id,
                graphs.c.name.label("model"),
                graphs.c.nodes,
                GOAL.label("goal"),
                plans.c.status.label("outcome"),
                *(plans.c[name] for name in COLUMNS if name in plans.c),
                sa.func.coalesce(measured.peak_bytes, plans.c.executed_peak_bytes).label("measured_peak_bytes"),
                measured.seconds.label("measured_seconds"),
            )
            .join(graphs, graphs.c.id == plans.c.graph_id)
            .outerjoin(self._measured, measured.plan_id == plans.c.id)
            .where(chosen)
            .subquery("chosen")
        )

    def _with_largest(self, best: sa.Select[Any], every: sa.Subquery, filters: SavingsFilter) -> sa.Select[Any]:
        """With the column `largest_batch`, as in `LargestBatches`: by the row's planner, else by any."""
        fits, sizes = best_fits(filters, self._own), []
        for by in ((*JOIN_COLUMNS, "planner"), JOIN_COLUMNS):
            largest = largest_size_by(fits, by)
            best = best.outerjoin(largest, sa.and_(*(every.c[name] == largest.c[name] for name in by)))
            sizes.append(largest.c.size)
        return best.add_columns(sa.func.coalesce(*sizes).label("largest_batch"))

    def _checkpointing(self, chosen: sa.ColumnElement[bool] | None) -> sa.Subquery:
        """The best checkpointing plan of each goal, device, runtime and graph, of all or of the chosen plans."""
        same = [GOAL.label("goal") if name == "goal" else plans.c[name] for name in COMPARABLE_BY]
        own = [] if self._own is None else [self._own]
        if chosen is not None:
            own.append(plans.c.graph_id.in_(sa.select(plans.c.graph_id).where(chosen)))
        rank = sa.func.row_number().over(partition_by=same, order_by=BEST_FIRST).label("rank")
        figures = (plans.c.peak_bytes, plans.c.seconds, plans.c.overhead, plans.c.status)
        every = sa.select(*same, *figures, rank).where(plans.c.planner == CHECKPOINTING, *own).subquery()
        return sa.select(every).where(every.c.rank == 1).subquery("checkpointing")


def _midnight(day: str, zone: str, days: int = 0) -> str:
    """The begin of a day in that time zone, `days` later, in wire format; kept within the years 1 to 9999."""
    try:
        begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone) if zone else UTC) + timedelta(days)
        return to_timestamp(begin)
    except OverflowError:
        return to_timestamp(datetime.max.replace(tzinfo=UTC) if days else datetime.min.replace(tzinfo=UTC))


def _order(best: sa.FromClause, filters: SavingsFilter) -> tuple[sa.ColumnElement[Any], ...]:
    column = best.c[filters.sort]
    return sa.nulls_last(column.desc() if filters.direction == "desc" else column.asc()), best.c.plan_id


#: Columns that `_sums` reads.
SUMMED = (
    "plan_id",
    "graph_id",
    "planner",
    "outcome",
    "budget_bytes",
    "baseline_peak_bytes",
    "saved_bytes",
    "baseline_seconds",
    "seconds",
    "checkpointing_seconds",
    "checkpointing_status",
    "measured_peak_bytes",
)


def _sums(best: sa.FromClause) -> dict[str, sa.ColumnElement[Any]]:
    fits = best.c.outcome != OVER_BUDGET
    both = sa.and_(fits, best.c.checkpointing_status != OVER_BUDGET, best.c.planner != CHECKPOINTING)

    def over(column: sa.ColumnElement[Any], condition: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
        return sa.func.coalesce(sa.func.sum(sa.case((condition, column), else_=0)), 0)

    return {
        "rows": sa.func.count(best.c.plan_id),
        "models": sa.func.count(best.c.graph_id.distinct()),
        "fit": over(sa.literal(1), fits),
        "fit_before": over(sa.literal(1), best.c.baseline_peak_bytes <= best.c.budget_bytes),
        "with_budget": sa.func.count(best.c.budget_bytes),
        "baseline_peak_bytes": sum_of_bytes(best.c.baseline_peak_bytes),
        "saved_bytes": sum_of_bytes(best.c.saved_bytes),
        "baseline_seconds": over(best.c.baseline_seconds, fits),
        "seconds": over(best.c.seconds, fits),
        "compared": over(sa.literal(1), both),
        "compared_seconds": over(best.c.seconds, both),
        "compared_baseline_seconds": over(best.c.baseline_seconds, both),
        "checkpointing_seconds": over(best.c.checkpointing_seconds, both),
        "measured": sa.func.count(best.c.measured_peak_bytes),
    }


def _day(store: Store) -> sa.ColumnElement[str]:
    if store.is_sqlite:
        return sa.func.substr(sa.type_coerce(plans.c.created_at, sa.Text), 1, 10)
    created = sa.type_coerce(plans.c.created_at, sa.TIMESTAMP(timezone=True))
    return sa.func.to_char(sa.func.timezone("UTC", created), "YYYY-MM-DD")
