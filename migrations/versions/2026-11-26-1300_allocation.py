"""Finance's own role, re-allocations between cost centres, currency rates, and the policy's shares
and idle rules by day.
"""

from __future__ import annotations

from alembic import op

revision = "20261126_1300"
down_revision = "20261126_1250"
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

# Of several rates from one day the newest counts. A month that is closed keeps its rates: only a
# currency that had none there may get its first.
CURRENCIES = """
CREATE TABLE tollgate.currency_rates (
    rate_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    currency     text NOT NULL CONSTRAINT currencies_have_a_code CHECK (currency ~ '^[A-Z]{3}$' AND currency <> 'USD'),
    first_day    date NOT NULL,
    usd_per_unit numeric NOT NULL
        CONSTRAINT rates_are_positive CHECK (usd_per_unit > 0 AND usd_per_unit < 'Infinity'),
    source       text NOT NULL CONSTRAINT rates_have_a_source CHECK (source <> ''),
    author       text NOT NULL DEFAULT session_user,
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX currency_rates_day ON tollgate.currency_rates (currency, first_day);
CREATE FUNCTION tollgate.check_currency_rate() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    closed date;
BEGIN
    -- Whoever closes a month waits for this rate, and this rate for whoever closes one.
    PERFORM FROM tollgate.periods ORDER BY month FOR SHARE;
    closed := (SELECT max(month) FROM tollgate.periods WHERE state = 'closed');
    IF NEW.first_day < closed + interval '1 month' AND EXISTS (
        SELECT FROM tollgate.currency_rates
        WHERE currency = NEW.currency AND first_day < closed + interval '1 month')
    THEN
        RAISE EXCEPTION 'month % is closed, and its % rates with it', to_char(closed, 'YYYY-MM'), NEW.currency
            USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_months_keep_their_rates';
    END IF;
    RETURN NEW;
END
$$;
REVOKE ALL ON FUNCTION tollgate.check_currency_rate() FROM PUBLIC;
CREATE TRIGGER currency_rates_are_checked BEFORE INSERT ON tollgate.currency_rates
    FOR EACH ROW EXECUTE FUNCTION tollgate.check_currency_rate();
SELECT tollgate.make_immutable('tollgate.currency_rates');
CREATE TRIGGER currency_rates_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.currency_rates
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('currency', 'add', 'currency');
CREATE TRIGGER currency_rates_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.currency_rates
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('currency');

CREATE VIEW finance.currency_rates AS
SELECT currency, first_day, lead(first_day) OVER (PARTITION BY currency ORDER BY first_day) AS next_day, usd_per_unit,
       source, author, created_at
FROM (
    SELECT DISTINCT ON (currency, first_day) * FROM tollgate.currency_rates
    ORDER BY currency, first_day, rate_id DESC
) AS newest;
GRANT SELECT ON finance.currency_rates TO tollgate_reader;
GRANT INSERT (currency, first_day, usd_per_unit, source) ON tollgate.currency_rates TO tollgate_admin;
GRANT SELECT ON tollgate.currency_rates TO tollgate_admin;
"""

