"""Declares the tables of sums that reports read instead of events, and of refusal counts, only for
a comparison with the migrations.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    Double,
    Index,
    Integer,
    Numeric,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, metadata

busy_rollup = Table(
    "busy_rollup",
    metadata,
    Column("hour", TIMESTAMPTZ),
    Column("deployment", Text),
    Column("busy_ms", BigInteger),
    Index("busy_rollup_hour", "hour"),
)

spend_rollup = Table(
    "spend_rollup",
    metadata,
    Column("hour", TIMESTAMPTZ),
    Column("team", Text),
    Column("project", Text),
    Column("cost_centre", Text),
    Column("route", Text),
    Column("deployment", Text),
    Column("provider", Text),
    Column("model", Text),
    Column("region", Text),
    Column("is_self_hosted", Boolean),
    Column("data_class", Text),
    Column("outcome", Text),
    Column("usage_source", Text),
    Column("posted_period", Date),
    Column("is_demo", Boolean),
    Column("attempts", BigInteger),
    Column("known_attempts", BigInteger),
    Column("unknown_attempts", BigInteger),
    Column("derived_attempts", BigInteger),
    Column("failed_attempts", BigInteger),
    Column("unreported_attempts", BigInteger),
    Column("input_tokens", Numeric),
    Column("cached_input_tokens", Numeric),
    Column("cache_write_tokens", Numeric),
    Column("output_tokens", Numeric),
    Column("reasoning_tokens", Numeric),
    Column("uncached_input_tokens", Numeric),
    Column("plain_output_tokens", Numeric),
    Column("total_tokens", Numeric),
    Column("cost_nusd", Numeric),
    Column("held_nusd", Numeric),
    Column("ttft_buckets", ARRAY(Integer)),
    Column("tpot_buckets", ARRAY(Integer)),
    Column("duration_buckets", ARRAY(Integer)),
    Column("requests", BigInteger),
    Column("error_attempts", BigInteger),
    Column("degraded_attempts", BigInteger),
    Column("ttft_bound_s", Double),
    Column("ttft_bound_attempts", BigInteger),
    Column("ttft_missed", BigInteger),
    Column("cost_bound_attempts", BigInteger),
    Column("retry_attempts", BigInteger),
    Column("retry_nusd", Numeric),
    Column("failed_nusd", Numeric),
    Column("ttft_measured", BigInteger),
    Column("cost_missed", BigInteger),
    Column("gap_buckets", ARRAY(Integer)),
    Column("queue_buckets", ARRAY(Integer)),
    Column("overhead_buckets", ARRAY(Integer)),
    Column("key_id", Text),
    Column("cache_saving_nusd", Numeric),
    Column("unknown_saving_attempts", BigInteger),
    Column("split_input_tokens", Numeric),
    Index("spend_rollup_hour", "hour"),
    Index(
        "spend_rollup_self_hosted",
        "hour",
        "deployment",
        postgresql_include=(
            *("team", "cost_centre", "attempts", "cost_nusd", "is_demo", "is_self_hosted"),
        ),
        postgresql_where=text("is_self_hosted"),
    ),
)
_PLACES = ("deployment", "provider", "region")
_OF_TIMES = (
    *("requests", "error_attempts", "degraded_attempts", "ttft_bound_s", "ttft_bound_attempts"),
    *("ttft_missed", "cost_bound_attempts", "retry_attempts", "retry_nusd", "failed_nusd"),
    *("ttft_measured", "cost_missed", "ttft_buckets", "tpot_buckets", "duration_buckets"),
    *("gap_buckets", "queue_buckets", "overhead_buckets"),
)
_SAVINGS = ("cache_saving_nusd", "unknown_saving_attempts", "split_input_tokens")
_KNOWN = tuple(
    f"{name}_known" for name in ("cached_input", "cache_write", "output", "reasoning", "total")
)
# In the order of the sums by month.
_ENDINGS = ("data_class", "outcome", "usage_source")
_BUCKETS = tuple(one.name for one in spend_rollup.columns if one.name.endswith("_buckets"))
_FIRST_SUMS = tuple(spend_rollup.c.keys()[15:31])
_MORE_SUMS = tuple(spend_rollup.c.keys()[34:46])
_OF_DAY_SPLITS = tuple(spend_rollup.c.keys()[1:14])
_OWNER_SPLITS = (
    *("team", "project", "cost_centre", "route", "model", "is_self_hosted", "posted_period"),
)


def _as_by_hour(*names: str) -> list[Column[Any]]:
    """Return new columns like those of `spend_rollup`."""
    return [Column(name, spend_rollup.c[name].type) for name in names]


# The same by day.
spend_rollup_by_day = Table(
    "spend_rollup_by_day",
    metadata,
    Column("day", Date),
    *_as_by_hour(*(name for name in spend_rollup.c.keys()[1:] if name != "key_id")),
    Index("spend_rollup_by_day_day", "day"),
    Index("spend_rollup_by_day_month", "posted_period"),
)

spend_rollup_by_key = Table(
    "spend_rollup_by_key",
    metadata,
    Column("day", Date),
    Column("team", Text),
    Column("project", Text),
    Column("cost_centre", Text),
    Column("key_id", Text),
    Column("route", Text),
    Column("model", Text),
    Column("is_self_hosted", Boolean),
    Column("posted_period", Date),
    Column("is_demo", Boolean),
    Column("attempts", BigInteger),
    Column("known_attempts", BigInteger),
    Column("unknown_attempts", BigInteger),
    Column("derived_attempts", BigInteger),
    Column("failed_attempts", BigInteger),
    Column("unreported_attempts", BigInteger),
    Column("input_tokens", Numeric),
    Column("cached_input_tokens", Numeric),
    Column("cache_write_tokens", Numeric),
    Column("output_tokens", Numeric),
    Column("reasoning_tokens", Numeric),
    Column("uncached_input_tokens", Numeric),
    Column("plain_output_tokens", Numeric),
    Column("total_tokens", Numeric),
    Column("cost_nusd", Numeric),
    Column("held_nusd", Numeric),
    *_as_by_hour(*_PLACES, "data_class", "outcome", "usage_source"),
    *_as_by_hour(*_OF_TIMES),
    *_as_by_hour(*_SAVINGS),
    Index("spend_rollup_by_key_day", "day"),
    Index("spend_rollup_by_key_month", "posted_period"),
)

spend_rollup_by_end_user = Table(
    "spend_rollup_by_end_user",
    metadata,
    Column("day", Date),
    Column("team", Text),
    Column("project", Text),
    Column("cost_centre", Text),
    Column("end_user", Text),
    Column("route", Text),
    Column("model", Text),
    Column("is_self_hosted", Boolean),
    Column("posted_period", Date),
    Column("is_demo", Boolean),
    Column("attempts", BigInteger),
    Column("known_attempts", BigInteger),
    Column("unknown_attempts", BigInteger),
    Column("derived_attempts", BigInteger),
    Column("failed_attempts", BigInteger),
    Column("unreported_attempts", BigInteger),
    Column("input_tokens", Numeric),
    Column("cached_input_tokens", Numeric),
    Column("cache_write_tokens", Numeric),
    Column("output_tokens", Numeric),
    Column("reasoning_tokens", Numeric),
    Column("uncached_input_tokens", Numeric),
    Column("plain_output_tokens", Numeric),
    Column("total_tokens", Numeric),
    Column("cost_nusd", Numeric),
    Column("held_nusd", Numeric),
    *_as_by_hour(*_PLACES, "requests", *_SAVINGS),
    Index("spend_rollup_by_end_user_day", "day"),
    Index("spend_rollup_by_end_user_month", "posted_period"),
    Index("spend_rollup_by_end_user_user", "end_user", "day"),
)

# An event with three tags is in the row of each, and in the row that `is_repeat` -2 times.
spend_rollup_by_tag = Table(
    "spend_rollup_by_tag",
    metadata,
    Column("day", Date),
    Column("team", Text),
    Column("project", Text),
    Column("cost_centre", Text),
    Column("tag_key", Text),
    Column("tag", Text),
    Column("is_repeat", Boolean),
    *(Column(column.name, column.type) for column in list(spend_rollup_by_key.columns)[5:26]),
    *_as_by_hour("requests", *_PLACES, *_SAVINGS),
    *(Column(name, BigInteger) for name in _KNOWN),
    Index("spend_rollup_by_tag_day", "day"),
    Index("spend_rollup_by_tag_month", "posted_period"),
)

# The same by month, without demo events.
spend_rollup_by_month = Table(
    "spend_rollup_by_month",
    metadata,
    *_as_by_hour(*_OF_DAY_SPLITS, *_FIRST_SUMS, *_MORE_SUMS, *_SAVINGS, *_BUCKETS),
    Index("spend_rollup_by_month_month", "posted_period"),
)

spend_rollup_by_month_and_key = Table(
    "spend_rollup_by_month_and_key",
    metadata,
    *_as_by_hour(*_OWNER_SPLITS[:3], "key_id", *_OWNER_SPLITS[3:], *_PLACES, *_ENDINGS),
    *_as_by_hour(*_FIRST_SUMS, *_MORE_SUMS, *_SAVINGS, *_BUCKETS),
    Index("spend_rollup_by_month_and_key_month", "posted_period"),
)

spend_rollup_by_month_and_end_user = Table(
    "spend_rollup_by_month_and_end_user",
    metadata,
    *_as_by_hour(*_OWNER_SPLITS[:3]),
    Column("end_user", Text),
    *_as_by_hour(*_OWNER_SPLITS[3:], *_PLACES, *_FIRST_SUMS, "requests", *_SAVINGS),
    Index("spend_rollup_by_month_and_end_user_month", "posted_period"),
    Index("spend_rollup_by_month_and_end_user_user", "end_user", "posted_period"),
)

spend_rollup_by_month_and_tag = Table(
    "spend_rollup_by_month_and_tag",
    metadata,
    *_as_by_hour(*_OWNER_SPLITS[:3]),
    Column("tag_key", Text),
    Column("tag", Text),
    Column("is_repeat", Boolean),
    *_as_by_hour(*_OWNER_SPLITS[3:], *_PLACES, *_FIRST_SUMS, "requests", *_SAVINGS),
    *(Column(name, BigInteger) for name in _KNOWN),
    Index("spend_rollup_by_month_and_tag_month", "posted_period"),
)

dirty_months = Table(
    "dirty_months",
    metadata,
    Column("month", Date, nullable=False),
    Column("noted_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
)

dirty_days = Table(
    "dirty_days",
    metadata,
    Column("day", Date, nullable=False),
    Column("noted_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
)

dirty_hours = Table(
    "dirty_hours",
    metadata,
    Column("hour", TIMESTAMPTZ, nullable=False),
    Column("noted_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
)

# Of releases that counted by team and route alone; a view adds up both.
refusals = Table(
    "refusals",
    metadata,
    Column("journal_id", Uuid, primary_key=True),
    Column("hour", TIMESTAMPTZ, primary_key=True),
    Column("team", Text, primary_key=True),
    Column("route", Text, primary_key=True),
    Column("data_class", Text, primary_key=True),
    Column("code", Text, primary_key=True),
    Column("rules", ARRAY(Text), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    PrimaryKeyConstraint(
        "hour", "team", "route", "data_class", "code", "rules", "journal_id", name="refusals_pkey"
    ),
    CheckConstraint("hour = date_trunc('hour', hour, 'UTC')", name="refusals_hour_check"),
    CheckConstraint("requests > 0", name="refusals_requests_check"),
)

refusal_counts = Table(
    "refusal_counts",
    metadata,
    Column("journal_id", Uuid, primary_key=True),
    Column("hour", TIMESTAMPTZ, primary_key=True),
    Column("team", Text, primary_key=True),
    Column("project", Text, primary_key=True),
    Column("key_id", Text, primary_key=True),
    Column("route", Text, primary_key=True),
    Column("data_class", Text, primary_key=True),
    Column("code", Text, primary_key=True),
    Column("rules", ARRAY(Text), primary_key=True),
    Column("rule", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    PrimaryKeyConstraint(
        "hour",
        "team",
        "project",
        "key_id",
        "route",
        "data_class",
        "code",
        "rules",
        "rule",
        "journal_id",
        name="refusal_counts_pkey",
    ),
    CheckConstraint("hour = date_trunc('hour', hour, 'UTC')", name="refusal_counts_hour_check"),
    CheckConstraint("requests > 0", name="refusal_counts_requests_check"),
)
