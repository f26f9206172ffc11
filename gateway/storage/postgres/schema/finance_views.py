"""Declares the columns of the `finance` views for the queries of reports.

The baseline and later migrations create the views; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import MetaData, Table

from gateway.storage.postgres.schema.column_types import declared

finance = MetaData()


def view(name: str, columns: str) -> Table:
    """Return a view of the schema `finance`."""
    return declared(name, columns, schema="finance", metadata=finance)


# Columns that several views of sums have.
_SUMS = (
    "attempts bigint, known_attempts bigint, unknown_attempts bigint, derived_attempts bigint, "
    "failed_attempts bigint, unreported_attempts bigint, input_tokens numeric, "
    "cached_input_tokens numeric, cache_write_tokens numeric, output_tokens numeric, "
    "reasoning_tokens numeric, uncached_input_tokens numeric, plain_output_tokens numeric, "
    "total_tokens numeric"
)
_MONEY = "cost_usd numeric, held_usd numeric"
_MORE = (
    "requests bigint, error_attempts bigint, degraded_attempts bigint, "
    "ttft_bound_s double precision, ttft_bound_attempts bigint, ttft_missed bigint, "
    "cost_bound_attempts bigint, retry_attempts bigint, ttft_measured bigint, cost_missed bigint, "
    "ttft_buckets integer[], tpot_buckets integer[], duration_buckets integer[], "
    "gap_buckets integer[], queue_buckets integer[], overhead_buckets integer[], "
    "retry_usd numeric, failed_usd numeric"
)
_SAVINGS = "cache_saving_usd numeric, unknown_saving_attempts bigint, split_input_tokens numeric"
_PLACES = "deployment text, provider text, region text"
_ENDINGS = "data_class text, outcome text, usage_source text"
_KNOWN = (
    "cached_input_known bigint, cache_write_known bigint, output_known bigint, "
    "reasoning_known bigint, total_known bigint"
)
# An event of usage: the views of real and of demo data are the same.
_EVENT = (
    "request_id uuid, attempt smallint, occurred_at timestamptz, started_at timestamptz, "
    "recorded_at timestamptz, posted_period date, team text, project text, cost_centre text, "
    "key_id text, end_user text, tags jsonb, route text, deployment text, provider text, "
    "model text, region text, is_self_hosted boolean, data_class text, policy_version integer, "
    "operation text, outcome text, http_status smallint, streamed boolean, input_tokens bigint, "
    "cached_input_tokens bigint, cache_write_tokens bigint, output_tokens bigint, "
    "reasoning_tokens bigint, usage_detail jsonb, usage_source text, reported_usage jsonb, "
    f"service_tier text, price_id text, is_stand_in_price boolean, lines jsonb, {_MONEY}, "
    "ttft_s double precision, tpot_s double precision, duration_s double precision, "
    "overhead_s double precision, finish_reason text, client_request_id text, "
    "upstream_request_id text, is_suspect boolean, features jsonb, decision jsonb, "
    "is_unsettled boolean, queue_s double precision, max_gap_s double precision, "
    "engine_queue_s double precision, degraded text, written_by xid8"
)
_OF_EVENT = (
    "team text, project text, cost_centre text, route text, deployment text, provider text, "
    "model text, region text, is_self_hosted boolean, data_class text, outcome text, "
    "usage_source text, posted_period date"
)

adjustments = view(
    "adjustments",
    "adjustment_id uuid, request_id uuid, attempt smallint, team text, cost_centre text, "
    "posted_period date, occurred_at timestamptz, amount_usd numeric, kind text, reason text, "
    "author text, created_at timestamptz, settles boolean, is_expected boolean, project text, "
    "key_id text, end_user text, tags jsonb, route text, deployment text, provider text, "
    f"model text, region text, is_self_hosted boolean, {_ENDINGS}, written_by xid8",
)
alert_deliveries = view(
    "alert_deliveries",
    "alert_id uuid, channel text, tries integer, next_try_at timestamptz, last_error text, "
    "delivered_at timestamptz, given_up_at timestamptz",
)
api_keys = view(
    "api_keys",
    "key_id text, team text, project text, created_at timestamptz, expires_at timestamptz, "
    "revoked_at timestamptz, paused_at timestamptz, replaces text, is_demo boolean",
)
audit_log = view(
    "audit_log",
    "seq bigint, at timestamptz, db_user text, operator text, reason text, action text, "
    "subject text, details jsonb, line text, previous text, hash text",
)
budget_alerts = view(
    "budget_alerts",
    "alert_id uuid, account text, rule text, scope text, team text, owner text, kind text, "
    "period text, starts_at timestamptz, ends_at timestamptz, threshold numeric, "
    "limit_usd numeric, granted_usd numeric, spent_usd numeric, raised_at timestamptz, "
    "tries integer, next_try_at timestamptz, last_error text, delivered_at timestamptz, "
    "given_up_at timestamptz",
)
budget_grants = view(
    "budget_grants",
    "grant_id uuid, account text, starts_at timestamptz, amount_usd numeric, "
    "expires_at timestamptz, reason text, author text, created_at timestamptz, is_expired boolean",
)
budgets = view(
    "budgets",
    "account text, rule text, scope text, team text, owner text, period text, kind text, "
    "time_zone text, starts_at timestamptz, ends_at timestamptz, limit_usd numeric, "
    "granted_usd numeric, spent_usd numeric, leased_usd numeric, held_usd numeric, "
    "remaining_usd numeric, is_current boolean, taken_over_usd numeric",
)
cost_centre_shares = view(
    "cost_centre_shares",
    "team text, first_day date, next_day date, event_cost_centre text, cost_centre text, "
    "share numeric, policy_version integer",
)
currency_rates = view(
    "currency_rates",
    "currency text, first_day date, next_day date, usd_per_unit numeric, source text, "
    "author text, created_at timestamptz",
)
dead_letters = view(
    "dead_letters",
    "id uuid, journal_id uuid, error text, digest bytea, recorded_at timestamptz, "
    "resolved_at timestamptz, resolved_by text, resolution text, set_aside_usd numeric",
)
demo_ledger = view(
    "demo_ledger",
    "organisation text, last_day date, author text, begun_at timestamptz",
)
demo_spend_daily_detail = view(
    "demo_spend_daily_detail",
    f"day date, {_OF_EVENT}, {_SUMS}, {_MONEY}, {_MORE}, {_SAVINGS}",
)
demo_spend_hourly_detail = view(
    "demo_spend_hourly_detail",
    f"hour timestamptz, {_OF_EVENT}, {_SUMS}, {_MONEY}, {_MORE}, key_id text, {_SAVINGS}",
)
demo_usage_events = view("demo_usage_events", _EVENT)
deployment_prices = view(
    "deployment_prices",
    "deployment text, valid_from timestamptz, price_id text, policy_version integer",
)
dirty_hours = view("dirty_hours", "hour timestamptz, noted_at timestamptz")
engines = view(
    "engines",
    "deployment text, at timestamptz, is_up boolean, running bigint, queue bigint, "
    "kv_use double precision, prefix_hit_rate double precision, ttft_p50_s double precision, "
    "ttft_p95_s double precision, tpot_p50_s double precision, tpot_p95_s double precision, "
    "pressure double precision",
)
gpu_applied = view(
    "gpu_applied",
    "hour timestamptz, deployment text, team text, cost_centre text, attempts bigint, "
    "applied_usd numeric",
)
gpu_bills = view(
    "gpu_bills",
    "import_id uuid, line integer, deployment text, invoice_id text, starts_at timestamptz, "
    "ends_at timestamptz, gpu_hours numeric, amount_usd numeric, counted_usd numeric, "
    "file_name text, file_hash text, author text, imported_at timestamptz",
)
gpu_cost = view(
    "gpu_cost",
    "hour timestamptz, deployment text, applied_usd numeric, bill_usd numeric, idle_usd numeric, "
    "variance_usd numeric, gpu_hours numeric, usd_per_gpu_hour numeric, up_hours numeric, "
    "watched_hours numeric, empty_usd numeric, underfilled_usd numeric, estimated_usd numeric, "
    "imported_usd numeric, estimated_gpu_hours numeric, busy_hours numeric",
)
idle_rules = view(
    "idle_rules",
    "deployment text, first_day date, next_day date, rule text, weights jsonb, "
    "policy_version integer",
)
journals = view(
    "journals",
    "id uuid, replica text, started_at timestamptz, heartbeat timestamptz, written bigint, "
    "state text, note text, lost_at timestamptz",
)
late_bills = view(
    "late_bills",
    "adjustment_id uuid, deployment text, posted_period date, occurred_at timestamptz, "
    "amount_usd numeric, reason text, author text, created_at timestamptz",
)
month_closes = view(
    "month_closes",
    "month date, version integer, closed_at timestamptz, author text, operator text, "
    "accepted jsonb, parts jsonb, sha256 text, events bigint, adjustments bigint, "
    "total_usd numeric, reopened_at timestamptz, reopened_by text, reopen_reason text",
)
overdrafts = view(
    "overdrafts",
    "request_id uuid, attempt smallint, occurred_at timestamptz, team text, project text, "
    "key_id text, cost_centre text, account text, starts_at timestamptz, held_usd numeric, "
    "cost_usd numeric",
)
periods = view(
    "periods",
    "month date, state text, opened_at timestamptz, version integer, sha256 text, "
    "closed_at timestamptz, closed_by text, reason text, events bigint, adjustments bigint, "
    "total_usd numeric",
)
policy_days = view("policy_days", "version integer, first_day date, next_day date")
policy_versions = view(
    "policy_versions",
    "version integer, applied_at timestamptz, is_demo boolean, document text",
)
price_entries = view(
    "price_entries",
    "entry_id bigint, origin text, provider text, model text, deployment text, "
    "valid_from timestamptz, daily_since time, daily_until time, price_id text, source text, "
    "author text, reason text, created_at timestamptz, calibration jsonb",
)
prices = view(
    "prices",
    "price_id text, provider text, model text, source text, rates jsonb, created_at timestamptz",
)
provider_bills = view(
    "provider_bills",
    "import_id uuid, line integer, provider text, account text, kind text, day date, "
    "project text, key text, model text, token_kind text, quantity numeric, amount_usd numeric, "
    "text text, file_name text, author text, imported_at timestamptz",
)
reallocations = view(
    "reallocations",
    "reallocation_id uuid, month date, cost_centre text, amount_usd numeric, state text, "
    "reason text, author_login text, author text, created_at timestamptz, approver_login text, "
    "approver text, approval_reason text, approved_at timestamptz, posted_period date",
)
refusals = view(
    "refusals",
    "hour timestamptz, team text, route text, data_class text, code text, rules text[], "
    "requests bigint, project text, key_id text, rule text",
)
report_schedules = view(
    "report_schedules",
    "name text, cost_centre text, every text, sent_to text, created_at timestamptz, author text, "
    "last_month date, last_version integer, tries integer, next_try_at timestamptz, "
    "last_error text, delivered_at timestamptz, given_up_at timestamptz",
)
spend_daily_by_end_user = view(
    "spend_daily_by_end_user",
    "day date, team text, project text, cost_centre text, end_user text, route text, model text, "
    f"is_self_hosted boolean, posted_period date, {_SUMS}, {_MONEY}, {_PLACES}, requests bigint, "
    f"{_SAVINGS}",
)
spend_daily_by_key = view(
    "spend_daily_by_key",
    "day date, team text, project text, cost_centre text, key_id text, route text, model text, "
    f"is_self_hosted boolean, posted_period date, {_SUMS}, {_MONEY}, {_PLACES}, {_ENDINGS}, "
    f"{_MORE}, {_SAVINGS}",
)
spend_daily_by_tag = view(
    "spend_daily_by_tag",
    "day date, team text, project text, cost_centre text, tag_key text, tag text, "
    "is_repeat boolean, route text, model text, is_self_hosted boolean, posted_period date, "
    f"{_SUMS}, requests bigint, {_MONEY}, {_PLACES}, {_SAVINGS}, {_KNOWN}",
)
spend_daily_detail = view(
    "spend_daily_detail",
    f"day date, {_OF_EVENT}, {_SUMS}, {_MONEY}, {_MORE}, {_SAVINGS}",
)
spend_hourly = view(
    "spend_hourly",
    "hour timestamptz, team text, project text, cost_centre text, route text, deployment text, "
    "provider text, model text, region text, is_self_hosted boolean, attempts bigint, "
    "unknown_attempts bigint, input_tokens numeric, cached_input_tokens numeric, "
    f"output_tokens numeric, reasoning_tokens numeric, {_MONEY}",
)
spend_hourly_detail = view(
    "spend_hourly_detail",
    f"hour timestamptz, {_OF_EVENT}, {_SUMS}, {_MONEY}, {_MORE}, key_id text, {_SAVINGS}",
)
spend_monthly_by_end_user = view(
    "spend_monthly_by_end_user",
    "team text, project text, cost_centre text, end_user text, route text, model text, "
    f"is_self_hosted boolean, posted_period date, {_PLACES}, {_SUMS}, {_MONEY}, requests bigint, "
    f"{_SAVINGS}",
)
spend_monthly_by_key = view(
    "spend_monthly_by_key",
    "team text, project text, cost_centre text, key_id text, route text, model text, "
    f"is_self_hosted boolean, posted_period date, {_PLACES}, {_ENDINGS}, {_SUMS}, {_MONEY}, "
    f"{_MORE}, {_SAVINGS}",
)
spend_monthly_by_tag = view(
    "spend_monthly_by_tag",
    "team text, project text, cost_centre text, tag_key text, tag text, is_repeat boolean, "
    f"route text, model text, is_self_hosted boolean, posted_period date, {_PLACES}, {_SUMS}, "
    f"{_MONEY}, requests bigint, {_SAVINGS}, {_KNOWN}",
)
spend_monthly_detail = view(
    "spend_monthly_detail",
    f"{_OF_EVENT}, {_SUMS}, {_MONEY}, {_MORE}, {_SAVINGS}",
)
spike_alerts = view(
    "spike_alerts",
    "alert_id uuid, team text, day date, model text, key_id text, spent_usd numeric, "
    "usual_usd numeric, driver_usd numeric, raised_at timestamptz",
)
statement_deliveries = view(
    "statement_deliveries",
    "delivery_id uuid, name text, sent_to text, month date, version integer, "
    "opened_at timestamptz, tries integer, next_try_at timestamptz, last_error text, "
    "delivered_at timestamptz, given_up_at timestamptz",
)
team_limits = view(
    "team_limits",
    "team text, requests_per_minute bigint, tokens_per_minute bigint, concurrent bigint, "
    "is_shadow boolean, policy_version integer",
)
true_ups = view(
    "true_ups",
    "adjustment_id uuid, provider text, account text, day date, model text, token_kind text, "
    "cause text, evidence text",
)
unpartitioned_hours = view("unpartitioned_hours", "hour timestamptz, attempts bigint")
usage_events = view("usage_events", _EVENT)
watermark = view("watermark", "database text, snapshot pg_snapshot, is_restored boolean")
