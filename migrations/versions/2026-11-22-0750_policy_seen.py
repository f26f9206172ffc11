"""Each live worker says which policy version it serves from."""

from __future__ import annotations

from alembic import op

revision = "20261122_0750"
down_revision = "20261122_0730"
branch_labels = None
depends_on = None

# Both or none: a worker of an earlier release says nothing.
SEEN = """
ALTER TABLE tollgate.journals
    ADD COLUMN policy_version integer,
    ADD COLUMN policy_seen_at timestamptz,
    ADD CONSTRAINT a_version_was_seen_some_time CHECK ((policy_version IS NULL) = (policy_seen_at IS NULL));
"""


def upgrade() -> None:
    """Add the columns."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    cursor.execute(SEEN)
