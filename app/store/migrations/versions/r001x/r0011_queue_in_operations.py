"""The operations in state `queued` are the queue: priorities move from the tables of DBOS, which are dropped."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

#: Tables that DBOS 3.4 made in the main schema of SQLite; those referenced by others last.
SQLITE_TABLES = (
    "operation_outputs",
    "notifications",
    "workflow_events",
    "workflow_events_history",
    "streams",
    "workflow_schedules",
    "application_versions",
    "queues",
    "workflow_input",
    "workflow_output",
    "dbos_migrations",
    "workflow_status",
)
SCHEMA = "dbos"  # of these tables on PostgreSQL


def upgrade() -> None:
    op.add_column("operations", sa.Column("priority", sa.BigInteger, nullable=False, server_default="100"))
    queued = sa.text("state = 'queued'")
    op.create_index(
        "ix_operations_queued", "operations", ["priority", "id"], sqlite_where=queued, postgresql_where=queued
    )
    op.create_index("ix_operations_tenant_started_at", "operations", ["tenant", "started_at"])
    inspector = sa.inspect(op.get_bind())
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    schema = None if on_sqlite else SCHEMA
    if not inspector.has_table("workflow_status", schema):
        return
    name = "workflow_status" if schema is None else f"{schema}.workflow_status"
    op.execute(
        f"UPDATE operations SET priority = {name}.priority FROM {name} "
        f"WHERE {name}.workflow_uuid = operations.id AND operations.ended_at IS NULL AND {name}.priority IS NOT NULL"
    )
    if on_sqlite:
        for table in SQLITE_TABLES:
            op.execute(f"DROP TABLE IF EXISTS {table}")
    else:
        op.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
