"""Sums that answer every page: cache savings in all of them, keys in those by hour, destinations
in those by owner. An hour's events are found by a B-tree.

Every hour is summed again after this revision. Until then reports read its events, as before. To
build the index takes 14 s for five million events. Meanwhile gateways keep new events in their
journals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from alembic import op

revision = "20261126_1250"
down_revision = "20261126_1230"
branch_labels = None
depends_on = None

# A BRIN index knows nothing of the pages since the last vacuum, so each search for an hour read
# all of them: twelve times its events, in a month of ten million that was being written.
INDEX = """
DROP INDEX tollgate.usage_events_occurred_at;
CREATE INDEX usage_events_occurred_at ON tollgate.usage_events (occurred_at);
"""

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


# The arithmetic of `gateway.domain.pricing.pricing.cache_saving_nusd`. Reading the lines is its
# largest cost, and most events of some teams cache nothing. OFFSET: else Postgres would compute the
# amount again wherever its rounding names it.
TIER = "lower(nullif(found.service_tier, ''))"
CACHED_AS_INPUT = (
    "'cache_write', 'cache_write_12h', 'cache_write_1h', 'cache_write_30m', 'cached_input'"
)


def _listed(kind: str) -> str:
    """Return the rate of a kind in an event's stored price: a prompt that was cached as a whole has
    no line of its own.
    """
    return f"""(SELECT rate.usd_per_mtok FROM tollgate.prices AS price CROSS JOIN LATERAL
            jsonb_to_recordset(price.rates) AS rate (kind text, usd_per_mtok numeric, service_tier text, from_input_tokens bigint)
            WHERE price.price_id = found.price_id AND rate.kind = '{kind}'
                AND rate.service_tier IS NOT DISTINCT FROM
                    CASE WHEN {TIER} NOT IN ('auto', 'default', 'on_demand', 'standard') THEN {TIER} END
                AND rate.from_input_tokens <= found.input_tokens
            ORDER BY rate.from_input_tokens DESC LIMIT 1)"""  # noqa: S608 - constants


def _at_plain_rate(kind: str) -> str:
    """Return the price of the cached tokens of a kind at its uncached rate, in exact nano-dollars."""
    return (
        f"CASE WHEN cached.{kind}_tokens > 0 "
        f"THEN cached.{kind}_tokens * coalesce(cached.{kind}_rate, {_listed(kind)}) * 1000 ELSE 0 END"
    )


SAVING = f"""CASE
    WHEN found.cost_nusd IS NULL OR found.cached_input_tokens IS NULL THEN NULL
    WHEN found.cached_input_tokens > 0 OR found.cache_write_tokens > 0 THEN (
        SELECT CASE WHEN exact.cost_nusd IS NULL THEN 0
            WHEN exact.nusd - floor(exact.nusd) = 0.5 AND floor(exact.nusd) % 2 = 0
                THEN floor(exact.nusd) - exact.cost_nusd
            ELSE round(exact.nusd) - exact.cost_nusd END
        FROM (
            SELECT cached.cost_nusd, {_at_plain_rate("input")} + {_at_plain_rate("audio_input")} AS nusd
            FROM (
                SELECT sum(line.cost_nusd) FILTER (WHERE line.kind IN ({CACHED_AS_INPUT}, 'cached_audio_input')) AS cost_nusd,
                    sum(line.tokens) FILTER (WHERE line.kind IN ({CACHED_AS_INPUT})) AS input_tokens,
                    max(line.usd_per_mtok) FILTER (WHERE line.kind = 'input') AS input_rate,
                    sum(line.tokens) FILTER (WHERE line.kind = 'cached_audio_input') AS audio_input_tokens,
                    max(line.usd_per_mtok) FILTER (WHERE line.kind = 'audio_input') AS audio_input_rate
                FROM jsonb_to_recordset(found.lines) AS line (kind text, usd_per_mtok numeric, tokens numeric, cost_nusd numeric)
            ) AS cached OFFSET 0
        ) AS exact)
    ELSE 0 END AS saving_nusd"""  # noqa: S608 - constants
SAVINGS = {
    "cache_saving_nusd": Sum("numeric", "saving_nusd"),
    "unknown_saving_attempts": Sum("bigint", "1", "saving_nusd IS NULL"),
    # The prompts whose cached part is known: a share of all input would count unknown as 0.
    "split_input_tokens": Sum("numeric", "input_tokens", "cached_input_tokens IS NOT NULL"),
}
BUCKET_NAMES = [f"{name}_buckets" for name in TIMES]


def _columns(sums: Mapping[str, Sum]) -> list[str]:
    """Return the columns to add for some sums, with their types."""
    return [f"{name} {one.kind}" for name, one in sums.items()]


def _alter(table: str, columns: list[str]) -> str:
    """Return the statement that adds columns to a roll-up."""
    return (
        f"ALTER TABLE tollgate.{table} {', '.join(f'ADD COLUMN {column}' for column in columns)};"
    )


def _in_hours(hours: str) -> str:
    """Return the events of some hours, as the first roll-ups read them; `hours` has `bucket`."""
    return f"""{hours} CROSS JOIN LATERAL (
        SELECT found.*, wanted.bucket AS hour, {BUCKET_OF_EACH}, {SAVING} FROM tollgate.usage_events AS found
        WHERE found.occurred_at >= wanted.bucket AND found.occurred_at < wanted.bucket + interval '1 hour' OFFSET 0
    ) AS event"""  # noqa: S608 - constants


def _in_days(days: str) -> str:
    """Return the events of some days (UTC); `days` has `bucket`."""
    return f"""{days} CROSS JOIN LATERAL (
        SELECT found.*, wanted.bucket AS day, {SAVING} FROM tollgate.usage_events AS found
        WHERE found.occurred_at >= wanted.bucket::timestamp AT TIME ZONE 'UTC'
            AND found.occurred_at < (wanted.bucket + 1)::timestamp AT TIME ZONE 'UTC' OFFSET 0
    ) AS event"""  # noqa: S608 - constants


def _grouped(
    columns: list[str], figures: Mapping[str, str], *, names: list[str], source: str
) -> str:
    """Return the sums of a source, one row for each combination of `columns`; `names` is the order
    of all.
    """
    named = [name if name in columns else f"{figures[name]} AS {name}" for name in names]
    return f"SELECT {', '.join(named)} FROM {source} GROUP BY {', '.join(columns)}"  # noqa: S608 - constants


def _of_events(sums: Mapping[str, Sum]) -> dict[str, str]:
    """Return the sums over events by name."""
    return dict(zip(sums, _sums(sums), strict=True))


def _of_rows(sums: Mapping[str, Sum], *, times: str = "") -> dict[str, str]:
    """Return the sums over rows of sums by name; with `times` each row counts that often."""
    by = f" * {times}" if times else ""
    return {
        name: f"{one.how}({name}{by})" + ("::bigint" if one.kind == "bigint" else "")
        for name, one in sums.items()
    }


# The order of the tables' columns: new ones are last. An hour's rows know their key, so those of a
# day and a key are made of them without reading an event again.
IN_ORDER = [
    *FIRST_SUMS,
    *BUCKET_NAMES[:3],
    *MORE_SUMS,
    *BUCKET_NAMES[3:],
]
HOUR_NAMES = [*HOURLY, *IN_ORDER, "key_id", *SAVINGS]
HOURS = _alter("spend_rollup", ["key_id text", *_columns(SAVINGS)])
HOURS_SUMMED = _grouped(
    [*HOURLY, "key_id"],
    _of_events(FIRST_SUMS | MORE_SUMS | SAVINGS) | {f"{of}_buckets": _counts(of) for of in TIMES},
    names=HOUR_NAMES,
    source="{}",
)
HOURS += f"""
CREATE OR REPLACE FUNCTION tollgate.spend_rollup_of(buckets timestamptz[]) RETURNS SETOF tollgate.spend_rollup
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$ {HOURS_SUMMED.format(_in_hours("unnest(buckets) AS wanted (bucket)"))} $$;
"""

ADDED = _of_rows(FIRST_SUMS | MORE_SUMS | SAVINGS) | {
    f"{of}_buckets": _added_counts(of) for of in TIMES
}
HOURS_OF_DAY = (
    "(SELECT (hour AT TIME ZONE 'UTC')::date AS day, * FROM tollgate.spend_rollup "
    "WHERE hour >= first AND hour < past) AS done"
)
DAY_NAMES = ["day", *HOURLY[1:], *IN_ORDER, *SAVINGS]
DAYS = _alter("spend_rollup_by_day", _columns(SAVINGS))
DAYS_SUMMED = _grouped(["day", *HOURLY[1:]], ADDED, names=DAY_NAMES, source=HOURS_OF_DAY)

PLACES = ["deployment", "provider", "region"]
ENDINGS = ["data_class", "outcome", "usage_source"]
KEYED = [
    *("day", "team", "project", "cost_centre", "key_id", "route", "model", "is_self_hosted"),
    *("posted_period", "is_demo"),
]
MORE_OF_KEYS = [*MORE_SUMS, *BUCKET_NAMES, *SAVINGS]
KEY_NAMES = [*KEYED, *FIRST_SUMS, *PLACES, *ENDINGS, *MORE_OF_KEYS]
KEYS = _alter(
    "spend_rollup_by_key",
    [
        *(f"{name} text" for name in (*PLACES, *ENDINGS)),
        *_columns(MORE_SUMS),
        *(f"{name} integer[]" for name in BUCKET_NAMES),
        *_columns(SAVINGS),
    ],
)
KEYS_SUMMED = _grouped([*KEYED, *PLACES, *ENDINGS], ADDED, names=KEY_NAMES, source=HOURS_OF_DAY)

REQUESTS = {"requests": MORE_SUMS["requests"]}
OWNED = FIRST_SUMS | REQUESTS | SAVINGS
USED = ["end_user" if name == "key_id" else name for name in KEYED]
USER_NAMES = [*USED, *FIRST_SUMS, *PLACES, *REQUESTS, *SAVINGS]
USERS = _alter(
    "spend_rollup_by_end_user",
    [*(f"{name} text" for name in PLACES), *_columns(REQUESTS | SAVINGS)],
)
# A month has as many rows as users and days.
USERS += """
CREATE INDEX spend_rollup_by_end_user_user ON tollgate.spend_rollup_by_end_user (end_user, day);"""
USERS_SUMMED = _grouped([*USED, *PLACES], _of_events(OWNED), names=USER_NAMES, source="{}")

# An event is in the row of each of its tags, and once in the row of no tag if it has none. Its
# repeated counts are taken off in one more row, so that the rows of a split add up to the events.
# Events with equal tags are added up first: each of their tags is then one row, not one an event.
TAGGED = [
    *("day", "team", "project", "cost_centre", "tag_key", "tag", "is_repeat", "route", "model"),
    *("is_self_hosted", "posted_period", "is_demo"),
]
PAIRS = """ CROSS JOIN LATERAL (
        SELECT member.key AS tag_key, member.key || '=' || member.value AS tag, false AS is_repeat, 1 AS times
        FROM jsonb_each_text(alike.tags) AS member
        UNION ALL SELECT NULL, NULL, count(*) > 0, 1 - count(*)::integer FROM jsonb_each_text(alike.tags) HAVING count(*) <> 1
    ) AS pair"""
# The events without a tag are a difference of sums, which is 0 also if no figure in it is known.
KNOWN = {
    f"{name}_known": Sum("bigint", "1", f"{column} IS NOT NULL")
    for name, column in {
        "cached_input": "cached_input_tokens",
        "cache_write": "cache_write_tokens",
        "output": "output_tokens",
        "reasoning": "reasoning_tokens",
        "total": "input_tokens::numeric + output_tokens",
    }.items()
}
TAG_NAMES = [*TAGGED, *FIRST_SUMS, *REQUESTS, *PLACES, *SAVINGS, *KNOWN]
TAGS = _alter(
    "spend_rollup_by_tag", [*(f"{name} text" for name in PLACES), *_columns(SAVINGS | KNOWN)]
)
ALIKE = [name for name in TAGGED if name not in ("tag_key", "tag", "is_repeat")] + [*PLACES, "tags"]
ALIKE_SUMMED = _grouped(
    ALIKE, _of_events(OWNED | KNOWN), names=[*ALIKE, *OWNED, *KNOWN], source="{}"
)
TAGS_SUMMED = _grouped(
    [*TAGGED, *PLACES],
    _of_rows(OWNED | KNOWN, times="times"),
    names=TAG_NAMES,
    source=f"({ALIKE_SUMMED}) AS alike{PAIRS}",
)

# Of a day's events the sums by end user and by tag need these; read once for both.
NEEDED = [
    *("day", "team", "project", "cost_centre", "end_user", "tags", "route", "deployment"),
    *("provider", "model", "region", "is_self_hosted", "posted_period", "is_demo", "request_id"),
    *("attempt", "outcome", "usage_source", "input_tokens", "cached_input_tokens"),
    *("cache_write_tokens", "output_tokens", "reasoning_tokens", "cost_nusd", "held_nusd"),
    "saving_nusd",
]
REFRESH = f"""
-- As before. The sums by key come from the hours; by end user and tag they come from one reading of the events.
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
    DELETE FROM tollgate.spend_rollup_by_end_user WHERE day = ANY(days);
    DELETE FROM tollgate.spend_rollup_by_tag WHERE day = ANY(days);
    WITH event AS MATERIALIZED (
        SELECT {", ".join(NEEDED)} FROM {_in_days("unnest(days) AS wanted (bucket)")}
    ), by_end_user AS (
        INSERT INTO tollgate.spend_rollup_by_end_user ({", ".join(USER_NAMES)}) {USERS_SUMMED.format("event")}
    )
    INSERT INTO tollgate.spend_rollup_by_tag ({", ".join(TAG_NAMES)}) {TAGS_SUMMED.format("event")};
    DELETE FROM tollgate.spend_rollup_by_key WHERE day = ANY(days);
    DELETE FROM tollgate.spend_rollup_by_day WHERE day = ANY(days);
    FOR first IN SELECT wanted::timestamp AT TIME ZONE 'UTC' FROM unnest(days) AS wanted LOOP
        past := first + interval '24 hours';
        INSERT INTO tollgate.spend_rollup_by_key ({", ".join(KEY_NAMES)}) {KEYS_SUMMED};
        INSERT INTO tollgate.spend_rollup_by_day ({", ".join(DAY_NAMES)}) {DAYS_SUMMED};
    END LOOP;
    RETURN cardinality(days);
