"""API keys, ownership, charges, sessions and the audit log; owners follow from the tenants of operations.

The rows of key files (`access.sqlite` in data folders) are imported by `app.api.auth.key_files` at start.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

#: Owners that the operations of tenants prove; the graphs of their curves and fits included.
OWNERS = (
    "INSERT INTO result_owners SELECT DISTINCT tenant, found FROM operations "
    "WHERE tenant IS NOT NULL AND found IS NOT NULL",
    "INSERT INTO graph_owners SELECT tenant, graph_id FROM operations "
    "WHERE tenant IS NOT NULL AND graph_id IS NOT NULL "
    "UNION SELECT o.tenant, p.graph_id FROM operations o JOIN result_plans r ON r.result_id = o.found "
    "JOIN plans p ON p.id = r.plan_id WHERE o.tenant IS NOT NULL",
)


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("quotas", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("revoked_at", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    _owners("graph_owners", "graph_id", "graphs.id")
    _owners("result_owners", "result_id", "results.id")
    op.create_table(
        "charges",
        sa.Column("key_id", sa.Text),
        sa.Column("id", sa.Text),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("settled", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("key_id", "id", name="pk_charges"),
    )
    op.create_index("ix_charges_key_id_at", "charges", ["key_id", "at"])
    running = sa.text("NOT settled")
    op.create_index("ix_charges_running", "charges", ["key_id"], sqlite_where=running, postgresql_where=running)
    op.create_table(
        "sessions",
        sa.Column("hash", sa.LargeBinary),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("ends_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_sessions"),
    )
    op.create_index("ix_sessions_ends_at", "sessions", ["ends_at"])
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), autoincrement=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("key_id", sa.Text),
        sa.Column("tenant", sa.Text),
        sa.Column("peer", sa.Text),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("status", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_tenant_id", "audit", ["tenant", "id"])
    for statement in OWNERS:
        op.execute(statement)


def _owners(table: str, column: str, owned: str) -> None:
    key = sa.ForeignKey(owned, name=f"fk_{table}_{column}", ondelete="CASCADE")
    op.create_table(
        table,
        sa.Column("tenant", sa.Text),
        sa.Column(column, sa.Text, key),
        sa.PrimaryKeyConstraint("tenant", column, name=f"pk_{table}"),
    )
    op.create_index(f"ix_{table}_{column}", table, [column])
