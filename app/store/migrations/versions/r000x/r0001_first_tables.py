"""The first tables, and views of savings that a dashboard tool reads as they are."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

DAY = {
    "sqlite": "substr(plans.created_at, 1, 10)",
    "postgresql": "to_char(plans.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
}
SAVINGS = """
CREATE VIEW savings AS
SELECT plans.id AS plan_id, plans.created_at, {day} AS day, graphs.name AS model, plans.graph_id, graphs.nodes,
       plans.planner, plans.status, plans.runtime, plans.device, plans.budget, plans.budget_bytes,
       plans.baseline_peak_bytes, plans.peak_bytes, plans.saved_bytes, plans.saved, plans.overhead,
       plans.bound_overhead, plans.gap, plans.solver_seconds
FROM plans JOIN graphs ON graphs.id = plans.graph_id
"""
GROUPED = """
CREATE VIEW savings_by_{by} AS
SELECT {by}, COUNT(*) AS plans, SUM(CASE WHEN status = 'proven' THEN 1 ELSE 0 END) AS proven,
       SUM(CASE WHEN status = 'over_budget' THEN 1 ELSE 0 END) AS over_budget,
       CAST(SUM(baseline_peak_bytes) AS BIGINT) AS baseline_peak_bytes, CAST(SUM(peak_bytes) AS BIGINT) AS peak_bytes,
       CAST(SUM(saved_bytes) AS BIGINT) AS saved_bytes, AVG(saved) AS saved, AVG(overhead) AS overhead,
       AVG(gap) AS gap, SUM(solver_seconds) AS solver_seconds
FROM savings GROUP BY {by}
"""


def timestamp() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "graphs",
        sa.Column("id", sa.Text),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("nodes", sa.BigInteger, nullable=False),
        sa.Column("values", sa.BigInteger, nullable=False),
        sa.Column("format", sa.Text, nullable=False),
        sa.Column("forward_only", sa.Boolean, nullable=False),
        sa.Column("blob", sa.Text, nullable=False),
        sa.Column("created_at", timestamp(), nullable=False),
        sa.Column("seen_at", timestamp(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_graphs"),
    )
    op.create_index("ix_graphs_blob", "graphs", ["blob"])
    op.create_table(
        "plans",
        sa.Column("id", sa.Text),
        sa.Column("graph_id", sa.Text, sa.ForeignKey("graphs.id", name="fk_plans_graph_id"), nullable=False),
        sa.Column("planner", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("runtime", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("counts", sa.Text, nullable=False),
        sa.Column("budget", sa.Text),
        sa.Column("budget_bytes", sa.BigInteger),
        sa.Column("max_overhead", sa.Double),
        sa.Column("fits", sa.Boolean),
        sa.Column("baseline_peak_bytes", sa.BigInteger, nullable=False),
        sa.Column("peak_bytes", sa.BigInteger, nullable=False),
        sa.Column("arena_bytes", sa.BigInteger),
        sa.Column("saved_bytes", sa.BigInteger, nullable=False),
        sa.Column("saved", sa.Double, nullable=False),
        sa.Column("baseline_seconds", sa.Double, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("overhead", sa.Double),
        sa.Column("bound_overhead", sa.Double),
        sa.Column("bound_peak_bytes", sa.BigInteger),
        sa.Column("gap", sa.Double),
        sa.Column("seed", sa.Text, nullable=False),
        sa.Column("reproducible", sa.Boolean, nullable=False),
        sa.Column("executed", sa.Text, nullable=False),
        sa.Column("solver_seconds", sa.Double, nullable=False),
        sa.Column("figures", sa.Text, nullable=False),
        sa.Column("created_at", timestamp(), nullable=False),
        sa.Column("seen_at", timestamp(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_plans"),
    )
    op.create_index("ix_plans_created_at", "plans", ["created_at"])
    op.create_index("ix_plans_figures", "plans", ["figures"])
    op.create_index("ix_plans_graph_id", "plans", ["graph_id"])
    op.create_table(
        "answers",
        sa.Column("key", sa.Text),
        sa.Column(
            "plan_id", sa.Text, sa.ForeignKey("plans.id", name="fk_answers_plan_id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("created_at", timestamp(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_answers"),
    )
    op.create_index("ix_answers_plan_id", "answers", ["plan_id"])
    op.create_table(
        "operations",
        sa.Column("id", sa.Text),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("graph_id", sa.Text, sa.ForeignKey("graphs.id", name="fk_operations_graph_id"), nullable=False),
        sa.Column("fields", sa.JSON, nullable=False),
        sa.Column("created_at", timestamp(), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("stage", sa.Text),
        sa.Column("started_at", timestamp()),
        sa.Column("ended_at", timestamp()),
        sa.Column("progress", sa.JSON),
        sa.Column("result", sa.Text, sa.ForeignKey("plans.id", name="fk_operations_result")),
        sa.Column("error", sa.JSON),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("last_event", sa.BigInteger, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_operations"),
    )
    op.create_index("ix_operations_graph_id", "operations", ["graph_id"])
    op.create_index("ix_operations_result", "operations", ["result"])
    op.create_index("ix_operations_state_id", "operations", ["state", "id"])
    op.create_table(
        "sections",
        sa.Column("plan_id", sa.Text, sa.ForeignKey("plans.id", name="fk_sections_plan_id", ondelete="CASCADE")),
        sa.Column("name", sa.Text),
        sa.Column("blob", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("plan_id", "name", name="pk_sections"),
    )
    op.create_index("ix_sections_blob", "sections", ["blob"])
    op.create_table(
        "idempotency_keys",
        sa.Column("id", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column(
            "operation_id",
            sa.Text,
            sa.ForeignKey("operations.id", name="fk_idempotency_keys_operation_id", ondelete="CASCADE"),
        ),
        sa.Column("created_at", timestamp(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    op.create_index("ix_idempotency_keys_operation_id", "idempotency_keys", ["operation_id"])
    op.execute(SAVINGS.format(day=DAY[op.get_bind().dialect.name]))
    for by in ("model", "planner", "budget", "day"):
        op.execute(GROUPED.format(by=by))
