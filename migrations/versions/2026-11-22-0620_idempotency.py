"""Claims of idempotency keys: which request of a team has a key, and whether it has ended."""

from __future__ import annotations

from alembic import op

revision = "20261122_0620"
down_revision = "20261122_0610"
branch_labels = None
depends_on = None

# Keyed hashes, never the key or the body. No answer is kept either.
CLAIMS = """
CREATE TABLE tollgate.idempotency_claims (
    team        text NOT NULL,
    key_hash    bytea NOT NULL,
    body_hash   bytea NOT NULL,
    request_id  uuid NOT NULL,
    journal_id  uuid NOT NULL,
    state       text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished')),
    claimed_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (team, key_hash),
    CONSTRAINT hashes_are_whole CHECK (length(key_hash) = 32 AND length(body_hash) = 32),
    CONSTRAINT finished_has_its_time CHECK ((state = 'finished') = (finished_at IS NOT NULL))
);
CREATE INDEX idempotency_claims_claimed_at ON tollgate.idempotency_claims (claimed_at);
-- Those that a worker leaves behind, found by its journal.
CREATE INDEX idempotency_claims_running ON tollgate.idempotency_claims (journal_id) WHERE state = 'running';
-- A document that the ledger could not take may be of a request whose claim is to be closed.
CREATE INDEX dead_letters_journal_id ON tollgate.dead_letters (journal_id);
"""

GRANTS = """
GRANT SELECT, INSERT, UPDATE, DELETE ON tollgate.idempotency_claims TO tollgate_gateway;
"""

STEPS = (CLAIMS, GRANTS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
