"""Declares the tables of budgets, leases, grants, alerts and idempotency claims, only for a
comparison with the migrations that create them.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, Xid8, metadata

budgets = Table(
    "budgets",
    metadata,
    Column("rule_id", Text, primary_key=True),
    Column("scope", Text, nullable=False),
    Column("team", Text),
    Column("owner", Text, nullable=False),
    Column("period", Text, nullable=False),
    Column("time_zone", Text, nullable=False),
    Column("limit_nusd", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("alert_at", ARRAY(Numeric), nullable=False),
    Column("overdraft_nusd", BigInteger, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("is_current", Boolean, nullable=False),
    CheckConstraint("kind IN ('hard', 'soft')", name="budgets_kind_check"),
    CheckConstraint("limit_nusd >= 0", name="budgets_limit_nusd_check"),
    CheckConstraint("overdraft_nusd >= 0", name="budgets_overdraft_nusd_check"),
    CheckConstraint(
        "period IN ('hour', 'day', 'week', 'month', 'once')", name="budgets_period_check"
    ),
    CheckConstraint(
        "scope IN ('team', 'project', 'key', 'cost_centre')", name="budgets_scope_check"
    ),
)

budget_periods = Table(
    "budget_periods",
    metadata,
    Column("account_id", Text, primary_key=True),
    Column("starts_at", TIMESTAMPTZ, primary_key=True),
    Column("ends_at", TIMESTAMPTZ),
    Column("rule_id", Text),
    Column("spent_nusd", Numeric, nullable=False, server_default=text("0")),
    Column("leased_nusd", BigInteger, nullable=False, server_default=text("0")),
    CheckConstraint("leased_nusd >= 0", name="budget_periods_leased_nusd_check"),
    Index("budget_periods_account_ends", "account_id", "ends_at"),
    Index("budget_periods_ends_at", "ends_at"),
)

budget_accounts = Table(
    "budget_accounts",
    metadata,
    Column("account_id", Text, primary_key=True),
)

budget_overlaps = Table(
    "budget_overlaps",
    metadata,
    Column("account_id", Text, nullable=False),
    Column("starts_at", TIMESTAMPTZ, nullable=False),
    Column("earlier_at", TIMESTAMPTZ, nullable=False),
    Column("outside_nusd", Numeric, nullable=False),
    Index("budget_overlaps_window", "account_id", "starts_at", "earlier_at"),
)

budget_grants = Table(
    "budget_grants",
    metadata,
    Column("grant_id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("account_id", Text, nullable=False),
    Column("starts_at", TIMESTAMPTZ, nullable=False),
    Column("amount_nusd", BigInteger, nullable=False),
    Column("expires_at", TIMESTAMPTZ),
    Column("reason", Text, nullable=False),
    Column("author", Text, nullable=False, server_default=text("SESSION_USER")),
    Column("created_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    CheckConstraint("amount_nusd > 0", name="budget_grants_amount_nusd_check"),
    Index("budget_grants_account", "account_id", "starts_at"),
)

budget_corrections = Table(
    "budget_corrections",
    metadata,
    Column("xact", Xid8, nullable=False, server_default=text("pg_current_xact_id()")),
    Column("account_id", Text, nullable=False),
    Column("starts_at", TIMESTAMPTZ, nullable=False),
    Column("amount_nusd", Numeric, nullable=False),
    Index("budget_corrections_xact", "xact"),
)

budget_losses = Table(
    "budget_losses",
    metadata,
    Column("journal_id", Uuid, nullable=False),
    Column("account_id", Text, nullable=False),
    Column("starts_at", TIMESTAMPTZ, nullable=False),
    Column("amount_nusd", BigInteger, nullable=False),
    Column("lost_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Index("budget_losses_journal", "journal_id"),
)

# The columns from `tries` on belong to gateways of the release before `alert_deliveries`.
budget_alerts = Table(
    "budget_alerts",
    metadata,
    Column("alert_id", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
    Column("account_id", Text, primary_key=True),
    Column("starts_at", TIMESTAMPTZ, primary_key=True),
    Column("threshold", Numeric, primary_key=True),
    Column("ends_at", TIMESTAMPTZ),
    Column("rule_id", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("team", Text),
    Column("owner", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("period", Text, nullable=False),
    Column("time_zone", Text, nullable=False),
    Column("limit_nusd", BigInteger, nullable=False),
    Column("granted_nusd", BigInteger, nullable=False),
    Column("spent_nusd", BigInteger, nullable=False),
    Column("raised_at", TIMESTAMPTZ, nullable=False),
    Column("announced_at", TIMESTAMPTZ),
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("next_try_at", TIMESTAMPTZ),
    Column("last_error", Text),
    Column("delivered_at", TIMESTAMPTZ),
    Column("given_up_at", TIMESTAMPTZ),
    UniqueConstraint("alert_id", name="budget_alerts_alert_id_key"),
    CheckConstraint("threshold > 0", name="budget_alerts_threshold_check"),
    CheckConstraint("tries >= 0", name="budget_alerts_tries_check"),
    Index(
        "budget_alerts_next_try_at", "next_try_at", postgresql_where=text("next_try_at IS NOT NULL")
    ),
    Index("budget_alerts_raised_at", "raised_at"),
    Index("budget_alerts_unannounced", "raised_at", postgresql_where=text("announced_at IS NULL")),
)

leases = Table(
    "leases",
    metadata,
    Column("journal_id", Uuid, primary_key=True),
    Column("account_id", Text, primary_key=True),
    Column("starts_at", TIMESTAMPTZ, primary_key=True),
    Column("outstanding_nusd", BigInteger, nullable=False),
    Column("held_nusd", BigInteger, nullable=False),
    Column("turn", BigInteger, nullable=False),
    Column("granted_nusd", BigInteger, nullable=False),
    Column("taken_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("renewed_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    CheckConstraint("held_nusd >= 0", name="leases_held_nusd_check"),
    CheckConstraint("outstanding_nusd >= 0", name="leases_outstanding_nusd_check"),
    Index("leases_account", "account_id", "starts_at"),
)

idempotency_claims = Table(
    "idempotency_claims",
    metadata,
    Column("team", Text, primary_key=True),
    Column("key_hash", LargeBinary, primary_key=True),
    Column("body_hash", LargeBinary, nullable=False),
    Column("request_id", Uuid, nullable=False),
    Column("journal_id", Uuid, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'running'")),
    Column("claimed_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("finished_at", TIMESTAMPTZ),
    CheckConstraint(
        "(state = 'finished') = (finished_at IS NOT NULL)", name="finished_has_its_time"
    ),
    CheckConstraint("length(key_hash) = 32 AND length(body_hash) = 32", name="hashes_are_whole"),
    CheckConstraint("state IN ('running', 'finished')", name="idempotency_claims_state_check"),
    Index("idempotency_claims_claimed_at", "claimed_at"),
    Index("idempotency_claims_running", "journal_id", postgresql_where=text("state = 'running'")),
)
