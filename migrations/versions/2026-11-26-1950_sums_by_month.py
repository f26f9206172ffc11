"""Sums by month, made of those by day: a question on whole months then reads some hundred rows, and
one by end user a row for each of them.

The sums of the present months are made by the gateway's job after this revision. Until then reports
read the days, as before.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from alembic import op

revision = "20261126_1950"
down_revision = "20261126_1940"
branch_labels = None
depends_on = None


def _days() -> ModuleType:
    """Return the revision that defined the sums by day. Like each revision it never changes."""
    path = Path(__file__).with_name("2026-11-26-1250_sums_by_owner.py")
    spec = spec_from_file_location("sums_by_owner", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DAYS = _days()


class Monthly(NamedTuple):
    """A table of sums by month, with its columns: the dimensions first, then the figures.

    `days` is the table of the same sums by day. `live` has the days without a sum.
    """

    table: str
    view: str
    days: str
    groups: list[str]
    figures: dict[str, str]
    live: str
    shown: str

    @property
    def names(self) -> list[str]:
        """Return the columns of the table."""
        return [*self.groups, *self.figures]


# Demo events have no sums by month: they are few.
PLACES, ENDINGS = DAYS.PLACES, DAYS.ENDINGS
OF_DAY, OF_KEY, OF_USER = (
    [name for name in (*names, *more) if name not in ("day", "is_demo")]
    for names, more in (
        (DAYS.HOURLY[1:], ()),
        (DAYS.KEYED, (*PLACES, *ENDINGS)),
        (DAYS.USED, PLACES),
    )
)
OF_TAG = [name for name in (*DAYS.TAGGED, *PLACES) if name not in ("day", "is_demo")]
OWNED = DAYS._of_rows(DAYS.OWNED)
TAGGED = DAYS._of_rows(DAYS.OWNED | DAYS.KNOWN)


def _live_hours(names: list[str]) -> str:
    """Return the rows of days without a sum: the sums of their hours, and of an hour without one
    its events.
    """
    listed = ", ".join(names)
    return f"""
    SELECT {listed} FROM ({DAYS.DIRTY_DAYS}) AS wanted CROSS JOIN LATERAL (
        SELECT * FROM tollgate.spend_rollup AS found
        WHERE found.hour >= wanted.day::timestamp AT TIME ZONE 'UTC'
            AND found.hour < (wanted.day + 1)::timestamp AT TIME ZONE 'UTC' OFFSET 0
    ) AS done WHERE NOT {DAYS.IS_DIRTY_HOUR} AND NOT is_demo
    UNION ALL
    SELECT {listed} FROM ({DAYS.LIVE_HOURS}) AS live WHERE NOT is_demo"""  # noqa: S608 - constants


def _live_events(names: list[str], summed: str) -> str:
    """Return the rows of days without a sum, from their events."""
    return f"SELECT {', '.join(names)} FROM ({summed.format(DAYS.LIVE_DAYS)}) AS live WHERE NOT is_demo"  # noqa: S608 - constants


MONTHLY = (
    Monthly(
        table="spend_rollup_by_month",
        view="spend_monthly_detail",
        days="spend_rollup_by_day",
        groups=OF_DAY,
        figures=DAYS.ADDED,
        live=_live_hours([*OF_DAY, *DAYS.ADDED]),
        shown=DAYS._shown([*OF_DAY, *DAYS.COUNTED, *DAYS.MONEY, *DAYS.TIMED, *DAYS.SAVINGS]),
    ),
    Monthly(
        table="spend_rollup_by_month_and_key",
        view="spend_monthly_by_key",
        days="spend_rollup_by_key",
        groups=OF_KEY,
        figures=DAYS.ADDED,
        live=_live_hours([*OF_KEY, *DAYS.ADDED]),
        shown=DAYS._shown([*OF_KEY, *DAYS.COUNTED, *DAYS.MONEY, *DAYS.TIMED, *DAYS.SAVINGS]),
    ),
    Monthly(
        table="spend_rollup_by_month_and_end_user",
        view="spend_monthly_by_end_user",
        days="spend_rollup_by_end_user",
        groups=OF_USER,
        figures=OWNED,
        live=_live_events([*OF_USER, *OWNED], DAYS.USERS_SUMMED),
        shown=DAYS._shown([*OF_USER, *DAYS.COUNTED, *DAYS.MONEY, *DAYS.REQUESTS, *DAYS.SAVINGS]),
    ),
    Monthly(
        table="spend_rollup_by_month_and_tag",
        view="spend_monthly_by_tag",
        days="spend_rollup_by_tag",
        groups=OF_TAG,
        figures=TAGGED,
        live=_live_events([*OF_TAG, *TAGGED], DAYS.TAGS_SUMMED),
        shown=DAYS._shown(
            [*OF_TAG, *DAYS.COUNTED, *DAYS.MONEY, *DAYS.REQUESTS, *DAYS.SAVINGS, *DAYS.KNOWN]
        ),
    ),
)


def _table(one: Monthly) -> str:
    """Return the statements that make a table, with the types of the sums by day."""
    return f"""
CREATE TABLE tollgate.{one.table} AS
    SELECT {", ".join(one.names)} FROM tollgate.{one.days} WITH NO DATA;
CREATE INDEX {one.table}_month ON tollgate.{one.table} (posted_period);"""  # noqa: S608 - constants


TABLES = (
    "".join(map(_table, MONTHLY))
    + """
-- A user's months are found without those of all others.
CREATE INDEX spend_rollup_by_month_and_end_user_user
    ON tollgate.spend_rollup_by_month_and_end_user (end_user, posted_period);
