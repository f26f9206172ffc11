"""The live signals of each engine in its samples, and its newest sample as a view: the dashboard
shows them beside the queue.
"""

from __future__ import annotations

from alembic import op

revision = "20261126_0400"
down_revision = "20261126_0350"
branch_labels = None
depends_on = None

# Nullable and without a default: nothing is rewritten, and the release before writes on beside it.
COLUMNS = """
ALTER TABLE tollgate.engine_samples
    ADD COLUMN kv_use          double precision,
    ADD COLUMN prefix_hit_rate double precision,
    ADD COLUMN ttft_p50_s      double precision,
    ADD COLUMN ttft_p95_s      double precision,
    ADD COLUMN tpot_p50_s      double precision,
    ADD COLUMN tpot_p95_s      double precision,
    ADD COLUMN pressure        double precision;
"""

# A deployment that left the policy has a last sample that is not watched.
VIEW = """
CREATE VIEW finance.engines AS
SELECT deployment, at, is_up, running, waiting AS queue, kv_use, prefix_hit_rate,
       ttft_p50_s, ttft_p95_s, tpot_p50_s, tpot_p95_s, pressure
FROM (SELECT DISTINCT ON (deployment) * FROM tollgate.engine_samples
      ORDER BY deployment, at DESC) AS newest
WHERE is_watched;
GRANT SELECT ON finance.engines TO tollgate_reader;
"""

STEPS = (COLUMNS, VIEW)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
