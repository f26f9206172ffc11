"""A revoked key stays revoked: no login may clear or change its revocation."""

from __future__ import annotations

from alembic import op

revision = "20261123_0145"
down_revision = "20261122_0810"
branch_labels = None
depends_on = None

# `tollgate_admin` may set these columns; only the first revocation counts. Revoking twice changes
# no row.
STAYS_REVOKED = """
CREATE FUNCTION tollgate.refuse_unrevoking() RETURNS trigger LANGUAGE plpgsql SET search_path = '' AS $$
BEGIN
    RAISE EXCEPTION 'key %: a revoked key stays revoked', OLD.key_id
        USING ERRCODE = 'integrity_constraint_violation', HINT = 'Create a new key: tollgate key create';
END
$$;
CREATE TRIGGER stays_revoked BEFORE UPDATE ON tollgate.api_keys FOR EACH ROW
    WHEN (OLD.revoked_at IS NOT NULL AND (OLD.revoked_at, OLD.revoked_by) IS DISTINCT FROM
        (NEW.revoked_at, NEW.revoked_by))
    EXECUTE FUNCTION tollgate.refuse_unrevoking();
"""


def upgrade() -> None:
    """Create the trigger."""
    op.get_bind().connection.cursor().execute(
        STAYS_REVOKED
    )  # the driver's own: many statements at once
