"""What plans save, summed up for dashboards, from the view `savings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from app.store.store import Store
from app.store.tables import Timestamp, operations, result_plans
from planner.errors import BadRequest

GROUPS = ("model", "planner", "budget", "day")
MAX_ROWS = 10_000


def _sum(name: str) -> sa.ColumnElement[int]:
    return sa.cast(sa.func.coalesce(sa.func.sum(sa.column(name)), 0), sa.BigInteger).label(name)


def _mean(name: str) -> sa.ColumnElement[float]:
    return sa.func.avg(sa.column(name)).label(name)


def _count(status: str, name: str) -> sa.ColumnElement[int]:
    return sa.func.count(sa.case((sa.column("status") == status, 1))).label(name)


#: What every row says beside its groups; null means are of plans that do not say.
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


@dataclass(frozen=True, slots=True)
class OperationScope:
    """Whose plans are summed: those that these operations found, alone or in a curve or a fit."""

    operations: Sequence[str]


def savings(
    store: Store, by: Sequence[str], since: str | None, until: str | None, owned: OperationScope | None = None
) -> list[dict[str, Any]]:
    """A row a group of `GROUPS`, ascending, over plans first made in [since, until). Raises BadRequest.

    Unless `owned` is None, over those plans only.
    """
    groups: list[sa.ColumnElement[Any]] = [sa.column(name) for name in by]
    made = sa.column("created_at", Timestamp)
    asked = sa.select(*groups, *AGGREGATES).select_from(sa.table("savings")).group_by(*groups).order_by(*groups)
    if since is not None:
        asked = asked.where(made >= since)
    if until is not None:
        asked = asked.where(made < until)
    if owned is not None:
        asked = asked.where(in_scope(store, owned, sa.column("plan_id")))
    with store.reading() as connection:
        rows = [dict(row) for row in connection.execute(asked.limit(MAX_ROWS + 1)).mappings()]
    if len(rows) > MAX_ROWS:
        said = f"more than {MAX_ROWS} groups"
        raise BadRequest.one("too_many_rows", "query.group_by", said, "fewer", "narrow from and to, or group by less")
    return rows


def in_scope(store: Store, owned: OperationScope, plan: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether the plan of that id is among those owned."""
    own = operations.c.id.in_(_listed(store, owned.operations))
    alone = sa.select(operations.c.result).where(own)
    several = sa.select(result_plans.c.plan_id).join(operations, operations.c.found == result_plans.c.result_id)
    return plan.in_(alone) | plan.in_(several.where(own))


def _listed(store: Store, ids: Sequence[str]) -> sa.Select[Any]:
    """The ids as rows of a query, in one parameter however many there are."""
    text = sa.literal(msgspec.json.encode(ids).decode())
    if store.is_sqlite:
        return sa.select(sa.column("value")).select_from(sa.func.json_each(text))
    return sa.select(sa.func.jsonb_array_elements_text(sa.cast(text, postgresql.JSONB)))