END
$$;
-- The events of some hours are sorted: on disk that takes longer than to add them up.
ALTER FUNCTION tollgate.refresh_days(integer) SET work_mem = '64MB';
ALTER FUNCTION tollgate.refresh_hours(integer) SET work_mem = '64MB';
INSERT INTO tollgate.dirty_hours (hour) SELECT DISTINCT hour FROM tollgate.spend_rollup;
DROP FUNCTION tollgate.spend_rollup_by_key_of(date[]), tollgate.spend_rollup_by_end_user_of(date[]),
    tollgate.spend_rollup_by_tag_of(date[]);
"""  # noqa: S608 - constants


def _shown(names: list[str]) -> str:
    """Return columns as views have them: money in USD."""
    return ", ".join(
        f"{name} * 0.000000001 AS {name.removesuffix('_nusd')}_usd"
        if name.endswith("_nusd")
        else name
        for name in names
    )


# The order of the views' columns: new ones are last.
MONEY = ["cost_nusd", "held_nusd"]
COUNTED = [name for name in FIRST_SUMS if name not in MONEY]
WASTED = ["retry_nusd", "failed_nusd"]
TIMED = [*(name for name in MORE_SUMS if name not in WASTED), *BUCKET_NAMES, *WASTED]
IS_DIRTY_HOUR = "EXISTS (SELECT FROM tollgate.dirty_hours AS dirty WHERE dirty.hour = done.hour)"
DIRTY_DAYS = """SELECT day FROM tollgate.dirty_days
        UNION SELECT (hour AT TIME ZONE 'UTC')::date FROM tollgate.dirty_hours"""
# An array is made once, and several processes can then read the sums together.
IS_CLEAN_DAY = f"done.day <> ALL (ARRAY({DIRTY_DAYS}))"
LIVE_HOURS = HOURS_SUMMED.format(
    _in_hours("(SELECT DISTINCT hour AS bucket FROM tollgate.dirty_hours) AS wanted")
)
LIVE_DAYS = _in_days(f"(SELECT day AS bucket FROM ({DIRTY_DAYS}) AS dirty) AS wanted")  # noqa: S608 - constants


def _view(name: str, condition: str, *, shown: str, source: str) -> str:
    """Return the statement that gives a view more columns."""
    return f"""
