"""Sums of events by day, by day and tag, and counts of waiting times by size: a page on a month
then reads some thousand rows, for any number of events.

Every hour is summed again after this revision. Until then reports read its events, as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from alembic import op

revision = "20261126_1200"
down_revision = "20261126_0930"
branch_labels = None
depends_on = None

# Upper edges in seconds, each 1.3 times the last, from 0.5 ms to 12 minutes: a percentile that is
# read from the counts lies within the same size as the true one.
FIRST_S, FACTOR, BUCKETS = 0.0005, 1.3, 56
EDGES = [FIRST_S * FACTOR**n for n in range(BUCKETS - 1)]
TIMES = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "duration": "duration_s",
    "gap": "max_gap_s",
    "queue": "queue_s",
    "overhead": "overhead_s",
}

HOURLY = [
    "hour",
    "team",
    "project",
    "cost_centre",
    "route",
    "deployment",
    "provider",
    "model",
    "region",
    "is_self_hosted",
    "data_class",
    "outcome",
    "usage_source",
    "posted_period",
    "is_demo",
]


class Sum(NamedTuple):
    """A column of a roll-up: its type, and the values of the events that it sums.

    `condition` chooses the events. `how` is the aggregate.
    """

    kind: str
    value: str
    condition: str = ""
    how: str = "sum"


UNSETTLED = """(cost_nusd IS NULL AND NOT EXISTS (
            SELECT FROM tollgate.adjustments AS found
            WHERE found.settles AND found.request_id = event.request_id AND found.attempt = event.attempt))"""
# As in the first roll-ups, in their order: reports of the release before read them by name.
FIRST_SUMS = {
    "attempts": Sum("bigint", "1"),
    "known_attempts": Sum("bigint", "1", "cost_nusd IS NOT NULL"),
    "unknown_attempts": Sum("bigint", "1", UNSETTLED),
    "derived_attempts": Sum("bigint", "1", "usage_source IN ('derived', 'estimated')"),
    "failed_attempts": Sum("bigint", "1", "outcome <> 'ok'"),
    "unreported_attempts": Sum("bigint", "1", "input_tokens IS NULL"),
    "input_tokens": Sum("numeric", "input_tokens"),
    "cached_input_tokens": Sum("numeric", "cached_input_tokens"),
    "cache_write_tokens": Sum("numeric", "cache_write_tokens"),
    "output_tokens": Sum("numeric", "output_tokens"),
    "reasoning_tokens": Sum("numeric", "reasoning_tokens"),
    "uncached_input_tokens": Sum(
        "numeric",
        "input_tokens::numeric - coalesce(cached_input_tokens, 0) - coalesce(cache_write_tokens, 0)",
    ),
    "plain_output_tokens": Sum("numeric", "output_tokens::numeric - coalesce(reasoning_tokens, 0)"),
    "total_tokens": Sum("numeric", "input_tokens::numeric + output_tokens"),
    "cost_nusd": Sum("numeric", "cost_nusd"),
    "held_nusd": Sum("numeric", "held_nusd", UNSETTLED),
}
# An event never changes: a bound of another shape must not make every sum fail for ever.
TTFT_BOUND, COST_BOUND = (
    f"CASE WHEN jsonb_typeof(decision -> 'bounds' -> '{name}') = 'number' "
    f"THEN (decision -> 'bounds' ->> '{name}')::{kind} END"
    for name, kind in (("ttft_p95_s", "double precision"), ("max_cost_nusd", "numeric"))
)
# A request is counted by its first attempt: the counts of two hours can then be added.
MORE_SUMS = {
    "requests": Sum("bigint", "1", "attempt = 1"),
    "error_attempts": Sum("bigint", "1", "outcome NOT IN ('ok', 'client_gone', 'gateway_stopped')"),
    "degraded_attempts": Sum("bigint", "1", "degraded IS NOT NULL"),
    "ttft_bound_s": Sum("double precision", f"({TTFT_BOUND})", how="min"),
    "ttft_bound_attempts": Sum("bigint", "1", f"ttft_s IS NOT NULL AND ({TTFT_BOUND}) IS NOT NULL"),
    "ttft_missed": Sum("bigint", "1", f"ttft_s > ({TTFT_BOUND})"),
    "cost_bound_attempts": Sum(
        "bigint", "1", f"cost_nusd IS NOT NULL AND ({COST_BOUND}) IS NOT NULL"
    ),
    "retry_attempts": Sum("bigint", "1", "attempt > 1"),
    "retry_nusd": Sum("numeric", "cost_nusd", "attempt > 1"),
    "failed_nusd": Sum("numeric", "cost_nusd", "outcome <> 'ok'"),
    "ttft_measured": Sum("bigint", "1", "ttft_s IS NOT NULL"),
    "cost_missed": Sum("bigint", "1", f"cost_nusd > ({COST_BOUND})"),
}


def _sums(sums: Mapping[str, Sum], *, times: str = "") -> Iterator[str]:
    """Yield the columns of sums over events; with `times` each event counts that often."""
    for one in sums.values():
        value = f"({one.value}) * {times}" if times else one.value
        chosen = f" FILTER (WHERE {one.condition})" if one.condition else ""
        summed = f"{one.how}({value}){chosen}"
        if one.kind == "bigint":
            summed = f"coalesce({summed}, 0)::bigint"
        yield summed


def _added(sums: Mapping[str, Sum]) -> Iterator[str]:
    """Yield the columns of sums over rows of a roll-up."""
    for name, one in sums.items():
        yield f"{one.how}({name})" + ("::bigint" if one.kind == "bigint" else "")


def _counts(of: str) -> str:
    """Return the counts of a waiting time by size, over events with `<name>_bucket`."""
    each = (f"count(*) FILTER (WHERE {of}_bucket = {n})" for n in range(BUCKETS))
    return f"ARRAY[{', '.join(each)}]::integer[]"


def _added_counts(of: str) -> str:
    """Return the same counts, over rows of a roll-up."""
    each = (f"coalesce(sum({of}_buckets[{n}]), 0)" for n in range(1, BUCKETS + 1))
    return f"ARRAY[{', '.join(each)}]::integer[]"


BUCKET_OF_EACH = ", ".join(
    f"width_bucket({column}, ARRAY[{', '.join(f'{edge:.9f}' for edge in EDGES)}]) AS {name}_bucket"
    for name, column in TIMES.items()
)
# The first three arrays stood behind the first sums.
IN_ORDER = [
    *_sums(FIRST_SUMS),
    *map(_counts, list(TIMES)[:3]),
    *_sums(MORE_SUMS),
    *map(_counts, list(TIMES)[3:]),
]
NAMES_IN_ORDER = [
    *FIRST_SUMS,
    *(f"{name}_buckets" for name in list(TIMES)[:3]),
    *MORE_SUMS,
    *(f"{name}_buckets" for name in list(TIMES)[3:]),
]


def _in_hours(hours: str) -> str:
    """Return the events of some hours, as the first roll-ups read them; `hours` has `bucket`."""
    return f"""{hours} CROSS JOIN LATERAL (
        SELECT found.*, wanted.bucket AS hour, {BUCKET_OF_EACH} FROM tollgate.usage_events AS found
        WHERE found.occurred_at >= wanted.bucket AND found.occurred_at < wanted.bucket + interval '1 hour' OFFSET 0
    ) AS event"""  # noqa: S608 - constants


def _in_days(days: str) -> str:
    """Return the events of some days (UTC); `days` has `bucket`."""
    return f"""{days} CROSS JOIN LATERAL (
        SELECT found.*, wanted.bucket AS day FROM tollgate.usage_events AS found
        WHERE found.occurred_at >= wanted.bucket::timestamp AT TIME ZONE 'UTC'
            AND found.occurred_at < (wanted.bucket + 1)::timestamp AT TIME ZONE 'UTC' OFFSET 0
    ) AS event"""  # noqa: S608 - constants


def _grouped(columns: list[str], figures: list[str], *, source: str) -> str:
    """Return the sums of a source, one row for each combination of the first columns."""
    numbers = ", ".join(str(n + 1) for n in range(len(columns)))
    return f"SELECT {', '.join(columns)}, {', '.join(figures)} FROM {source} GROUP BY {numbers}"  # noqa: S608 - constants


def _named(figures: list[str], names: list[str]) -> list[str]:
    """Return columns with their names."""
    return [f"{figure} AS {name}" for figure, name in zip(figures, names, strict=True)]


HOURS_SUMMED = _grouped(HOURLY, _named(IN_ORDER, NAMES_IN_ORDER), source="{}")
BY_HOUR = f"""
ALTER TABLE tollgate.spend_rollup
    {", ".join(f"ADD COLUMN {name} {one.kind}" for name, one in MORE_SUMS.items())},
    {", ".join(f"ADD COLUMN {name}_buckets integer[]" for name in list(TIMES)[3:])};
