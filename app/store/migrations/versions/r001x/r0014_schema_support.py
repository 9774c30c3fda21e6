"""The oldest version that can serve the tables, so that services of two versions can run side by side from here on."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table("schema_support", sa.Column("oldest_revision", sa.Text, primary_key=True))
