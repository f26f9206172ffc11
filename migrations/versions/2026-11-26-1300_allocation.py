"""Finance's own role: it reads reports, and approves what another login entered."""

from __future__ import annotations

from alembic import op

revision = "20261126_1300"
down_revision = "20261126_1230"
branch_labels = None
depends_on = None

# As for tollgate_admin: another database of this server may have made it, or be making it now. It
# reads what the reader reads, and may add what a later step of this file grants.
ROLE = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'tollgate_finance') THEN
        BEGIN
            CREATE ROLE tollgate_finance NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    IF NOT pg_has_role(current_user, 'tollgate_finance', 'USAGE') THEN
        GRANT tollgate_finance TO CURRENT_USER;
    END IF;
END
$$;
GRANT USAGE ON SCHEMA tollgate TO tollgate_finance;
DO $$
BEGIN
    IF NOT pg_has_role('tollgate_finance', 'tollgate_reader', 'MEMBER') THEN
        GRANT tollgate_reader TO tollgate_finance;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'tollgate_finance does not include tollgate_reader: grant both to who approves';
END
$$;
"""

STEPS: tuple[str, ...] = (ROLE,)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
