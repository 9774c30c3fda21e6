"""Measurements of plans: steps that were run and memory snapshots, beside the prediction."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    timestamp = sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
    op.create_table(
        "measurements",
        sa.Column("id", sa.Text),
        sa.Column(
            "plan_id",
            sa.Text,
            sa.ForeignKey("plans.id", name="fk_measurements_plan_id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("tenant", sa.Text),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("peak_bytes", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Double),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("created_at", timestamp, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_measurements"),
    )
    op.create_index("ix_measurements_plan_id", "measurements", ["plan_id"])