CREATE OR REPLACE FUNCTION tollgate.spend_rollup_of(buckets timestamptz[]) RETURNS SETOF tollgate.spend_rollup
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$ {HOURS_SUMMED.format(_in_hours("unnest(buckets) AS wanted (bucket)"))} $$;
"""

# A day is the sum of its hours. An hour that is not summed yet makes its day wait, see the views.
DAY = "(hour AT TIME ZONE 'UTC')::date"
DAYS_SUMMED = _grouped(
    [f"{DAY} AS day", *HOURLY[1:]],
    _named(
        [
            *_added(FIRST_SUMS),
            *map(_added_counts, list(TIMES)[:3]),
            *_added(MORE_SUMS),
            *map(_added_counts, list(TIMES)[3:]),
        ],
        NAMES_IN_ORDER,
    ),
    source="tollgate.spend_rollup WHERE hour >= first AND hour < past",
)
BY_DAY = f"""
CREATE TABLE tollgate.spend_rollup_by_day (
    day date, team text, project text, cost_centre text, route text, deployment text, provider text, model text,
    region text, is_self_hosted boolean, data_class text, outcome text, usage_source text, posted_period date,
    is_demo boolean,
    {", ".join(f"{name} {one.kind}" for name, one in FIRST_SUMS.items())},
    {", ".join(f"{name}_buckets integer[]" for name in list(TIMES)[:3])},
    {", ".join(f"{name} {one.kind}" for name, one in MORE_SUMS.items())},
    {", ".join(f"{name}_buckets integer[]" for name in list(TIMES)[3:])}
);
"""

# An event is in the row of each of its tags, and once in the row of no tag if it has none. Its
# repeated counts are taken off in one more row, so that the rows of a split add up to the events.
BY_TAG_SUMS = FIRST_SUMS | {"requests": MORE_SUMS["requests"]}
TAGGED = [
    "day",
    "team",
    "project",
    "cost_centre",
    "tag_key",
    "tag",
    "is_repeat",
    "route",
    "model",
    "is_self_hosted",
    "posted_period",
    "is_demo",
]
PAIRS = """ CROSS JOIN LATERAL (
        SELECT member.key AS tag_key, member.key || '=' || member.value AS tag, false AS is_repeat, 1 AS times
        FROM jsonb_each_text(event.tags) AS member
        UNION ALL SELECT NULL, NULL, count(*) > 0, 1 - count(*)::integer FROM jsonb_each_text(event.tags) HAVING count(*) <> 1
    ) AS pair"""
TAGS_SUMMED = _grouped(
    TAGGED, _named([*_sums(BY_TAG_SUMS, times="times")], [*BY_TAG_SUMS]), source="{}"
)
BY_TAG = f"""
CREATE TABLE tollgate.spend_rollup_by_tag (
    day date, team text, project text, cost_centre text, tag_key text, tag text, is_repeat boolean, route text, model text,
    is_self_hosted boolean, posted_period date, is_demo boolean,
    {", ".join(f"{name} {one.kind}" for name, one in BY_TAG_SUMS.items())}
);
CREATE FUNCTION tollgate.spend_rollup_by_tag_of(buckets date[]) RETURNS SETOF tollgate.spend_rollup_by_tag
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$ {TAGS_SUMMED.format(_in_days("unnest(buckets) AS wanted (bucket)") + PAIRS)} $$;
REVOKE ALL ON FUNCTION tollgate.spend_rollup_by_tag_of(date[]) FROM PUBLIC;
"""

# The day of a row is for the sums of some days, the month that it is posted to for reports.
INDEXES = "".join(
    f"""
