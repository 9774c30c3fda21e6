"""Statements on operations and events, built once: building one takes longer than SQLite takes to execute it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from app.store.tables import answers, events, graphs, operations

#: Name and batch of the graph that an operation is about.
OF_GRAPH = tuple(
    sa.select(column).where(graphs.c.id == operations.c.graph_id).scalar_subquery().label(label)
    for label, column in (("model", graphs.c.name), ("graph_batch", graphs.c.batch))
)
OPERATION_COLUMNS = (*operations.c, *OF_GRAPH)  # fields of Operation
UNFINISHED = operations.c.ended_at.is_(None)
RUNNING = operations.c.state == "running"
IS_OPEN = sa.text("ended_at IS NULL AND NOT cancel_requested")  # text of the index predicate
IS_QUEUED = sa.text("operations.state = 'queued'")  # text of the index predicate
MAX_ANSWERED = 100  # operations ended by one statement
#: The claim that a worker has for one attempt; see `repository._claim_of`.
CLAIM_HOLDS = (
    operations.c.id == sa.bindparam("claimed_id"),
    UNFINISHED,
    RUNNING,
    operations.c.worker == sa.bindparam("claimed_by"),
    operations.c.attempts == sa.bindparam("claimed_attempt"),
)
INSERT_OPERATION = sa.insert(operations)
SELECT_GRAPHS = sa.select(graphs.c.id, graphs.c.name, graphs.c.batch).where(
    graphs.c.id.in_(sa.bindparam("ids", expanding=True))
)
SELECT_OPEN = sa.select(*OPERATION_COLUMNS).where(operations.c.key.in_(sa.bindparam("keys", expanding=True)), IS_OPEN)
#: Next of the queue; with tenants, in turn among them.
_NEXT = (
    sa.select(operations.c.id)
    .where(IS_QUEUED)
    .order_by(operations.c.priority, operations.c.id)
    .limit(1)
    .with_for_update(skip_locked=True, of=operations)  # operations being claimed by others are skipped
)
_others = operations.alias()
_RUNNING_OF_TENANT = (
    sa.select(sa.func.count())
    .where(_others.c.state == "running", _others.c.tenant.is_not_distinct_from(operations.c.tenant))
    .correlate(operations)
    .scalar_subquery()
)
_LATEST_START = (
    sa.select(sa.func.max(_others.c.started_at))
    .where(_others.c.tenant == operations.c.tenant)
    .correlate(operations)
    .scalar_subquery()
)
_NEXT_IN_TURN = (
    _NEXT.where(sa.bindparam("per_tenant") > _RUNNING_OF_TENANT)
    .order_by(None)
    .order_by(operations.c.priority, _LATEST_START.nulls_first(), operations.c.id)
)
LOCK_CLAIMS = sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext("remat claim")))


def _claim_of_next(following: sa.Select[tuple[str]]) -> Any:
    return (
        sa.update(operations)
        .where(operations.c.id == following.scalar_subquery())
        .values(
            state="running",
            stage="read",
            worker=sa.bindparam("begun_by"),
            started_at=sa.bindparam("begun_at", type_=operations.c.started_at.type),
            attempts=operations.c.attempts + 1,
            last_event=operations.c.last_event + 1,
        )
        .returning(*OPERATION_COLUMNS)
    )


CLAIM, CLAIM_IN_TURN = _claim_of_next(_NEXT), _claim_of_next(_NEXT_IN_TURN)
_STORED = sa.select(answers).where(answers.c.key == operations.c.key).correlate(operations)
_IS_PLAN = operations.c.kind == "plan"
_next_queued = _NEXT.limit(MAX_ANSWERED).cte("next_queued")
END_ANSWERED = (
    sa.update(operations)
    .where(operations.c.id.in_(sa.select(_next_queued.c.id)), _STORED.exists())
    .values(
        state="succeeded",
        started_at=sa.bindparam("begun_at", type_=operations.c.started_at.type),
        ended_at=sa.bindparam("done_at", type_=operations.c.ended_at.type),
        result=sa.case((_IS_PLAN, _STORED.with_only_columns(answers.c.plan_id).scalar_subquery())),
        found=sa.case((~_IS_PLAN, _STORED.with_only_columns(answers.c.result_id).scalar_subquery())),
        last_event=operations.c.last_event + 1,
    )
    .returning(*OPERATION_COLUMNS)
)
UPDATE_CLAIMED = sa.update(operations).where(*CLAIM_HOLDS).returning(*OPERATION_COLUMNS)
UPDATE_PROGRESS = (
    sa.update(operations)
    .where(*CLAIM_HOLDS)
    .values(
        stage=sa.bindparam("to_stage"),
        progress=sa.bindparam("to_progress", type_=operations.c.progress.type),
        last_event=sa.bindparam("to_last"),
    )
    .returning(operations.c.cancel_requested)
)
SELECT_CANCEL = sa.select(operations.c.cancel_requested).where(*CLAIM_HOLDS)
DELETE_EVENTS = sa.delete(events).where(
    events.c.operation_id == sa.bindparam("of"), events.c.id <= sa.bindparam("until")
)
INSERT_EVENT = sa.insert(events)