# Written by each apply: Postgres reads no policy document. Versions of earlier releases have no
# rows; their teams have one cost centre for all days, which is in the events.
SHARES = """
CREATE TABLE tollgate.policy_cost_centres (
    policy_version integer NOT NULL
        CONSTRAINT policy_cost_centres_policy_version_fkey REFERENCES tollgate.policies,
    team           text NOT NULL,
    first_day      date NOT NULL,
    cost_centre    text NOT NULL,
    share          numeric NOT NULL CONSTRAINT shares_are_parts CHECK (share > 0 AND share <= 1),
    PRIMARY KEY (policy_version, team, first_day, cost_centre)
);
CREATE TABLE tollgate.policy_idle_rules (
    policy_version integer NOT NULL
        CONSTRAINT policy_idle_rules_policy_version_fkey REFERENCES tollgate.policies,
    deployment     text NOT NULL,
    rule           text NOT NULL CONSTRAINT idle_rules_are_known CHECK (rule IN ('proportional', 'reserved', 'even')),
    weights        jsonb NOT NULL CONSTRAINT weights_have_their_shape CHECK (jsonb_typeof(weights) = 'object'),
    PRIMARY KEY (policy_version, deployment)
);
SELECT tollgate.make_immutable('tollgate.policy_cost_centres');
SELECT tollgate.make_immutable('tollgate.policy_idle_rules');
GRANT SELECT, INSERT ON tollgate.policy_cost_centres, tollgate.policy_idle_rules TO tollgate_admin;

-- Rows that come with their policy are part of its apply; any others are an act of their own.
CREATE FUNCTION tollgate.audit_allocation() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM tollgate.note_audit('policy.allocate', added.policy_version::text, '{}', entries => count(*))
    FROM added JOIN tollgate.policies AS policy ON policy.version = added.policy_version
    WHERE policy.xmin <> pg_current_xact_id()::xid
    GROUP BY added.policy_version ORDER BY added.policy_version;
    RETURN NULL;
END
$$;
CREATE TRIGGER policy_cost_centres_noted_for_audit AFTER INSERT ON tollgate.policy_cost_centres
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_allocation();
CREATE TRIGGER policy_idle_rules_noted_for_audit AFTER INSERT ON tollgate.policy_idle_rules
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_allocation();

-- At the commit, because the shares of a date come one by one.
CREATE FUNCTION tollgate.check_shares() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF (SELECT sum(share) FROM tollgate.policy_cost_centres
        WHERE policy_version = NEW.policy_version AND team = NEW.team AND first_day = NEW.first_day) <> 1
    THEN
        RAISE EXCEPTION 'the shares of team % from % do not add up to 1', NEW.team, NEW.first_day
            USING ERRCODE = 'check_violation', CONSTRAINT = 'shares_add_up';
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER shares_add_up AFTER INSERT ON tollgate.policy_cost_centres
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tollgate.check_shares();
REVOKE ALL ON FUNCTION tollgate.audit_allocation(), tollgate.check_shares() FROM PUBLIC;
"""

# A day goes by the last version applied until its end. So a later apply changes no earlier day.
SHARE_VIEWS = """
CREATE VIEW finance.policy_days AS
SELECT version, first_day, lead(first_day) OVER (ORDER BY first_day) AS next_day
FROM (
    SELECT DISTINCT ON (first_day) version, first_day
    FROM (SELECT version, (applied_at AT TIME ZONE 'UTC')::date AS first_day FROM tollgate.policies) AS applied
    ORDER BY first_day, version DESC
) AS last_of_day;

CREATE VIEW finance.cost_centre_shares AS
WITH starts AS (
    SELECT policy_version, team, first_day,
           first_day = min(first_day) OVER (PARTITION BY policy_version, team) AS is_first,
           lead(first_day) OVER (PARTITION BY policy_version, team ORDER BY first_day) AS next_day
    FROM (SELECT DISTINCT policy_version, team, first_day FROM tollgate.policy_cost_centres) AS dated
), dated AS (
    SELECT policy_version, team, cost_centre, share,
           -- Days before the first date go by its shares.
           CASE WHEN is_first THEN days.first_day ELSE greatest(days.first_day, starts.first_day) END AS first_day,
           least(days.next_day, starts.next_day) AS next_day,
           first_value(cost_centre) OVER (PARTITION BY policy_version, team, starts.first_day
                                          ORDER BY share DESC, cost_centre COLLATE "C") AS event_cost_centre
    FROM finance.policy_days AS days JOIN starts ON starts.policy_version = days.version
    JOIN tollgate.policy_cost_centres USING (policy_version, team)
    WHERE policy_cost_centres.first_day = starts.first_day
)
SELECT team, first_day, next_day, event_cost_centre, cost_centre, share, policy_version FROM dated
WHERE next_day IS NULL OR first_day < next_day;

CREATE VIEW finance.idle_rules AS
SELECT rule.deployment, days.first_day, days.next_day, rule.rule, rule.weights, rule.policy_version
FROM tollgate.policy_idle_rules AS rule JOIN finance.policy_days AS days ON days.version = rule.policy_version;
GRANT SELECT ON finance.policy_days, finance.cost_centre_shares, finance.idle_rules TO tollgate_reader;
"""

