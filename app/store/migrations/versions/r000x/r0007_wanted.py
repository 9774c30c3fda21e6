"""An operation that somebody has asked for by itself goes on when a batch that joined it is cancelled.

Of those that were asked before nobody knows: what runs for a batch is taken to be wanted by it alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("operations", sa.Column("wanted", sa.Boolean, nullable=False, server_default=sa.true()))
    op.execute(
        "UPDATE operations SET wanted = FALSE WHERE id IN (SELECT operation_id FROM items WHERE state = 'running')"
    )
