"""Deliveries of alerts, one for each channel, and alerts of days that stand out."""

from __future__ import annotations

from alembic import op

revision = "20261126_1800"
down_revision = "20261126_1600"
branch_labels = None
depends_on = None

# A row per channel that had a receiver. `next_try_at` is NULL once nothing is left to do.
DELIVERIES = """
CREATE TABLE tollgate.alert_deliveries (
    alert_id     uuid NOT NULL,
    channel      text NOT NULL CHECK (channel IN ('webhook', 'email')),
    tries        integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    next_try_at  timestamptz,
    last_error   text,
    delivered_at timestamptz,
    given_up_at  timestamptz,
    PRIMARY KEY (alert_id, channel),
    CONSTRAINT delivery_has_one_end CHECK (num_nonnulls(delivered_at, given_up_at, next_try_at) = 1)
);
CREATE INDEX alert_deliveries_next_try_at ON tollgate.alert_deliveries (channel, next_try_at) WHERE next_try_at IS NOT NULL;
INSERT INTO tollgate.alert_deliveries (alert_id, channel, tries, next_try_at, last_error, delivered_at, given_up_at)
    SELECT alert_id, 'webhook', tries, next_try_at, last_error, delivered_at, given_up_at
    FROM tollgate.budget_alerts WHERE tries > 0 OR next_try_at IS NULL;
-- The columns of the one delivery stay for gateways of the release before. They deliver their own alerts by them.
ALTER TABLE tollgate.budget_alerts DROP CONSTRAINT one_end;
CREATE INDEX budget_alerts_raised_at ON tollgate.budget_alerts (raised_at);
"""

SPIKES = """
CREATE TABLE tollgate.spike_alerts (
    alert_id     uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    team         text NOT NULL,
    day          date NOT NULL,
    model        text,
    key_id       text,
    spent_nusd   numeric NOT NULL,
    usual_nusd   numeric NOT NULL,
    driver_nusd  numeric NOT NULL,
    raised_at    timestamptz NOT NULL,
    announced_at timestamptz,
    PRIMARY KEY (team, day)
);
CREATE INDEX spike_alerts_raised_at ON tollgate.spike_alerts (raised_at);
CREATE INDEX spike_alerts_unannounced ON tollgate.spike_alerts (raised_at) WHERE announced_at IS NULL;
CREATE TABLE tollgate.spike_days (
    day       date PRIMARY KEY,
    looked_at timestamptz NOT NULL
);
"""

# Of several channels: delivered by the first, waiting while one waits.
VIEWS = """
CREATE VIEW finance.alert_deliveries AS
SELECT alert_id, channel, tries, next_try_at, last_error, delivered_at, given_up_at FROM tollgate.alert_deliveries;
CREATE VIEW finance.spike_alerts AS
SELECT alert_id, team, day, model, key_id, spent_nusd * 0.000000001 AS spent_usd, usual_nusd * 0.000000001 AS usual_usd,
       driver_nusd * 0.000000001 AS driver_usd, raised_at
FROM tollgate.spike_alerts;
CREATE OR REPLACE VIEW finance.budget_alerts AS
SELECT alert_id, account_id AS account, rule_id AS rule, scope, team, owner, kind, period, starts_at, ends_at,
       threshold, limit_nusd * 0.000000001 AS limit_usd, granted_nusd * 0.000000001 AS granted_usd,
       spent_nusd * 0.000000001 AS spent_usd, raised_at, sent.tries, sent.next_try_at, sent.last_error,
       sent.delivered_at, sent.given_up_at
FROM tollgate.budget_alerts CROSS JOIN LATERAL (
    SELECT coalesce(sum(one.tries), 0)::integer AS tries, min(one.next_try_at) AS next_try_at,
           string_agg(one.last_error, ' ' ORDER BY one.channel DESC) AS last_error, min(one.delivered_at) AS delivered_at,
           max(one.given_up_at) AS given_up_at
    FROM tollgate.alert_deliveries AS one WHERE one.alert_id = budget_alerts.alert_id
) AS sent;
"""

GRANTS = """
GRANT SELECT ON finance.alert_deliveries, finance.spike_alerts TO tollgate_reader;
GRANT SELECT, INSERT, UPDATE ON tollgate.alert_deliveries, tollgate.spike_alerts TO tollgate_gateway;
GRANT SELECT, INSERT ON tollgate.spike_days TO tollgate_gateway;
GRANT SELECT ON tollgate.spend_rollup_by_key, tollgate.dirty_days TO tollgate_gateway;
"""

STEPS = (DELIVERIES, SPIKES, VIEWS, GRANTS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
