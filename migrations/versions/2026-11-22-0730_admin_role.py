"""The role of administration: it may do the commands' work, and nothing else."""

from __future__ import annotations

from alembic import op

revision = "20261122_0730"
down_revision = "20261122_0720"
branch_labels = None
depends_on = None

# As in the first schema: another database of this server may have made it, or be making it right
# now.
ROLE = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'tollgate_admin') THEN
        BEGIN
            CREATE ROLE tollgate_admin NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    IF NOT pg_has_role(current_user, 'tollgate_admin', 'USAGE') THEN
        GRANT tollgate_admin TO CURRENT_USER;
    END IF;
END
$$;
"""

# Reading is not narrowed: the data are figures and digests, and `doctor` reads the next table too.
# Commands read reports as the reader; if this login may not grant that role, an administrator
# grants it to the admin's.
READING = """
GRANT USAGE ON SCHEMA tollgate TO tollgate_admin;
GRANT SELECT ON ALL TABLES IN SCHEMA tollgate TO tollgate_admin;
ALTER DEFAULT PRIVILEGES IN SCHEMA tollgate GRANT SELECT ON TABLES TO tollgate_admin;
DO $$
BEGIN
    IF NOT pg_has_role('tollgate_admin', 'tollgate_reader', 'MEMBER') THEN
        GRANT tollgate_reader TO tollgate_admin;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'tollgate_admin does not include tollgate_reader: grant both to who administers';
END
$$;
"""

# Column by column: a key's digest, team and project are never its to change, nor is a policy, a
# price or an adjustment once it is there. A month's books are locked by `posting_months`, which is
# the owner's.
WRITING = """
GRANT INSERT ON tollgate.policies, tollgate.api_keys, tollgate.peppers, tollgate.budget_grants, tollgate.budget_periods,
    tollgate.prices, tollgate.deployment_prices, tollgate.price_entries, tollgate.adjustments, tollgate.dirty_hours
    TO tollgate_admin;
GRANT UPDATE (revoked_at, revoked_by, paused_at, paused_by, expires_at) ON tollgate.api_keys TO tollgate_admin;
GRANT INSERT, UPDATE ON tollgate.budgets TO tollgate_admin;
GRANT UPDATE (state, note, times_lost) ON tollgate.journals TO tollgate_admin;
GRANT UPDATE (resolved_at, resolved_by, resolution) ON tollgate.dead_letters TO tollgate_admin;
GRANT UPDATE (state, finished_at) ON tollgate.idempotency_claims TO tollgate_admin;
GRANT EXECUTE ON FUNCTION tollgate.posting_months(date[]), tollgate.end_leases(uuid, boolean),
    tollgate.budget_mistakes(), tollgate.spend_rollup_of(timestamptz[]) TO tollgate_admin;
"""

STEPS = (ROLE, READING, WRITING)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