# A function and not a view: its bounds reach the index of every table, although the weights of a
# day are read once for all its hours. Weights are a day's, so a night without requests is borne by
# those who used the day. Largest remainder, in whole nano-dollars; div() and mod() are exact.
IDLE = """
CREATE FUNCTION finance.idle_costs(from_time timestamptz, until_time timestamptz)
    RETURNS TABLE (hour timestamptz, deployment text, team text, cost_centre text, idle_usd numeric)
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
    WITH idle AS MATERIALIZED (
        SELECT cost.hour, cost.deployment, moment.day, round(cost.idle_usd * 1000000000) AS nusd, rules.rule,
               rules.weights
        FROM finance.gpu_cost AS cost
        CROSS JOIN LATERAL (SELECT (cost.hour AT TIME ZONE 'UTC')::date AS day) AS moment
        LEFT JOIN finance.idle_rules AS rules ON rules.deployment = cost.deployment AND rules.first_day <= moment.day
            AND (rules.next_day IS NULL OR moment.day < rules.next_day)
        WHERE cost.hour >= from_time AND cost.hour < until_time AND cost.idle_usd <> 0
    ), spread AS (
        SELECT DISTINCT day, deployment, rule, weights FROM idle WHERE rule IS NOT NULL
    ), stated AS (
        SELECT spread.day, spread.deployment, spread.rule, part.key AS team, part.value::numeric AS weight
        FROM spread CROSS JOIN LATERAL jsonb_each_text(spread.weights) AS part
        WHERE spread.rule <> 'proportional'
    ), weighed AS (
        SELECT spread.day, spread.deployment, used.team, used.cost_centre, used.weight
        FROM spread CROSS JOIN LATERAL (
            SELECT applied.team, applied.cost_centre, sum(applied.applied_usd) AS weight
            FROM finance.gpu_applied AS applied
            WHERE applied.deployment = spread.deployment
              AND applied.hour >= spread.day::timestamp AT TIME ZONE 'UTC'
              AND applied.hour < (spread.day + 1)::timestamp AT TIME ZONE 'UTC'
            GROUP BY applied.team, applied.cost_centre HAVING sum(applied.applied_usd) > 0
        ) AS used
        WHERE spread.rule = 'proportional'
        UNION ALL
        SELECT stated.day, stated.deployment, stated.team, centre.event_cost_centre, stated.weight
        FROM stated LEFT JOIN (
            SELECT DISTINCT shares.team, shares.first_day, shares.next_day, shares.event_cost_centre
            FROM finance.cost_centre_shares AS shares
        ) AS centre ON centre.team = stated.team AND centre.first_day <= stated.day
            AND (centre.next_day IS NULL OR stated.day < centre.next_day)
        UNION ALL
        SELECT stated.day, stated.deployment, NULL, NULL, 1 - sum(stated.weight)
        FROM stated WHERE stated.rule = 'reserved'
        GROUP BY stated.day, stated.deployment HAVING sum(stated.weight) < 1
    ), parts AS (
        SELECT idle.hour, idle.deployment, idle.nusd, weighed.team, weighed.cost_centre,
               div(idle.nusd * weighed.weight, sum(weighed.weight) OVER of_hour) AS whole,
               mod(idle.nusd * weighed.weight, sum(weighed.weight) OVER of_hour) AS remainder
        FROM idle JOIN weighed ON weighed.day = idle.day AND weighed.deployment = idle.deployment
        WINDOW of_hour AS (PARTITION BY idle.hour, idle.deployment)
    ), ranked AS (
        SELECT parts.*, nusd - sum(whole) OVER (PARTITION BY parts.hour, parts.deployment) AS rest,
               row_number() OVER (PARTITION BY parts.hour, parts.deployment
                                  ORDER BY remainder DESC, parts.team, parts.cost_centre) AS place
        FROM parts
    )
    SELECT ranked.hour, ranked.deployment, ranked.team, ranked.cost_centre,
           (whole + CASE WHEN place <= rest THEN 1 ELSE 0 END) * 0.000000001
    FROM ranked
    UNION ALL
    SELECT idle.hour, idle.deployment, NULL, NULL, idle.nusd * 0.000000001
    FROM idle
    WHERE NOT EXISTS (
        SELECT FROM weighed WHERE weighed.day = idle.day AND weighed.deployment = idle.deployment)
    $$;
REVOKE ALL ON FUNCTION finance.idle_costs(timestamptz, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION finance.idle_costs(timestamptz, timestamptz) TO tollgate_reader;
"""

STEPS: tuple[str, ...] = (
    ROLE,
    REALLOCATIONS,
    APPROVING,
    AUDIT,
    REALLOCATION_VIEW,
    GRANTS,
    CURRENCIES,
    SHARES,
    SHARE_VIEWS,
    IDLE,
)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
