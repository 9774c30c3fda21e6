"""The tables of batches; `tables.py` defines the others.

batches ◀── items ──▶ graphs, plans          a running item references its operation
"""

from __future__ import annotations

import sqlalchemy as sa

from app.store.tables import Timestamp, metadata

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, doc="sorts by creation time"),
    sa.Column("tenant", sa.Text, doc="owner; null: created without authentication"),
    sa.Column("key_id", sa.Text, doc="API key whose quota is charged"),
    sa.Column("at_once", sa.BigInteger, doc="maximum concurrent items over the batches of the key"),
    sa.Column("idempotency", sa.Text, doc="SHA-256 of path and Idempotency-Key"),
    sa.Column("body", sa.Text, nullable=False, doc="SHA-256 of the request body"),
    sa.Column("asked", sa.JSON, nullable=False, doc="budgets, planners and seeds, each null if not given"),
    sa.Column("fields", sa.JSON, nullable=False, doc="the other request fields, common to all items"),
    sa.Column("total", sa.BigInteger, nullable=False, doc="number of items"),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("started_at", Timestamp, doc="start of the first item since the last retry"),
    sa.Column("ended_at", Timestamp, index=True),
    sa.Column("state", sa.Text, nullable=False, doc="queued, running, succeeded (every item has ended) or cancelled"),
    sa.Column("runs", sa.BigInteger, nullable=False, doc="1 plus the number of retries"),
    sa.Column("solver_seconds", sa.Double, nullable=False, doc="sum over its solves since the last retry"),
    sa.Column("last_event", sa.BigInteger, nullable=False, doc="number of changes"),
    sa.Column("cancel_requested", sa.Boolean, nullable=False),
    sa.Column("trace", sa.Text, doc="traceparent of the request that created it; null: it had none"),
    sa.UniqueConstraint("idempotency", name="uq_batches_idempotency"),
    sa.Index(None, "tenant", "id"),
)

items = sa.Table(
    "items",
    metadata,
    sa.Column("batch_id", sa.Text, sa.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False, doc="counts from 0"),
    sa.Column("graph_id", sa.Text, sa.ForeignKey("graphs.id"), nullable=False, index=True),
    sa.Column("budget", sa.JSON(none_as_null=True), doc="as requested; null: not given"),
    sa.Column("planner", sa.Text, doc="null: not given"),
    sa.Column("seed", sa.BigInteger, doc="null: not given"),
    sa.Column("state", sa.Text, nullable=False, doc="queued, running, succeeded, failed or cancelled"),
    sa.Column("operation_id", sa.Text, index=True, doc="operation that solves or solved it, possibly deleted"),
    sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id"), index=True),
    sa.Column("cached", sa.Boolean, nullable=False, doc="answered from a stored plan"),
    sa.Column("error", sa.JSON(none_as_null=True), doc="a problem object"),
    sa.Column("started_at", Timestamp),
    sa.Column("ended_at", Timestamp),
    sa.Index(None, "batch_id", "state", "number"),
    sa.Index(None, "state", "batch_id"),
)
