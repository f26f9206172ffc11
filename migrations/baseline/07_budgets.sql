-- Budgets: declared, spent, leased and granted amounts, and the functions that move money between them.
--
-- Every function locks in one order: the journal, then the periods by account and
-- beginning, then the rows of a period.
--
-- A window is one budget's period from one beginning. A change of the time zone, of the first month
-- of the year or of a named budget's period moves the beginning. Windows of a budget that overlap
-- share one limit: the room of a window is its limit less the spending of the windows that overlap
-- it, as far as it lies in the overlap, and less their leases. Nothing moves between windows: an
-- event stays in the one that its hold names, and `spent` stays the sum of the window's events. So
-- a change back finds its own sums, and counts nothing twice.

-- ---- budgets

CREATE TABLE tollgate.budgets (
    rule_id        text PRIMARY KEY,
    scope          text NOT NULL CHECK (scope IN ('team', 'project', 'key', 'cost_centre')),
    team           text,
    owner          text NOT NULL,
    period         text NOT NULL CHECK (period IN ('hour', 'day', 'week', 'month', 'once')),
    time_zone      text NOT NULL,
    limit_nusd     bigint NOT NULL CHECK (limit_nusd >= 0),
    kind           text NOT NULL CHECK (kind IN ('hard', 'soft')),
    alert_at       numeric[] NOT NULL,
    overdraft_nusd bigint NOT NULL CHECK (overdraft_nusd >= 0),
    policy_version integer NOT NULL,
    is_current     boolean NOT NULL
);
CREATE TRIGGER budgets_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.budgets
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('budget_rule', 'create', 'rule_id');
CREATE TRIGGER budgets_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.budgets
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('budget_rule');

