"""Declares the tables of ejections, engine samples, probes, GPU hours and imported GPU bills as the
migrations create them, for queries and for a comparison.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)

from gateway.storage.postgres.schema.base import TIMESTAMPTZ, metadata

ejections = Table(
    "ejections",
    metadata,
    Column("ejection_id", BigInteger, Identity(always=True), primary_key=True),
    Column("deployment", Text, nullable=False),
    Column("promised", Text, nullable=False),
    Column("stated", Text, nullable=False),
    Column("request_id", Uuid, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("ejected_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    Column("readmitted_at", TIMESTAMPTZ),
    Column("readmitted_by", Text),
    Column("reason", Text),
    CheckConstraint(
        "(readmitted_at IS NULL) = (readmitted_by IS NULL) AND (readmitted_at IS NULL) = "
        "(reason IS NULL)",
        name="ejections_check",
    ),
    Index(
        "ejections_in_force",
        "deployment",
        unique=True,
        postgresql_where=text("readmitted_at IS NULL"),
    ),
)

engine_probes = Table(
    "engine_probes",
    metadata,
    Column("probe_id", Uuid, primary_key=True),
    Column("deployment", Text, nullable=False),
    Column("sent_at", TIMESTAMPTZ, nullable=False),
    Column("ended_at", TIMESTAMPTZ),
    Column("prompt_tokens", BigInteger),
    Column("generation_tokens", BigInteger),
    CheckConstraint("generation_tokens >= 0", name="engine_probes_generation_tokens_check"),
    CheckConstraint("prompt_tokens >= 0", name="engine_probes_prompt_tokens_check"),
    CheckConstraint(
        "(prompt_tokens IS NULL) = (generation_tokens IS NULL)", name="figures_come_together"
    ),
    Index("engine_probes_sent", "deployment", "sent_at"),
)

engine_samples = Table(
    "engine_samples",
    metadata,
    Column("deployment", Text, primary_key=True),
    Column("at", TIMESTAMPTZ, primary_key=True),
    Column("is_watched", Boolean, nullable=False),
    Column("is_up", Boolean, nullable=False),
    Column("started_at", TIMESTAMPTZ),
    Column("prompt_tokens", BigInteger),
    Column("generation_tokens", BigInteger),
    Column("running", BigInteger),
    Column("waiting", BigInteger),
    Column("kv_use", Double),
    Column("prefix_hit_rate", Double),
    Column("ttft_p50_s", Double),
    Column("ttft_p95_s", Double),
    Column("tpot_p50_s", Double),
    Column("tpot_p95_s", Double),
    Column("pressure", Double),
    Index("engine_samples_at", "at", postgresql_using="brin"),
)

gpu_bill_imports = Table(
    "gpu_bill_imports",
    metadata,
    Column("import_id", Uuid, primary_key=True),
    Column("file_name", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("amount_nusd", BigInteger, nullable=False),
    Column("author", Text, nullable=False),
    Column("imported_at", TIMESTAMPTZ, nullable=False, server_default=text("now()")),
    CheckConstraint("sha256 ~ '^[0-9a-f]{64}$'", name="sha256_is_hex"),
    CheckConstraint("rows > 0", name="imports_have_rows"),
)

gpu_bill_lines = Table(
    "gpu_bill_lines",
    metadata,
    Column("import_id", Uuid, primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("deployment", Text, nullable=False),
    Column("starts_at", TIMESTAMPTZ, nullable=False),
    Column("ends_at", TIMESTAMPTZ, nullable=False),
    Column("gpu_ms", BigInteger, nullable=False),
    Column("amount_nusd", BigInteger, nullable=False),
    Column("invoice_id", Text, nullable=False),
    CheckConstraint("line > 0", name="lines_are_numbered"),
    CheckConstraint("gpu_ms >= 0", name="line_hours_are_not_negative"),
    CheckConstraint("invoice_id <> ''", name="lines_have_an_invoice"),
    CheckConstraint("starts_at < ends_at", name="lines_end_after_they_begin"),
    ForeignKeyConstraint(
        ["import_id"],
        ["tollgate.gpu_bill_imports.import_id"],
        name="gpu_bill_lines_import_id_fkey",
    ),
    Index("gpu_bill_lines_invoice", "deployment", "invoice_id"),
)

gpu_bill_hours = Table(
    "gpu_bill_hours",
    metadata,
    Column("piece_id", BigInteger, Identity(always=True), primary_key=True),
    Column("import_id", Uuid, nullable=False),
    Column("line", Integer, nullable=False),
    Column("deployment", Text, nullable=False),
    Column("hour", TIMESTAMPTZ, nullable=False),
    Column("starts_at", TIMESTAMPTZ, nullable=False),
    Column("ends_at", TIMESTAMPTZ, nullable=False),
    Column("gpu_ms", BigInteger, nullable=False),
    Column("amount_nusd", BigInteger, nullable=False),
    Column("replaced_by", Uuid),
    CheckConstraint("gpu_ms >= 0", name="piece_hours_are_not_negative"),
    CheckConstraint(
        "date_trunc('hour', starts_at, 'UTC') = hour AND starts_at < ends_at AND ends_at <= hour + "
        "interval '1 hour'",
        name="pieces_lie_in_their_hour",
    ),
    ForeignKeyConstraint(
        ["import_id", "line"],
        ["tollgate.gpu_bill_lines.import_id", "tollgate.gpu_bill_lines.line"],
        name="gpu_bill_hours_import_id_line_fkey",
    ),
    ForeignKeyConstraint(
        ["replaced_by"],
        ["tollgate.gpu_bill_imports.import_id"],
        name="gpu_bill_hours_replaced_by_fkey",
    ),
    Index(
        "gpu_bill_hours_in_force",
        "deployment",
        "hour",
        postgresql_where=text("replaced_by IS NULL"),
    ),
    Index("gpu_bill_hours_line", "import_id", "line"),
)

gpu_hours = Table(
    "gpu_hours",
    metadata,
    Column("deployment", Text, primary_key=True),
    Column("hour", TIMESTAMPTZ, primary_key=True),
    Column("policy_version", Integer, primary_key=True),
    Column("gpu_type", Text),
    Column("gpu_count", Integer),
    Column("usd_per_gpu_hour", Numeric),
    Column("basis", Text, nullable=False),
    Column("watched_ms", BigInteger, nullable=False),
    Column("up_ms", BigInteger, nullable=False),
    Column("billed_ms", BigInteger, nullable=False),
    Column("bill_nusd", BigInteger),
    CheckConstraint("basis IN ('seen', 'always')", name="gpu_hours_basis_check"),
    CheckConstraint(
        "(gpu_count IS NULL) = (usd_per_gpu_hour IS NULL) AND (gpu_count IS NULL) = "
        "(bill_nusd IS NULL)",
        name="gpus_have_a_rate",
    ),
    CheckConstraint("0 <= up_ms AND up_ms <= watched_ms", name="up_is_within_watched"),
    Index("gpu_hours_hour", "hour"),
)
