"""What a run of a plan held, and the size that a fit found, are columns: a dashboard reads them."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("plans", sa.Column("executed_peak_bytes", sa.BigInteger))
    op.add_column("results", sa.Column("grow", sa.Text))
    op.add_column("results", sa.Column("size", sa.BigInteger))
