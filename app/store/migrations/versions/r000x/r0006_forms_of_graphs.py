"""Graphs that differ in names alone are found by their form. One kept before has none until it is posted again."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("graphs", sa.Column("form", sa.Text))
    op.create_index("ix_graphs_form_seen_at", "graphs", ["form", "seen_at"])
