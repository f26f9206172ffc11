"""API keys can be paused, and a key can come in the place of another."""

from __future__ import annotations

from alembic import op

revision = "20261122_0710"
down_revision = "20261122_0700"
branch_labels = None
depends_on = None

# `replaces`: this key was made by a rotation of that one, which then has an end. A key is replaced
# once.
KEYS = """
ALTER TABLE tollgate.api_keys
    ADD COLUMN paused_at timestamptz,
    ADD COLUMN paused_by text,
    ADD COLUMN replaces  text REFERENCES tollgate.api_keys;
CREATE UNIQUE INDEX api_keys_replaces ON tollgate.api_keys (replaces);
"""


def upgrade() -> None:
    """Add the columns."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    cursor.execute(KEYS)
