"""The lines of providers' bills, and the true-ups that bring the ledger to them."""

from __future__ import annotations

from alembic import op

revision = "20261126_1400"
down_revision = "20261126_1300"
branch_labels = None
depends_on = None

# A day of an account and a kind of export counts as the newest import has it; nothing is deleted.
# `project` and `key` are NULL if the export has no such member.
TABLES = """
CREATE TABLE tollgate.provider_bill_imports (
    import_id   uuid PRIMARY KEY,
    provider    text NOT NULL,
    kind        text NOT NULL,
    file_name   text NOT NULL,
    sha256      text NOT NULL CONSTRAINT sha256_is_hex CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    first_day   date NOT NULL,
    last_day    date NOT NULL,
    rows        bigint NOT NULL CONSTRAINT rows_are_counted CHECK (rows >= 0),
    amount_nusd numeric NOT NULL,
    author      text NOT NULL DEFAULT session_user,
    imported_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT imports_end_after_they_begin CHECK (first_day <= last_day)
);
CREATE TABLE tollgate.provider_bill_days (
    import_id   uuid NOT NULL REFERENCES tollgate.provider_bill_imports,
    account     text NOT NULL,
    day         date NOT NULL,
    provider    text NOT NULL,
    kind        text NOT NULL,
    rows        bigint NOT NULL,
    digest      bytea NOT NULL,
    replaced_by uuid REFERENCES tollgate.provider_bill_imports,
    PRIMARY KEY (import_id, account, day)
);
CREATE UNIQUE INDEX provider_bill_days_in_force ON tollgate.provider_bill_days (provider, account, kind, day)
    WHERE replaced_by IS NULL;
CREATE TABLE tollgate.provider_bill_lines (
    import_id   uuid NOT NULL,
    number      integer NOT NULL,
    account     text NOT NULL,
    day         date NOT NULL,
    project     text,
    key         text,
    model       text NOT NULL,
    token_kind  text NOT NULL,
    quantity    numeric,
    amount_nusd bigint,
    slack_nusd  bigint NOT NULL,
    text        text NOT NULL,
    PRIMARY KEY (import_id, number),
    FOREIGN KEY (import_id, account, day) REFERENCES tollgate.provider_bill_days
);
CREATE INDEX provider_bill_lines_day ON tollgate.provider_bill_lines (import_id, account, day);
CREATE TABLE tollgate.true_ups (
    adjustment_id uuid PRIMARY KEY REFERENCES tollgate.adjustments,
    provider      text NOT NULL,
    account       text NOT NULL,
    day           date NOT NULL,
    model         text NOT NULL,
    token_kind    text NOT NULL,
    cause         text NOT NULL,
    evidence      text NOT NULL
);
CREATE INDEX true_ups_day ON tollgate.true_ups (provider, day);
"""

NEVER_CHANGED = """
SELECT tollgate.make_immutable('tollgate.provider_bill_imports');
SELECT tollgate.make_immutable('tollgate.provider_bill_lines');
SELECT tollgate.make_immutable('tollgate.true_ups');
CREATE TRIGGER rows_are_replaced_once BEFORE UPDATE ON tollgate.provider_bill_days FOR EACH ROW
    WHEN (OLD.replaced_by IS NOT NULL OR NEW.replaced_by IS NULL
          OR (OLD.import_id, OLD.account, OLD.day, OLD.provider, OLD.kind, OLD.rows, OLD.digest)
             IS DISTINCT FROM
             (NEW.import_id, NEW.account, NEW.day, NEW.provider, NEW.kind, NEW.rows, NEW.digest))
    EXECUTE FUNCTION tollgate.refuse_change();
CREATE TRIGGER rows_stay BEFORE DELETE OR TRUNCATE ON tollgate.provider_bill_days
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_change();
CREATE TRIGGER provider_bill_imports_noted_for_audit AFTER INSERT OR UPDATE OR DELETE
    ON tollgate.provider_bill_imports
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('provider_bill', 'import', 'import_id');
"""

# A charge that is for no team's usage is booked without a team.
WITHOUT_TEAM = """
ALTER TABLE tollgate.adjustments ALTER COLUMN team DROP NOT NULL, ALTER COLUMN cost_centre DROP NOT NULL;
"""

# As before, but an adjustment may be without a team.
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
                         WHEN 'true_up' THEN to_char(posted_period, 'YYYY-MM')
                         WHEN 'lost_journal' THEN coalesce(substring(reason FROM '^journal ([0-9a-f-]{36}): '), team)
                         ELSE coalesce(request_id || '/' || attempt, team, cost_centre, 'unallocated') END AS subject,
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
"""

# The columns are as before. A true-up has no event: provider and model are those of its bill.
VIEWS = """
CREATE OR REPLACE VIEW finance.adjustments AS
SELECT booked.adjustment_id, booked.request_id, booked.attempt, booked.team, booked.cost_centre, booked.posted_period,
       booked.occurred_at, booked.amount_nusd * 0.000000001 AS amount_usd, booked.kind, booked.reason, booked.author,
       booked.created_at, booked.settles,
       booked.kind = 'expired_hold' AND NOT EXISTS (
           SELECT FROM tollgate.adjustments AS later
           WHERE later.kind = 'resolution' AND later.request_id = booked.request_id
             AND later.attempt = booked.attempt) AS is_expected,
       event.project, event.key_id, event.end_user, event.tags, event.route, event.deployment,
       coalesce(event.provider, true_up.provider) AS provider,
       coalesce(event.model, nullif(true_up.model, '')) AS model, event.region,
       coalesce(event.is_self_hosted, CASE WHEN true_up.adjustment_id IS NOT NULL THEN false END) AS is_self_hosted,
       event.data_class, event.outcome, event.usage_source
FROM tollgate.adjustments AS booked
LEFT JOIN LATERAL (
    SELECT found.project, found.key_id, found.end_user, found.tags, found.route, found.deployment, found.provider,
           found.model, found.region, found.is_self_hosted, found.data_class, found.outcome, found.usage_source
    FROM tollgate.usage_events AS found
    WHERE found.request_id = booked.request_id AND found.attempt = booked.attempt
      AND found.occurred_at = booked.occurred_at OFFSET 0
) AS event ON true
LEFT JOIN tollgate.true_ups AS true_up ON true_up.adjustment_id = booked.adjustment_id;
CREATE VIEW finance.provider_bills AS
SELECT line.import_id, line.number AS line, stored.provider, line.account, stored.kind, line.day, line.project,
       line.key, line.model, line.token_kind, line.quantity, line.amount_nusd * 0.000000001 AS amount_usd,
       line.text, file.file_name, file.author, file.imported_at
FROM tollgate.provider_bill_lines AS line
JOIN tollgate.provider_bill_days AS stored USING (import_id, account, day)
JOIN tollgate.provider_bill_imports AS file USING (import_id)
WHERE stored.replaced_by IS NULL;
CREATE VIEW finance.true_ups AS
SELECT adjustment_id, provider, account, day, model, token_kind, cause, evidence FROM tollgate.true_ups;
"""

GRANTS = """
GRANT INSERT ON tollgate.provider_bill_imports, tollgate.provider_bill_days, tollgate.provider_bill_lines,
    tollgate.true_ups TO tollgate_admin;
GRANT UPDATE (replaced_by) ON tollgate.provider_bill_days TO tollgate_admin;
"""

STEPS = (TABLES, NEVER_CHANGED, WITHOUT_TEAM, AUDIT, VIEWS, GRANTS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
