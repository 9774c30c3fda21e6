"""The dashboard's rows, summed up by the database: one a question, with the best plan there is for it.

A question is a graph, a goal (budget, most extra time, or what fits), a planner, a device and a runtime. Beside its
plan stand the framework's default, which every plan knows, and checkpointing, where a plan of it is stored: what the
planner `segments` has found for the same graph, goal, device and runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.pages.fit_query import JOIN_COLUMNS, best_fits, largest_size_by
from app.store.savings import OperationScope, in_scope
from app.store.store import Store
from app.store.tables import Timestamp, graphs, plans

CHECKPOINTING = "segments"
OVER_BUDGET = "over_budget"
MAX_CHOICES = 200  # of one filter
MAX_DAYS = 3660
MAX_CSV_ROWS = 10_000  # of a CSV
COMPARABLE_BY = ("graph_id", "goal", "device", "runtime", "counts")  # of plans that may be compared
OUTCOMES = ("fits", "over", "proven")
#: What rows are sorted by, and how at first.
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
#: Columns of the CSV, in their order.
COLUMNS = (
    "model",
    "nodes",
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
    """Which rows, in which order; empty: all. This is what the address of the page says."""

    model: str = ""  # part of a name
    goal: str = ""
    planner: str = ""
    device: str = ""
    runtime: str = ""
    outcome: str = ""  # of OUTCOMES
    since: str = ""  # a day, UTC
    until: str = ""  # the last day
    sort: str = "created_at"
    direction: str = "desc"
    page: int = 1

    def query(self, **other: Any) -> dict[str, str]:
        """The address's query, with `other` in it; what is as at first is left out."""
        first, names = SavingsFilter(), {"since": "from", "until": "to"}
        said = {name: other.get(name, getattr(self, name)) for name in SavingsFilter.__slots__}
        return {names.get(name, name): str(value) for name, value in said.items() if value != getattr(first, name)}


GOAL = sa.case(
    (plans.c.budget.is_not(None), plans.c.budget),
    (
        plans.c.max_overhead.is_not(None),
        sa.literal("time +") + sa.cast(sa.cast(plans.c.max_overhead * 100, sa.Integer), sa.Text) + sa.literal(" %"),
    ),
    else_="what fits",
)
BEST_FIRST = (sa.case((plans.c.status == OVER_BUDGET, 1), else_=0), plans.c.overhead, plans.c.peak_bytes, plans.c.id)


