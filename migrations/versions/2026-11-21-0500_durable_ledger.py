"""The durable ledger: journals, dead letters, roll-ups, conflicting redeliveries, and immutable
events.
"""

from __future__ import annotations

from alembic import op

revision = "20261121_0500"
down_revision = "20261121_0300"
branch_labels = None
depends_on = None

EVENTS = """
ALTER TABLE tollgate.usage_events
    ADD COLUMN service_tier      text,
    ADD COLUMN reported_usage    jsonb,
    ADD COLUMN usage_detail      jsonb,
    ADD COLUMN is_stand_in_price boolean NOT NULL DEFAULT false,
    -- One list where an object belongs would make every later report by tag fail.
    ADD CONSTRAINT json_has_its_shape CHECK (
        jsonb_typeof(tags) = 'object' AND jsonb_typeof(lines) = 'array'
        AND jsonb_typeof(features) = 'object' AND jsonb_typeof(decision) = 'object'),
    -- Postgres holds later dates than any reader does: one such event would break every report for ever.
    ADD CONSTRAINT moments_can_be_read CHECK (
        substr(request_id::text, 15, 1) = '7' AND occurred_at < '3000-01-01 00:00:00+00'
        AND started_at BETWEEN '1970-01-01 00:00:00+00' AND '3000-01-01 00:00:00+00');
CREATE INDEX usage_events_unknown ON tollgate.usage_events (occurred_at) WHERE cost_nusd IS NULL;
"""

JOURNALS = """
CREATE TABLE tollgate.journals (
    id         uuid PRIMARY KEY,
    replica    text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    heartbeat  timestamptz NOT NULL DEFAULT now(),
    written    bigint NOT NULL DEFAULT 0,
    state      text NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'drained', 'lost')),
    note       text
);
-- Bytes, not text: what lies here may be text that Postgres cannot hold.
CREATE TABLE tollgate.dead_letters (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    journal_id  uuid,
    document    bytea NOT NULL,
    error       text NOT NULL,
    digest      bytea NOT NULL UNIQUE,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    resolved_at timestamptz,
    resolved_by text,
    resolution  text
);
"""

# `settles`: the attempt's cost was unknown, and this is the adjustment that lets its hold go. There
# is at most one.
ADJUSTMENTS = """
ALTER TABLE tollgate.adjustments
    ADD COLUMN digest  bytea,
    ADD COLUMN settles boolean NOT NULL DEFAULT false;
CREATE UNIQUE INDEX adjustments_one_a_document ON tollgate.adjustments (request_id, attempt, kind, digest)
    WHERE digest IS NOT NULL;
CREATE UNIQUE INDEX adjustments_settle_once ON tollgate.adjustments (request_id, attempt) WHERE settles;
CREATE UNIQUE INDEX adjustments_resolve_once ON tollgate.adjustments (request_id, attempt) WHERE kind = 'resolution';
CREATE INDEX adjustments_request_id ON tollgate.adjustments (request_id, attempt);
CREATE INDEX adjustments_posted_period ON tollgate.adjustments (posted_period);
"""