-- Half of each page is left free: these rows change all the time, and so stay where they are.
-- `spent` may be negative: an adjustment can take back more than its period has. It is a number
-- without an upper end: a soft budget counts unknown attempts at their holds, and refuses none of
-- them. Their sum passed the end of BIGINT, and from then on every event of that budget was refused
-- (ledger audit 1.13).
CREATE TABLE tollgate.budget_periods (
    account_id  text NOT NULL,
    starts_at   timestamptz NOT NULL,
    ends_at     timestamptz,
    rule_id     text,
    spent_nusd  numeric NOT NULL DEFAULT 0,
    leased_nusd bigint NOT NULL DEFAULT 0 CHECK (leased_nusd >= 0),
    PRIMARY KEY (account_id, starts_at)
) WITH (fillfactor = 50);
-- Those that run are looked at every few seconds, among all that ever were. It never changes where
-- a row is updated.
CREATE INDEX budget_periods_ends_at ON tollgate.budget_periods (ends_at);
CREATE INDEX budget_periods_account_ends ON tollgate.budget_periods (account_id, ends_at);
-- `turn` and `granted_nusd` are of the last question that was answered: asked again, it is answered
-- in the same words and moves nothing.
CREATE TABLE tollgate.leases (
    journal_id       uuid NOT NULL,
    account_id       text NOT NULL,
    starts_at        timestamptz NOT NULL,
    outstanding_nusd bigint NOT NULL CHECK (outstanding_nusd >= 0),
    held_nusd        bigint NOT NULL CHECK (held_nusd >= 0),
    turn             bigint NOT NULL,
    granted_nusd     bigint NOT NULL,
    taken_at         timestamptz NOT NULL DEFAULT now(),
    renewed_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (journal_id, account_id, starts_at)
) WITH (fillfactor = 50);
CREATE INDEX leases_account ON tollgate.leases (account_id, starts_at);
CREATE TABLE tollgate.budget_grants (
    grant_id    uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    account_id  text NOT NULL,
    starts_at   timestamptz NOT NULL,
    amount_nusd bigint NOT NULL CHECK (amount_nusd > 0),
    expires_at  timestamptz,
    reason      text NOT NULL,
    author      text NOT NULL DEFAULT session_user,
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX budget_grants_account ON tollgate.budget_grants (account_id, starts_at);
CREATE TRIGGER budget_grants_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.budget_grants
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('budget', 'grant', 'account_id');
CREATE TRIGGER budget_grants_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.budget_grants
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('budget');
-- What was booked as spent because the journal that had leased it is lost. Gone when that journal
-- turns up.
CREATE TABLE tollgate.budget_losses (
    journal_id  uuid NOT NULL,
    account_id  text NOT NULL,
    starts_at   timestamptz NOT NULL,
    amount_nusd bigint NOT NULL,
    lost_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX budget_losses_journal ON tollgate.budget_losses (journal_id);
-- What the adjustments of a transaction change, from their insert until its commit. Never seen by
-- another transaction.
CREATE TABLE tollgate.budget_corrections (
    xact        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    account_id  text NOT NULL,
    starts_at   timestamptz NOT NULL,
    amount_nusd numeric NOT NULL
);
CREATE INDEX budget_corrections_xact ON tollgate.budget_corrections (xact);
-- The account's row is locked while one of its windows is opened.
CREATE TABLE tollgate.budget_accounts (
    account_id text PRIMARY KEY
);
-- `outside_nusd` is the part of the earlier window's `spent` whose attempts began before the later
-- window. It is noted once, and corrected by the adjustments of these attempts. Rows are only
-- added: a long repricing locks none of them.
CREATE TABLE tollgate.budget_overlaps (
    account_id   text NOT NULL,
    starts_at    timestamptz NOT NULL,
    earlier_at   timestamptz NOT NULL,
    outside_nusd numeric NOT NULL
);
CREATE INDEX budget_overlaps_window ON tollgate.budget_overlaps (account_id, starts_at, earlier_at);

-- ---- the rule of an account

-- As the domain names accounts: in a rule for each owner the owner stands for the star, or behind
-- the rule's own name.
CREATE FUNCTION tollgate.budget_owner(account text, rule text, declared text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT CASE
        WHEN declared <> '*' THEN CASE WHEN account = rule THEN declared END
        WHEN starts_with(account, head) AND right(account, length(tail)) = tail
            THEN nullif(substr(account, length(head) + 1, greatest(length(account) - length(head) - length(tail), 0)),
                        '')
    END
    FROM (SELECT CASE star WHEN 0 THEN rule || ':' ELSE substr(rule, 1, star - 1) END AS head,
                 CASE star WHEN 0 THEN '' ELSE substr(rule, star + 1) END AS tail
          FROM strpos(rule, '*') AS star) AS parts
    $$;

-- The rule that an account is under, found by its name alone.
CREATE FUNCTION tollgate.budget_rule(account text) RETURNS text
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT rule_id FROM tollgate.budgets WHERE tollgate.budget_owner(account, rule_id, owner) IS NOT NULL
    ORDER BY is_current DESC, owner = '*', length(rule_id) DESC, rule_id LIMIT 1
    $$;

-- The rule that binds: one for this account alone as soon as it is declared, whatever the worker
-- knows; else the one that it asks under, declared any more or not.
CREATE FUNCTION tollgate.budget_rule_in_force(account text, asked text) RETURNS text
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT rule_id FROM tollgate.budgets WHERE rule_id = asked OR (rule_id = account AND is_current)
    ORDER BY rule_id = account AND is_current DESC LIMIT 1
    $$;

-- When a period ends that no worker has said the end of. Of two midnights the first, as workers say
-- it too.
CREATE FUNCTION tollgate.budget_period_end(rule text, starts_at timestamptz) RETURNS timestamptz
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT CASE
        WHEN period = 'hour' THEN starts_at + interval '1 hour'
        WHEN (ends - interval '1 hour') AT TIME ZONE time_zone = midnight THEN ends - interval '1 hour'
        ELSE ends
    END
    FROM tollgate.budgets
    CROSS JOIN LATERAL (SELECT date_trunc('day', starts_at AT TIME ZONE time_zone) + CASE period
        WHEN 'day' THEN interval '1 day' WHEN 'week' THEN interval '1 week' WHEN 'month' THEN interval '1 month' END
    ) AS following (midnight)
    CROSS JOIN LATERAL (SELECT midnight AT TIME ZONE time_zone) AS moment (ends)
    WHERE rule_id = rule
    $$;

-- ---- windows

-- The account's row is locked while one of its windows is opened: of two windows that are opened at
-- once the second sees the first. All accounts are locked before any window is.
CREATE FUNCTION tollgate.open_budget_windows(windows jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    opened record;
    missing jsonb := (
        SELECT jsonb_agg(asked) FROM jsonb_to_recordset(windows)
            AS asked (account_id text, starts_s bigint, ends_s bigint, rule_id text)
        WHERE NOT EXISTS (SELECT FROM tollgate.budget_periods AS there
                          WHERE there.account_id = asked.account_id AND there.starts_at = to_timestamp(asked.starts_s)));
BEGIN
    IF missing IS NULL THEN
        RETURN;
    END IF;
    FOR opened IN
        SELECT DISTINCT account_id FROM jsonb_to_recordset(missing) AS one (account_id text) ORDER BY account_id
    LOOP
        INSERT INTO tollgate.budget_accounts (account_id) VALUES (opened.account_id) ON CONFLICT DO NOTHING;
        PERFORM FROM tollgate.budget_accounts WHERE account_id = opened.account_id FOR UPDATE;
    END LOOP;
    FOR opened IN
        SELECT account_id, to_timestamp(starts_s) AS starts_at, to_timestamp(max(ends_s)) AS ends_at,
               coalesce(tollgate.budget_rule_in_force(account_id, max(rule_id)), tollgate.budget_rule(account_id)) AS rule
        FROM jsonb_to_recordset(missing) AS one (account_id text, starts_s bigint, ends_s bigint, rule_id text)
        GROUP BY account_id, starts_s ORDER BY account_id, starts_s
    LOOP
        INSERT INTO tollgate.budget_periods (account_id, starts_at, ends_at, rule_id)
            VALUES (opened.account_id, opened.starts_at,
                    coalesce(opened.ends_at, tollgate.budget_period_end(opened.rule, opened.starts_at)), opened.rule)
            ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;

CREATE FUNCTION tollgate.lock_budget_period(account text, starts timestamptz, ends timestamptz, rule text)
    RETURNS tollgate.budget_periods
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    locked tollgate.budget_periods;
BEGIN
    SELECT * INTO locked FROM tollgate.budget_periods WHERE account_id = account AND starts_at = starts FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM tollgate.open_budget_windows(jsonb_build_array(jsonb_build_object(
            'account_id', account, 'starts_s', extract(epoch FROM starts)::bigint,
            'ends_s', extract(epoch FROM ends)::bigint, 'rule_id', rule)));
        SELECT * INTO locked FROM tollgate.budget_periods WHERE account_id = account AND starts_at = starts FOR UPDATE;
    END IF;
    RETURN locked;
END
$$;

-- An attempt belongs to the window of its intent, which is not before its request's moment.
-- `scanned` tells whether `most` rows were enough.
CREATE FUNCTION tollgate.budget_charged(account text, opened timestamptz, since timestamptz, until timestamptz,
                                        cut timestamptz, most bigint)
    RETURNS TABLE (before_nusd numeric, after_nusd numeric, scanned bigint)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT coalesce(sum(nusd) FILTER (WHERE intended_at < cut), 0),
           coalesce(sum(nusd) FILTER (WHERE intended_at >= cut), 0), count(*)
    FROM (
        SELECT request_id, attempt, occurred_at, greatest(occurred_at, started_at) AS intended_at, cost_nusd, held_nusd,
               holds
        FROM tollgate.usage_events AS event WHERE occurred_at >= since AND occurred_at < until LIMIT most
    ) AS event
    LEFT JOIN LATERAL (
        SELECT coalesce(event.cost_nusd, event.held_nusd, (hold ->> 2)::bigint)::numeric + coalesce((
            SELECT sum(booked.amount_nusd - CASE WHEN booked.settles AND event.cost_nusd IS NULL
                                                 THEN coalesce(event.held_nusd, (hold ->> 2)::bigint) ELSE 0 END)
            FROM tollgate.adjustments AS booked
            WHERE booked.request_id = event.request_id AND booked.attempt = event.attempt
              AND booked.occurred_at = event.occurred_at), 0) AS nusd
        FROM jsonb_array_elements(event.holds) AS hold
        WHERE hold ->> 0 = account AND to_timestamp((hold ->> 1)::bigint) = opened
    ) AS charged ON event.holds <> '[]'
    $$;

-- A gateway's clock may differ by five minutes before it leases nothing. So long before the
-- window's beginning an attempt counts as inside. The shorter side of the beginning is read. If
-- even that has too many events, the window takes over all that the earlier one spent, or all but
-- the part that was read: never too little.
CREATE FUNCTION tollgate.budget_outside(account text, earlier timestamptz, starts timestamptz) RETURNS numeric
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    most constant bigint := 300000;
    cut constant timestamptz := starts - interval '5 minutes';
    nusd numeric;
BEGIN
    IF cut - earlier <= clock_timestamp() - cut THEN
        RETURN (SELECT greatest(before_nusd, 0)
                FROM tollgate.budget_charged(account, earlier, earlier - interval '1 hour', cut, cut, most));
    END IF;
    -- What is not an event of before is inside: a lost lease, whose attempts are not known.
    SELECT period.spent_nusd - after_nusd - lost.nusd INTO nusd
    FROM tollgate.budget_periods AS period
    CROSS JOIN tollgate.budget_charged(account, earlier, cut - interval '1 hour', 'infinity', cut, most)
    CROSS JOIN LATERAL (SELECT coalesce(sum(amount_nusd), 0) FROM tollgate.budget_losses AS loss
                        WHERE loss.account_id = account AND loss.starts_at = earlier) AS lost (nusd)
    WHERE period.account_id = account AND period.starts_at = earlier AND scanned < most;
    RETURN greatest(coalesce(nusd, 0), 0);
END
$$;

-- Not while an adjustment is on its way: its part of the earlier window is not known. The window
-- then takes over all of it, and the next exchange tries again, as it does when this one has taken
-- long enough.
CREATE FUNCTION tollgate.note_budget_overlaps(account text, starts timestamptz) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    other record;
BEGIN
    FOR other IN
        SELECT starts_at FROM tollgate.budget_periods AS earlier
        WHERE account_id = account AND starts_at < starts AND (ends_at IS NULL OR ends_at > starts)
          AND NOT EXISTS (SELECT FROM tollgate.budget_overlaps AS noted WHERE noted.account_id = account
                          AND noted.starts_at = starts AND noted.earlier_at = earlier.starts_at)
    LOOP
        EXIT WHEN clock_timestamp() > statement_timestamp() + interval '1 second';
        BEGIN
            LOCK TABLE tollgate.budget_overlaps IN SHARE ROW EXCLUSIVE MODE NOWAIT;
        EXCEPTION WHEN lock_not_available THEN
            RETURN;
        END;
        INSERT INTO tollgate.budget_overlaps (account_id, starts_at, earlier_at, outside_nusd)
            VALUES (account, starts, other.starts_at, tollgate.budget_outside(account, other.starts_at, starts));
    END LOOP;
END
$$;

-- The sums that a window takes over from those that overlap it. An end that is not known never
-- comes. A grant to another window counts until it expires; one without an end counts in its own
-- window alone.
CREATE FUNCTION tollgate.budget_carried(account text, starts timestamptz, ends timestamptz)
    RETURNS TABLE (spent_nusd numeric, leased_nusd numeric, granted_nusd numeric)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ 
    SELECT coalesce(sum(greatest(other.spent_nusd - before.nusd, 0)), 0) AS spent_nusd,
           coalesce(sum(other.leased_nusd), 0) AS leased_nusd, coalesce(sum(given.nusd), 0) AS granted_nusd
    FROM tollgate.budget_periods AS other
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(noted.outside_nusd), 0) FROM tollgate.budget_overlaps AS noted
        WHERE noted.account_id = other.account_id AND noted.starts_at = starts AND noted.earlier_at = other.starts_at
    ) AS before (nusd)
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(amount_nusd), 0) FROM tollgate.budget_grants AS given
        WHERE given.account_id = other.account_id AND given.starts_at = other.starts_at
          AND given.expires_at > clock_timestamp()
    ) AS given (nusd)
    WHERE other.account_id = account AND other.starts_at <> starts
      AND (other.ends_at IS NULL OR other.ends_at > starts) AND other.starts_at < coalesce(ends, 'infinity')
 $$;
