"""Incremental exports find their new rows by an index of the transactions that wrote them, and
statements are sent by schedules.

Building the indexes makes the ledger's writers wait; their journals keep the events meanwhile.
"""

from __future__ import annotations

from alembic import op

revision = "20261126_1940"
down_revision = "20261126_1900"
branch_labels = None
depends_on = None

# Postgres has no BRIN operators for xid8, and a BRIN index reads all rows since the last vacuum. New
# numbers go to the last page of a b-tree, and rows of one transaction share an entry: it is small.
INDEXES = """
CREATE INDEX usage_events_written_by ON tollgate.usage_events (written_by);
CREATE INDEX adjustments_written_by ON tollgate.adjustments (written_by);
"""

# As in revision 20261126_1500, and the indexes, which go with their column.
ADOPT = """
CREATE OR REPLACE FUNCTION tollgate.adopt_ledger() RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    here bigint := (SELECT system_identifier FROM pg_control_system());
BEGIN
    IF EXISTS (SELECT FROM tollgate.ledger_server WHERE system_identifier = here) THEN
        RETURN false;
    END IF;
    ALTER TABLE tollgate.usage_events DROP COLUMN written_by;
    ALTER TABLE tollgate.usage_events ADD COLUMN written_by xid8 NOT NULL DEFAULT pg_current_xact_id();
    CREATE INDEX usage_events_written_by ON tollgate.usage_events (written_by);
    ALTER TABLE tollgate.adjustments DROP COLUMN written_by;
    ALTER TABLE tollgate.adjustments ADD COLUMN written_by xid8 NOT NULL DEFAULT pg_current_xact_id();
    CREATE INDEX adjustments_written_by ON tollgate.adjustments (written_by);
    UPDATE tollgate.ledger_server SET system_identifier = here, adopted_at = now();
    RETURN true;
END
$$;
"""

# The receiver may hold a token, so the log and the views have `sent_to`, which does not.
SCHEDULES = """
CREATE TABLE tollgate.report_schedules (
    schedule_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name        text NOT NULL CONSTRAINT schedules_have_one_name UNIQUE,
    cost_centre text,
    every       text NOT NULL CHECK (every = 'month'),
    receiver    text NOT NULL,
    sent_to     text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    author      text NOT NULL DEFAULT session_user
);
-- A row for each closed version of a month that a schedule sends. It outlives its schedule.
CREATE TABLE tollgate.statement_deliveries (
    schedule_id  uuid NOT NULL,
    month        date NOT NULL,
    version      integer NOT NULL,
    delivery_id  uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    name         text NOT NULL,
    sent_to      text NOT NULL,
    opened_at    timestamptz NOT NULL,
    tries        integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    next_try_at  timestamptz,
    last_error   text,
    delivered_at timestamptz,
    given_up_at  timestamptz,
    PRIMARY KEY (schedule_id, month, version),
    CONSTRAINT statement_delivery_has_one_end CHECK (num_nonnulls(delivered_at, given_up_at, next_try_at) = 1)
);
CREATE INDEX statement_deliveries_next_try_at ON tollgate.statement_deliveries (next_try_at)
    WHERE next_try_at IS NOT NULL;
CREATE TRIGGER report_schedules_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.report_schedules
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('report_schedule', 'add', 'name', 'receiver');
CREATE TRIGGER report_schedules_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.report_schedules
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('report_schedule');
"""

SCHEDULE_VIEWS = """
CREATE VIEW finance.report_schedules AS
SELECT schedule.name, coalesce(schedule.cost_centre, 'all') AS cost_centre, schedule.every, schedule.sent_to,
       schedule.created_at, schedule.author, last.month AS last_month, last.version AS last_version, last.tries,
       last.next_try_at, last.last_error, last.delivered_at, last.given_up_at
FROM tollgate.report_schedules AS schedule
LEFT JOIN LATERAL (
    SELECT * FROM tollgate.statement_deliveries AS one WHERE one.schedule_id = schedule.schedule_id
    ORDER BY one.opened_at DESC, one.month DESC LIMIT 1
) AS last ON true;
CREATE VIEW finance.statement_deliveries AS
SELECT delivery_id, name, sent_to, month, version, opened_at, tries, next_try_at, last_error, delivered_at, given_up_at
FROM tollgate.statement_deliveries;
GRANT SELECT ON finance.report_schedules, finance.statement_deliveries TO tollgate_reader;
GRANT SELECT, DELETE ON tollgate.report_schedules TO tollgate_admin;
GRANT INSERT (name, cost_centre, every, receiver, sent_to) ON tollgate.report_schedules TO tollgate_admin;
GRANT SELECT ON tollgate.report_schedules, tollgate.month_closes TO tollgate_gateway;
GRANT SELECT, INSERT, UPDATE ON tollgate.statement_deliveries TO tollgate_gateway;
"""

# A team sees none of them.
TO_TEAMS = """
SELECT tollgate.show_to_teams('finance.report_schedules', 'false');
SELECT tollgate.show_to_teams('finance.statement_deliveries', 'false');
"""
STEPS = (INDEXES, ADOPT, SCHEDULES, SCHEDULE_VIEWS, TO_TEAMS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
