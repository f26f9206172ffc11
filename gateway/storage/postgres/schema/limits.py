"""Declares the unlogged tables of rate and concurrency limits, only for a comparison with the
migrations that create them.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Table, Text, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, metadata

limit_windows = Table(
    "limit_windows",
    metadata,
    Column("limit_id", Text, primary_key=True),
    Column("measure", Text, primary_key=True),
    Column("used", BigInteger, nullable=False, server_default=text("0")),
    Column("touched_at", TIMESTAMPTZ, nullable=False),
    CheckConstraint(
        "measure IN ('requests', 'tokens', 'concurrent')", name="limit_windows_measure_check"
    ),
    prefixes=["UNLOGGED"],
)

limit_ticks = Table(
    "limit_ticks",
    metadata,
    Column("limit_id", Text, primary_key=True),
    Column("measure", Text, primary_key=True),
    Column("tick", BigInteger, primary_key=True),
    Column("units", BigInteger, nullable=False),
    CheckConstraint("units >= 0", name="limit_ticks_units_check"),
    prefixes=["UNLOGGED"],
)

limit_slots = Table(
    "limit_slots",
    metadata,
    Column("limit_id", Text, primary_key=True),
    Column("worker", Uuid, primary_key=True),
    Column("slots", BigInteger, nullable=False),
    Column("renewed_at", TIMESTAMPTZ, nullable=False),
    CheckConstraint("slots >= 0", name="limit_slots_slots_check"),
    prefixes=["UNLOGGED"],
)

limit_workers = Table(
    "limit_workers",
    metadata,
    Column("worker", Uuid, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("answer", JSONB),
    Column("heard_at", TIMESTAMPTZ, nullable=False),
    prefixes=["UNLOGGED"],
)
