"""Curves, fits and layouts are results of operations, which may be about something else than a stored graph."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"


def timestamp() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "results",
        sa.Column("id", sa.Text),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("blob", sa.Text, nullable=False),
        sa.Column("created_at", timestamp(), nullable=False),
        sa.Column("seen_at", timestamp(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_results"),
    )
    op.create_index("ix_results_blob", "results", ["blob"])
    op.create_table(
        "result_plans",
        sa.Column(
            "result_id", sa.Text, sa.ForeignKey("results.id", name="fk_result_plans_result_id", ondelete="CASCADE")
        ),
        sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id", name="fk_result_plans_plan_id")),
        sa.PrimaryKeyConstraint("result_id", "plan_id", name="pk_result_plans"),
    )
    op.create_index("ix_result_plans_plan_id", "result_plans", ["plan_id"])
    op.create_table(
        "questions",
        sa.Column("id", sa.Text),
        sa.Column("created_at", timestamp(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_questions"),
    )
    with op.batch_alter_table("answers") as answers:
        answers.alter_column("plan_id", nullable=True)
        answers.add_column(sa.Column("result_id", sa.Text))
        answers.create_foreign_key("fk_answers_result_id", "results", ["result_id"], ["id"], ondelete="CASCADE")
        answers.create_index("ix_answers_result_id", ["result_id"])
    op.drop_index("ix_operations_unfinished", "operations")
    with op.batch_alter_table("operations") as operations:
        operations.alter_column("graph_id", nullable=True)
        operations.add_column(sa.Column("asked", sa.Text))
        operations.add_column(sa.Column("found", sa.Text))
        operations.create_foreign_key("fk_operations_asked", "questions", ["asked"], ["id"])
        operations.create_foreign_key("fk_operations_found", "results", ["found"], ["id"])
        operations.create_index("ix_operations_asked", ["asked"])
        operations.create_index("ix_operations_found", ["found"])
    still = sa.text("ended_at IS NULL AND NOT cancel_requested")
    op.create_index(
        "ix_operations_unfinished", "operations", ["key"], unique=True, sqlite_where=still, postgresql_where=still
    )
