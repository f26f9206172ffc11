"""Not every login may make temporary tables: they fill the disk of the ledger.

The gateway stages the events that it writes in such tables, and commands book with the same
statements. Only the owner of the database may take the right away; elsewhere `db check` prints the
SQL.
"""

from __future__ import annotations

from alembic import op

revision = "20261128_1510"
down_revision = "20261128_1500"
branch_labels = None
depends_on = None

NARROW = """
DO $$
BEGIN
    IF pg_has_role((SELECT datdba FROM pg_database WHERE datname = current_database()), 'USAGE') THEN
        EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
        EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO tollgate_gateway, tollgate_admin', current_database());
    END IF;
END
$$;
"""


def upgrade() -> None:
    """Take the right from PUBLIC, and give it to the two roles that need it."""
    op.get_bind().connection.cursor().execute(NARROW)
