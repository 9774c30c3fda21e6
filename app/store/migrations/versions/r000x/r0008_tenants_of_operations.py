"""Operations record their tenant; search results are found by form key, so no query selects graphs by form."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("operations", sa.Column("tenant", sa.Text))
    op.drop_index("ix_graphs_form_seen_at", "graphs")
