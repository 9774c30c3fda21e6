"""Tags and notes of plans, of each tenant its own, and a hash of the request of a plan (null in stored rows)."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
ADDITIVE = True


def upgrade() -> None:
    op.add_column("plans", sa.Column("request", sa.Text))
    op.create_table(
        "plan_tags",
        sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id", name="fk_plan_tags_plan_id", ondelete="CASCADE")),
        sa.Column("tenant", sa.Text),
        sa.Column("tag", sa.Text),
        sa.PrimaryKeyConstraint("plan_id", "tenant", "tag", name="pk_plan_tags"),
    )
    op.create_index("ix_plan_tags_tenant_tag", "plan_tags", ["tenant", "tag"])
    op.create_table(
        "plan_notes",
        sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id", name="fk_plan_notes_plan_id", ondelete="CASCADE")),
        sa.Column("tenant", sa.Text),
        sa.Column("note", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("plan_id", "tenant", name="pk_plan_notes"),
    )
