"""Declares the tables of providers' bills and of the true-ups to them, only for a comparison with
the migrations.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Date,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    Table,
    Text,
    Uuid,
    text,
)

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, metadata

provider_bill_imports = Table(
    "provider_bill_imports",
    metadata,
    Column("import_id", Uuid, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("file_name", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("first_day", Date, nullable=False),
    Column("last_day", Date, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("amount_nusd", Numeric, nullable=False),
    Column("author", Text, nullable=False, server_default=text("SESSION_USER")),
    Column("imported_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    CheckConstraint("sha256 ~ '^[0-9a-f]{64}$'", name="sha256_is_hex"),
    CheckConstraint("rows >= 0", name="rows_are_counted"),
    CheckConstraint("first_day <= last_day", name="imports_end_after_they_begin"),
)

provider_bill_days = Table(
    "provider_bill_days",
    metadata,
    Column("import_id", Uuid, primary_key=True),
    Column("account", Text, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("replaced_by", Uuid),
    ForeignKeyConstraint(
        ["import_id"],
        ["tollgate.provider_bill_imports.import_id"],
        name="provider_bill_days_import_id_fkey",
    ),
    ForeignKeyConstraint(
        ["replaced_by"],
        ["tollgate.provider_bill_imports.import_id"],
        name="provider_bill_days_replaced_by_fkey",
    ),
    Index(
        "provider_bill_days_in_force",
        "provider",
        "account",
        "kind",
        "day",
        unique=True,
        postgresql_where=text("replaced_by IS NULL"),
    ),
)

provider_bill_lines = Table(
    "provider_bill_lines",
    metadata,
    Column("import_id", Uuid, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("account", Text, nullable=False),
    Column("day", Date, nullable=False),
    Column("project", Text),
    Column("key", Text),
    Column("model", Text, nullable=False),
    Column("token_kind", Text, nullable=False),
    Column("quantity", Numeric),
    Column("amount_nusd", BigInteger),
    Column("slack_nusd", BigInteger, nullable=False),
    Column("text", Text, nullable=False),
    ForeignKeyConstraint(
        ["import_id", "account", "day"],
        [
            "tollgate.provider_bill_days.import_id",
            "tollgate.provider_bill_days.account",
            "tollgate.provider_bill_days.day",
        ],
        name="provider_bill_lines_import_id_account_day_fkey",
    ),
    Index("provider_bill_lines_day", "import_id", "account", "day"),
)

true_ups = Table(
    "true_ups",
    metadata,
    Column("adjustment_id", Uuid, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("day", Date, nullable=False),
    Column("model", Text, nullable=False),
    Column("token_kind", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("evidence", Text, nullable=False),
    ForeignKeyConstraint(
        ["adjustment_id"],
        ["tollgate.adjustments.adjustment_id"],
        name="true_ups_adjustment_id_fkey",
    ),
    Index("true_ups_day", "provider", "day"),
)