# A row trigger on a partitioned table is copied to every partition, those attached later included;
# TRUNCATE has none, so each partition gets one of its own.
IMMUTABLE = """
CREATE FUNCTION tollgate.refuse_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION '% on %: the ledger is never changed', TG_OP, TG_RELID::regclass
        USING ERRCODE = 'restrict_violation', HINT = 'Book a correction: tollgate reconcile resolve, or an adjustment.';
END
$$;

CREATE FUNCTION tollgate.make_immutable(ledger regclass) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF NOT (SELECT relispartition FROM pg_class WHERE oid = ledger) THEN
        EXECUTE format('CREATE TRIGGER rows_never_change BEFORE UPDATE OR DELETE ON %s '
                       'FOR EACH ROW EXECUTE FUNCTION tollgate.refuse_change()', ledger);
    END IF;
    EXECUTE format('CREATE TRIGGER rows_stay BEFORE TRUNCATE ON %s '
                   'FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_change()', ledger);
END
$$;

SELECT tollgate.make_immutable('tollgate.usage_events');
SELECT tollgate.make_immutable(inhrelid::regclass) FROM pg_inherits WHERE inhparent = 'tollgate.usage_events'::regclass;
SELECT tollgate.make_immutable('tollgate.adjustments');

DO $$
DECLARE
    login text;
BEGIN
    FOREACH login IN ARRAY ARRAY['PUBLIC', 'tollgate_reader', 'tollgate_gateway'] LOOP
        EXECUTE format('REVOKE UPDATE, DELETE, TRUNCATE ON tollgate.usage_events, tollgate.adjustments, '
                       'tollgate.prices FROM %s', login);
    END LOOP;
END
$$;
"""

# As in the first schema, but that a new partition refuses changes too, and that rows may still
# leave the default one. Switching a trigger off is left to the table's owner, which this function
# runs as, and lasts for a transaction that holds the table for itself: nothing that a caller could
# set or say opens that door.
PARTITIONS = """
CREATE OR REPLACE FUNCTION tollgate.ensure_month(month date) RETURNS text
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
    ALTER TABLE tollgate.usage_events_default DISABLE TRIGGER rows_never_change;
    EXECUTE format(
        'WITH moved AS (DELETE FROM tollgate.usage_events_default WHERE occurred_at >= %L AND occurred_at < %L '
        'RETURNING *) INSERT INTO tollgate.%I SELECT * FROM moved', starts, ends, partition);
    ALTER TABLE tollgate.usage_events_default ENABLE TRIGGER rows_never_change;
    EXECUTE format(
        'ALTER TABLE tollgate.usage_events ATTACH PARTITION tollgate.%I FOR VALUES FROM (%L) TO (%L)',
        partition, starts, ends);
    PERFORM tollgate.make_immutable(format('tollgate.%I', partition)::regclass);
    RETURN partition;
END
$$;
"""

# As the owner: a row can only be locked by who may update it, and the gateway must not close or
# reopen a month.
PERIODS = """
CREATE FUNCTION tollgate.posting_months(months date[]) RETURNS TABLE (own date, posted date)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    first_own date := (SELECT min(wanted) FROM unnest(months) AS wanted);
BEGIN
    INSERT INTO tollgate.periods (month)
        SELECT DISTINCT wanted FROM unnest(months) AS wanted ORDER BY wanted ON CONFLICT DO NOTHING;
    -- Shared until the commit: whoever closes a month waits for the events that are on their way into it, and events
    -- that come while it is being closed wait here and then see what it has become.
    PERFORM FROM tollgate.periods WHERE month >= first_own ORDER BY month FOR SHARE;
    FOR own IN SELECT DISTINCT wanted FROM unnest(months) AS wanted ORDER BY wanted LOOP
        posted := (SELECT min(month) FROM tollgate.periods WHERE month >= own AND state = 'open');
        IF posted IS NULL THEN
            posted := greatest(date_trunc('month', now() AT TIME ZONE 'UTC')::date, own);
            WHILE EXISTS (SELECT FROM tollgate.periods WHERE month = posted) LOOP
                posted := posted + interval '1 month';
            END LOOP;
            INSERT INTO tollgate.periods (month) VALUES (posted) ON CONFLICT DO NOTHING;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
"""

