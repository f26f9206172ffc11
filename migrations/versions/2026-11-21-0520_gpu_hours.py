"""Observed GPU hours: samples of self-hosted engines, and their cost beside the applied charges."""

from __future__ import annotations

from alembic import op

revision = "20261121_0520"
down_revision = "20261121_0510"
branch_labels = None
depends_on = None

# Samples are small and kept for weeks; the hours that they prove are added to `gpu_hours`, with the
# rate then in force.
TABLES = """
CREATE TABLE tollgate.engine_samples (
    deployment        text NOT NULL,
    at                timestamptz NOT NULL,
    is_watched        boolean NOT NULL,
    is_up             boolean NOT NULL,
    started_at        timestamptz,
    prompt_tokens     bigint,
    generation_tokens bigint,
    running           bigint,
    waiting           bigint,
    PRIMARY KEY (deployment, at)
);
CREATE INDEX engine_samples_at ON tollgate.engine_samples USING brin (at);

CREATE TABLE tollgate.gpu_hours (
    deployment       text NOT NULL,
    hour             timestamptz NOT NULL,
    policy_version   integer NOT NULL,
    gpu_type         text,
    gpu_count        integer,
    usd_per_gpu_hour numeric,
    basis            text NOT NULL CHECK (basis IN ('seen', 'always')),
    watched_ms       bigint NOT NULL,
    up_ms            bigint NOT NULL,
    billed_ms        bigint NOT NULL,
    bill_nusd        bigint,
    PRIMARY KEY (deployment, hour, policy_version),
    CONSTRAINT up_is_within_watched CHECK (0 <= up_ms AND up_ms <= watched_ms),
    CONSTRAINT gpus_have_a_rate CHECK ((gpu_count IS NULL) = (usd_per_gpu_hour IS NULL)
                                       AND (gpu_count IS NULL) = (bill_nusd IS NULL))
);
CREATE INDEX gpu_hours_hour ON tollgate.gpu_hours (hour);
"""

# Per hour and deployment: applied + idle + variance = bill, exactly. An unknown bill is NULL, and
# so is its rest. Adjustments (an attempt resolved later, a new price) count in the hour of their
# request.
GPU_COST = """
DROP VIEW finance.gpu_cost;
CREATE VIEW finance.gpu_cost AS
WITH billed AS (
    SELECT hour, deployment,
           sum(watched_ms) AS watched_ms, sum(up_ms) AS up_ms, sum(billed_ms * gpu_count) AS gpu_ms,
           CASE WHEN min(usd_per_gpu_hour) = max(usd_per_gpu_hour) AND count(usd_per_gpu_hour) = count(*)
                THEN min(usd_per_gpu_hour) END AS usd_per_gpu_hour,
           CASE WHEN count(bill_nusd) = count(*) THEN sum(bill_nusd) END * 0.000000001 AS bill_usd
    FROM tollgate.gpu_hours GROUP BY hour, deployment
), charged AS (
    SELECT hour, deployment, sum(usd) AS applied_usd FROM (
        SELECT hour, deployment, coalesce(cost_usd, 0) AS usd FROM finance.spend_hourly WHERE is_self_hosted
        UNION ALL
        SELECT date_trunc('hour', occurred_at, 'UTC'), deployment, amount_usd
        FROM finance.adjustments WHERE is_self_hosted
    ) AS amounts GROUP BY hour, deployment
)
SELECT hour, deployment, applied_usd, bill_usd,
       -- Not greatest() and least(): those pass over NULL, but of a bill that is not known nothing is known to be left.
       CASE WHEN bill_usd > applied_usd THEN bill_usd - applied_usd WHEN bill_usd <= applied_usd THEN 0 END AS idle_usd,
       CASE WHEN bill_usd < applied_usd THEN bill_usd - applied_usd WHEN bill_usd >= applied_usd THEN 0 END
           AS variance_usd,
       gpu_hours, usd_per_gpu_hour, up_hours, watched_hours
FROM (
    SELECT hour, deployment, coalesce(charged.applied_usd, 0) AS applied_usd, billed.bill_usd,
           round(billed.gpu_ms / 3600000.0, 12) AS gpu_hours, billed.usd_per_gpu_hour,
           round(billed.up_ms / 3600000.0, 12) AS up_hours, round(billed.watched_ms / 3600000.0, 12) AS watched_hours
    FROM billed FULL JOIN charged USING (hour, deployment)
) AS hours;
"""

GRANTS = """
GRANT SELECT ON finance.gpu_cost TO tollgate_reader;
GRANT SELECT, INSERT, DELETE ON tollgate.engine_samples TO tollgate_gateway;
GRANT SELECT, INSERT, UPDATE ON tollgate.gpu_hours TO tollgate_gateway;
"""

STEPS: tuple[str, ...] = (TABLES, GPU_COST, GRANTS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