CREATE OR REPLACE VIEW finance.{name} AS
SELECT {shown} FROM ({source}) AS summed WHERE {condition};
"""  # noqa: S608 - constants


def _hourly_view(name: str, condition: str) -> str:
    """Return the view of hours: those without a sum come from their events."""
    names = ", ".join(HOUR_NAMES)
    return _view(
        name,
        condition,
        shown=_shown([*HOURLY[:-1], *COUNTED, *MONEY, *TIMED, "key_id", *SAVINGS]),
        source=f"SELECT {names} FROM tollgate.spend_rollup AS done WHERE NOT {IS_DIRTY_HOUR} "  # noqa: S608 - constants
        f"UNION ALL {LIVE_HOURS}",
    )


def _daily_view(name: str, condition: str, *, table: str, names: list[str], shown: str) -> str:
    """Return a view of days: those without a sum come from the sums of their hours, and an hour
    without one from its events.
    """
    rest = ", ".join(names[1:])
    return _view(
        name,
        condition,
        shown=shown,
        source=f"""
    SELECT day, {rest} FROM tollgate.{table} AS done WHERE {IS_CLEAN_DAY}
    UNION ALL
    SELECT wanted.day, {rest} FROM ({DIRTY_DAYS}) AS wanted CROSS JOIN LATERAL (
        SELECT * FROM tollgate.spend_rollup AS found
        WHERE found.hour >= wanted.day::timestamp AT TIME ZONE 'UTC'
            AND found.hour < (wanted.day + 1)::timestamp AT TIME ZONE 'UTC' OFFSET 0
    ) AS done WHERE NOT {IS_DIRTY_HOUR}
    UNION ALL
    SELECT (hour AT TIME ZONE 'UTC')::date, {rest} FROM ({LIVE_HOURS}) AS live
