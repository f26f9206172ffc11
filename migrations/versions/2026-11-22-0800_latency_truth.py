"""Times of an attempt that were combined until now, and whether its route's bounds sent it to
another deployment.
"""

from __future__ import annotations

from alembic import op

revision = "20261122_0800"
down_revision = "20261122_0770"
branch_labels = None
depends_on = None

# Nullable and without a default: nothing is rewritten, and the release before writes on beside it.
COLUMNS = """
ALTER TABLE tollgate.usage_events
    ADD COLUMN queue_s        double precision,
    ADD COLUMN max_gap_s      double precision,
    ADD COLUMN engine_queue_s double precision,
    ADD COLUMN degraded       text;
"""

# Replaced, not dropped: views built on it stay. New columns can then only come last.
EVENT_VIEW = """
CREATE OR REPLACE VIEW finance.{name} AS
SELECT request_id, attempt, occurred_at, started_at, recorded_at, posted_period,
       team, project, cost_centre, key_id, end_user, tags,
       route, deployment, provider, model, region, is_self_hosted, data_class, policy_version, operation,
       outcome, http_status, streamed,
       input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens, usage_detail,
       usage_source, reported_usage, service_tier, price_id, is_stand_in_price, lines,
       cost_nusd * 0.000000001 AS cost_usd, held_nusd * 0.000000001 AS held_usd,
       ttft_s, tpot_s, duration_s, overhead_s,
       finish_reason, client_request_id, upstream_request_id, is_suspect, features, decision,
       (cost_nusd IS NULL AND NOT EXISTS (
            SELECT FROM tollgate.adjustments AS found
            WHERE found.settles AND found.request_id = event.request_id AND found.attempt = event.attempt)
       ) AS is_unsettled,
       queue_s, max_gap_s, engine_queue_s, degraded
FROM tollgate.usage_events AS event
WHERE {condition};
"""

STEPS = (
    COLUMNS,
    EVENT_VIEW.format(name="usage_events", condition="NOT is_demo"),
    EVENT_VIEW.format(name="demo_usage_events", condition="is_demo"),
)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