# The dimensions of a roll-up. `key_id` and `end_user` have separate daily ones: with them an hour
# would have as many rows as it has events.
HOURLY = {
    "hour": "timestamptz",
    "team": "text",
    "project": "text",
    "cost_centre": "text",
    "route": "text",
    "deployment": "text",
    "provider": "text",
    "model": "text",
    "region": "text",
    "is_self_hosted": "boolean",
    "data_class": "text",
    "outcome": "text",
    "usage_source": "text",
    "posted_period": "date",
    "is_demo": "boolean",
}
DAILY = {
    "day": "date",
    "team": "text",
    "project": "text",
    "cost_centre": "text",
    "{who}": "text",
    "route": "text",
    "model": "text",
    "is_self_hosted": "boolean",
    "posted_period": "date",
    "is_demo": "boolean",
}
UNSETTLED = """(cost_nusd IS NULL AND NOT EXISTS (
            SELECT FROM tollgate.adjustments AS found
            WHERE found.settles AND found.request_id = event.request_id AND found.attempt = event.attempt))"""
# Sums are numeric: two of the largest figures together are more than 64 bits hold.
SUMS = {
    "attempts": ("bigint", "count(*)"),
    "known_attempts": ("bigint", "count(cost_nusd)"),
    "unknown_attempts": ("bigint", f"count(*) FILTER (WHERE {UNSETTLED})"),
    "derived_attempts": (
        "bigint",
        "count(*) FILTER (WHERE usage_source IN ('derived', 'estimated'))",
    ),
    "failed_attempts": ("bigint", "count(*) FILTER (WHERE outcome <> 'ok')"),
    "unreported_attempts": ("bigint", "count(*) FILTER (WHERE input_tokens IS NULL)"),
    "input_tokens": ("numeric", "sum(input_tokens)"),
    "cached_input_tokens": ("numeric", "sum(cached_input_tokens)"),
    "cache_write_tokens": ("numeric", "sum(cache_write_tokens)"),
    "output_tokens": ("numeric", "sum(output_tokens)"),
    "reasoning_tokens": ("numeric", "sum(reasoning_tokens)"),
    "uncached_input_tokens": (
        "numeric",
        "sum(input_tokens::numeric - coalesce(cached_input_tokens, 0) - "
        "coalesce(cache_write_tokens, 0))",
    ),
    "plain_output_tokens": (
        "numeric",
        "sum(output_tokens::numeric - coalesce(reasoning_tokens, 0))",
    ),
    "total_tokens": ("numeric", "sum(input_tokens::numeric + output_tokens)"),
    "cost_nusd": ("numeric", "sum(cost_nusd)"),
    "held_nusd": ("numeric", f"sum(held_nusd) FILTER (WHERE {UNSETTLED})"),
}
# Upper edges in seconds, each 1.5 times the last: a percentile read from the counts is at most a
# quarter off.
BUCKETS = 32
EDGES = ", ".join(f"{0.001 * 1.5**n:.6f}" for n in range(BUCKETS - 1))
LATENCIES = ("ttft", "tpot", "duration")
HISTOGRAMS = {
    f"{name}_buckets": (
        "integer[]",
        f"ARRAY[{', '.join(f'count(*) FILTER (WHERE {name}_bucket = {n})' for n in range(BUCKETS))}]::integer[]",
    )
    for name in LATENCIES
}

LATENCY_BUCKETS = ", ".join(
    f"width_bucket({name}_s, ARRAY[{EDGES}]) AS {name}_bucket" for name in LATENCIES
)


def _in_hours(hours: str, *, more: str = "") -> str:
    """The events of some hours; `hours` gives them as `bucket`.

    LATERAL with its OFFSET makes the planner look each hour up for itself. Left to choose, it reads
    a whole month to find one hour of it. It also keeps a computed column from being written out
    once for each counter that uses it.
    """
    return f"""{hours} CROSS JOIN LATERAL (
        SELECT found.*, wanted.bucket AS hour {more} FROM tollgate.usage_events AS found
        WHERE found.occurred_at >= wanted.bucket AND found.occurred_at < wanted.bucket + interval '1 hour' OFFSET 0
    ) AS event"""  # noqa: S608 - constants