""",  # noqa: S608 - constants
    )


def _owner_view(name: str, *, table: str, names: list[str], shown: str, summed: str) -> str:
    """Return the view of the sums of a day by end user or by tag: days without a sum come from
    their events.
    """
    return _view(
        name,
        "NOT is_demo",
        shown=shown,
        source=f"SELECT {', '.join(names)} FROM tollgate.{table} AS done WHERE {IS_CLEAN_DAY} "  # noqa: S608 - constants
        f"UNION ALL {summed.format(LIVE_DAYS)}",
    )


SHOWN_DAYS = _shown(["day", *HOURLY[1:-1], *COUNTED, *MONEY, *TIMED, *SAVINGS])
VIEWS = "".join(
    (
        _hourly_view("spend_hourly_detail", "NOT is_demo"),
        _hourly_view("demo_spend_hourly_detail", "is_demo"),
        *(
            _daily_view(
                name, condition, table="spend_rollup_by_day", names=DAY_NAMES, shown=SHOWN_DAYS
            )
            for name, condition in (
                ("spend_daily_detail", "NOT is_demo"),
                ("demo_spend_daily_detail", "is_demo"),
            )
        ),
        _daily_view(
            "spend_daily_by_key",
            "NOT is_demo",
            table="spend_rollup_by_key",
            names=KEY_NAMES,
            shown=_shown([*KEYED[:-1], *COUNTED, *MONEY, *PLACES, *ENDINGS, *TIMED, *SAVINGS]),
        ),
        _owner_view(
            "spend_daily_by_end_user",
            table="spend_rollup_by_end_user",
            names=USER_NAMES,
            shown=_shown([*USED[:-1], *COUNTED, *MONEY, *PLACES, *REQUESTS, *SAVINGS]),
            summed=USERS_SUMMED,
        ),
        _owner_view(
            "spend_daily_by_tag",
            table="spend_rollup_by_tag",
            names=TAG_NAMES,
            shown=_shown([*TAGGED[:-1], *COUNTED, *REQUESTS, *MONEY, *PLACES, *SAVINGS, *KNOWN]),
            summed=TAGS_SUMMED,
        ),
    )
)

# Every report has a note on idle GPU cost, which reads a month's charges by hour: from the index
# alone, and added up once. As before, adjustments count in the hour of their request.
APPLIED = """
CREATE INDEX spend_rollup_self_hosted ON tollgate.spend_rollup (hour, deployment)
    INCLUDE (team, cost_centre, attempts, cost_nusd, is_demo, is_self_hosted) WHERE is_self_hosted;
CREATE OR REPLACE VIEW finance.gpu_applied AS
SELECT hour, deployment, team, cost_centre, sum(attempts)::bigint AS attempts, sum(usd) AS applied_usd
FROM (
    SELECT hour, deployment, team, cost_centre, attempts, coalesce(cost_usd, 0) AS usd
    FROM finance.spend_hourly_detail WHERE is_self_hosted
    UNION ALL
    SELECT date_trunc('hour', occurred_at, 'UTC'), deployment, team, cost_centre, 0, amount_usd
    FROM finance.adjustments WHERE is_self_hosted
) AS amounts
GROUP BY hour, deployment, team, cost_centre;
"""

STEPS: tuple[str, ...] = (INDEX, HOURS, DAYS, KEYS, USERS, TAGS, REFRESH, VIEWS, APPLIED)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
