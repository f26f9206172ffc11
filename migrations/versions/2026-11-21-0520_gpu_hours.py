"""GPU hours seen: samples of self-hosted engines, and what they cost beside what was applied."""

from __future__ import annotations

from alembic import op

revision = "20261121_0520"
down_revision = "20261121_0510"
branch_labels = None
depends_on = None

STEPS: tuple[str, ...] = ()


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
