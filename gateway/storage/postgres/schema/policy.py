"""Declares the tables of policies, API keys and prices as the migrations create them, for queries
and for a comparison.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    Time,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, metadata

policies = Table(
    "policies",
    metadata,
    Column("version", Integer, Identity(always=True), primary_key=True),
    Column("sha256", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("is_demo", Boolean, nullable=False),
    Column("applied_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("team", Text, nullable=False),
    Column("project", Text),
    Column("digest", LargeBinary, nullable=False),
    Column("pepper_id", Text, nullable=False),
    Column("created_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("created_by", Text, nullable=False),
    Column("expires_at", TIMESTAMPTZ),
    Column("revoked_at", TIMESTAMPTZ),
    Column("revoked_by", Text),
    Column("is_demo", Boolean, nullable=False, server_default=text("false")),
    Column("paused_at", TIMESTAMPTZ),
    Column("paused_by", Text),
    Column("replaces", Text),
    ForeignKeyConstraint(["replaces"], ["tollgate.api_keys.key_id"], name="api_keys_replaces_fkey"),
    Index("api_keys_replaces", "replaces", unique=True),
)

peppers = Table(
    "peppers",
    metadata,
    Column("pepper_id", Text, primary_key=True),
    Column("first_seen_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
)

prices = Table(
    "prices",
    metadata,
    Column("price_id", Text, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("rates", JSONB, nullable=False),
    Column("created_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
)

price_entries = Table(
    "price_entries",
    metadata,
    Column("entry_id", BigInteger, Identity(always=True), primary_key=True),
    Column("origin", Text, nullable=False),
    Column("provider", Text),
    Column("model", Text),
    Column("deployment", Text),
    Column("valid_from", TIMESTAMPTZ, nullable=False),
    Column("daily_since", Time),
    Column("daily_until", Time),
    Column("price_id", Text),
    Column("source", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("calibration", JSONB),
    CheckConstraint("(daily_since IS NULL) = (daily_until IS NULL)", name="a_window_has_two_ends"),
    CheckConstraint(
        "origin IN ('list', 'override', 'calibrated')", name="price_entries_origin_check"
    ),
    ForeignKeyConstraint(
        ["price_id"], ["tollgate.prices.price_id"], name="price_entries_price_id_fkey"
    ),
    CheckConstraint(
        "CASE WHEN origin = 'list' THEN provider IS NOT NULL AND model IS NOT NULL AND "
        "deployment IS NULL ELSE (deployment IS NULL) <> (model IS NULL) AND (provider IS "
        "NULL OR model IS NOT NULL) END",
        name="says_what_it_prices",
    ),
    CheckConstraint(
        "(origin = 'calibrated') = (calibration IS NOT NULL) AND (origin <> 'calibrated' OR "
        "deployment IS NOT NULL)",
        name="a_calibration_is_of_a_deployment",
    ),
    Index("price_entries_model", "provider", "model"),
)

deployment_prices = Table(
    "deployment_prices",
    metadata,
    Column("deployment", Text, primary_key=True),
    Column("price_id", Text, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("valid_from", TIMESTAMPTZ, primary_key=True),
    ForeignKeyConstraint(
        ["price_id"], ["tollgate.prices.price_id"], name="deployment_prices_price_id_fkey"
    ),
)

policy_team_limits = Table(
    "policy_team_limits",
    metadata,
    Column("policy_version", Integer, primary_key=True),
    Column("team", Text, primary_key=True),
    Column("requests_per_minute", BigInteger),
    Column("tokens_per_minute", BigInteger),
    Column("concurrent", BigInteger),
    Column("is_shadow", Boolean, nullable=False),
    ForeignKeyConstraint(
        ["policy_version"],
        ["tollgate.policies.version"],
        name="policy_team_limits_policy_version_fkey",
    ),
)
