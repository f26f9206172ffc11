"""Overdrafts: spending without Postgres beyond the leases, for finance to see."""

from __future__ import annotations

from alembic import op

revision = "20261122_0640"
down_revision = "20261122_0630"
branch_labels = None
depends_on = None

# Without an index: it is read seldom, and every event would pay for one.
OVERDRAFTS = """
CREATE VIEW finance.overdrafts AS
SELECT event.request_id, event.attempt, event.occurred_at, event.team, event.project, event.key_id, event.cost_centre,
       hold ->> 0 AS account, to_timestamp((hold ->> 1)::bigint) AS starts_at,
       (hold ->> 2)::bigint * 0.000000001 AS held_usd, event.cost_nusd * 0.000000001 AS cost_usd
FROM tollgate.usage_events AS event CROSS JOIN LATERAL jsonb_array_elements(event.holds) AS hold
WHERE event.holds <> '[]' AND (hold ->> 3)::boolean AND NOT event.is_demo;
GRANT SELECT ON finance.overdrafts TO tollgate_reader;
"""


def upgrade() -> None:
    """Make the view."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    cursor.execute(OVERDRAFTS)
