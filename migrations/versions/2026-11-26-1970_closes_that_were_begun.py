"""A month closes at the moment of its own `begin_close`, and no fact is dated after its writing.

The login of finance may call both functions of a close. A close without its beginning kept no GPU
hours, and one of another moment left out facts that every report shows. So did a fact with a later
date than its writing, and one of a transaction from before the month's end.
"""

from __future__ import annotations

from alembic import op

revision = "20261126_1970"
down_revision = "20261126_1960"
branch_labels = None
depends_on = None

GPU_NAMES = """hour, deployment, applied_usd, bill_usd, idle_usd, variance_usd, gpu_hours, usd_per_gpu_hour, up_hours,
    watched_hours, empty_usd, underfilled_usd, estimated_usd, imported_usd, estimated_gpu_hours, busy_hours"""

# As before, with a row that is of no use to another transaction; the next close removes it.
CLOSING = f"""
CREATE TABLE tollgate.closes_begun (
    xact      xid8 PRIMARY KEY DEFAULT pg_current_xact_id(),
    month     date NOT NULL,
    closed_at timestamptz NOT NULL
);
CREATE OR REPLACE FUNCTION tollgate.begin_close(wanted date) RETURNS TABLE (version integer, closed_at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('tollgate.months'));
    PERFORM tollgate.require_next_close(wanted);
    -- Each policy that is on its way was applied before: wait for it, and let later ones pass.
    PERFORM pg_advisory_lock(hashtext('tollgate.policies_applied'));
    PERFORM pg_advisory_unlock(hashtext('tollgate.policies_applied'));
    INSERT INTO tollgate.periods (month) VALUES (wanted) ON CONFLICT DO NOTHING;
    PERFORM FROM tollgate.periods WHERE month = wanted FOR UPDATE;
    closed_at := clock_timestamp();
    version := (SELECT coalesce(max(found.version), 0) + 1 FROM tollgate.month_closes AS found WHERE month = wanted);
    INSERT INTO tollgate.closed_gpu_hours (month, version, {GPU_NAMES})
        SELECT wanted, begin_close.version, {GPU_NAMES} FROM finance.gpu_cost
        WHERE hour >= wanted::timestamp AT TIME ZONE 'UTC' AND hour < (wanted + interval '1 month') AT TIME ZONE 'UTC';
    INSERT INTO tollgate.closed_idle_costs (month, version, hour, deployment, team, cost_centre, idle_usd)
        SELECT wanted, begin_close.version, idle.hour, idle.deployment, idle.team, idle.cost_centre, idle.idle_usd
        FROM finance.idle_costs(wanted::timestamp AT TIME ZONE 'UTC', (wanted + interval '1 month') AT TIME ZONE 'UTC')
            AS idle;
    DELETE FROM tollgate.closes_begun;
    INSERT INTO tollgate.closes_begun (month, closed_at) VALUES (wanted, begin_close.closed_at);
    RETURN NEXT;
END
$$;
CREATE FUNCTION tollgate.require_begun_close() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    DELETE FROM tollgate.closes_begun AS begun
        WHERE xact = pg_current_xact_id() AND month = NEW.month AND begun.closed_at = NEW.closed_at;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this transaction did not begin to close % at that moment', to_char(NEW.month, 'YYYY-MM')
            USING ERRCODE = 'TG001';
    END IF;
    RETURN NEW;
END
$$;
REVOKE ALL ON FUNCTION tollgate.require_begun_close() FROM PUBLIC;
CREATE TRIGGER closes_are_begun BEFORE INSERT ON tollgate.month_closes
    FOR EACH ROW EXECUTE FUNCTION tollgate.require_begun_close();
"""  # noqa: S608 - constants

# The clock is that of the row: `now()` of an open transaction can lie in a month that has closed since.
FACTS = """
CREATE FUNCTION tollgate.refuse_later_date() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION 'a fact is dated after its writing'
        USING ERRCODE = 'serialization_failure', HINT = 'Leave its date to Postgres, and run it again.';
END
$$;
REVOKE ALL ON FUNCTION tollgate.refuse_later_date() FROM PUBLIC;
CREATE TRIGGER events_are_dated_by_their_writing AFTER INSERT ON tollgate.usage_events FOR EACH ROW
    WHEN (NOT NEW.is_demo AND NEW.recorded_at > clock_timestamp()) EXECUTE FUNCTION tollgate.refuse_later_date();
CREATE TRIGGER adjustments_are_dated_by_their_writing AFTER INSERT ON tollgate.adjustments FOR EACH ROW
    WHEN (NEW.created_at > clock_timestamp()) EXECUTE FUNCTION tollgate.refuse_later_date();
DROP TRIGGER closed_months_take_no_events ON tollgate.usage_events;
CREATE TRIGGER closed_months_take_no_events AFTER INSERT ON tollgate.usage_events FOR EACH ROW
    WHEN (NOT NEW.is_demo AND NEW.posted_period < date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date)
    EXECUTE FUNCTION tollgate.refuse_fact('recorded_at');
"""


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in (CLOSING, FACTS):
        cursor.execute(step)
