"""Declares the tables of alerts' deliveries and of spikes, only for a comparison with the
migrations that create them.
"""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    Date,
    Index,
    Integer,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, metadata

alert_deliveries = Table(
    "alert_deliveries",
    metadata,
    Column("alert_id", Uuid, primary_key=True),
    Column("channel", Text, primary_key=True),
    Column("tries", Integer, nullable=False, server_default=text("0")),
    Column("next_try_at", TIMESTAMPTZ),
    Column("last_error", Text),
    Column("delivered_at", TIMESTAMPTZ),
    Column("given_up_at", TIMESTAMPTZ),
    CheckConstraint("channel IN ('webhook', 'email')", name="alert_deliveries_channel_check"),
    CheckConstraint("tries >= 0", name="alert_deliveries_tries_check"),
    CheckConstraint(
        "num_nonnulls(delivered_at, given_up_at, next_try_at) = 1", name="delivery_has_one_end"
    ),
    Index(
        "alert_deliveries_next_try_at",
        "channel",
        "next_try_at",
        postgresql_where=text("next_try_at IS NOT NULL"),
    ),
)

spike_alerts = Table(
    "spike_alerts",
    metadata,
    Column("alert_id", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
    Column("team", Text, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("model", Text),
    Column("key_id", Text),
    Column("spent_nusd", Numeric, nullable=False),
    Column("usual_nusd", Numeric, nullable=False),
    Column("driver_nusd", Numeric, nullable=False),
    Column("raised_at", TIMESTAMPTZ, nullable=False),
    Column("announced_at", TIMESTAMPTZ),
    UniqueConstraint("alert_id", name="spike_alerts_alert_id_key"),
    Index("spike_alerts_raised_at", "raised_at"),
    Index("spike_alerts_unannounced", "raised_at", postgresql_where=text("announced_at IS NULL")),
)

spike_days = Table(
    "spike_days",
    metadata,
    Column("day", Date, primary_key=True),
    Column("looked_at", TIMESTAMPTZ, nullable=False),
)
