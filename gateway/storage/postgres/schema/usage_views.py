"""Declares the columns of the `finance` views over usage events and their sums; migrations create
these views, and reports query them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    Double,
    Integer,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, Xid8, finance

usage_events = Table(
    "usage_events",
    finance,
    Column("request_id", Uuid),
    Column("attempt", SmallInteger),
    Column("occurred_at", TIMESTAMPTZ),
    Column("started_at", TIMESTAMPTZ),
    Column("recorded_at", TIMESTAMPTZ),
    Column("posted_period", Date),
    Column("team", Text),
    Column("project", Text),
    Column("cost_centre", Text),
    Column("key_id", Text),
    Column("end_user", Text),
    Column("tags", JSONB),
    Column("route", Text),
    Column("deployment", Text),
    Column("provider", Text),
    Column("model", Text),
    Column("region", Text),
    Column("is_self_hosted", Boolean),
    Column("data_class", Text),
    Column("policy_version", Integer),
    Column("operation", Text),
    Column("outcome", Text),
    Column("http_status", SmallInteger),
    Column("streamed", Boolean),
    Column("input_tokens", BigInteger),
    Column("cached_input_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("usage_detail", JSONB),
    Column("usage_source", Text),
    Column("reported_usage", JSONB),
    Column("service_tier", Text),
    Column("price_id", Text),
    Column("is_stand_in_price", Boolean),
    Column("lines", JSONB),
    Column("cost_usd", Numeric),
    Column("held_usd", Numeric),
    Column("ttft_s", Double),
    Column("tpot_s", Double),
    Column("duration_s", Double),
    Column("overhead_s", Double),
    Column("finish_reason", Text),
    Column("client_request_id", Text),
    Column("upstream_request_id", Text),
    Column("is_suspect", Boolean),
    Column("features", JSONB),
    Column("decision", JSONB),
    Column("is_unsettled", Boolean),
    Column("queue_s", Double),
    Column("max_gap_s", Double),
    Column("engine_queue_s", Double),
    Column("degraded", Text),
    Column("written_by", Xid8),
)

demo_usage_events = Table(
    "demo_usage_events",
    finance,
    *(Column(column.name, column.type) for column in usage_events.columns),
)

spend_hourly = Table(
    "spend_hourly",
    finance,
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
    Column("attempts", BigInteger),
    Column("unknown_attempts", BigInteger),
    Column("input_tokens", Numeric),
    Column("cached_input_tokens", Numeric),
    Column("output_tokens", Numeric),
    Column("reasoning_tokens", Numeric),
    Column("cost_usd", Numeric),
    Column("held_usd", Numeric),
)

spend_hourly_detail = Table(
    "spend_hourly_detail",
    finance,
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
    Column("cost_usd", Numeric),
    Column("held_usd", Numeric),
    Column("requests", BigInteger),
    Column("error_attempts", BigInteger),
    Column("degraded_attempts", BigInteger),
    Column("ttft_bound_s", Double),
    Column("ttft_bound_attempts", BigInteger),
    Column("ttft_missed", BigInteger),
    Column("cost_bound_attempts", BigInteger),
    Column("retry_attempts", BigInteger),
    Column("ttft_measured", BigInteger),
    Column("cost_missed", BigInteger),
    Column("ttft_buckets", ARRAY(Integer)),
    Column("tpot_buckets", ARRAY(Integer)),
    Column("duration_buckets", ARRAY(Integer)),
    Column("gap_buckets", ARRAY(Integer)),
    Column("queue_buckets", ARRAY(Integer)),
    Column("overhead_buckets", ARRAY(Integer)),
    Column("retry_usd", Numeric),
    Column("failed_usd", Numeric),
    Column("key_id", Text),
    Column("cache_saving_usd", Numeric),
    Column("unknown_saving_attempts", BigInteger),
    Column("split_input_tokens", Numeric),
)
_PLACES = ("deployment", "provider", "region")
_SAVINGS = ("cache_saving_usd", "unknown_saving_attempts", "split_input_tokens")
_KNOWN = tuple(
    f"{name}_known" for name in ("cached_input", "cache_write", "output", "reasoning", "total")
)


def _as_by_hour(*names: str) -> list[Column[Any]]:
    """Return new columns like those of `spend_hourly_detail`."""
    return [Column(name, spend_hourly_detail.c[name].type) for name in names]


spend_daily_by_key = Table(
    "spend_daily_by_key",
    finance,
    Column("day", Date),
    Column("team", Text),
    Column("project", Text),
    Column("cost_centre", Text),
    Column("key_id", Text),
    Column("route", Text),
    Column("model", Text),
    Column("is_self_hosted", Boolean),
    Column("posted_period", Date),
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
    Column("cost_usd", Numeric),
    Column("held_usd", Numeric),
    *_as_by_hour(*_PLACES, "data_class", "outcome", "usage_source"),
    *_as_by_hour(*list(spend_hourly_detail.c.keys())[30:-4]),
    *_as_by_hour(*_SAVINGS),
)

demo_spend_hourly_detail = Table(
    "demo_spend_hourly_detail",
    finance,
    *(Column(column.name, column.type) for column in spend_hourly_detail.columns),
)

spend_daily_by_end_user = Table(
    "spend_daily_by_end_user",
    finance,
    *(
        Column("end_user" if column.name == "key_id" else column.name, column.type)
        for column in list(spend_daily_by_key.columns)[:25]
    ),
    *_as_by_hour(*_PLACES, "requests", *_SAVINGS),
)

# The same by day.
spend_daily_detail = Table(
    "spend_daily_detail",
    finance,
    Column("day", Date),
    *_as_by_hour(*(name for name in spend_hourly_detail.c.keys()[1:] if name != "key_id")),
)

demo_spend_daily_detail = Table(
    "demo_spend_daily_detail",
    finance,
    *(Column(column.name, column.type) for column in spend_daily_detail.columns),
)

spend_daily_by_tag = Table(
    "spend_daily_by_tag",
    finance,
    Column("day", Date),
    Column("team", Text),
    Column("project", Text),
    Column("cost_centre", Text),
    Column("tag_key", Text),
    Column("tag", Text),
    Column("is_repeat", Boolean),
    *(Column(column.name, column.type) for column in list(spend_daily_by_key.columns)[5:23]),
    *_as_by_hour("requests", "cost_usd", "held_usd", *_PLACES, *_SAVINGS),
    *(Column(name, BigInteger) for name in _KNOWN),
)


def _by_month(name: str, daily: Table, splits: Collection[str], *last: str) -> Table:
    """Return the view of sums by month: the dimensions of the same sums by day, then their figures,
    with `last` at the end.
    """
    others = ("day", *splits, *last)
    names = [one.name for one in daily.columns if one.name not in others]
    listed = (*splits, *names, *last)
    return Table(name, finance, *(Column(one, daily.c[one].type) for one in listed))


_ENDINGS = ("data_class", "outcome", "usage_source")
spend_monthly_detail = Table(
    "spend_monthly_detail",
    finance,
    *(Column(column.name, column.type) for column in list(spend_daily_detail.columns)[1:]),
)
_OF_KEY, _OF_USER, _OF_TAG = (
    (
        *("team", "project", "cost_centre", *owner, "route", "model", "is_self_hosted"),
        *("posted_period", *_PLACES),
    )
    for owner in (("key_id",), ("end_user",), ("tag_key", "tag", "is_repeat"))
)
spend_monthly_by_key = _by_month("spend_monthly_by_key", spend_daily_by_key, (*_OF_KEY, *_ENDINGS))
spend_monthly_by_end_user = _by_month(
    "spend_monthly_by_end_user", spend_daily_by_end_user, _OF_USER
)
spend_monthly_by_tag = _by_month(
    "spend_monthly_by_tag", spend_daily_by_tag, _OF_TAG, "requests", *_SAVINGS, *_KNOWN
)
