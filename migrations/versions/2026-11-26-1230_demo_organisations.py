"""The demo organisations that were written, and the mark of a ledger that is one."""

from __future__ import annotations

from alembic import op

revision = "20261126_1230"
down_revision = "20261126_1200"
branch_labels = None
depends_on = None

# The last day is kept: the same command a month later finds the same events, and adds none.
TABLE = """
CREATE TABLE tollgate.demo_organisations (
    organisation text NOT NULL,
    is_ledger    boolean NOT NULL,
    last_day     date NOT NULL,
    author       text NOT NULL DEFAULT session_user,
    begun_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (organisation, is_ledger)
);
CREATE UNIQUE INDEX demo_organisations_one_ledger ON tollgate.demo_organisations (is_ledger) WHERE is_ledger;
SELECT tollgate.make_immutable('tollgate.demo_organisations');
CREATE TRIGGER demo_organisations_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.demo_organisations
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('demo_organisation', 'write', 'organisation');
CREATE TRIGGER demo_organisations_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.demo_organisations
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('demo_organisation');
"""

VIEW = """
CREATE VIEW finance.demo_ledger AS
SELECT organisation, last_day, author, begun_at FROM tollgate.demo_organisations WHERE is_ledger;
GRANT SELECT ON finance.demo_ledger TO tollgate_reader;
"""

GRANTS = """
GRANT SELECT, INSERT ON tollgate.demo_organisations TO tollgate_gateway;
"""

STEPS = (TABLE, VIEW, GRANTS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
