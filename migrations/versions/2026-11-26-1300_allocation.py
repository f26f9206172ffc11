"""Finance's own role, re-allocations between cost centres, currency rates, and the policy's shares
and idle rules by day.
"""

from __future__ import annotations

from alembic import op

revision = "20261126_1300"
down_revision = "20261126_1230"
branch_labels = None
depends_on = None

# As for tollgate_admin: another database of this server may have made it, or be making it now. It
# reads what the reader reads, and may add what a later step of this file grants.
ROLE = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'tollgate_finance') THEN
        BEGIN
            CREATE ROLE tollgate_finance NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    IF NOT pg_has_role(current_user, 'tollgate_finance', 'USAGE') THEN
        GRANT tollgate_finance TO CURRENT_USER;
    END IF;
END
$$;
GRANT USAGE ON SCHEMA tollgate TO tollgate_finance;
DO $$
BEGIN
    IF NOT pg_has_role('tollgate_finance', 'tollgate_reader', 'MEMBER') THEN
        GRANT tollgate_reader TO tollgate_finance;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'tollgate_finance does not include tollgate_reader: grant both to who approves';
END
$$;
"""

# A re-allocation is one row, so its two sides always sum to 0. Its adjustments are inserted by the
# approval alone, and reference it.
REALLOCATIONS = """
CREATE TABLE tollgate.reallocations (
    reallocation_id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    month            date NOT NULL CONSTRAINT reallocations_month_check CHECK (EXTRACT(day FROM month) = 1),
    from_cost_centre text NOT NULL CONSTRAINT reallocations_have_an_origin CHECK (from_cost_centre <> ''),
    to_cost_centre   text NOT NULL CONSTRAINT reallocations_have_a_target CHECK (to_cost_centre <> ''),
    amount_nusd      bigint NOT NULL CONSTRAINT reallocations_move_money CHECK (amount_nusd > 0),
    reason           text NOT NULL CONSTRAINT reallocations_have_a_reason CHECK (reason <> ''),
    author_login     text NOT NULL DEFAULT session_user,
    author           text DEFAULT nullif(current_setting('tollgate.person', true), ''),
    created_at       timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT reallocations_have_two_sides CHECK (from_cost_centre <> to_cost_centre)
);
CREATE TABLE tollgate.reallocation_approvals (
    reallocation_id uuid PRIMARY KEY REFERENCES tollgate.reallocations,
    reason          text NOT NULL CONSTRAINT approvals_have_a_reason CHECK (reason <> ''),
    approver_login  text NOT NULL DEFAULT session_user,
    approver        text DEFAULT nullif(current_setting('tollgate.person', true), ''),
    approved_at     timestamptz NOT NULL DEFAULT now(),
    posted_period   date NOT NULL
);
ALTER TABLE tollgate.adjustments
    ALTER COLUMN team DROP NOT NULL,
    ADD COLUMN reallocation_id uuid
        CONSTRAINT adjustments_reallocation_id_fkey REFERENCES tollgate.reallocation_approvals,
    ADD CONSTRAINT requests_have_a_team CHECK (team IS NOT NULL OR request_id IS NULL),
    ADD CONSTRAINT reallocations_are_named CHECK ((kind = 'reallocation') = (reallocation_id IS NOT NULL));
CREATE UNIQUE INDEX adjustments_one_a_side ON tollgate.adjustments (reallocation_id, cost_centre)
    WHERE reallocation_id IS NOT NULL;
"""

# As the owner, whose functions still see the login as session_user: a login that the caller could
# state would prove nothing.
APPROVING = """
CREATE FUNCTION tollgate.check_approval() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    entry tollgate.reallocations;
BEGIN
    SELECT * INTO entry FROM tollgate.reallocations WHERE reallocation_id = NEW.reallocation_id;
    NEW.approver_login := session_user;
    NEW.approver := nullif(current_setting('tollgate.person', true), '');
    NEW.approved_at := now();
    IF entry.author_login = NEW.approver_login THEN
        RAISE EXCEPTION 're-allocation % is by login %, which may not approve it', NEW.reallocation_id, session_user
            USING ERRCODE = 'check_violation', CONSTRAINT = 'approver_is_another_login';
    END IF;
    IF entry.author = NEW.approver THEN
        RAISE EXCEPTION 're-allocation % is by %, who may not approve it', NEW.reallocation_id, entry.author
            USING ERRCODE = 'check_violation', CONSTRAINT = 'approver_is_another_person';
    END IF;
    -- An unknown entry has no month; the foreign key refuses it with its name.
    NEW.posted_period := coalesce((SELECT posted FROM tollgate.posting_months(ARRAY[entry.month])
                                   WHERE entry.month IS NOT NULL), date '0001-01-01');
    RETURN NEW;
END
$$;
CREATE TRIGGER approvals_are_checked BEFORE INSERT ON tollgate.reallocation_approvals
    FOR EACH ROW EXECUTE FUNCTION tollgate.check_approval();

