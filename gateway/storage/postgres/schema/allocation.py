"""Declares the tables of re-allocations and their approvals, only for a comparison with the
migrations.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Date,
    ForeignKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)

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