CREATE TABLE tollgate.dirty_months (month date NOT NULL, noted_at timestamptz NOT NULL DEFAULT now());
"""
)

# A day that changes makes the months wait that its facts are posted to, before and after.
NOTE_MONTHS = """INSERT INTO tollgate.dirty_months (month) SELECT DISTINCT posted_period
        FROM tollgate.spend_rollup_by_day WHERE day = ANY(days) AND NOT is_demo;"""
REFRESH = f"""
-- As before, with the months of the days.
CREATE OR REPLACE FUNCTION tollgate.refresh_days(most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET work_mem = '64MB'
    AS $$
DECLARE
    days date[];
    first timestamptz;
    past timestamptz;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('tollgate.refresh_rollups')) THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM tollgate.dirty_days WHERE day IN (
            SELECT DISTINCT day FROM tollgate.dirty_days
            WHERE day < (now() AT TIME ZONE 'UTC')::date ORDER BY day LIMIT most)
        RETURNING day
    )
    SELECT coalesce(array_agg(DISTINCT day), '{{}}') INTO days FROM taken;
    {NOTE_MONTHS}
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
        INSERT INTO tollgate.spend_rollup_by_day ({", ".join(DAYS.DAY_NAMES)}) {DAYS.DAYS_SUMMED};
    END LOOP;
    {NOTE_MONTHS}
    RETURN cardinality(days);
END
$$;
CREATE FUNCTION tollgate.refresh_months(most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET work_mem = '64MB'
    AS $$
DECLARE
    months date[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('tollgate.refresh_rollups')) THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM tollgate.dirty_months WHERE month IN (
            SELECT DISTINCT month FROM tollgate.dirty_months ORDER BY month DESC LIMIT most)
        RETURNING month
    )
    SELECT coalesce(array_agg(DISTINCT month), '{{}}') INTO months FROM taken;
"""  # noqa: S608 - constants


def _summed(one: Monthly) -> str:
    """Return the statements that sum a table's months again."""
    figures = ", ".join(one.figures.values())
    return f"""    DELETE FROM tollgate.{one.table} WHERE posted_period = ANY(months);
    INSERT INTO tollgate.{one.table} ({", ".join(one.names)})
        SELECT {", ".join(one.groups)}, {figures} FROM tollgate.{one.days}
        WHERE posted_period = ANY(months) AND NOT is_demo GROUP BY {", ".join(one.groups)};
"""  # noqa: S608 - constants


REFRESH += "".join(map(_summed, MONTHLY)) + "    RETURN cardinality(months);\nEND\n$$;"
# Every month waits for its first sum.
BACKFILL = """
INSERT INTO tollgate.dirty_months (month)
    SELECT DISTINCT posted_period FROM tollgate.spend_rollup_by_day WHERE NOT is_demo;
"""

# A month waits if one of its days changed since, or is about to be summed again.
DIRTY_MONTHS = f"""SELECT month FROM tollgate.dirty_months
        UNION SELECT posted_period FROM tollgate.spend_rollup_by_day WHERE day = ANY (ARRAY({DAYS.DIRTY_DAYS}))"""  # noqa: S608 - constants


def _view(one: Monthly) -> str:
    """Return the statement that makes the view of a table: the days of a month that waits, and of
    every month the days that have no sum yet.

    The days are found for each month that waits, so that without any no day is looked at.
    """
    names = ", ".join(one.names)
    days = ", ".join("late.month" if name == "posted_period" else name for name in one.names)
    return f"""
CREATE VIEW finance.{one.view} AS
SELECT {one.shown} FROM (
    SELECT {names} FROM tollgate.{one.table} AS done WHERE posted_period <> ALL (ARRAY({DIRTY_MONTHS}))
    UNION ALL
    SELECT {days} FROM unnest(ARRAY({DIRTY_MONTHS})) AS late (month) CROSS JOIN LATERAL (
        SELECT * FROM tollgate.{one.days} AS found WHERE found.posted_period = late.month OFFSET 0
    ) AS done WHERE NOT is_demo AND {DAYS.IS_CLEAN_DAY}
    UNION ALL
    {one.live}
) AS summed;
GRANT SELECT ON finance.{one.view} TO tollgate_reader;
"""  # noqa: S608 - constants


GRANTS = f"""
REVOKE ALL ON FUNCTION tollgate.refresh_months(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tollgate.refresh_months(integer) TO tollgate_gateway;
GRANT SELECT ON tollgate.dirty_months, {", ".join(f"tollgate.{one.table}" for one in MONTHLY)} TO tollgate_admin;
"""

# A team sees its own rows.
OWN = "team = ANY ((SELECT nullif(current_setting('tollgate.teams', true), '')::text[])::text[])"
TO_TEAMS = "".join(
    f"SELECT tollgate.show_to_teams('finance.{one.view}', $${OWN}$$);\n" for one in MONTHLY
)

# The adoption of a restored ledger makes `written_by` anew, so that no view may depend on it.
EVENT_COLUMNS = """
SELECT string_agg(format('found.%I', attname), ', ' ORDER BY attnum) FROM pg_attribute
WHERE attrelid = 'tollgate.usage_events'::regclass AND attnum > 0 AND NOT attisdropped
    AND attname <> 'written_by'
"""
VIEWS = "".join(map(_view, MONTHLY))


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    cursor.execute(EVENT_COLUMNS)
    ((columns,),) = cursor.fetchall()
    for step in (TABLES, REFRESH, BACKFILL, VIEWS.replace("found.*", columns), GRANTS, TO_TEAMS):
        cursor.execute(step)