def _in_days(days: str) -> str:
    """The events of some days (UTC); `days` gives them as `bucket`."""
    return f"""{days} CROSS JOIN LATERAL (
        SELECT found.*, wanted.bucket AS day FROM tollgate.usage_events AS found
        WHERE found.occurred_at >= wanted.bucket::timestamp AT TIME ZONE 'UTC'
            AND found.occurred_at < (wanted.bucket + 1)::timestamp AT TIME ZONE 'UTC' OFFSET 0
    ) AS event"""  # noqa: S608 - constants


def _summed(dimensions: dict[str, str], figures: dict[str, tuple[str, str]], *, events: str) -> str:
    """Return the only definition of sums over events: for roll-ups, for the events read beside
    them, and for the check.
    """
    return f"""SELECT {", ".join(dimensions)}, {", ".join(f"{sql} AS {name}" for name, (_, sql) in figures.items())}
    FROM {events}
    GROUP BY {", ".join(str(n + 1) for n in range(len(dimensions)))}"""  # noqa: S608 - constants


def _rollup(
    table: str, dimensions: dict[str, str], figures: dict[str, tuple[str, str]], *, events: str
) -> str:
    """A roll-up's table, and the function that computes its rows from the events of some
    buckets.
    """
    columns = dimensions | {name: kind for name, (kind, _) in figures.items()}
    bucket, kind = next(iter(dimensions.items()))
    return f"""
CREATE TABLE tollgate.{table} (
    {", ".join(f"{name} {kind}" for name, kind in columns.items())}
);
CREATE INDEX {table}_{bucket} ON tollgate.{table} ({bucket});
CREATE FUNCTION tollgate.{table}_of(buckets {kind}[]) RETURNS SETOF tollgate.{table}
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$ {_summed(dimensions, figures, events=events)} $$;
REVOKE ALL ON FUNCTION tollgate.{table}_of({kind}[]) FROM PUBLIC;
"""


def _daily(who: str) -> dict[str, str]:
    return {name.format(who=who): kind for name, kind in DAILY.items()}


HOURS_ASKED = _in_hours("unnest(buckets) AS wanted (bucket)", more=f", {LATENCY_BUCKETS}")
DAYS_ASKED = _in_days("unnest(buckets) AS wanted (bucket)")

# Writers only append to the logs of marked buckets: a row each, without waiting for any row. The
# time shows how long a bucket has waited.
DIRTY_LOGS = """
CREATE TABLE tollgate.dirty_hours (hour timestamptz NOT NULL, noted_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE tollgate.dirty_days (day date NOT NULL, noted_at timestamptz NOT NULL DEFAULT now());
"""

REFRESH = """
-- Each statement of these functions sees what was committed before it. An event that is committed between the DELETE
-- and the sums has its own line in the log, which this run did not take: at worst its hour is summed once more.
CREATE FUNCTION tollgate.refresh_hours(most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    hours timestamptz[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('tollgate.refresh_rollups')) THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM tollgate.dirty_hours
        WHERE hour IN (SELECT DISTINCT hour FROM tollgate.dirty_hours ORDER BY hour LIMIT most) RETURNING hour
    )
    SELECT coalesce(array_agg(DISTINCT hour), '{}') INTO hours FROM taken;
    INSERT INTO tollgate.dirty_days (day)
        SELECT DISTINCT (taken AT TIME ZONE 'UTC')::date FROM unnest(hours) AS taken;
    DELETE FROM tollgate.spend_rollup WHERE hour = ANY(hours);
    INSERT INTO tollgate.spend_rollup SELECT * FROM tollgate.spend_rollup_of(hours);
    RETURN cardinality(hours);
END
$$;
-- Only days that are over: summing the running one again and again would cost a day's events each time.
CREATE FUNCTION tollgate.refresh_days(most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    days date[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('tollgate.refresh_rollups')) THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM tollgate.dirty_days WHERE day IN (
            SELECT DISTINCT day FROM tollgate.dirty_days
            WHERE day < (now() AT TIME ZONE 'UTC')::date ORDER BY day LIMIT most)
        RETURNING day
    )
    SELECT coalesce(array_agg(DISTINCT day), '{}') INTO days FROM taken;
    DELETE FROM tollgate.spend_rollup_by_key WHERE day = ANY(days);
    INSERT INTO tollgate.spend_rollup_by_key SELECT * FROM tollgate.spend_rollup_by_key_of(days);
    DELETE FROM tollgate.spend_rollup_by_end_user WHERE day = ANY(days);
    INSERT INTO tollgate.spend_rollup_by_end_user SELECT * FROM tollgate.spend_rollup_by_end_user_of(days);
    RETURN cardinality(days);
END
$$;
-- What was there before this revision has no roll-up yet.
INSERT INTO tollgate.dirty_hours (hour)
    SELECT DISTINCT date_trunc('hour', occurred_at, 'UTC') FROM tollgate.usage_events;
"""

