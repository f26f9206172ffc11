"""Declares the tables of the schedules of statements, only for a comparison with the migration that
creates them.
"""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    Date,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, metadata

report_schedules = Table(
    "report_schedules",
    metadata,
    Column("schedule_id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("name", Text, nullable=False),
    Column("cost_centre", Text),
    Column("every", Text, nullable=False),
    Column("receiver", Text, nullable=False),
    Column("sent_to", Text, nullable=False),
    Column("created_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("author", Text, nullable=False, server_default=text("SESSION_USER")),
    CheckConstraint("every = 'month'", name="report_schedules_every_check"),
    UniqueConstraint("name", name="schedules_have_one_name"),
)

statement_deliveries = Table(
    "statement_deliveries",
    metadata,
    Column("schedule_id", Uuid, primary_key=True),
    Column("month", Date, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("delivery_id", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
    Column("name", Text, nullable=False),
    Column("sent_to", Text, nullable=False),
    Column("opened_at", TIMESTAMPTZ, nullable=False),
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("next_try_at", TIMESTAMPTZ),
    Column("last_error", Text),
    Column("delivered_at", TIMESTAMPTZ),
    Column("given_up_at", TIMESTAMPTZ),
    CheckConstraint("tries >= 0", name="statement_deliveries_tries_check"),
    CheckConstraint(
        "num_nonnulls(delivered_at, given_up_at, next_try_at) = 1",
        name="statement_delivery_has_one_end",
    ),
    UniqueConstraint("delivery_id", name="statement_deliveries_delivery_id_key"),
    Index(
        "statement_deliveries_next_try_at",
        "next_try_at",
        postgresql_where=text("next_try_at IS NOT NULL"),
    ),
)
