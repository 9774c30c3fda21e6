"""An index for the operations of a tenant, and deaths of children counted apart from losses of workers."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("operations", sa.Column("child_deaths", sa.BigInteger, nullable=False, server_default="0"))
    op.create_index("ix_operations_tenant_id", "operations", ["tenant", "id"])
