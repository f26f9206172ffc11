"""Incremental exports find their new rows by an index of the transactions that wrote them.

Building the indexes makes the ledger's writers wait; their journals keep the events meanwhile.
"""

from __future__ import annotations

from alembic import op

revision = "20261126_1940"
down_revision = "20261126_1900"
branch_labels = None
depends_on = None

# Postgres has no BRIN operators for xid8, and a BRIN index reads all rows since the last vacuum. New
# numbers go to the last page of a b-tree, and rows of one transaction share an entry: it is small.
INDEXES = """
CREATE INDEX usage_events_written_by ON tollgate.usage_events (written_by);
CREATE INDEX adjustments_written_by ON tollgate.adjustments (written_by);
"""

# As in revision 20261126_1500, and the indexes, which go with their column.
ADOPT = """
CREATE OR REPLACE FUNCTION tollgate.adopt_ledger() RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    here bigint := (SELECT system_identifier FROM pg_control_system());
BEGIN
    IF EXISTS (SELECT FROM tollgate.ledger_server WHERE system_identifier = here) THEN
        RETURN false;
    END IF;
    ALTER TABLE tollgate.usage_events DROP COLUMN written_by;
    ALTER TABLE tollgate.usage_events ADD COLUMN written_by xid8 NOT NULL DEFAULT pg_current_xact_id();
    CREATE INDEX usage_events_written_by ON tollgate.usage_events (written_by);
    ALTER TABLE tollgate.adjustments DROP COLUMN written_by;
    ALTER TABLE tollgate.adjustments ADD COLUMN written_by xid8 NOT NULL DEFAULT pg_current_xact_id();
    CREATE INDEX adjustments_written_by ON tollgate.adjustments (written_by);
    UPDATE tollgate.ledger_server SET system_identifier = here, adopted_at = now();
    RETURN true;
END
$$;
"""

STEPS = (INDEXES, ADOPT)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