# As in the first schema, with the columns of this revision.
EVENT_VIEW = f"""
DROP VIEW finance.{{name}};
CREATE VIEW finance.{{name}} AS
SELECT request_id, attempt, occurred_at, started_at, recorded_at, posted_period,
       team, project, cost_centre, key_id, end_user, tags,
       route, deployment, provider, model, region, is_self_hosted, data_class, policy_version, operation,
       outcome, http_status, streamed,
       input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens, usage_detail,
       usage_source, reported_usage, service_tier, price_id, is_stand_in_price, lines,
       cost_nusd * 0.000000001 AS cost_usd, held_nusd * 0.000000001 AS held_usd,
       ttft_s, tpot_s, duration_s, overhead_s,
       finish_reason, client_request_id, upstream_request_id, is_suspect, features, decision,
       {UNSETTLED} AS is_unsettled
FROM tollgate.usage_events AS event
WHERE {{condition}};
"""  # noqa: S608 - constants above

_HOUR_COLUMNS = ", ".join(name for name in HOURLY if name != "is_demo")
_COUNTS = ", ".join(name for name in SUMS if not name.endswith("_nusd"))
_MONEY = "cost_nusd * 0.000000001 AS cost_usd, held_nusd * 0.000000001 AS held_usd"

# Hours that are summed up from the roll-up, all others from their events, in one statement and so
# in one snapshot.
DETAIL_VIEW = f"""
CREATE VIEW finance.{{name}} AS
SELECT {_HOUR_COLUMNS}, {_COUNTS}, {_MONEY}
FROM (
    SELECT {", ".join([*HOURLY, *SUMS])} FROM tollgate.spend_rollup AS done
    WHERE NOT EXISTS (SELECT FROM tollgate.dirty_hours AS dirty WHERE dirty.hour = done.hour)
    UNION ALL
    {_summed(HOURLY, SUMS, events=_in_hours("(SELECT DISTINCT hour AS bucket FROM tollgate.dirty_hours) AS wanted"))}
) AS summed
WHERE {{condition}};
"""  # noqa: S608 - constants above

HOURLY_VIEW = """
DROP VIEW finance.spend_hourly;
CREATE VIEW finance.spend_hourly AS
SELECT hour, team, project, cost_centre, route, deployment, provider, model, region, is_self_hosted,
       sum(attempts)::bigint AS attempts,
       sum(unknown_attempts)::bigint AS unknown_attempts,
       sum(input_tokens) AS input_tokens,
       sum(cached_input_tokens) AS cached_input_tokens,
       sum(output_tokens) AS output_tokens,
       sum(reasoning_tokens) AS reasoning_tokens,
       sum(cost_usd) AS cost_usd,
       sum(held_usd) AS held_usd
FROM finance.spend_hourly_detail
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10;
"""


