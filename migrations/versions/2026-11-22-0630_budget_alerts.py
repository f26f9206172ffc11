"""Budget alerts: reached thresholds of budgets, once a period each, and their deliveries."""

from __future__ import annotations

from alembic import op

revision = "20261122_0630"
down_revision = "20261122_0620"
branch_labels = None
depends_on = None

# An alert's content is kept as it was when it was raised: tomorrow's retry posts the same as the
# first try. `next_try_at` is NULL once nothing is left to do: it was delivered or given up.
ALERTS = """
CREATE TABLE tollgate.budget_alerts (
    alert_id     uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    account_id   text NOT NULL,
    starts_at    timestamptz NOT NULL,
    threshold    numeric NOT NULL CHECK (threshold > 0),
    ends_at      timestamptz,
    rule_id      text NOT NULL,
    scope        text NOT NULL,
    team         text,
    owner        text NOT NULL,
    kind         text NOT NULL,
    period       text NOT NULL,
    time_zone    text NOT NULL,
    limit_nusd   bigint NOT NULL,
    granted_nusd bigint NOT NULL,
    spent_nusd   bigint NOT NULL,
    raised_at    timestamptz NOT NULL,
    announced_at timestamptz,
    tries        integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    next_try_at  timestamptz,
    last_error   text,
    delivered_at timestamptz,
    given_up_at  timestamptz,
    PRIMARY KEY (account_id, starts_at, threshold),
    CONSTRAINT one_end CHECK (num_nonnulls(delivered_at, given_up_at, next_try_at) = 1)
);
CREATE INDEX budget_alerts_next_try_at ON tollgate.budget_alerts (next_try_at) WHERE next_try_at IS NOT NULL;
CREATE INDEX budget_alerts_unannounced ON tollgate.budget_alerts (raised_at) WHERE announced_at IS NULL;
-- Those that run are looked at every few seconds, among all that ever were. It never changes where a row is updated.
CREATE INDEX budget_periods_ends_at ON tollgate.budget_periods (ends_at);
"""

VIEWS = """
CREATE VIEW finance.budget_alerts AS
SELECT alert_id, account_id AS account, rule_id AS rule, scope, team, owner, kind, period, starts_at, ends_at,
       threshold, limit_nusd * 0.000000001 AS limit_usd, granted_nusd * 0.000000001 AS granted_usd,
       spent_nusd * 0.000000001 AS spent_usd, raised_at, tries, next_try_at, last_error, delivered_at, given_up_at
FROM tollgate.budget_alerts;
"""

GRANTS = """
GRANT SELECT ON finance.budget_alerts TO tollgate_reader;
GRANT SELECT, INSERT, UPDATE ON tollgate.budget_alerts TO tollgate_gateway;
"""

STEPS = (ALERTS, VIEWS, GRANTS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
