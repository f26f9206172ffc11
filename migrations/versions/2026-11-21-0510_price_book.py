"""The price book: dated entries of every kind, with their source."""

from __future__ import annotations

from alembic import op

revision = "20261121_0510"
down_revision = "20261121_0500"
branch_labels = None
depends_on = None

STEPS: tuple[str, ...] = ()


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
