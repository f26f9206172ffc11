"""Events and adjustments keep the transaction that wrote them, so that an incremental export misses no
row and repeats none.
"""

from __future__ import annotations

from alembic import op

revision = "20261126_1500"
down_revision = "20261126_1400"
branch_labels = None
depends_on = None

# Postgres computes the default once for the rows that are there: nothing is rewritten.
COLUMNS = """
ALTER TABLE tollgate.usage_events ADD COLUMN written_by xid8 NOT NULL DEFAULT pg_current_xact_id();
ALTER TABLE tollgate.adjustments ADD COLUMN written_by xid8 NOT NULL DEFAULT pg_current_xact_id();
"""

# The server that these numbers are of: another one counts its own.
SERVER = """
CREATE TABLE tollgate.ledger_server (
    is_only           boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    system_identifier bigint NOT NULL,
    adopted_at        timestamptz NOT NULL DEFAULT now()
);
INSERT INTO tollgate.ledger_server (system_identifier) SELECT system_identifier FROM pg_control_system();
"""

# The views read the column through functions, which Postgres inlines. A view that named the column
# would keep it from being replaced after a restore, see ADOPT.
WRITERS = """
CREATE FUNCTION tollgate.writer_of(event tollgate.usage_events) RETURNS xid8
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT (event).written_by';
CREATE FUNCTION tollgate.writer_of(adjustment tollgate.adjustments) RETURNS xid8
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT (adjustment).written_by';
"""

# Rows restored from another server's dump carry its numbers. A new column gives each of them the
# number of this transaction, at once and without a rewrite.
ADOPT = """
CREATE FUNCTION tollgate.adopt_ledger() RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    here bigint := (SELECT system_identifier FROM pg_control_system());
BEGIN
    IF EXISTS (SELECT FROM tollgate.ledger_server WHERE system_identifier = here) THEN
        RETURN false;
    END IF;
    ALTER TABLE tollgate.usage_events DROP COLUMN written_by;
    ALTER TABLE tollgate.usage_events ADD COLUMN written_by xid8 NOT NULL DEFAULT pg_current_xact_id();
    ALTER TABLE tollgate.adjustments DROP COLUMN written_by;
    ALTER TABLE tollgate.adjustments ADD COLUMN written_by xid8 NOT NULL DEFAULT pg_current_xact_id();
    UPDATE tollgate.ledger_server SET system_identifier = here, adopted_at = now();
    RETURN true;
END
$$;
REVOKE EXECUTE ON FUNCTION tollgate.adopt_ledger() FROM PUBLIC;
"""

# As before, and `written_by` last: views built on these stay.
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
       queue_s, max_gap_s, engine_queue_s, degraded, tollgate.writer_of(event) AS written_by
FROM tollgate.usage_events AS event
WHERE {condition};
"""

ADJUSTMENTS = """
CREATE OR REPLACE VIEW finance.adjustments AS
SELECT booked.adjustment_id, booked.request_id, booked.attempt, booked.team, booked.cost_centre, booked.posted_period,
       booked.occurred_at, booked.amount_nusd * 0.000000001 AS amount_usd, booked.kind, booked.reason, booked.author,
       booked.created_at, booked.settles,
       booked.kind = 'expired_hold' AND NOT EXISTS (
           SELECT FROM tollgate.adjustments AS later
           WHERE later.kind = 'resolution' AND later.request_id = booked.request_id
             AND later.attempt = booked.attempt) AS is_expected,
       event.project, event.key_id, event.end_user, event.tags, event.route, event.deployment,
       coalesce(event.provider, true_up.provider) AS provider,
       coalesce(event.model, nullif(true_up.model, '')) AS model, event.region,
       coalesce(event.is_self_hosted, CASE WHEN true_up.adjustment_id IS NOT NULL THEN false END) AS is_self_hosted,
       event.data_class, event.outcome, event.usage_source, tollgate.writer_of(booked) AS written_by
FROM tollgate.adjustments AS booked
LEFT JOIN LATERAL (
    SELECT found.project, found.key_id, found.end_user, found.tags, found.route, found.deployment, found.provider,
           found.model, found.region, found.is_self_hosted, found.data_class, found.outcome, found.usage_source
    FROM tollgate.usage_events AS found
    WHERE found.request_id = booked.request_id AND found.attempt = booked.attempt
      AND found.occurred_at = booked.occurred_at OFFSET 0
) AS event ON true
LEFT JOIN tollgate.true_ups AS true_up ON true_up.adjustment_id = booked.adjustment_id;
"""

# A timeline ends where a backup was recovered to a moment, or a standby was promoted: rows
# that came after it on the old one may not exist here.
WATERMARK = """
CREATE VIEW finance.watermark AS
SELECT here.system_identifier || '-' || own.oid || '-' || left(pg_walfile_name(pg_current_wal_lsn()), 8) AS database,
       pg_current_snapshot() AS snapshot, here.system_identifier <> home.system_identifier AS is_restored
FROM tollgate.ledger_server AS home, pg_control_system() AS here, pg_database AS own
WHERE own.datname = current_database();
GRANT SELECT ON finance.watermark TO tollgate_reader;
"""

STEPS = (
    COLUMNS,
    SERVER,
    WRITERS,
    ADOPT,
    EVENT_VIEW.format(name="usage_events", condition="NOT is_demo"),
    EVENT_VIEW.format(name="demo_usage_events", condition="is_demo"),
    ADJUSTMENTS,
    WATERMARK,
)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
