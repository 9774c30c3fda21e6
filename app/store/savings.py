"""Aggregated savings of plans for dashboards, from the database view `savings`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from app.store.store import Store
from app.store.tables import Timestamp, operations, result_plans
from planner.errors import BadRequest

GROUPS = ("model", "planner", "budget", "day")
MAX_ROWS = 10_000


class _Whole(sa.TypeDecorator[int]):
    """A number read as an integer of any size."""

    impl = sa.Float
    cache_ok = True

    def process_result_value(self, value: float | None, dialect: sa.Dialect) -> int | None:
        return None if value is None else int(value)


def sum_of_bytes(column: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    """The sum as a float, exact up to 2^53: databases refuse a sum of integers from 2^63 on."""
    return sa.func.coalesce(sa.func.sum(sa.cast(column, sa.Float)), 0.0)


def _sum(name: str) -> sa.ColumnElement[int]:
    return sa.type_coerce(sum_of_bytes(sa.column(name)), _Whole).label(name)


def _mean(name: str) -> sa.ColumnElement[float]:
    return sa.func.avg(sa.column(name)).label(name)


def _count(status: str, name: str) -> sa.ColumnElement[int]:
    return sa.func.count(sa.case((sa.column("status") == status, 1))).label(name)


#: Aggregates of each group; a mean is null if the column is null for all its plans.
AGGREGATES: tuple[sa.ColumnElement[Any], ...] = (
    sa.func.count().label("plans"),
    _count("proven", "proven"),
    _count("over_budget", "over_budget"),
    _sum("baseline_peak_bytes"),
    _sum("peak_bytes"),
    _sum("saved_bytes"),
    _mean("saved"),
    _mean("overhead"),
    _mean("gap"),
    sa.func.coalesce(sa.func.sum(sa.column("solver_seconds")), 0.0).label("solver_seconds"),
)


def savings(
    store: Store, by: Sequence[str], since: str | None, until: str | None, tenant: str | None = None
) -> list[dict[str, Any]]:
    """One row per group, ascending, over plans created in [since, until), of the tenant unless None.

    Raises BadRequest for more than MAX_ROWS groups.
    """
    groups: list[sa.ColumnElement[Any]] = [sa.column(name) for name in by]
    created = sa.column("created_at", Timestamp)
    query = sa.select(*groups, *AGGREGATES).select_from(sa.table("savings")).group_by(*groups).order_by(*groups)
    if since is not None:
        query = query.where(created >= since)
    if until is not None:
        query = query.where(created < until)
    if tenant is not None:
        query = query.where(made_by(tenant, sa.column("plan_id")))
    with store.reading() as connection:
        rows = [dict(row) for row in connection.execute(query.limit(MAX_ROWS + 1)).mappings()]
    if len(rows) > MAX_ROWS:
        count = f"more than {MAX_ROWS} groups"
        raise BadRequest.one("too_many_rows", "query.group_by", count, "fewer", "narrow from and to, or group by less")
    return rows


def made_by(tenant: str, plan: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """SQL condition that an operation of the tenant made the plan, directly or in a curve or fit."""
    own = operations.c.tenant == tenant
    direct = sa.select(operations.c.result).where(own)
    through_results = sa.select(result_plans.c.plan_id).join(operations, operations.c.found == result_plans.c.result_id)
    return plan.in_(direct) | plan.in_(through_results.where(own))
