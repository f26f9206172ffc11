"""A charge that comes after the close of its hour's month is not in the GPU bill of that hour.

The hours of a closed month stand as they were kept. Beside them a late event or correction, which is
posted to another month, made the closed bill larger than it is. It counts again in a reopened month.
"""

from __future__ import annotations

from alembic import op

revision = "20261126_1980"
down_revision = "20261126_1970"
branch_labels = None
depends_on = None

OWN_MONTH = "(date_trunc('month', occurred_at AT TIME ZONE 'UTC'))::date"

# As before, less the late ones. Sums by hour do not know when an event was recorded, so late events
# are taken out one by one: they are few, and have an index.
APPLIED = f"""
CREATE OR REPLACE VIEW finance.gpu_applied AS
SELECT hour, deployment, team, cost_centre, sum(attempts)::bigint AS attempts, sum(usd) AS applied_usd
FROM (
    SELECT hour, deployment, team, cost_centre, attempts, coalesce(cost_usd, 0) AS usd
    FROM finance.spend_hourly_detail WHERE is_self_hosted
    UNION ALL
    SELECT date_trunc('hour', occurred_at, 'UTC'), deployment, team, cost_centre, -1,
           coalesce(cost_nusd, 0) * -0.000000001
    FROM tollgate.usage_events AS late
    JOIN tollgate.month_closes AS done
        ON done.month = {OWN_MONTH} AND done.reopened_at IS NULL AND done.closed_at < late.recorded_at
    WHERE late.posted_period <> {OWN_MONTH} AND late.is_self_hosted AND NOT late.is_demo
    UNION ALL
    SELECT date_trunc('hour', occurred_at, 'UTC'), deployment, team, cost_centre, 0, amount_usd
    FROM finance.adjustments AS booked
    WHERE is_self_hosted AND NOT EXISTS (
        SELECT FROM tollgate.month_closes AS done
        WHERE done.month = {OWN_MONTH} AND done.reopened_at IS NULL AND done.closed_at < booked.created_at)
) AS amounts
GROUP BY hour, deployment, team, cost_centre
HAVING sum(attempts) <> 0 OR sum(usd) <> 0;
"""  # noqa: S608 - constants


def upgrade() -> None:
    """Replace the view."""
    op.get_bind().exec_driver_sql(APPLIED)
