"""Sums in less time: those by day come from those by key, which are an eighth of the hours' rows,
and groups are found by hashing. `before` leaves out the days that are still being written.

`demo-data` writes days while earlier ones are summed. Without `before` a day that is half written
would be summed twice. The release before calls the functions without it, as before.

Hours, days and months have a lock each, so that one process sums days while another sums hours. A
day whose hours change meanwhile has a new row in `dirty_days`, and waits.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from alembic import op

revision = "20261126_1960"
down_revision = "20261126_1950"
branch_labels = None
depends_on = None


def _revision_before() -> ModuleType:
    """Return the revision before, which defined the sums by month. It never changes."""
    path = Path(__file__).with_name("2026-11-26-1950_sums_by_month.py")
    spec = spec_from_file_location("sums_by_month", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MONTHS = _revision_before()
DAYS = MONTHS.DAYS

# A row by key knows everything that a row by day does.
OF_KEYS = "tollgate.spend_rollup_by_key WHERE day = ANY(days)"
DAYS_SUMMED = DAYS._grouped(
    ["day", *DAYS.HOURLY[1:]], DAYS.ADDED, names=DAYS.DAY_NAMES, source=OF_KEYS
)
# Events of one group are equal in all of its sixteen columns, and a sort compares each of them many
# times: 10.8 us an event of an hour, 8.1 with a hash. Postgres' estimates prefer the sort.
SETTINGS = """LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET work_mem = '64MB'
    SET enable_sort = off"""
REFRESH = f"""
DROP FUNCTION tollgate.refresh_hours(integer), tollgate.refresh_days(integer), tollgate.refresh_months(integer);
CREATE FUNCTION tollgate.refresh_hours(most integer, before timestamptz DEFAULT 'infinity') RETURNS integer
    {SETTINGS}
    AS $$
DECLARE
    hours timestamptz[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('tollgate.refresh_hours')) THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM tollgate.dirty_hours WHERE hour IN (
            SELECT DISTINCT hour FROM tollgate.dirty_hours WHERE hour < before ORDER BY hour LIMIT most)
        RETURNING hour
    )
    SELECT coalesce(array_agg(DISTINCT hour), '{{}}') INTO hours FROM taken;
    INSERT INTO tollgate.dirty_days (day)
        SELECT DISTINCT (taken AT TIME ZONE 'UTC')::date FROM unnest(hours) AS taken;
    DELETE FROM tollgate.spend_rollup WHERE hour = ANY(hours);
    INSERT INTO tollgate.spend_rollup SELECT * FROM tollgate.spend_rollup_of(hours);
    DELETE FROM tollgate.busy_rollup WHERE hour = ANY(hours);
    INSERT INTO tollgate.busy_rollup SELECT * FROM tollgate.busy_rollup_of(hours);
    RETURN cardinality(hours);
END
$$;
-- Only days that are over: summing the running one again and again would cost a day's events each time.
CREATE FUNCTION tollgate.refresh_days(most integer, before date DEFAULT 'infinity') RETURNS integer
    {SETTINGS}
    AS $$
DECLARE
    days date[];
    first timestamptz;
    past timestamptz;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('tollgate.refresh_days')) THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM tollgate.dirty_days WHERE day IN (
            SELECT DISTINCT day FROM tollgate.dirty_days
            WHERE day < least(before, (now() AT TIME ZONE 'UTC')::date) ORDER BY day LIMIT most)
        RETURNING day
    )
    SELECT coalesce(array_agg(DISTINCT day), '{{}}') INTO days FROM taken;
    {MONTHS.NOTE_MONTHS}
    DELETE FROM tollgate.spend_rollup_by_end_user WHERE day = ANY(days);
    DELETE FROM tollgate.spend_rollup_by_tag WHERE day = ANY(days);
    WITH event AS MATERIALIZED (
        SELECT {", ".join(DAYS.NEEDED)} FROM {DAYS._in_days("unnest(days) AS wanted (bucket)")}
    ), by_end_user AS (
        INSERT INTO tollgate.spend_rollup_by_end_user ({", ".join(DAYS.USER_NAMES)}) {DAYS.USERS_SUMMED.format("event")}
    )
    INSERT INTO tollgate.spend_rollup_by_tag ({", ".join(DAYS.TAG_NAMES)}) {DAYS.TAGS_SUMMED.format("event")};
    DELETE FROM tollgate.spend_rollup_by_key WHERE day = ANY(days);
    DELETE FROM tollgate.spend_rollup_by_day WHERE day = ANY(days);
    FOR first IN SELECT wanted::timestamp AT TIME ZONE 'UTC' FROM unnest(days) AS wanted LOOP
        past := first + interval '24 hours';
        INSERT INTO tollgate.spend_rollup_by_key ({", ".join(DAYS.KEY_NAMES)}) {DAYS.KEYS_SUMMED};
    END LOOP;
    INSERT INTO tollgate.spend_rollup_by_day ({", ".join(DAYS.DAY_NAMES)}) {DAYS_SUMMED};
    {MONTHS.NOTE_MONTHS}
    RETURN cardinality(days);
END
$$;
CREATE FUNCTION tollgate.refresh_months(most integer, before date DEFAULT 'infinity') RETURNS integer
    {SETTINGS}
    AS $$
DECLARE
    months date[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('tollgate.refresh_months')) THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM tollgate.dirty_months WHERE month IN (
            SELECT DISTINCT month FROM tollgate.dirty_months
            WHERE month < date_trunc('month', before::timestamp) ORDER BY month DESC LIMIT most)
        RETURNING month
    )
    SELECT coalesce(array_agg(DISTINCT month), '{{}}') INTO months FROM taken;
{"".join(map(MONTHS._summed, MONTHS.MONTHLY))}    RETURN cardinality(months);
END
$$;
REVOKE ALL ON FUNCTION tollgate.refresh_hours(integer, timestamptz), tollgate.refresh_days(integer, date),
    tollgate.refresh_months(integer, date) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tollgate.refresh_hours(integer, timestamptz), tollgate.refresh_days(integer, date),
    tollgate.refresh_months(integer, date) TO tollgate_gateway;
"""  # noqa: S608 - constants


def upgrade() -> None:
    """Replace the functions."""
    op.get_bind().connection.cursor().execute(REFRESH)  # the driver's own: many statements at once
