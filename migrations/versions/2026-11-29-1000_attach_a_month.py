"""A function attaches the table of a month that was detached, with the month's lock.

Its statements stood in Python, beside the rules of `ensure_month` that they repeat.
"""

from __future__ import annotations

from alembic import op

revision = "20261129_1000"
down_revision = "20261128_1520"
branch_labels = None
depends_on = None

# As `ensure_month` attaches a new one. The table has its triggers: a detached partition keeps them.
# The hours are summed again: the sums may have lost its events meanwhile. No role may call it: only
# the owner may attach, and is asked for by `tollgate db upgrade`.
STEP = """
CREATE FUNCTION tollgate.attach_month(month date) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '10s'
    AS $$
DECLARE
    first_day date := date_trunc('month', month);
    starts timestamptz := first_day::timestamp AT TIME ZONE 'UTC';
    ends timestamptz := (first_day + interval '1 month') AT TIME ZONE 'UTC';
    partition text := 'usage_events_' || to_char(first_day, 'YYYY_MM');
BEGIN
    LOCK TABLE tollgate.lock_ensure_month IN EXCLUSIVE MODE;
    IF (SELECT relispartition FROM pg_class WHERE oid = to_regclass('tollgate.' || partition)) THEN
        RETURN;
    END IF;
    LOCK TABLE tollgate.usage_events IN SHARE ROW EXCLUSIVE MODE;
    LOCK TABLE ONLY tollgate.usage_events_default IN ACCESS EXCLUSIVE MODE;
    ALTER TABLE tollgate.usage_events_default DISABLE TRIGGER rows_never_change;
    EXECUTE format(
        'WITH moved AS (DELETE FROM tollgate.usage_events_default WHERE occurred_at >= %L AND occurred_at < %L '
        'RETURNING *) INSERT INTO tollgate.%I SELECT * FROM moved', starts, ends, partition);
    ALTER TABLE tollgate.usage_events_default ENABLE TRIGGER rows_never_change;
    EXECUTE format(
        'ALTER TABLE tollgate.usage_events ATTACH PARTITION tollgate.%I FOR VALUES FROM (%L) TO (%L)',
        partition, starts, ends);
    EXECUTE format(
        'INSERT INTO tollgate.dirty_hours (hour) '
        'SELECT DISTINCT date_trunc(''hour'', occurred_at, ''UTC'') FROM tollgate.%I', partition);
END
$$;
REVOKE ALL ON FUNCTION tollgate.attach_month(date) FROM PUBLIC;
"""


def upgrade() -> None:
    """Make the function."""
    op.get_bind().connection.cursor().execute(STEP)
