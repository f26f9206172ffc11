"""A month's state follows its closes, `finance.periods` shows them, and Postgres alone says which
transaction wrote a row.
"""

from __future__ import annotations

from alembic import op

revision = "20261128_1410"
down_revision = "20261128_1400"
branch_labels = None
depends_on = None

# The reason that `month close` was given; not known of earlier closes.
REASON = """
ALTER TABLE tollgate.month_closes ADD COLUMN reason text;
ALTER TABLE tollgate.month_closes ALTER COLUMN reason SET DEFAULT nullif(current_setting('tollgate.reason', true), '');
DROP TRIGGER rows_are_reopened_once ON tollgate.month_closes;
CREATE TRIGGER rows_are_reopened_once BEFORE UPDATE ON tollgate.month_closes FOR EACH ROW
    WHEN (OLD.reopened_at IS NOT NULL OR NEW.reopened_at IS NULL
          OR (OLD.month, OLD.version, OLD.closed_at, OLD.author, OLD.operator, OLD.accepted, OLD.parts, OLD.sha256,
              OLD.events, OLD.adjustments, OLD.total_nusd, OLD.reason)
             IS DISTINCT FROM
             (NEW.month, NEW.version, NEW.closed_at, NEW.author, NEW.operator, NEW.accepted, NEW.parts, NEW.sha256,
              NEW.events, NEW.adjustments, NEW.total_nusd, NEW.reason))
    EXECUTE FUNCTION tollgate.refuse_change();
"""

# `reopen_month` marks the close before the month. Whoever changes the month alone is refused, the
# owner too: a month reopened so has no reason and no version, and its late bills count twice.
STATE = """
CREATE FUNCTION tollgate.refuse_reopening() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF EXISTS (SELECT FROM tollgate.month_closes WHERE month = OLD.month AND reopened_at IS NULL) THEN
        RAISE EXCEPTION 'month % is closed: it reopens by its function alone', to_char(OLD.month, 'YYYY-MM')
            USING ERRCODE = 'restrict_violation', HINT = 'tollgate month reopen MONTH --reason R does it.';
    END IF;
    RETURN coalesce(NEW, OLD);
END
$$;
REVOKE ALL ON FUNCTION tollgate.refuse_reopening() FROM PUBLIC;
CREATE TRIGGER months_reopen_by_function BEFORE UPDATE ON tollgate.periods FOR EACH ROW
    WHEN (OLD.state = 'closed') EXECUTE FUNCTION tollgate.refuse_reopening();
CREATE TRIGGER closed_months_stay BEFORE DELETE ON tollgate.periods FOR EACH ROW
    WHEN (OLD.state = 'closed') EXECUTE FUNCTION tollgate.refuse_reopening();
CREATE TRIGGER rows_stay BEFORE TRUNCATE ON tollgate.periods
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_change();
"""

# As before, and the close in force. One value each, without a join: who may not write to the view
# learns that, and not that it is a join.
CLOSE = {
    "version": "version",
    "sha256": "sha256",
    "closed_at": "closed_at",
    "closed_by": "author",
    "reason": "reason",
    "events": "events",
    "adjustments": "adjustments",
    "total_usd": "total_nusd * 0.000000001",
}
OF_CLOSE = ",\n       ".join(
    f"(SELECT {value} FROM tollgate.month_closes AS done WHERE done.month = period.month"  # noqa: S608 - constants
    f" AND done.reopened_at IS NULL) AS {name}"
    for name, value in CLOSE.items()
)
PERIODS = f"""
CREATE OR REPLACE VIEW finance.periods AS
SELECT month, CASE WHEN state = 'open' AND now() >= (month + interval '1 month') AT TIME ZONE 'UTC'
                   THEN 'provisional' ELSE state END AS state, opened_at,
       {OF_CLOSE}
FROM tollgate.periods AS period;
SELECT tollgate.show_to_teams('finance.periods', 'true',
    '{{sha256,closed_by,reason,events,adjustments,total_usd}}');
"""  # noqa: S608 - constants

# The watermark of the exports rests on the column: a row that states an older transaction would be
# missed by every later export. A condition on the column itself would keep it from being replaced
# after a restore.
WRITERS = """
CREATE FUNCTION tollgate.refuse_writer() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION 'a row states another transaction than the one that writes it'
        USING ERRCODE = 'restrict_violation', HINT = 'Leave written_by to Postgres.';
END
$$;
REVOKE ALL ON FUNCTION tollgate.refuse_writer() FROM PUBLIC;
CREATE TRIGGER writers_are_stated_by_postgres AFTER INSERT ON tollgate.usage_events FOR EACH ROW
    WHEN (tollgate.writer_of(NEW) <> pg_current_xact_id()) EXECUTE FUNCTION tollgate.refuse_writer();
CREATE TRIGGER writers_are_stated_by_postgres AFTER INSERT ON tollgate.adjustments FOR EACH ROW
    WHEN (tollgate.writer_of(NEW) <> pg_current_xact_id()) EXECUTE FUNCTION tollgate.refuse_writer();
"""

STEPS = (REASON, STATE, PERIODS, WRITERS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