class SavingsQuery:
    """What one caller may see of the store; each method is one or two queries."""

    def __init__(self, store: Store, owned: OperationScope | None):
        self._store = store
        self._own = None if owned is None else in_scope(store, owned, plans.c.id)

    def rows(self, asked: SavingsFilter, limit: int, offset: int = 0) -> list[dict[str, Any]]:
        """Rows in the order asked for."""
        return self.shown(asked, limit, offset)[0]

    def sums(self, asked: SavingsFilter) -> dict[str, Any]:
        """Over all rows: how many fit, what is saved, what is paid."""
        return self.shown(asked, 0)[1]

    def shown(self, asked: SavingsFilter, limit: int, offset: int = 0) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """`rows` and `sums` of one look at the plans, which is what takes the time."""
        best = self._best(asked).cte("best")
        places = sa.select(best.c.plan_id).order_by(*_order(best, asked)).limit(limit).offset(offset)
        shown = sa.select(best).where(best.c.plan_id.in_(places)).cte("shown")  # whole rows are not sorted
        figures = _sums(best)
        sums = sa.select(*(figure.label(f"all_{name}") for name, figure in figures.items())).cte("sums")
        both = sa.select(sums, shown).select_from(sums.outerjoin(shown, sa.true())).order_by(*_order(shown, asked))
        with self._store.reading() as connection:
            found = connection.execute(both).all()
        said = {name: found[0][place] for place, name in enumerate(figures)}
        names = list(shown.c.keys())
        rows = [dict(zip(names, row[len(figures) :], strict=True)) for row in found]
        return (
            [row | {"measured_seconds": None} for row in rows if row["plan_id"] is not None],
            {name: float(value) if "seconds" in name else int(value) for name, value in said.items()},
        )

    def table(self, asked: SavingsFilter, names: Sequence[str], limit: int) -> list[sa.Row[Any]]:
        """The rows with these columns alone; null for those that are not of a plan."""
        best = self._best(asked).subquery("best")
        columns = (best.c[name] if name in best.c else sa.null().label(name) for name in names)
        with self._store.reading() as connection:
            return list(connection.execute(sa.select(*columns).order_by(*_order(best, asked)).limit(limit)))

    def by_day(self, asked: SavingsFilter) -> list[dict[str, Any]]:
        """Plans first made on each day (UTC) and what they save, oldest first."""
        day = _day(self._store)
        figures = (
            sa.func.count().label("plans"),
            sa.func.count(sa.case((plans.c.status == OVER_BUDGET, 1))).label("over_budget"),
            sa.cast(sa.func.sum(plans.c.saved_bytes), sa.Float).label("saved_bytes"),
            sa.func.avg(plans.c.saved).label("saved"),
            sa.func.avg(plans.c.overhead).label("overhead"),
        )
        made = sa.select(day.label("day"), *figures).join(graphs, graphs.c.id == plans.c.graph_id)
        made = made.where(*self._conditions(asked)).group_by(day).order_by(day.desc()).limit(MAX_DAYS)
        with self._store.reading() as connection:
            return [dict(row) for row in connection.execute(made).mappings()][::-1]

    def choices(self) -> dict[str, list[str]]:
        """What each filter may be set to."""
        columns: Mapping[str, sa.ColumnElement[Any]] = {
            "goal": GOAL,
            "planner": plans.c.planner,
            "device": plans.c.device,
            "runtime": plans.c.runtime,
            "model": graphs.c.name,
        }
        own = [] if self._own is None else [self._own]
        found: dict[str, list[str]] = {}
        with self._store.reading() as connection:
            for name, column in columns.items():
                asked = sa.select(column.label("one")).select_from(plans)
                if name == "model":
                    asked = asked.join(graphs, graphs.c.id == plans.c.graph_id)
                asked = asked.where(*own).distinct().order_by("one").limit(MAX_CHOICES)
                found[name] = [str(row.one) for row in connection.execute(asked)]
        return found

    def _conditions(self, asked: SavingsFilter) -> list[sa.ColumnElement[bool]]:
        equal = {"goal": GOAL, "planner": plans.c.planner, "device": plans.c.device, "runtime": plans.c.runtime}
        found: list[sa.ColumnElement[bool]] = [] if self._own is None else [self._own]
        found += [column == getattr(asked, name) for name, column in equal.items() if getattr(asked, name)]
        if asked.model:
            found.append(graphs.c.name.icontains(asked.model, autoescape=True))
        made = sa.type_coerce(plans.c.created_at, Timestamp)
        if asked.since:
            found.append(made >= f"{asked.since}T00:00:00.000Z")
        if asked.until:
            found.append(made <= f"{asked.until}T23:59:59.999Z")
        return found

    def _best(self, asked: SavingsFilter) -> sa.Select[Any]:
        """A row a question."""
        question = (plans.c.graph_id, GOAL, plans.c.planner, plans.c.device, plans.c.runtime, plans.c.counts)
        names = (
            "graph_id",
            "planner",
            "device",
            "runtime",
            "counts",
            "budget_bytes",
            "baseline_peak_bytes",
            "baseline_seconds",
            "peak_bytes",
            "arena_bytes",
            "seconds",
            "saved_bytes",
            "saved",
            "overhead",
            "gap",
            "executed",
            "created_at",
        )
        every = (
            sa.select(
                plans.c.id.label("plan_id"),
                graphs.c.name.label("model"),
                graphs.c.nodes,
                GOAL.label("goal"),
                plans.c.status.label("outcome"),
                *(plans.c[name] for name in names),
                plans.c.executed_peak_bytes.label("measured_peak_bytes"),
                sa.func.row_number().over(partition_by=question, order_by=BEST_FIRST).label("place"),
            )
            .join(graphs, graphs.c.id == plans.c.graph_id)
            .where(*self._conditions(asked))
            .subquery("every_plan")
        )
        known = self._checkpointing()
        same = [every.c[name] == known.c[name] for name in COMPARABLE_BY]
        best = (
            sa.select(
                *(column for column in every.c if column.name != "place"),
                *(known.c[name].label(f"checkpointing_{name}") for name in ("peak_bytes", "seconds", "overhead")),
                known.c.status.label("checkpointing_status"),
            )
            .outerjoin(known, sa.and_(*same))
            .where(every.c.place == 1)
        )
        if asked.sort == "largest_batch":
            best = self._with_largest(best, every, asked)
        outcome = {"fits": every.c.outcome != OVER_BUDGET, "over": every.c.outcome == OVER_BUDGET}
        if asked.outcome:
            best = best.where(outcome.get(asked.outcome, every.c.outcome == asked.outcome))
        return best

    def _with_largest(self, best: sa.Select[Any], every: sa.Subquery, asked: SavingsFilter) -> sa.Select[Any]:
        """With what `Fitted` puts beside a row: the largest batch by its planner, else by any."""
        fits, sizes = best_fits(asked, self._own), []
        for by in ((*JOIN_COLUMNS, "planner"), JOIN_COLUMNS):
            largest = largest_size_by(fits, by)
            best = best.outerjoin(largest, sa.and_(*(every.c[name] == largest.c[name] for name in by)))
            sizes.append(largest.c.size)
        return best.add_columns(sa.func.coalesce(*sizes).label("largest_batch"))

    def _checkpointing(self) -> sa.Subquery:
        """The best plan of checkpointing for each question."""
        same = [GOAL.label("goal") if name == "goal" else plans.c[name] for name in COMPARABLE_BY]
        own = [] if self._own is None else [self._own]
        place = sa.func.row_number().over(partition_by=same, order_by=BEST_FIRST).label("place")
        figures = (plans.c.peak_bytes, plans.c.seconds, plans.c.overhead, plans.c.status)
        every = sa.select(*same, *figures, place).where(plans.c.planner == CHECKPOINTING, *own).subquery()
        return sa.select(every).where(every.c.place == 1).subquery("checkpointing")


def _order(best: sa.FromClause, asked: SavingsFilter) -> tuple[sa.ColumnElement[Any], ...]:
    column = best.c[asked.sort]
    return sa.nulls_last(column.desc() if asked.direction == "desc" else column.asc()), best.c.plan_id


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
        "baseline_peak_bytes": over(best.c.baseline_peak_bytes, sa.true()),
        "saved_bytes": over(best.c.saved_bytes, sa.true()),
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
    moment = sa.type_coerce(plans.c.created_at, sa.TIMESTAMP(timezone=True))
    return sa.func.to_char(sa.func.timezone("UTC", moment), "YYYY-MM-DD")