CREATE INDEX spend_rollup_by_{owner}_month ON tollgate.spend_rollup_by_{owner} (posted_period);"""
    for owner in ("day", "tag", "key", "end_user")
) + "".join(
    f"""
CREATE INDEX spend_rollup_by_{owner}_day ON tollgate.spend_rollup_by_{owner} (day);"""
    for owner in ("day", "tag")
)

REFRESH = f"""
-- As before, with the sums of days and of tags.
CREATE OR REPLACE FUNCTION tollgate.refresh_days(most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    days date[];
    first timestamptz;
    past timestamptz;
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
    SELECT coalesce(array_agg(DISTINCT day), '{{}}') INTO days FROM taken;
    DELETE FROM tollgate.spend_rollup_by_key WHERE day = ANY(days);
    INSERT INTO tollgate.spend_rollup_by_key SELECT * FROM tollgate.spend_rollup_by_key_of(days);
    DELETE FROM tollgate.spend_rollup_by_end_user WHERE day = ANY(days);
    INSERT INTO tollgate.spend_rollup_by_end_user SELECT * FROM tollgate.spend_rollup_by_end_user_of(days);
    DELETE FROM tollgate.spend_rollup_by_tag WHERE day = ANY(days);
    INSERT INTO tollgate.spend_rollup_by_tag SELECT * FROM tollgate.spend_rollup_by_tag_of(days);
    DELETE FROM tollgate.spend_rollup_by_day WHERE day = ANY(days);
    FOR first IN SELECT wanted::timestamp AT TIME ZONE 'UTC' FROM unnest(days) AS wanted LOOP
        past := first + interval '24 hours';
        INSERT INTO tollgate.spend_rollup_by_day {DAYS_SUMMED};
    END LOOP;
    RETURN cardinality(days);
END
$$;
INSERT INTO tollgate.dirty_hours (hour)
    SELECT DISTINCT date_trunc('hour', occurred_at, 'UTC') FROM tollgate.usage_events;
"""  # noqa: S608 - constants

MONEY = "cost_nusd * 0.000000001 AS cost_usd, held_nusd * 0.000000001 AS held_usd"


def _shown(names: list[str]) -> str:
    """Return the columns of a view of sums: money in USD."""
    return ", ".join(name for name in names if not name.endswith("_nusd"))


# Hours that are summed come from the roll-up, all others from their events, in one statement and
# so in one snapshot. New columns can only come last.
NEW_SHOWN = [*MORE_SUMS, *(f"{name}_buckets" for name in TIMES)]
MORE_MONEY = "retry_nusd * 0.000000001 AS retry_usd, failed_nusd * 0.000000001 AS failed_usd"
SHOWN = f"{_shown([*FIRST_SUMS])}, {MONEY}, {_shown(NEW_SHOWN)}, {MORE_MONEY}"
SUMMED = ", ".join(NAMES_IN_ORDER)
IS_DIRTY_HOUR = "EXISTS (SELECT FROM tollgate.dirty_hours AS dirty WHERE dirty.hour = done.hour)"
LIVE_HOURS = HOURS_SUMMED.format(
    _in_hours("(SELECT DISTINCT hour AS bucket FROM tollgate.dirty_hours) AS wanted")
)
HOURLY_VIEW = f"""
CREATE OR REPLACE VIEW finance.{{name}} AS
SELECT {", ".join(HOURLY[:-1])}, {SHOWN}
FROM (
    SELECT {", ".join(HOURLY)}, {SUMMED} FROM tollgate.spend_rollup AS done WHERE NOT {IS_DIRTY_HOUR}
    UNION ALL
    {LIVE_HOURS}
) AS summed
WHERE {{condition}};
"""  # noqa: S608 - constants

# A day without its sum comes from the sums of its hours, and an hour without one from its events.
DIRTY_DAYS = """WITH dirty AS (
    SELECT day FROM tollgate.dirty_days
    UNION SELECT (hour AT TIME ZONE 'UTC')::date FROM tollgate.dirty_hours
)"""
DAILY_VIEW = f"""
CREATE VIEW finance.{{name}} AS
{DIRTY_DAYS}
SELECT day, {", ".join(HOURLY[1:-1])}, {SHOWN}
FROM (
    SELECT day, {", ".join(HOURLY[1:])}, {SUMMED} FROM tollgate.spend_rollup_by_day AS done
    WHERE NOT EXISTS (SELECT FROM dirty WHERE dirty.day = done.day)
    UNION ALL
    SELECT wanted.day, {", ".join(HOURLY[1:])}, {SUMMED} FROM dirty AS wanted CROSS JOIN LATERAL (
        SELECT * FROM tollgate.spend_rollup AS found
        WHERE found.hour >= wanted.day::timestamp AT TIME ZONE 'UTC'
            AND found.hour < (wanted.day + 1)::timestamp AT TIME ZONE 'UTC' OFFSET 0
    ) AS done WHERE NOT {IS_DIRTY_HOUR}
    UNION ALL
    SELECT {DAY}, {", ".join(HOURLY[1:])}, {SUMMED} FROM ({LIVE_HOURS}) AS live
) AS summed
WHERE {{condition}};
"""  # noqa: S608 - constants
TAG_VIEW = f"""
CREATE VIEW finance.spend_daily_by_tag AS
{DIRTY_DAYS}
SELECT {", ".join(TAGGED[:-1])}, {_shown([*BY_TAG_SUMS])}, {MONEY}
FROM (
    SELECT {", ".join([*TAGGED, *BY_TAG_SUMS])} FROM tollgate.spend_rollup_by_tag AS done
    WHERE NOT EXISTS (SELECT FROM dirty WHERE dirty.day = done.day)
    UNION ALL
    {TAGS_SUMMED.format(_in_days("(SELECT day AS bucket FROM dirty) AS wanted") + PAIRS)}
) AS summed
WHERE NOT is_demo;
"""  # noqa: S608 - constants

# The rank is that of percentile_cont. Within a bucket the values are taken as evenly spread by their
# ratio, in the first one by their difference. The last one has no upper edge: its lower one is
# returned.
QUANTILE = f"""
CREATE FUNCTION finance.time_quantile(counts bigint[], share double precision) RETURNS double precision
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    total bigint := (SELECT sum(one) FROM unnest(counts) AS one);
    wanted double precision := share * (total - 1) + 0.5;
    below bigint := 0;
    part double precision;
BEGIN
    IF coalesce(total, 0) = 0 THEN
        RETURN NULL;
    END IF;
    FOR bucket IN 1..cardinality(counts) LOOP
        IF counts[bucket] > 0 AND below + counts[bucket] >= wanted THEN
            part := (wanted - below) / counts[bucket];
            IF bucket = 1 THEN
                RETURN {FIRST_S} * part;
            ELSIF bucket = cardinality(counts) THEN
                RETURN {FIRST_S} * {FACTOR} ^ (bucket - 2);
            END IF;
            RETURN {FIRST_S} * {FACTOR} ^ (bucket - 2 + part);
        END IF;
        below := below + counts[bucket];
    END LOOP;
    RETURN NULL;
END
$$;
"""  # noqa: S608 - constants

GRANTS = """
REVOKE ALL ON FUNCTION finance.time_quantile(bigint[], double precision) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION finance.time_quantile(bigint[], double precision) TO tollgate_reader;
"""

STEPS: tuple[str, ...] = (
    BY_HOUR,
    BY_DAY,
    BY_TAG,
    INDEXES,
    REFRESH,
    HOURLY_VIEW.format(name="spend_hourly_detail", condition="NOT is_demo"),
    HOURLY_VIEW.format(name="demo_spend_hourly_detail", condition="is_demo"),
    DAILY_VIEW.format(name="spend_daily_detail", condition="NOT is_demo"),
    DAILY_VIEW.format(name="demo_spend_daily_detail", condition="is_demo"),
    TAG_VIEW,
    QUANTILE,
    GRANTS,
)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
