"""The first schema: ledger, prices, policies, keys, and the views finance reads.

`tollgate` holds the tables, `finance` the stable views. Forward only: a ledger is not rolled back.
"""

from __future__ import annotations

from alembic import op

revision = "20261121_0300"
down_revision = None
branch_labels = None
depends_on = None

# Roles belong to the whole server, so another database may have made them, or be making them right
# now.
ROLES = """
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['tollgate_reader', 'tollgate_gateway'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
        IF NOT pg_has_role(current_user, wanted, 'USAGE') THEN
            EXECUTE format('GRANT %I TO %I', wanted, current_user);
        END IF;
    END LOOP;
END
$$;
"""

FUNCTIONS = """
-- The moment inside a UUIDv7. Days and milliseconds are counted in integers: seconds as a float are not exact for
-- far dates, and `timestamp + interval` is immutable where `timestamptz + interval` is not.
CREATE FUNCTION tollgate.uuid7_ms(id uuid) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ('x' || translate(substr(id::text, 1, 13), '-', ''))::bit(48)::bigint;

CREATE FUNCTION tollgate.uuid7_time(id uuid) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (timestamp '1970-01-01'
            + (tollgate.uuid7_ms(id) / 86400000) * interval '1 day'
            + (tollgate.uuid7_ms(id) % 86400000) * interval '1 millisecond') AT TIME ZONE 'UTC';

CREATE FUNCTION tollgate.notify_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$ BEGIN PERFORM pg_notify('tollgate_changes', TG_TABLE_NAME); RETURN NULL; END $$;
"""

TABLES = """
CREATE TABLE tollgate.prices (
    price_id   text PRIMARY KEY,
    provider   text NOT NULL,
    model      text NOT NULL,
    source     text NOT NULL,
    rates      jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE tollgate.deployment_prices (
    deployment     text NOT NULL,
    price_id       text NOT NULL REFERENCES tollgate.prices,
    policy_version integer NOT NULL,
    valid_from     timestamptz NOT NULL,
    PRIMARY KEY (deployment, valid_from)
);
CREATE TABLE tollgate.policies (
    version    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sha256     text NOT NULL,
    document   text NOT NULL,
    author     text NOT NULL,
    message    text NOT NULL,
    is_demo    boolean NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE tollgate.api_keys (
    key_id     text PRIMARY KEY,
    team       text NOT NULL,
    project    text,
    digest     bytea NOT NULL,
    pepper_id  text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    revoked_by text,
    is_demo    boolean NOT NULL DEFAULT false
);
CREATE TABLE tollgate.peppers (
    pepper_id     text PRIMARY KEY,
    first_seen_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE tollgate.periods (
    month     date PRIMARY KEY CHECK (extract(day FROM month) = 1),
    state     text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'provisional', 'closed')),
    opened_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE tollgate.adjustments (
    adjustment_id uuid PRIMARY KEY,
    request_id    uuid,
    attempt       smallint,
    team          text NOT NULL,
    cost_centre   text NOT NULL,
    posted_period date NOT NULL,
    occurred_at   timestamptz NOT NULL,
    amount_nusd   bigint NOT NULL,
    kind          text NOT NULL,
    reason        text NOT NULL,
    author        text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE tollgate.budgets (
    scope      text NOT NULL,
    name       text NOT NULL,
    period     text NOT NULL,
    limit_nusd bigint NOT NULL,
    kind       text NOT NULL,
    PRIMARY KEY (scope, name, period)
);
CREATE TABLE tollgate.usage_events (
    request_id          uuid NOT NULL,
    attempt             smallint NOT NULL,
    occurred_at         timestamptz NOT NULL,
    started_at          timestamptz NOT NULL,
    recorded_at         timestamptz NOT NULL DEFAULT now(),
    posted_period       date NOT NULL,
    team                text NOT NULL,
    project             text,
    cost_centre         text NOT NULL,
    key_id              text NOT NULL,
    end_user            text,
    tags                jsonb NOT NULL DEFAULT '{}',
    route               text NOT NULL,
    deployment          text NOT NULL,
    provider            text NOT NULL,
    model               text NOT NULL,
    region              text NOT NULL,
    is_self_hosted      boolean NOT NULL,
    data_class          text NOT NULL,
    policy_version      integer NOT NULL,
    operation           text NOT NULL,
    outcome             text NOT NULL,
    http_status         smallint,
    streamed            boolean NOT NULL,
    input_tokens        bigint,
    cached_input_tokens bigint,
    cache_write_tokens  bigint,
    output_tokens       bigint,
    reasoning_tokens    bigint,
    usage_source        text NOT NULL,
    price_id            text,
    lines               jsonb NOT NULL,
    cost_nusd           bigint,
    held_nusd           bigint,
    ttft_s              double precision,
    tpot_s              double precision,
    duration_s          double precision,
    overhead_s          double precision,
    finish_reason       text,
    client_request_id   text,
    upstream_request_id text,
    is_suspect          boolean NOT NULL DEFAULT false,
    is_demo             boolean NOT NULL DEFAULT false,
    features            jsonb NOT NULL,
    decision            jsonb NOT NULL,
    digest              bytea NOT NULL,
    PRIMARY KEY (request_id, attempt, occurred_at),
    -- Ties the partition key to the id: so (request_id, attempt) is unique across all partitions.
    CONSTRAINT occurred_at_is_of_request_id CHECK (occurred_at = tollgate.uuid7_time(request_id)),
    CONSTRAINT posted_period_is_a_month CHECK (extract(day FROM posted_period) = 1)
) PARTITION BY RANGE (occurred_at);
CREATE INDEX usage_events_team_occurred_at ON tollgate.usage_events (team, occurred_at);
CREATE INDEX usage_events_key_id_occurred_at ON tollgate.usage_events (key_id, occurred_at);
CREATE INDEX usage_events_occurred_at ON tollgate.usage_events USING brin (occurred_at);
CREATE TABLE tollgate.usage_events_default PARTITION OF tollgate.usage_events DEFAULT;

CREATE TRIGGER policies_changed AFTER INSERT OR UPDATE OR DELETE ON tollgate.policies
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.notify_change();
CREATE TRIGGER api_keys_changed AFTER INSERT OR UPDATE OR DELETE ON tollgate.api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.notify_change();
"""

