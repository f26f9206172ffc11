"""Adjustments find their events by the key of each. Beside many of them the planner joined with the
whole ledger, every month of it, to show those of one month.
"""

from __future__ import annotations

from alembic import op

revision = "20261126_0930"
down_revision = "20261126_0400"
branch_labels = None
depends_on = None

# The columns are as before. OFFSET keeps the lookup a lookup, in the partition of the event's month.
ADJUSTMENTS = """
CREATE OR REPLACE VIEW finance.adjustments AS
SELECT booked.adjustment_id, booked.request_id, booked.attempt, booked.team, booked.cost_centre, booked.posted_period,
       booked.occurred_at, booked.amount_nusd * 0.000000001 AS amount_usd, booked.kind, booked.reason, booked.author,
       booked.created_at, booked.settles,
       booked.kind = 'expired_hold' AND NOT EXISTS (
           SELECT FROM tollgate.adjustments AS later
           WHERE later.kind = 'resolution' AND later.request_id = booked.request_id
             AND later.attempt = booked.attempt) AS is_expected,
       event.project, event.key_id, event.end_user, event.tags, event.route, event.deployment, event.provider,
       event.model, event.region, event.is_self_hosted, event.data_class, event.outcome, event.usage_source
FROM tollgate.adjustments AS booked
LEFT JOIN LATERAL (
    SELECT found.project, found.key_id, found.end_user, found.tags, found.route, found.deployment, found.provider,
           found.model, found.region, found.is_self_hosted, found.data_class, found.outcome, found.usage_source
    FROM tollgate.usage_events AS found
    WHERE found.request_id = booked.request_id AND found.attempt = booked.attempt
      AND found.occurred_at = booked.occurred_at OFFSET 0
) AS event ON true;
"""

STEPS: tuple[str, ...] = (ADJUSTMENTS,)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()
    for step in STEPS:
        cursor.execute(step)
