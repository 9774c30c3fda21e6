"""Batches and their items."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"


def timestamp() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Text),
        sa.Column("tenant", sa.Text),
        sa.Column("key_id", sa.Text),
        sa.Column("at_once", sa.BigInteger),
        sa.Column("idempotency", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("asked", sa.JSON, nullable=False),
        sa.Column("fields", sa.JSON, nullable=False),
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.Column("created_at", timestamp(), nullable=False),
        sa.Column("started_at", timestamp()),
        sa.Column("ended_at", timestamp()),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("runs", sa.BigInteger, nullable=False),
        sa.Column("solver_seconds", sa.Double, nullable=False),
        sa.Column("last_event", sa.BigInteger, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
        sa.UniqueConstraint("idempotency", name="uq_batches_idempotency"),
    )
    op.create_index("ix_batches_ended_at", "batches", ["ended_at"])
    op.create_index("ix_batches_tenant_id", "batches", ["tenant", "id"])
    op.create_table(
        "items",
        sa.Column("batch_id", sa.Text, sa.ForeignKey("batches.id", name="fk_items_batch_id", ondelete="CASCADE")),
        sa.Column("number", sa.BigInteger),
        sa.Column("graph_id", sa.Text, sa.ForeignKey("graphs.id", name="fk_items_graph_id"), nullable=False),
        sa.Column("budget", sa.JSON),
        sa.Column("planner", sa.Text),
        sa.Column("seed", sa.BigInteger),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("operation_id", sa.Text),
        sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id", name="fk_items_plan_id")),
        sa.Column("cached", sa.Boolean, nullable=False),
        sa.Column("error", sa.JSON),
        sa.Column("started_at", timestamp()),
        sa.Column("ended_at", timestamp()),
        sa.PrimaryKeyConstraint("batch_id", "number", name="pk_items"),
    )
    op.create_index("ix_items_graph_id", "items", ["graph_id"])
    op.create_index("ix_items_operation_id", "items", ["operation_id"])
    op.create_index("ix_items_plan_id", "items", ["plan_id"])
    op.create_index("ix_items_batch_id_state_number", "items", ["batch_id", "state", "number"])
    op.create_index("ix_items_state_batch_id", "items", ["state", "batch_id"])
