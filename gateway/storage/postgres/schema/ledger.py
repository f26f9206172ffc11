"""Declares the tables of usage events, adjustments, dead letters, journals, months, demo
organisations and the server of the ledger, only for a comparison with the migrations.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, Xid8, metadata
from gateway.storage.postgres.schema.other_views import gpu_cost

usage_events = Table(
    "usage_events",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    Column("attempt", SmallInteger, primary_key=True),
    Column("occurred_at", TIMESTAMPTZ, primary_key=True),
    Column("started_at", TIMESTAMPTZ, nullable=False),
    Column("recorded_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("posted_period", Date, nullable=False),
    Column("team", Text, nullable=False),
    Column("project", Text),
    Column("cost_centre", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("end_user", Text),
    Column("tags", JSONB, nullable=False, server_default=text("'{}'")),
    Column("route", Text, nullable=False),
    Column("deployment", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("is_self_hosted", Boolean, nullable=False),
    Column("data_class", Text, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("operation", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("http_status", SmallInteger),
    Column("streamed", Boolean, nullable=False),
    Column("input_tokens", BigInteger),
    Column("cached_input_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("usage_source", Text, nullable=False),
    Column("price_id", Text),
    Column("lines", JSONB, nullable=False),
    Column("cost_nusd", BigInteger),
    Column("held_nusd", BigInteger),
    Column("ttft_s", Double),
    Column("tpot_s", Double),
    Column("duration_s", Double),
    Column("overhead_s", Double),
    Column("finish_reason", Text),
    Column("client_request_id", Text),
    Column("upstream_request_id", Text),
    Column("is_suspect", Boolean, nullable=False, server_default=text("false")),
    Column("is_demo", Boolean, nullable=False, server_default=text("false")),
    Column("features", JSONB, nullable=False),
    Column("decision", JSONB, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("service_tier", Text),
    Column("reported_usage", JSONB),
    Column("usage_detail", JSONB),
    Column("is_stand_in_price", Boolean, nullable=False, server_default=text("false")),
    Column("holds", JSONB, nullable=False, server_default=text("'[]'")),
    Column("queue_s", Double),
    Column("max_gap_s", Double),
    Column("engine_queue_s", Double),
    Column("degraded", Text),
    Column("written_by", Xid8, nullable=False, server_default=text("pg_current_xact_id()")),
    CheckConstraint("holds = '[]' OR tollgate.are_holds(holds)", name="holds_have_their_shape"),
    CheckConstraint(
        "jsonb_typeof(tags) = 'object' AND jsonb_typeof(lines) = 'array' AND "
        "jsonb_typeof(features) = 'object' AND jsonb_typeof(decision) = 'object'",
        name="json_has_its_shape",
    ),
    CheckConstraint(
        "substr(request_id::text, 15, 1) = '7' AND occurred_at < '3000-01-01 00:00:00+00' AND "
        "started_at BETWEEN '1970-01-01 00:00:00+00' AND '3000-01-01 00:00:00+00'",
        name="moments_can_be_read",
    ),
    CheckConstraint(
        "occurred_at = tollgate.uuid7_time(request_id)", name="occurred_at_is_of_request_id"
    ),
    CheckConstraint("EXTRACT(day FROM posted_period) = 1", name="posted_period_is_a_month"),
    Index("usage_events_key_id_occurred_at", "key_id", "occurred_at"),
    Index("usage_events_occurred_at", "occurred_at"),
    Index(
        "usage_events_response",
        "upstream_request_id",
        postgresql_where=text("operation = 'responses' AND upstream_request_id IS NOT NULL"),
    ),
    Index(
        "usage_events_late",
        "posted_period",
        postgresql_where=text(
            "posted_period <> (date_trunc('month', occurred_at AT TIME ZONE 'UTC'))::date"
        ),
    ),
    Index("usage_events_team_occurred_at", "team", "occurred_at"),
    Index("usage_events_written_by", "written_by"),
    Index(
        "usage_events_to_check",
        "posted_period",
        postgresql_where=text(
            "cost_nusd IS NULL OR is_suspect OR is_stand_in_price "
            "OR (price_id IS NULL AND usage_source <> 'none')"
        ),
    ),
    Index("usage_events_unknown", "occurred_at", postgresql_where=text("cost_nusd IS NULL")),
    postgresql_partition_by="RANGE (occurred_at)",
)

adjustments = Table(
    "adjustments",
    metadata,
    Column("adjustment_id", Uuid, primary_key=True),
    Column("request_id", Uuid),
    Column("attempt", SmallInteger),
    Column("team", Text),
    Column("cost_centre", Text),
    Column("posted_period", Date, nullable=False),
    Column("occurred_at", TIMESTAMPTZ, nullable=False),
    Column("amount_nusd", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("created_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("digest", LargeBinary),
    Column("settles", Boolean, nullable=False, server_default=text("false")),
    CheckConstraint(
        "kind <> 'late_bill' OR (deployment IS NOT NULL AND team IS NULL)",
        name="late_bills_have_a_deployment",
    ),
    Column("reallocation_id", Uuid),
    Column("written_by", Xid8, nullable=False, server_default=text("pg_current_xact_id()")),
    Column("deployment", Text),
    CheckConstraint("team IS NOT NULL OR request_id IS NULL", name="requests_have_a_team"),
    CheckConstraint(
        "(kind = 'reallocation') = (reallocation_id IS NOT NULL)", name="reallocations_are_named"
    ),
    ForeignKeyConstraint(
        ["reallocation_id"],
        ["tollgate.reallocation_approvals.reallocation_id"],
        name="adjustments_reallocation_id_fkey",
    ),
    Index(
        "adjustments_one_a_side",
        "reallocation_id",
        "cost_centre",
        unique=True,
        postgresql_where=text("reallocation_id IS NOT NULL"),
    ),
    Index(
        "adjustments_one_a_document",
        "request_id",
        "attempt",
        "kind",
        "digest",
        unique=True,
        postgresql_where=text("digest IS NOT NULL"),
    ),
    Index("adjustments_posted_period", "posted_period"),
    Index("adjustments_request_id", "request_id", "attempt"),
    Index(
        "adjustments_resolve_once",
        "request_id",
        "attempt",
        unique=True,
        postgresql_where=text("kind = 'resolution'"),
    ),
    Index(
        "adjustments_settle_once",
        "request_id",
        "attempt",
        unique=True,
        postgresql_where=text("settles"),
    ),
    Index("adjustments_written_by", "written_by"),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("journal_id", Uuid),
    Column("document", LargeBinary, nullable=False),
    Column("error", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("recorded_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("resolved_at", TIMESTAMPTZ),
    Column("resolved_by", Text),
    Column("resolution", Text),
    UniqueConstraint("digest", name="dead_letters_digest_key"),
    Index("dead_letters_journal_id", "journal_id"),
)

journals = Table(
    "journals",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("replica", Text, nullable=False),
    Column("started_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("heartbeat", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("written", BigInteger, nullable=False, server_default=text("0")),
    Column("state", Text, nullable=False, server_default=text("'live'")),
    Column("note", Text),
    Column("times_lost", Integer, nullable=False, server_default=text("0")),
    Column("policy_version", Integer),
    Column("policy_seen_at", TIMESTAMPTZ),
    Column("lost_at", TIMESTAMPTZ),
    CheckConstraint(
        "(policy_version IS NULL) = (policy_seen_at IS NULL)", name="a_version_was_seen_some_time"
    ),
    CheckConstraint("state IN ('live', 'drained', 'lost')", name="journals_state_check"),
)

demo_organisations = Table(
    "demo_organisations",
    metadata,
    Column("organisation", Text, primary_key=True),
    Column("is_ledger", Boolean, primary_key=True),
    Column("last_day", Date, nullable=False),
    Column("author", Text, nullable=False, server_default=text("SESSION_USER")),
    Column("begun_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Index(
        "demo_organisations_one_ledger",
        "is_ledger",
        unique=True,
        postgresql_where=text("is_ledger"),
    ),
)

ledger_server = Table(
    "ledger_server",
    metadata,
    Column("is_only", Boolean, primary_key=True, server_default=text("true")),
    Column("system_identifier", BigInteger, nullable=False),
    Column("adopted_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    CheckConstraint("is_only", name="ledger_server_is_only_check"),
)

periods = Table(
    "periods",
    metadata,
    Column("month", Date, primary_key=True),
    Column("state", Text, nullable=False, server_default=text("'open'")),
    Column("opened_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("reopened_at", TIMESTAMPTZ),
    CheckConstraint("EXTRACT(day FROM month) = 1", name="periods_month_check"),
    CheckConstraint("state IN ('open', 'provisional', 'closed')", name="periods_state_check"),
)

month_closes = Table(
    "month_closes",
    metadata,
    Column("month", Date, ForeignKey("tollgate.periods.month"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("closed_at", TIMESTAMPTZ, nullable=False),
    Column("author", Text, nullable=False),
    Column("operator", Text),
    Column("accepted", JSONB, nullable=False),
    Column("parts", JSONB, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("adjustments", BigInteger, nullable=False),
    Column("total_nusd", Numeric, nullable=False),
    Column("reopened_at", TIMESTAMPTZ),
    Column("reopened_by", Text),
    Column("reopen_reason", Text),
    Column(
        "reason",
        Text,
        server_default=text("NULLIF(current_setting('tollgate.reason'::text, true), ''::text)"),
    ),
    CheckConstraint("version > 0", name="versions_begin_at_1"),
    CheckConstraint("jsonb_typeof(accepted) = 'object'", name="accepted_is_an_object"),
    CheckConstraint("jsonb_typeof(parts) = 'array'", name="parts_are_an_array"),
    CheckConstraint("sha256 ~ '^[0-9a-f]{64}$'", name="closes_have_a_sha256"),
    CheckConstraint(
        "(reopened_at IS NULL) = (reopened_by IS NULL) AND (reopened_at IS NULL) = "
        "(reopen_reason IS NULL)",
        name="a_reopening_has_its_reason",
    ),
)

# The GPU hours of a closed month as its version has them.
closed_gpu_hours = Table(
    "closed_gpu_hours",
    metadata,
    Column("month", Date, nullable=False),
    Column("version", Integer, nullable=False),
    *(Column(column.name, column.type) for column in gpu_cost.columns),
    ForeignKeyConstraint(
        ["month", "version"],
        ["tollgate.month_closes.month", "tollgate.month_closes.version"],
        deferrable=True,
        initially="DEFERRED",
    ),
    Index("closed_gpu_hours_version", "month", "version", "hour"),
)

# The close that a transaction has begun: it records no other month and no other moment.
closes_begun = Table(
    "closes_begun",
    metadata,
    Column("xact", Xid8, primary_key=True, server_default=text("pg_current_xact_id()")),
    Column("month", Date, nullable=False),
    Column("closed_at", TIMESTAMPTZ, nullable=False),
)

# The idle cost of these hours, with the team that bears it.
closed_idle_costs = Table(
    "closed_idle_costs",
    metadata,
    Column("month", Date, nullable=False),
    Column("version", Integer, nullable=False),
    Column("hour", TIMESTAMPTZ),
    Column("deployment", Text),
    Column("team", Text),
    Column("cost_centre", Text),
    Column("idle_usd", Numeric),
    ForeignKeyConstraint(
        ["month", "version"],
        ["tollgate.month_closes.month", "tollgate.month_closes.version"],
        deferrable=True,
        initially="DEFERRED",
    ),
    Index("closed_idle_costs_version", "month", "version", "hour"),
)
