"""Sums of bytes in the views `savings_by_*` are floating-point numbers: a database refuses an integer from 2^63 on."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
ADDITIVE = True  # only dashboards read these views

GROUPED = """
CREATE VIEW savings_by_{by} AS
SELECT {by}, COUNT(*) AS plans, SUM(CASE WHEN status = 'proven' THEN 1 ELSE 0 END) AS proven,
       SUM(CASE WHEN status = 'over_budget' THEN 1 ELSE 0 END) AS over_budget,
       SUM(CAST(baseline_peak_bytes AS DOUBLE PRECISION)) AS baseline_peak_bytes,
       SUM(CAST(peak_bytes AS DOUBLE PRECISION)) AS peak_bytes,
       SUM(CAST(saved_bytes AS DOUBLE PRECISION)) AS saved_bytes, AVG(saved) AS saved, AVG(overhead) AS overhead,
       AVG(gap) AS gap, SUM(solver_seconds) AS solver_seconds
FROM savings GROUP BY {by}
"""
#: Roles other than the owner that may read a view on PostgreSQL, quoted for GRANT: DROP VIEW drops their grants too.
READERS = """
SELECT DISTINCT CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE CAST(CAST(grantee AS regrole) AS text) END
FROM pg_class, aclexplode(relacl)
WHERE pg_class.oid = CAST(:view AS regclass) AND privilege_type = 'SELECT' AND grantee <> relowner
"""


def upgrade() -> None:
    database = op.get_bind()
    for by in ("model", "planner", "budget", "day"):
        view = f"savings_by_{by}"
        readers = database.scalars(sa.text(READERS), {"view": view}).all() if database.dialect.name != "sqlite" else []
        op.execute(f"DROP VIEW {view}")
        op.execute(GROUPED.format(by=by))
        for reader in readers:
            op.execute(f"GRANT SELECT ON {view} TO {reader}")
