"""Locks need a right: each is a table that only the roles which need it may lock.

Postgres lets every login take every advisory lock, so a reader kept keys from being revoked,
policies from being applied and alerts from being sent. The functions keep their text but for their
locks. A gateway or command of the previous release takes the old locks of its own statements.
"""

from __future__ import annotations

import re

from alembic import op

revision = "20261128_1500"
down_revision = "20261128_1410"
branch_labels = None
depends_on = None

GATEWAY, ADMIN, FINANCE = "tollgate_gateway", "tollgate_admin", "tollgate_finance"
# The roles that take a lock by a statement of their own; functions take theirs as the owner.
LOCKS = {
    "policies": (ADMIN,),
    "price_entries": (ADMIN,),
    "deployment_prices": (GATEWAY, ADMIN),
    "provider_bills": (ADMIN,),
    "gpu_bills": (ADMIN,),
    "adjustments": (GATEWAY, ADMIN),
    "demo_organisations": (GATEWAY,),
    "engine_samples": (GATEWAY,),
    "audit_log": (),
    "months": (),
    "policies_applied": (),
    "ensure_month": (),
    "refresh_hours": (),
    "refresh_days": (),
    "refresh_months": (),
    "leader_engines": (GATEWAY,),
    "leader_budget_alerts": (GATEWAY,),
    "leader_statements": (GATEWAY,),
}

# The block of an exception that is caught gives its locks back.
WAYS = """
CREATE FUNCTION tollgate.try_lock(name text, mode text) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    EXECUTE format('LOCK TABLE tollgate.%I IN %s MODE NOWAIT', 'lock_' || name, mode);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
CREATE FUNCTION tollgate.wait_for_lock(name text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    EXECUTE format('LOCK TABLE tollgate.%I IN EXCLUSIVE MODE', 'lock_' || name);
    RAISE EXCEPTION 'give the lock back' USING ERRCODE = 'TG002';
EXCEPTION WHEN SQLSTATE 'TG002' THEN
    RETURN;
END
$$;
REVOKE ALL ON FUNCTION tollgate.try_lock(text, text), tollgate.wait_for_lock(text) FROM PUBLIC;
"""

NAME = r"\(hashtext\('tollgate\.(\w+)'\)\)"
REPLACED = (
    (
        rf"PERFORM pg_advisory_lock{NAME};\s+PERFORM pg_advisory_unlock{NAME};",
        r"PERFORM tollgate.wait_for_lock('\1');",
    ),
    (rf"PERFORM pg_advisory_xact_lock{NAME};", r"LOCK TABLE tollgate.lock_\1 IN EXCLUSIVE MODE;"),
    (
        rf"PERFORM pg_advisory_xact_lock_shared{NAME};",
        r"LOCK TABLE tollgate.lock_\1 IN ROW SHARE MODE;",
    ),
    (rf"pg_try_advisory_xact_lock{NAME}", r"tollgate.try_lock('\1', 'EXCLUSIVE')"),
    (rf"pg_try_advisory_xact_lock_shared{NAME}", r"tollgate.try_lock('\1', 'ROW SHARE')"),
)
DEFINED = """
SELECT pg_get_functiondef(oid) FROM pg_proc
WHERE pronamespace = 'tollgate'::regnamespace AND prosrc LIKE '%advisory%' ORDER BY oid
"""


def upgrade() -> None:
    """Make the tables, grant their locks, and let each function take them."""
    # Of the driver, because a text of a function may have a colon or a per cent sign.
    cursor = op.get_bind().connection.cursor()
    for name, roles in LOCKS.items():
        cursor.execute(f"CREATE TABLE tollgate.lock_{name} ()")
        for role in roles:
            cursor.execute(f"GRANT UPDATE ON tollgate.lock_{name} TO {role}")
    cursor.execute(WAYS)
    cursor.execute(DEFINED)
    for (function,) in cursor.fetchall():
        for pattern, lock in REPLACED:
            function = re.sub(pattern, lock, function)
        assert "advisory" not in function, "a function with a lock of another form"
        cursor.execute(function)