def _daily_view(who: str) -> str:
    columns = ", ".join(name for name in _daily(who) if name != "is_demo")
    table = f"spend_rollup_by_{who.removesuffix('_id')}"
    return f"""
CREATE VIEW finance.spend_daily_by_{who.removesuffix("_id")} AS
WITH dirty AS (
    SELECT day FROM tollgate.dirty_days
    UNION SELECT (hour AT TIME ZONE 'UTC')::date FROM tollgate.dirty_hours
)
SELECT {columns}, {_COUNTS}, {_MONEY}
FROM (
    SELECT * FROM tollgate.{table} AS done WHERE NOT EXISTS (SELECT FROM dirty WHERE dirty.day = done.day)
    UNION ALL
    {_summed(_daily(who), SUMS, events=_in_days("(SELECT day AS bucket FROM dirty) AS wanted"))}
) AS summed
WHERE NOT is_demo;
"""  # noqa: S608 - constants above


# With the event's fields, so that an adjustment can be split by all of its event's dimensions.
OTHER_VIEWS = """
DROP VIEW finance.adjustments;
CREATE VIEW finance.adjustments AS
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
LEFT JOIN tollgate.usage_events AS event
    ON event.request_id = booked.request_id AND event.attempt = booked.attempt
    AND event.occurred_at = booked.occurred_at;

CREATE VIEW finance.journals AS
SELECT id, replica, started_at, heartbeat, written, state, note FROM tollgate.journals;

CREATE VIEW finance.dead_letters AS
SELECT id, journal_id, error, digest, recorded_at, resolved_at, resolved_by, resolution FROM tollgate.dead_letters;

CREATE VIEW finance.dirty_hours AS
SELECT hour, min(noted_at) AS noted_at FROM tollgate.dirty_hours GROUP BY 1;

CREATE VIEW finance.unpartitioned_hours AS
SELECT date_trunc('hour', occurred_at, 'UTC') AS hour, count(*) AS attempts
FROM ONLY tollgate.usage_events_default GROUP BY 1;
"""

GRANTS = """
GRANT SELECT, INSERT ON tollgate.adjustments, tollgate.dead_letters TO tollgate_gateway;
GRANT SELECT, INSERT, UPDATE ON tollgate.journals TO tollgate_gateway;
GRANT SELECT, INSERT ON tollgate.dirty_hours TO tollgate_gateway;
GRANT SELECT ON tollgate.spend_rollup, tollgate.usage_events_default TO tollgate_gateway;
GRANT EXECUTE ON FUNCTION tollgate.spend_rollup_of(timestamptz[]) TO tollgate_gateway;
REVOKE ALL ON FUNCTION tollgate.make_immutable(regclass), tollgate.posting_months(date[]),
    tollgate.refresh_hours(integer), tollgate.refresh_days(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tollgate.posting_months(date[]), tollgate.refresh_hours(integer),
    tollgate.refresh_days(integer) TO tollgate_gateway;
"""

STEPS = (
    EVENTS,
    JOURNALS,
    ADJUSTMENTS,
    IMMUTABLE,
    PARTITIONS,
    PERIODS,
    DIRTY_LOGS,
    _rollup("spend_rollup", HOURLY, SUMS | HISTOGRAMS, events=HOURS_ASKED),
    _rollup("spend_rollup_by_key", _daily("key_id"), SUMS, events=DAYS_ASKED),
    _rollup("spend_rollup_by_end_user", _daily("end_user"), SUMS, events=DAYS_ASKED),
    REFRESH,
    EVENT_VIEW.format(name="usage_events", condition="NOT is_demo"),
    EVENT_VIEW.format(name="demo_usage_events", condition="is_demo"),
    DETAIL_VIEW.format(name="spend_hourly_detail", condition="NOT is_demo"),
    DETAIL_VIEW.format(name="demo_spend_hourly_detail", condition="is_demo"),
    HOURLY_VIEW,
    _daily_view("key_id"),
    _daily_view("end_user"),
    OTHER_VIEWS,
    GRANTS,
)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