# Runs as the owner: the gateway's role may not create tables. The range bounds the tables that a
# caller can have created. Attached rather than created as a partition: that does not lock out the
# readers of the other months.
PARTITIONS = """
CREATE FUNCTION tollgate.ensure_month(month date) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
    AS $$
DECLARE
    first_day date := date_trunc('month', month);
    starts timestamptz := first_day::timestamp AT TIME ZONE 'UTC';
    ends timestamptz := (first_day + interval '1 month') AT TIME ZONE 'UTC';
    partition text := 'usage_events_' || to_char(first_day, 'YYYY_MM');
BEGIN
    IF first_day NOT BETWEEN current_date - interval '10 years' AND current_date + interval '2 years' THEN
        RAISE EXCEPTION 'month % is more than 10 years ago or 2 years ahead', first_day
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('tollgate.ensure_month'));
    IF to_regclass('tollgate.' || partition) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE format('CREATE TABLE tollgate.%I (LIKE tollgate.usage_events INCLUDING ALL)', partition);
    -- Writers wait at the parent, before they choose a partition: one that had chosen the default partition and waited
    -- there would be refused after the attachment, since its rows belong elsewhere then.
    LOCK TABLE tollgate.usage_events IN SHARE ROW EXCLUSIVE MODE;
    LOCK TABLE ONLY tollgate.usage_events_default IN ACCESS EXCLUSIVE MODE;
    EXECUTE format(
        'WITH moved AS (DELETE FROM tollgate.usage_events_default WHERE occurred_at >= %L AND occurred_at < %L '
        'RETURNING *) INSERT INTO tollgate.%I SELECT * FROM moved', starts, ends, partition);
    EXECUTE format(
        'ALTER TABLE tollgate.usage_events ATTACH PARTITION tollgate.%I FOR VALUES FROM (%L) TO (%L)',
        partition, starts, ends);
    RETURN partition;
END
$$;
SELECT tollgate.ensure_month((date_trunc('month', now() AT TIME ZONE 'UTC') + n * interval '1 month')::date)
    FROM generate_series(0, 3) AS n;
"""

