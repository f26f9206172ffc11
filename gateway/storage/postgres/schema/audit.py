"""Declares the audit log's tables as the migrations create them, for queries and for a comparison
with the migrations.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Numeric,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, Xid8, metadata

audit_log = Table(
    "audit_log",
    metadata,
    Column("seq", BigInteger, primary_key=True),
    Column("at", TIMESTAMPTZ, nullable=False),
    Column("db_user", Text, nullable=False),
    Column("operator", Text),
    Column("reason", Text),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("details", JSONB, nullable=False),
    Column("line", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
    CheckConstraint("seq > 0", name="audit_log_seq_check"),
    Index("audit_log_at", "at"),
)

audit_notes = Table(
    "audit_notes",
    metadata,
    Column("note_id", BigInteger, Identity(always=True), primary_key=True),
    Column("xact", Xid8, nullable=False, server_default=text("pg_current_xact_id()")),
    Column("is_first", Boolean, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("details", JSONB, nullable=False),
    Column("entries", BigInteger),
    Column("amount_nusd", Numeric),
    Index("audit_notes_xact", "xact"),
    prefixes=["UNLOGGED"],
)
