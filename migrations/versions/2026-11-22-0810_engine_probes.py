"""Probes of engines: their tokens are in the engines' counters, and no team may be charged for
them.
"""

from __future__ import annotations

from alembic import op

revision = "20261122_0810"
down_revision = "20261122_0800"
branch_labels = None
depends_on = None

# Written before a probe is sent. Without figures as long as its tokens are unknown.
STEP = """
CREATE TABLE tollgate.engine_probes (
    probe_id          uuid PRIMARY KEY,
    deployment        text NOT NULL,
    sent_at           timestamptz NOT NULL,
    ended_at          timestamptz,
    prompt_tokens     bigint CHECK (prompt_tokens >= 0),
    generation_tokens bigint CHECK (generation_tokens >= 0),
    CONSTRAINT figures_come_together CHECK ((prompt_tokens IS NULL) = (generation_tokens IS NULL))
);
CREATE INDEX engine_probes_sent ON tollgate.engine_probes (deployment, sent_at);
GRANT SELECT, INSERT, UPDATE, DELETE ON tollgate.engine_probes TO tollgate_gateway;
"""


def upgrade() -> None:
    """One step."""
    op.get_bind().connection.cursor().execute(STEP)  # the driver's own: many statements at once
