"""The tables of API keys, ownership, quotas, sessions and the audit log; `tables.py` defines the others.

api_keys ◀── charges, sessions, audit          by key id, without foreign keys: a key is revoked, never deleted
graphs ◀── graph_owners   results ◀── result_owners          a graph or result may have several owners
Plans inherit from their graph; operations, batches, measurements, tags and notes have one tenant,
in their own tables.
"""

from __future__ import annotations

import sqlalchemy as sa

from app.store.tables import metadata

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, doc="the public part of the key"),
    sa.Column("hash", sa.LargeBinary, nullable=False, doc="SHA-256 of the secret"),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("scopes", sa.JSON, nullable=False, doc="read, plan and operator"),
    sa.Column("quotas", sa.JSON, nullable=False, doc="limits by name; null: the limit of the service"),
    sa.Column("created_at", sa.Double, nullable=False, doc="Unix seconds"),
    sa.Column("expires_at", sa.Double, doc="Unix seconds; null: never"),
    sa.Column("revoked_at", sa.Double, doc="Unix seconds; null: not revoked"),
)

graph_owners = sa.Table(
    "graph_owners",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True, doc="posted the graph, or derived it"),
    sa.Column("graph_id", sa.Text, sa.ForeignKey("graphs.id", ondelete="CASCADE"), primary_key=True, index=True),
)

result_owners = sa.Table(
    "result_owners",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True, doc="requested the curve, fit or layout"),
    sa.Column("result_id", sa.Text, sa.ForeignKey("results.id", ondelete="CASCADE"), primary_key=True, index=True),
)

charges = sa.Table(
    "charges",
    metadata,
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True, doc="id of the operation; of a batch with the number of its run"),
    sa.Column("at", sa.Double, nullable=False, doc="start, in Unix seconds"),
    sa.Column("seconds", sa.Double, nullable=False, doc="maximum solver seconds; once settled, the actual ones"),
    sa.Column("settled", sa.Boolean, nullable=False, doc="the solve has ended"),
    sa.Index(None, "key_id", "at"),
)
_running = ~charges.c.settled
sa.Index("ix_charges_running", charges.c.key_id, sqlite_where=_running, postgresql_where=_running)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("hash", sa.LargeBinary, primary_key=True, doc="SHA-256 of the cookie"),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("ends_at", sa.Double, nullable=False, index=True, doc="Unix seconds"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, doc="counts requests"),
    sa.Column("at", sa.Double, nullable=False, doc="Unix seconds"),
    sa.Column("key_id", sa.Text, doc="null: no valid key"),
    sa.Column("tenant", sa.Text, doc="null: no valid key"),
    sa.Column("peer", sa.Text, doc="address of the client"),
    sa.Column("method", sa.Text, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("status", sa.BigInteger, nullable=False, doc="HTTP status; 0: no response was sent"),
    sa.Index(None, "tenant", "id"),
)