# Multiplied, not divided: numeric division keeps 16 significant digits, and large sums have more.
VIEW_OF_EVENTS = """
CREATE VIEW finance.{name} AS
SELECT request_id, attempt, occurred_at, started_at, recorded_at, posted_period,
       team, project, cost_centre, key_id, end_user, tags,
       route, deployment, provider, model, region, is_self_hosted, data_class, policy_version, operation,
       outcome, http_status, streamed,
       input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens,
       usage_source, price_id, lines,
       cost_nusd * 0.000000001 AS cost_usd, held_nusd * 0.000000001 AS held_usd,
       ttft_s, tpot_s, duration_s, overhead_s,
       finish_reason, client_request_id, upstream_request_id, is_suspect, features, decision
FROM tollgate.usage_events
WHERE {condition};
"""

VIEWS = """
CREATE VIEW finance.spend_hourly AS
SELECT date_trunc('hour', occurred_at, 'UTC') AS hour,
       team, project, cost_centre, route, deployment, provider, model, region, is_self_hosted,
       count(*) AS attempts,
       count(*) FILTER (WHERE usage_source = 'unknown') AS unknown_attempts,
       sum(input_tokens) AS input_tokens,
       sum(cached_input_tokens) AS cached_input_tokens,
       sum(output_tokens) AS output_tokens,
       sum(reasoning_tokens) AS reasoning_tokens,
       sum(cost_nusd) * 0.000000001 AS cost_usd,
       sum(held_nusd) FILTER (WHERE cost_nusd IS NULL) * 0.000000001 AS held_usd
FROM tollgate.usage_events
WHERE NOT is_demo
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10;

-- Bill and idle stay unknown until the GPU bill is reported.
CREATE VIEW finance.gpu_cost AS
SELECT date_trunc('hour', occurred_at, 'UTC') AS hour,
       deployment,
       sum(cost_nusd) * 0.000000001 AS applied_usd,
       NULL::numeric AS bill_usd,
       NULL::numeric AS idle_usd
FROM tollgate.usage_events
WHERE NOT is_demo AND is_self_hosted
GROUP BY 1, 2;

CREATE VIEW finance.periods AS SELECT month, state, opened_at FROM tollgate.periods;

CREATE VIEW finance.adjustments AS
SELECT adjustment_id, request_id, attempt, team, cost_centre, posted_period, occurred_at,
       amount_nusd * 0.000000001 AS amount_usd, kind, reason, author, created_at
FROM tollgate.adjustments;

CREATE VIEW finance.budgets AS
SELECT scope, name, period, limit_nusd * 0.000000001 AS limit_usd, kind FROM tollgate.budgets;

CREATE VIEW finance.prices AS
SELECT price_id, provider, model, source, rates, created_at FROM tollgate.prices;
"""

GRANTS = """
GRANT USAGE ON SCHEMA finance TO tollgate_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA finance TO tollgate_reader;
ALTER DEFAULT PRIVILEGES IN SCHEMA finance GRANT SELECT ON TABLES TO tollgate_reader;

GRANT USAGE ON SCHEMA tollgate TO tollgate_gateway;
GRANT SELECT ON tollgate.api_keys, tollgate.policies, tollgate.periods, tollgate.alembic_version TO tollgate_gateway;
GRANT SELECT, INSERT ON tollgate.usage_events, tollgate.prices, tollgate.deployment_prices, tollgate.peppers
    TO tollgate_gateway;
-- The month alone: the gateway opens periods, it cannot make a closed one.
GRANT INSERT (month) ON tollgate.periods TO tollgate_gateway;
REVOKE ALL ON FUNCTION tollgate.ensure_month(date) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tollgate.ensure_month(date) TO tollgate_gateway;
"""


def upgrade() -> None:
    """Create everything. Plain SQL: the text here is the text in the database."""
    steps = (
        ROLES,
        "CREATE SCHEMA finance;",
        FUNCTIONS,
        TABLES,
        PARTITIONS,
        VIEW_OF_EVENTS.format(name="usage_events", condition="NOT is_demo"),
        VIEW_OF_EVENTS.format(name="demo_usage_events", condition="is_demo"),
        VIEWS,
        GRANTS,
    )
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in steps:
        cursor.execute(step)
