"""Declares the columns of the `finance` views that are not over usage events; migrations create
these views, and reports query them.

They are the views of budgets, keys, prices, GPU cost, journals, months, refusals, adjustments and
the audit log. Tests compare them with the migrations.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    Double,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Time,
    Uuid,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, PgSnapshot, Xid8, finance

adjustments = Table(
    "adjustments",
    finance,
    Column("adjustment_id", Uuid),
    Column("request_id", Uuid),
    Column("attempt", SmallInteger),
    Column("team", Text),
    Column("cost_centre", Text),
    Column("posted_period", Date),
    Column("occurred_at", TIMESTAMPTZ),
    Column("amount_usd", Numeric),
    Column("kind", Text),
    Column("reason", Text),
    Column("author", Text),
    Column("created_at", TIMESTAMPTZ),
    Column("settles", Boolean),
    Column("is_expected", Boolean),
    Column("project", Text),
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
    Column("outcome", Text),
    Column("usage_source", Text),
    Column("written_by", Xid8),
)

alert_deliveries = Table(
    "alert_deliveries",
    finance,
    Column("alert_id", Uuid),
    Column("channel", Text),
    Column("tries", Integer),
    Column("next_try_at", TIMESTAMPTZ),
    Column("last_error", Text),
    Column("delivered_at", TIMESTAMPTZ),
    Column("given_up_at", TIMESTAMPTZ),
)

spike_alerts = Table(
    "spike_alerts",
    finance,
    Column("alert_id", Uuid),
    Column("team", Text),
    Column("day", Date),
    Column("model", Text),
    Column("key_id", Text),
    Column("spent_usd", Numeric),
    Column("usual_usd", Numeric),
    Column("driver_usd", Numeric),
    Column("raised_at", TIMESTAMPTZ),
)

api_keys = Table(
    "api_keys",
    finance,
    Column("key_id", Text),
    Column("team", Text),
    Column("project", Text),
    Column("created_at", TIMESTAMPTZ),
    Column("expires_at", TIMESTAMPTZ),
    Column("revoked_at", TIMESTAMPTZ),
    Column("paused_at", TIMESTAMPTZ),
    Column("replaces", Text),
    Column("is_demo", Boolean),
)

audit_log = Table(
    "audit_log",
    finance,
    Column("seq", BigInteger),
    Column("at", TIMESTAMPTZ),
    Column("db_user", Text),
    Column("operator", Text),
    Column("reason", Text),
    Column("action", Text),
    Column("subject", Text),
    Column("details", JSONB),
    Column("line", Text),
    Column("previous", Text),
    Column("hash", Text),
)

budget_alerts = Table(
    "budget_alerts",
    finance,
    Column("alert_id", Uuid),
    Column("account", Text),
    Column("rule", Text),
    Column("scope", Text),
    Column("team", Text),
    Column("owner", Text),
    Column("kind", Text),
    Column("period", Text),
    Column("starts_at", TIMESTAMPTZ),
    Column("ends_at", TIMESTAMPTZ),
    Column("threshold", Numeric),
    Column("limit_usd", Numeric),
    Column("granted_usd", Numeric),
    Column("spent_usd", Numeric),
    Column("raised_at", TIMESTAMPTZ),
    Column("tries", Integer),
    Column("next_try_at", TIMESTAMPTZ),
    Column("last_error", Text),
    Column("delivered_at", TIMESTAMPTZ),
    Column("given_up_at", TIMESTAMPTZ),
)

budget_grants = Table(
    "budget_grants",
    finance,
    Column("grant_id", Uuid),
    Column("account", Text),
    Column("starts_at", TIMESTAMPTZ),
    Column("amount_usd", Numeric),
    Column("expires_at", TIMESTAMPTZ),
    Column("reason", Text),
    Column("author", Text),
    Column("created_at", TIMESTAMPTZ),
    Column("is_expired", Boolean),
)

budgets = Table(
    "budgets",
    finance,
    Column("account", Text),
    Column("rule", Text),
    Column("scope", Text),
    Column("team", Text),
    Column("owner", Text),
    Column("period", Text),
    Column("kind", Text),
    Column("time_zone", Text),
    Column("starts_at", TIMESTAMPTZ),
    Column("ends_at", TIMESTAMPTZ),
    Column("limit_usd", Numeric),
    Column("granted_usd", Numeric),
    Column("spent_usd", Numeric),
    Column("leased_usd", Numeric),
    Column("held_usd", Numeric),
    Column("remaining_usd", Numeric),
    Column("is_current", Boolean),
    Column("taken_over_usd", Numeric),
)

cost_centre_shares = Table(
    "cost_centre_shares",
    finance,
    Column("team", Text),
    Column("first_day", Date),
    Column("next_day", Date),
    Column("event_cost_centre", Text),
    Column("cost_centre", Text),
    Column("share", Numeric),
    Column("policy_version", Integer),
)

currency_rates = Table(
    "currency_rates",
    finance,
    Column("currency", Text),
    Column("first_day", Date),
    Column("next_day", Date),
    Column("usd_per_unit", Numeric),
    Column("source", Text),
    Column("author", Text),
    Column("created_at", TIMESTAMPTZ),
)

dead_letters = Table(
    "dead_letters",
    finance,
    Column("id", Uuid),
    Column("journal_id", Uuid),
    Column("error", Text),
    Column("digest", LargeBinary),
    Column("recorded_at", TIMESTAMPTZ),
    Column("resolved_at", TIMESTAMPTZ),
    Column("resolved_by", Text),
    Column("resolution", Text),
    Column("set_aside_usd", Numeric),
)

demo_ledger = Table(
    "demo_ledger",
    finance,
    Column("organisation", Text),
    Column("last_day", Date),
    Column("author", Text),
    Column("begun_at", TIMESTAMPTZ),
)

deployment_prices = Table(
    "deployment_prices",
    finance,
    Column("deployment", Text),
    Column("valid_from", TIMESTAMPTZ),
    Column("price_id", Text),
    Column("policy_version", Integer),
)

dirty_hours = Table(
    "dirty_hours",
    finance,
    Column("hour", TIMESTAMPTZ),
    Column("noted_at", TIMESTAMPTZ),
)

engines = Table(
    "engines",
    finance,
    Column("deployment", Text),
    Column("at", TIMESTAMPTZ),
    Column("is_up", Boolean),
    Column("running", BigInteger),
    Column("queue", BigInteger),
    Column("kv_use", Double),
    Column("prefix_hit_rate", Double),
    Column("ttft_p50_s", Double),
    Column("ttft_p95_s", Double),
    Column("tpot_p50_s", Double),
    Column("tpot_p95_s", Double),
    Column("pressure", Double),
)

gpu_applied = Table(
    "gpu_applied",
    finance,
    Column("hour", TIMESTAMPTZ),
    Column("deployment", Text),
    Column("team", Text),
    Column("cost_centre", Text),
    Column("attempts", BigInteger),
    Column("applied_usd", Numeric),
)

gpu_bills = Table(
    "gpu_bills",
    finance,
    Column("import_id", Uuid),
    Column("line", Integer),
    Column("deployment", Text),
    Column("invoice_id", Text),
    Column("starts_at", TIMESTAMPTZ),
    Column("ends_at", TIMESTAMPTZ),
    Column("gpu_hours", Numeric),
    Column("amount_usd", Numeric),
    Column("counted_usd", Numeric),
    Column("file_name", Text),
    Column("file_hash", Text),
    Column("author", Text),
    Column("imported_at", TIMESTAMPTZ),
)

gpu_cost = Table(
    "gpu_cost",
    finance,
    Column("hour", TIMESTAMPTZ),
    Column("deployment", Text),
    Column("applied_usd", Numeric),
    Column("bill_usd", Numeric),
    Column("idle_usd", Numeric),
    Column("variance_usd", Numeric),
    Column("gpu_hours", Numeric),
    Column("usd_per_gpu_hour", Numeric),
    Column("up_hours", Numeric),
    Column("watched_hours", Numeric),
    Column("empty_usd", Numeric),
    Column("underfilled_usd", Numeric),
    Column("estimated_usd", Numeric),
    Column("imported_usd", Numeric),
    Column("estimated_gpu_hours", Numeric),
    Column("busy_hours", Numeric),
)

idle_rules = Table(
    "idle_rules",
    finance,
    Column("deployment", Text),
    Column("first_day", Date),
    Column("next_day", Date),
    Column("rule", Text),
    Column("weights", JSONB),
    Column("policy_version", Integer),
)

journals = Table(
    "journals",
    finance,
    Column("id", Uuid),
    Column("replica", Text),
    Column("started_at", TIMESTAMPTZ),
    Column("heartbeat", TIMESTAMPTZ),
    Column("written", BigInteger),
    Column("state", Text),
    Column("note", Text),
    Column("lost_at", TIMESTAMPTZ),
)

late_bills = Table(
    "late_bills",
    finance,
    Column("adjustment_id", Uuid),
    Column("deployment", Text),
    Column("posted_period", Date),
    Column("occurred_at", TIMESTAMPTZ),
    Column("amount_usd", Numeric),
    Column("reason", Text),
    Column("author", Text),
    Column("created_at", TIMESTAMPTZ),
)

month_closes = Table(
    "month_closes",
    finance,
    Column("month", Date),
    Column("version", Integer),
    Column("closed_at", TIMESTAMPTZ),
    Column("author", Text),
    Column("operator", Text),
    Column("accepted", JSONB),
    Column("parts", JSONB),
    Column("sha256", Text),
    Column("events", BigInteger),
    Column("adjustments", BigInteger),
    Column("total_usd", Numeric),
    Column("reopened_at", TIMESTAMPTZ),
    Column("reopened_by", Text),
    Column("reopen_reason", Text),
)

overdrafts = Table(
    "overdrafts",
    finance,
    Column("request_id", Uuid),
    Column("attempt", SmallInteger),
    Column("occurred_at", TIMESTAMPTZ),
    Column("team", Text),
    Column("project", Text),
    Column("key_id", Text),
    Column("cost_centre", Text),
    Column("account", Text),
    Column("starts_at", TIMESTAMPTZ),
    Column("held_usd", Numeric),
    Column("cost_usd", Numeric),
)

periods = Table(
    "periods",
    finance,
    Column("month", Date),
    Column("state", Text),
    Column("opened_at", TIMESTAMPTZ),
    Column("version", Integer),
    Column("sha256", Text),
    Column("closed_at", TIMESTAMPTZ),
    Column("closed_by", Text),
    Column("reason", Text),
    Column("events", BigInteger),
    Column("adjustments", BigInteger),
    Column("total_usd", Numeric),
)

policy_days = Table(
    "policy_days",
    finance,
    Column("version", Integer),
    Column("first_day", Date),
    Column("next_day", Date),
)

policy_versions = Table(
    "policy_versions",
    finance,
    Column("version", Integer),
    Column("applied_at", TIMESTAMPTZ),
    Column("is_demo", Boolean),
    Column("document", Text),
)

price_entries = Table(
    "price_entries",
    finance,
    Column("entry_id", BigInteger),
    Column("origin", Text),
    Column("provider", Text),
    Column("model", Text),
    Column("deployment", Text),
    Column("valid_from", TIMESTAMPTZ),
    Column("daily_since", Time),
    Column("daily_until", Time),
    Column("price_id", Text),
    Column("source", Text),
    Column("author", Text),
    Column("reason", Text),
    Column("created_at", TIMESTAMPTZ),
    Column("calibration", JSONB),
)

prices = Table(
    "prices",
    finance,
    Column("price_id", Text),
    Column("provider", Text),
    Column("model", Text),
    Column("source", Text),
    Column("rates", JSONB),
    Column("created_at", TIMESTAMPTZ),
)

provider_bills = Table(
    "provider_bills",
    finance,
    Column("import_id", Uuid),
    Column("line", Integer),
    Column("provider", Text),
    Column("account", Text),
    Column("kind", Text),
    Column("day", Date),
    Column("project", Text),
    Column("key", Text),
    Column("model", Text),
    Column("token_kind", Text),
    Column("quantity", Numeric),
    Column("amount_usd", Numeric),
    Column("text", Text),
    Column("file_name", Text),
    Column("author", Text),
    Column("imported_at", TIMESTAMPTZ),
)

reallocations = Table(
    "reallocations",
    finance,
    Column("reallocation_id", Uuid),
    Column("month", Date),
    Column("cost_centre", Text),
    Column("amount_usd", Numeric),
    Column("state", Text),
    Column("reason", Text),
    Column("author_login", Text),
    Column("author", Text),
    Column("created_at", TIMESTAMPTZ),
    Column("approver_login", Text),
    Column("approver", Text),
    Column("approval_reason", Text),
    Column("approved_at", TIMESTAMPTZ),
    Column("posted_period", Date),
)

refusals = Table(
    "refusals",
    finance,
    Column("hour", TIMESTAMPTZ),
    Column("team", Text),
    Column("route", Text),
    Column("data_class", Text),
    Column("code", Text),
    Column("rules", ARRAY(Text)),
    Column("requests", BigInteger),
    Column("project", Text),
    Column("key_id", Text),
    Column("rule", Text),
)

report_schedules = Table(
    "report_schedules",
    finance,
    Column("name", Text),
    Column("cost_centre", Text),
    Column("every", Text),
    Column("sent_to", Text),
    Column("created_at", TIMESTAMPTZ),
    Column("author", Text),
    Column("last_month", Date),
    Column("last_version", Integer),
    Column("tries", Integer),
    Column("next_try_at", TIMESTAMPTZ),
    Column("last_error", Text),
    Column("delivered_at", TIMESTAMPTZ),
    Column("given_up_at", TIMESTAMPTZ),
)

statement_deliveries = Table(
    "statement_deliveries",
    finance,
    Column("delivery_id", Uuid),
    Column("name", Text),
    Column("sent_to", Text),
    Column("month", Date),
    Column("version", Integer),
    Column("opened_at", TIMESTAMPTZ),
    Column("tries", Integer),
    Column("next_try_at", TIMESTAMPTZ),
    Column("last_error", Text),
    Column("delivered_at", TIMESTAMPTZ),
    Column("given_up_at", TIMESTAMPTZ),
)

team_limits = Table(
    "team_limits",
    finance,
    Column("team", Text),
    Column("requests_per_minute", BigInteger),
    Column("tokens_per_minute", BigInteger),
    Column("concurrent", BigInteger),
    Column("is_shadow", Boolean),
    Column("policy_version", Integer),
)

true_ups = Table(
    "true_ups",
    finance,
    Column("adjustment_id", Uuid),
    Column("provider", Text),
    Column("account", Text),
    Column("day", Date),
    Column("model", Text),
    Column("token_kind", Text),
    Column("cause", Text),
    Column("evidence", Text),
)

unpartitioned_hours = Table(
    "unpartitioned_hours",
    finance,
    Column("hour", TIMESTAMPTZ),
    Column("attempts", BigInteger),
)

watermark = Table(
    "watermark",
    finance,
    Column("database", Text),
    Column("snapshot", PgSnapshot),
    Column("is_restored", Boolean),
)
