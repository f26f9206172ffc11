"""Declares the tables of re-allocations, currency rates, and the shares and idle rules of policies,
only for a comparison with the migrations.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Date,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Numeric,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, metadata

_PERSON = text("NULLIF(current_setting('tollgate.person'::text, true), ''::text)")

reallocations = Table(
    "reallocations",
    metadata,
    Column("reallocation_id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("month", Date, nullable=False),
    Column("from_cost_centre", Text, nullable=False),
    Column("to_cost_centre", Text, nullable=False),
    Column("amount_nusd", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("author_login", Text, nullable=False, server_default=text("SESSION_USER")),
    Column("author", Text, server_default=_PERSON),
    Column("created_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    CheckConstraint("EXTRACT(day FROM month) = 1", name="reallocations_month_check"),
    CheckConstraint("from_cost_centre <> ''", name="reallocations_have_an_origin"),
    CheckConstraint("to_cost_centre <> ''", name="reallocations_have_a_target"),
    CheckConstraint("amount_nusd > 0", name="reallocations_move_money"),
    CheckConstraint("reason <> ''", name="reallocations_have_a_reason"),
    CheckConstraint("from_cost_centre <> to_cost_centre", name="reallocations_have_two_sides"),
)

reallocation_approvals = Table(
    "reallocation_approvals",
    metadata,
    Column("reallocation_id", Uuid, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("approver_login", Text, nullable=False, server_default=text("SESSION_USER")),
    Column("approver", Text, server_default=_PERSON),
    Column("approved_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("posted_period", Date, nullable=False),
    CheckConstraint("reason <> ''", name="approvals_have_a_reason"),
    ForeignKeyConstraint(
        ["reallocation_id"],
        ["tollgate.reallocations.reallocation_id"],
        name="reallocation_approvals_reallocation_id_fkey",
    ),
)

currency_rates = Table(
    "currency_rates",
    metadata,
    Column("rate_id", BigInteger, Identity(always=True), primary_key=True),
    Column("currency", Text, nullable=False),
    Column("first_day", Date, nullable=False),
    Column("usd_per_unit", Numeric, nullable=False),
    Column("source", Text, nullable=False),
    Column("author", Text, nullable=False, server_default=text("SESSION_USER")),
    Column("created_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    CheckConstraint("currency ~ '^[A-Z]{3}$' AND currency <> 'USD'", name="currencies_have_a_code"),
    CheckConstraint("usd_per_unit > 0 AND usd_per_unit < 'Infinity'", name="rates_are_positive"),
    CheckConstraint("source <> ''", name="rates_have_a_source"),
    Index("currency_rates_day", "currency", "first_day"),
)

policy_cost_centres = Table(
    "policy_cost_centres",
    metadata,
    Column("policy_version", Integer, primary_key=True),
    Column("team", Text, primary_key=True),
    Column("first_day", Date, primary_key=True),
    Column("cost_centre", Text, primary_key=True),
    Column("share", Numeric, nullable=False),
    CheckConstraint("share > 0 AND share <= 1", name="shares_are_parts"),
    ForeignKeyConstraint(
        ["policy_version"],
        ["tollgate.policies.version"],
        name="policy_cost_centres_policy_version_fkey",
    ),
)

policy_idle_rules = Table(
    "policy_idle_rules",
    metadata,
    Column("policy_version", Integer, primary_key=True),
    Column("deployment", Text, primary_key=True),
    Column("rule", Text, nullable=False),
    Column("weights", JSONB, nullable=False),
    CheckConstraint("rule IN ('proportional', 'reserved', 'even')", name="idle_rules_are_known"),
    CheckConstraint("jsonb_typeof(weights) = 'object'", name="weights_have_their_shape"),
    ForeignKeyConstraint(
        ["policy_version"],
        ["tollgate.policies.version"],
        name="policy_idle_rules_policy_version_fkey",
    ),
)
