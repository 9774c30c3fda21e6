"""Workers, events of operations, and one unfinished operation a question."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"


def timestamp() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.add_column("operations", sa.Column("worker", sa.Text))
    # A process that was killed has left its operations running: they wait again, the newest of each question.
    op.execute("UPDATE operations SET state = 'queued' WHERE ended_at IS NULL")
    op.execute(
        "UPDATE operations SET cancel_requested = TRUE WHERE ended_at IS NULL AND id NOT IN "
        "(SELECT MAX(id) FROM operations WHERE ended_at IS NULL GROUP BY key)"
    )
    still = sa.text("ended_at IS NULL AND NOT cancel_requested")
    op.create_index(
        "ix_operations_unfinished", "operations", ["key"], unique=True, sqlite_where=still, postgresql_where=still
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Text),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("born", sa.Text, nullable=False),
        sa.Column("slots", sa.BigInteger, nullable=False),
        sa.Column("beats", sa.BigInteger, nullable=False),
        sa.Column("started_at", timestamp(), nullable=False),
        sa.Column("beat_at", timestamp(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "events",
        sa.Column(
            "operation_id", sa.Text, sa.ForeignKey("operations.id", name="fk_events_operation_id", ondelete="CASCADE")
        ),
        sa.Column("id", sa.BigInteger),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("operation_id", "id", name="pk_events"),
    )