-- It counts from the first moment of the named month, whatever month it is posted to.
CREATE FUNCTION tollgate.book_reallocation() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    INSERT INTO tollgate.adjustments (adjustment_id, cost_centre, posted_period, occurred_at, amount_nusd, kind, reason,
                                      author, reallocation_id)
    SELECT gen_random_uuid(), side.cost_centre, NEW.posted_period, entry.month::timestamp AT TIME ZONE 'UTC',
           side.amount_nusd, 'reallocation', entry.reason, entry.author_login, entry.reallocation_id
    FROM tollgate.reallocations AS entry
    CROSS JOIN LATERAL (VALUES (from_cost_centre, -amount_nusd), (to_cost_centre, amount_nusd))
        AS side (cost_centre, amount_nusd)
    WHERE entry.reallocation_id = NEW.reallocation_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER approvals_are_booked AFTER INSERT ON tollgate.reallocation_approvals
    FOR EACH ROW EXECUTE FUNCTION tollgate.book_reallocation();

CREATE FUNCTION tollgate.check_reallocated() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM tollgate.reallocations AS entry JOIN tollgate.reallocation_approvals AS approval
            USING (reallocation_id)
        WHERE entry.reallocation_id = NEW.reallocation_id AND approval.posted_period = NEW.posted_period
          AND (NEW.cost_centre, NEW.amount_nusd) IN
              ((entry.from_cost_centre, -entry.amount_nusd), (entry.to_cost_centre, entry.amount_nusd)))
    THEN
        RAISE EXCEPTION 'an adjustment of re-allocation % is not one of its two sides', NEW.reallocation_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'reallocations_sum_to_zero';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER adjustments_are_reallocated AFTER INSERT ON tollgate.adjustments
    FOR EACH ROW WHEN (NEW.reallocation_id IS NOT NULL) EXECUTE FUNCTION tollgate.check_reallocated();
SELECT tollgate.make_immutable('tollgate.reallocations');
SELECT tollgate.make_immutable('tollgate.reallocation_approvals');
REVOKE ALL ON FUNCTION tollgate.check_approval(), tollgate.book_reallocation(), tollgate.check_reallocated()
    FROM PUBLIC;
"""

# As before, but that a re-allocation is noted by its entry and its approval, and that an adjustment
# without a request or team has a subject.
AUDIT = """
CREATE OR REPLACE FUNCTION tollgate.audit_adjustments() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    book record;
BEGIN
    FOR book IN
        SELECT kind, posted_period, count(*) AS entries, sum(amount_nusd) AS amount_nusd,
               CASE kind WHEN 'reprice' THEN to_char(posted_period, 'YYYY-MM')
                         WHEN 'lost_journal' THEN coalesce(substring(reason FROM '^journal ([0-9a-f-]{36}): '), team)
                         ELSE coalesce(request_id || '/' || attempt, team, cost_centre, kind) END AS subject,
               CASE WHEN kind IN ('reprice', 'lost_journal') THEN NULL ELSE reason END AS reason
        FROM booked
        -- What a gateway books by itself is its daily work: its rules decided it, nobody did.
        WHERE NOT (tollgate.is_gateway()
                   AND kind IN ('redelivery', 'expired_hold', 'engine_counters', 'lost_journal'))
          AND kind <> 'reallocation'
        GROUP BY 1, 2, 5, 6 ORDER BY 5
    LOOP
        PERFORM tollgate.note_audit(
            CASE book.kind WHEN 'reprice' THEN 'price.reprice' WHEN 'lost_journal' THEN 'journal.lost'
                           ELSE 'adjustment.' || book.kind END,
            book.subject,
            jsonb_strip_nulls(jsonb_build_object(
                'posted_period', to_char(book.posted_period, 'YYYY-MM'), 'booked_as', book.reason)),
            entries => book.entries, amount_nusd => book.amount_nusd);
    END LOOP;
    RETURN NULL;
END
$$;
CREATE TRIGGER reallocations_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.reallocations
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('reallocation', 'add', 'reallocation_id');
CREATE TRIGGER reallocations_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.reallocations
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('reallocation');
CREATE TRIGGER approvals_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.reallocation_approvals
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('reallocation', 'approve', 'reallocation_id');
CREATE TRIGGER approvals_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.reallocation_approvals
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('reallocation');
"""

REALLOCATION_VIEW = """
CREATE VIEW finance.reallocations AS
SELECT entry.reallocation_id, entry.month, side.cost_centre, side.amount_nusd * 0.000000001 AS amount_usd,
       CASE WHEN approval.reallocation_id IS NULL THEN 'proposed' ELSE 'approved' END AS state, entry.reason,
       entry.author_login, entry.author, entry.created_at, approval.approver_login, approval.approver,
       approval.reason AS approval_reason, approval.approved_at, approval.posted_period
FROM tollgate.reallocations AS entry
LEFT JOIN tollgate.reallocation_approvals AS approval USING (reallocation_id)
CROSS JOIN LATERAL (VALUES (from_cost_centre, -amount_nusd), (to_cost_centre, amount_nusd))
    AS side (cost_centre, amount_nusd);
"""

# Column by column: the author, the approver and the moments are Postgres' own.
GRANTS = """
GRANT SELECT ON finance.reallocations TO tollgate_reader;
GRANT INSERT (month, from_cost_centre, to_cost_centre, amount_nusd, reason) ON tollgate.reallocations
    TO tollgate_admin, tollgate_finance;
GRANT INSERT (reallocation_id, reason) ON tollgate.reallocation_approvals TO tollgate_admin, tollgate_finance;
GRANT SELECT ON tollgate.reallocations, tollgate.reallocation_approvals TO tollgate_admin, tollgate_finance;
"""

STEPS: tuple[str, ...] = (ROLE, REALLOCATIONS, APPROVING, AUDIT, REALLOCATION_VIEW, GRANTS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
