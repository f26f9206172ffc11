"""Declares the tables of ejections, engine samples, probes and GPU hours as the migrations create
them, for queries and for a comparison.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
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
