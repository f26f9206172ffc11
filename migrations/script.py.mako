"""${message}.

One step of expand, backfill or contract; it runs while the previous release serves.
"""

from __future__ import annotations

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Say what changes."""
    op.get_bind().connection.cursor().execute("")
