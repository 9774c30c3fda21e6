"""The tables of batches; `tables.py` has the others.

batches ◀── items ──▶ graphs, plans          an item that is solved names its operation
"""

from __future__ import annotations

import sqlalchemy as sa

from app.store.tables import Timestamp, metadata

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, doc="sorts by the time of its making"),
    sa.Column("tenant", sa.Text, doc="whose it is; null: keys were not asked for"),
    sa.Column("key_id", sa.Text, doc="of the key that it counts against"),
    sa.Column("at_once", sa.BigInteger, doc="items of the key's batches that may be solved at a time"),
    sa.Column("idempotency", sa.Text, doc="SHA-256 of the path and the Idempotency-Key it came with"),
    sa.Column("body", sa.Text, nullable=False, doc="SHA-256 of the body it came with"),
    sa.Column("asked", sa.JSON, nullable=False, doc="budgets, planners and seeds, each null where none was named"),
    sa.Column("fields", sa.JSON, nullable=False, doc="the other fields, of every item"),
    sa.Column("total", sa.BigInteger, nullable=False, doc="items"),
    sa.Column("created_at", Timestamp, nullable=False),
    sa.Column("started_at", Timestamp, doc="when the first item was taken, since the last retry"),
    sa.Column("ended_at", Timestamp, index=True),
    sa.Column("state", sa.Text, nullable=False, doc="queued, running, succeeded (every item has ended) or cancelled"),
    sa.Column("runs", sa.BigInteger, nullable=False, doc="1, and one more for each retry"),
    sa.Column("solver_seconds", sa.Double, nullable=False, doc="that its solves have taken since the last retry"),
    sa.Column("last_event", sa.BigInteger, nullable=False, doc="how often anything of it has changed"),
    sa.Column("cancel_requested", sa.Boolean, nullable=False),
    sa.UniqueConstraint("idempotency", name="uq_batches_idempotency"),
    sa.Index(None, "tenant", "id"),
)

items = sa.Table(
    "items",
    metadata,
    sa.Column("batch_id", sa.Text, sa.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False, doc="counts from 0"),
    sa.Column("graph_id", sa.Text, sa.ForeignKey("graphs.id"), nullable=False, index=True),
    sa.Column("budget", sa.JSON(none_as_null=True), doc="as it was asked; null: none was named"),
    sa.Column("planner", sa.Text, doc="null: none was named"),
    sa.Column("seed", sa.BigInteger, doc="null: none was named"),
    sa.Column("state", sa.Text, nullable=False, doc="queued, running, succeeded, failed or cancelled"),
    sa.Column("operation_id", sa.Text, index=True, doc="that solves it, or has; it may be gone by now"),
    sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id"), index=True),
    sa.Column("cached", sa.Boolean, nullable=False, doc="answered from what was stored"),
    sa.Column("error", sa.JSON(none_as_null=True), doc="a problem object"),
    sa.Column("started_at", Timestamp),
    sa.Column("ended_at", Timestamp),
    sa.Index(None, "batch_id", "state", "number"),
    sa.Index(None, "state", "batch_id"),
)
