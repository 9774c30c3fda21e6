"""Inputs and batch of graphs and plans, the name of a graph in its file, and the traces of operations and batches.

Rows stored before have none; inputs are in their documents.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("graphs", sa.Column("graph_name", sa.Text))
    for table in ("graphs", "plans"):
        op.add_column(table, sa.Column("inputs", sa.JSON(none_as_null=True)))
        op.add_column(table, sa.Column("batch", sa.BigInteger))
    for table in ("operations", "batches"):
        op.add_column(table, sa.Column("trace", sa.Text))
