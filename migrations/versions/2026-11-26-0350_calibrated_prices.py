"""The price book takes calibrations: the measured throughput of an engine, which prices its tokens.

A gateway of the release before reads none of these entries, and goes on with the declared figures.
"""

from __future__ import annotations

from alembic import op

revision = "20261126_0350"
down_revision = "20261126_0340"
branch_labels = None
depends_on = None

COLUMN = """
ALTER TABLE tollgate.price_entries ADD COLUMN calibration jsonb;
ALTER TABLE tollgate.price_entries DROP CONSTRAINT price_entries_origin_check;
ALTER TABLE tollgate.price_entries ADD CONSTRAINT price_entries_origin_check
    CHECK (origin IN ('list', 'override', 'calibrated'));
ALTER TABLE tollgate.price_entries ADD CONSTRAINT a_calibration_is_of_a_deployment
    CHECK ((origin = 'calibrated') = (calibration IS NOT NULL)
           AND (origin <> 'calibrated' OR deployment IS NOT NULL));
"""

VIEW = """
CREATE OR REPLACE VIEW finance.price_entries AS
SELECT entry_id, origin, provider, model, deployment, valid_from, daily_since, daily_until, price_id, source, author,
       reason, created_at, calibration
FROM tollgate.price_entries;
"""

STEPS: tuple[str, ...] = (COLUMN, VIEW)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()
    for step in STEPS:
        cursor.execute(step)
