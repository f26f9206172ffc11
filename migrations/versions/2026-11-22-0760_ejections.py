"""Ejections: deployments whose upstream reported another place than promised, until a person
looks.
"""

from __future__ import annotations

from alembic import op

revision = "20261122_0760"
down_revision = "20261122_0750"
branch_labels = None
depends_on = None

# One at a time is in force for a deployment; earlier ones stay for the auditor.
TABLE = """
CREATE TABLE tollgate.ejections (
    ejection_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    deployment    text NOT NULL,
    promised      text NOT NULL,
    stated        text NOT NULL,
    request_id    uuid NOT NULL,
    attempt       smallint NOT NULL,
    ejected_at    timestamptz NOT NULL DEFAULT now(),
    readmitted_at timestamptz,
    readmitted_by text,
    reason        text,
    CHECK ((readmitted_at IS NULL) = (readmitted_by IS NULL) AND (readmitted_at IS NULL) = (reason IS NULL))
);
CREATE UNIQUE INDEX ejections_in_force ON tollgate.ejections (deployment) WHERE readmitted_at IS NULL;
CREATE TRIGGER ejections_changed AFTER INSERT OR UPDATE OR DELETE ON tollgate.ejections
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.notify_change();
CREATE TRIGGER ejections_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.ejections
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('deployment', 'eject', 'deployment');
CREATE TRIGGER ejections_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.ejections
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('deployment');
"""

GRANTS = """
GRANT SELECT ON tollgate.ejections TO tollgate_gateway, tollgate_admin;
GRANT INSERT (deployment, promised, stated, request_id, attempt) ON tollgate.ejections TO tollgate_gateway;
GRANT UPDATE (readmitted_at, readmitted_by, reason) ON tollgate.ejections TO tollgate_admin;
"""


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in (TABLE, GRANTS):
        cursor.execute(step)
