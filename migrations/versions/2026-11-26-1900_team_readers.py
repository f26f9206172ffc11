"""A role that reads the views of one schema, of which Postgres returns the rows of some teams alone;
the views of API keys and of each team's limits.
"""

from __future__ import annotations

from alembic import op

revision = "20261126_1900"
down_revision = "20261126_1800"
branch_labels = None
depends_on = None

# As for tollgate_finance. The reports' role may act as it, so each login of reports may: a
# transaction for a team begins by it.
ROLE = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'tollgate_team_reader') THEN
        BEGIN
            CREATE ROLE tollgate_team_reader NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    IF NOT pg_has_role(current_user, 'tollgate_team_reader', 'USAGE') THEN
        GRANT tollgate_team_reader TO CURRENT_USER;
    END IF;
END
$$;
DO $$
BEGIN
    IF NOT pg_has_role('tollgate_reader', 'tollgate_team_reader', 'MEMBER') THEN
        GRANT tollgate_team_reader TO tollgate_reader;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'tollgate_reader does not include tollgate_team_reader: grant it, or no team lead sees the dashboard';
END
$$;
"""

# A key without its digest, and the limits by the policy in force. Postgres reads no policy document.
KEYS_AND_LIMITS = """
CREATE VIEW finance.api_keys AS
SELECT key_id, team, project, created_at, expires_at, revoked_at, paused_at, replaces, is_demo FROM tollgate.api_keys;

CREATE TABLE tollgate.policy_team_limits (
    policy_version      integer NOT NULL
        CONSTRAINT policy_team_limits_policy_version_fkey REFERENCES tollgate.policies,
    team                text NOT NULL,
    requests_per_minute bigint,
    tokens_per_minute   bigint,
    concurrent          bigint,
    is_shadow           boolean NOT NULL,
    PRIMARY KEY (policy_version, team)
);
SELECT tollgate.make_immutable('tollgate.policy_team_limits');
GRANT SELECT, INSERT ON tollgate.policy_team_limits TO tollgate_admin;
CREATE VIEW finance.team_limits AS
SELECT team, requests_per_minute, tokens_per_minute, concurrent, is_shadow, policy_version
FROM tollgate.policy_team_limits WHERE policy_version = (SELECT max(version) FROM tollgate.policies);
GRANT SELECT ON finance.api_keys, finance.team_limits TO tollgate_reader;
"""

# Each view of `finance` and `closed` has one of its name in `team` or `team_closed`. `condition` is
# of its rows; `hidden` are columns that are NULL there. Later steps call this for each view that
# they add or give columns.
SHOWING = """
CREATE SCHEMA team;
CREATE SCHEMA team_closed;
CREATE FUNCTION tollgate.show_to_teams(shown regclass, condition text, hidden text[] DEFAULT '{}') RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    own record;
    columns text;
    target text;
BEGIN
    SELECT nspname, relname INTO STRICT own FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE pg_class.oid = shown;
    target := format('%I.%I', CASE own.nspname WHEN 'finance' THEN 'team' WHEN 'closed' THEN 'team_closed' END,
                     own.relname);
    SELECT string_agg(CASE WHEN attname = ANY(hidden) THEN format('NULL::%s AS %I', format_type(atttypid, atttypmod),
                                                                  attname)
                           ELSE format('shown.%I', attname) END, ', ' ORDER BY attnum)
        INTO columns FROM pg_attribute WHERE attrelid = shown AND attnum > 0 AND NOT attisdropped;
    EXECUTE format('DROP VIEW IF EXISTS %s', target);
    EXECUTE format('CREATE VIEW %s WITH (security_barrier) AS SELECT %s FROM %s AS shown WHERE %s', target, columns,
                   shown, condition);
    EXECUTE format('GRANT SELECT ON %s TO tollgate_team_reader', target);
END
$$;
REVOKE ALL ON FUNCTION tollgate.show_to_teams(regclass, text, text[]) FROM PUBLIC;
GRANT USAGE ON SCHEMA team, team_closed, finance TO tollgate_team_reader;
GRANT EXECUTE ON FUNCTION finance.time_quantile(bigint[], double precision) TO tollgate_team_reader;
"""

# The sub-SELECT is evaluated once a query. Without the setting it is NULL, and no row is shown.
TEAMS = "(SELECT nullif(current_setting('tollgate.teams', true), '')::text[])::text[]"
OWN = f"team = ANY ({TEAMS})"
ALL, NONE = "true", "false"

# The rows that a team sees of each view: its own, all (facts of the organisation that name no team)
# or none. A view that is not listed here shows none.
OWN_ROWS = (
    "usage_events",
    "demo_usage_events",
    "spend_hourly",
    "spend_hourly_detail",
    "demo_spend_hourly_detail",
    "spend_daily_detail",
    "demo_spend_daily_detail",
    "spend_daily_by_key",
    "spend_daily_by_end_user",
    "spend_daily_by_tag",
    "adjustments",
    "budgets",
    "budget_alerts",
    "spike_alerts",
    "overdrafts",
    "refusals",
    "gpu_applied",
    "cost_centre_shares",
    "api_keys",
    "team_limits",
)
ALL_ROWS = (
    "periods",
    "policy_days",
    "dirty_hours",
    "demo_ledger",
    "prices",
    "deployment_prices",
    "currency_rates",
    "month_closes",
    "watermark",
)
# The whole organisation's totals, and the people of finance.
HIDDEN = {
    "demo_ledger": ("author",),
    "currency_rates": ("author",),
    "month_closes": (
        "author",
        "operator",
        "accepted",
        "parts",
        "sha256",
        "events",
        "adjustments",
        "total_usd",
        "reopened_by",
        "reopen_reason",
    ),
}
CONDITIONS = (
    dict.fromkeys(OWN_ROWS, OWN)
    | dict.fromkeys(ALL_ROWS, ALL)
    | {"budget_grants": f"account IN (SELECT account FROM finance.budgets WHERE {OWN})"}  # noqa: S608 - constants
)

# Of the whole GPU bill a team sees its own share of idle cost, by the policy's rules.
IDLE = "".join(
    f"""
CREATE FUNCTION {target}.idle_costs(from_time timestamptz, until_time timestamptz)
    RETURNS TABLE (hour timestamptz, deployment text, team text, cost_centre text, idle_usd numeric)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT hour, deployment, team, cost_centre, idle_usd FROM {schema}.idle_costs(from_time, until_time)
          WHERE {OWN} $$;
REVOKE ALL ON FUNCTION {target}.idle_costs(timestamptz, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION {target}.idle_costs(timestamptz, timestamptz) TO tollgate_team_reader;
"""  # noqa: S608 - constants
    for schema, target in (("finance", "team"), ("closed", "team_closed"))
)

VIEWS = """
SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname IN ('finance', 'closed') AND relkind = 'v' ORDER BY 1, 2
"""
SHOW = (
    "SELECT tollgate.show_to_teams(format('%%I.%%I', %s::text, %s::text)::regclass, %s, %s::text[])"
)


def upgrade() -> None:
    """Run the steps in order, and show each view to teams."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in (ROLE, KEYS_AND_LIMITS, SHOWING, IDLE):
        cursor.execute(step)
    cursor.execute(VIEWS)
    for schema, name in cursor.fetchall():
        hidden = list(HIDDEN.get(name, ()))
        cursor.execute(SHOW, (schema, name, CONDITIONS.get(name, NONE), hidden))
