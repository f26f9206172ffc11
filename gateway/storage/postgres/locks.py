"""Names the locks of the whole product, and takes them as locks of tables that only the roles which
need them may lock.

Postgres lets every login take every advisory lock, so a reader could keep keys from being revoked.
A lock of a table needs a right to change that table. It is no lock of a row, because that takes a
transaction number: an elected worker keeps its transaction open, and with a number it would hold
back the clean-up of dead rows and the watermark of exports.
"""

from __future__ import annotations

from enum import StrEnum

# Two sessions never hold it at once. Neither a reader nor a dump of the database conflicts with it.
_MODE = "EXCLUSIVE"

LEADERS = "leader_"  # how the names of elected workers' locks begin
# Any login may read it.
HELD = """
WITH locks AS (
    SELECT held.relation, held.pid, held.granted, held.mode, held.waitstart, relname
    FROM pg_locks AS held JOIN pg_class AS found ON found.oid = held.relation
    WHERE found.relnamespace = to_regnamespace('tollgate') AND relname LIKE 'lock\\_%'
      AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT substr(held.relname, 6) AS name, held.pid AS process, coalesce(usename::text, '') AS login,
       coalesce(application_name, '') AS application,
       (SELECT count(*) FROM locks AS waiting
        WHERE waiting.relation = held.relation AND NOT waiting.granted
          AND waiting.waitstart < clock_timestamp() - interval '1 second') AS waiting
FROM locks AS held LEFT JOIN pg_stat_activity AS activity ON activity.pid = held.pid
WHERE held.granted AND held.mode <> 'AccessShareLock' AND held.pid <> pg_backend_pid()
ORDER BY 1, 2
"""


class TableLock(StrEnum):
    """A lock of Tollgate. Its table has no column and no row."""

    POLICIES = "policies"
    PRICE_ENTRIES = "price_entries"
    DEPLOYMENT_PRICES = "deployment_prices"
    PROVIDER_BILLS = "provider_bills"
    GPU_BILLS = "gpu_bills"
    # Each amount depends on the adjustments before it.
    ADJUSTMENTS = "adjustments"
    DEMO_ORGANISATIONS = "demo_organisations"
    ENGINE_SAMPLES = "engine_samples"
    # Taken by functions in Postgres alone.
    AUDIT_LOG = "audit_log"
    MONTHS = "months"
    POLICIES_APPLIED = "policies_applied"
    ENSURE_MONTH = "ensure_month"
    REFRESH_HOURS = "refresh_hours"
    REFRESH_DAYS = "refresh_days"
    REFRESH_MONTHS = "refresh_months"
    # Held by the elected worker for as long as it leads.
    LEADER_ENGINES = "leader_engines"
    LEADER_BUDGET_ALERTS = "leader_budget_alerts"
    LEADER_STATEMENTS = "leader_statements"

    @property
    def table(self) -> str:
        """Return the name of its table."""
        return f"tollgate.lock_{self}"

    @property
    def taken(self) -> str:
        """Return the statement that waits for the lock, and keeps it until the transaction ends."""
        return f"LOCK TABLE {self.table} IN {_MODE} MODE"

    @property
    def tried(self) -> str:
        """Return the statement that fails at once if another session has the lock."""
        return f"{self.taken} NOWAIT"
