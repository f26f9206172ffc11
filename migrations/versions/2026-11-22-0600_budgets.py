"""Budgets: declared, spent, leased and granted amounts, and the functions that move money between
them.

Every function locks in one order: the journal, then the periods by account and beginning, then the
rows of a period.
"""

from __future__ import annotations

from alembic import op

revision = "20261122_0600"
down_revision = "20261121_0520"
branch_labels = None
depends_on = None

# `spent` may be negative: an adjustment can take back more than its period has. A lease's `turn`
# and `granted_nusd` are of the last question that was answered: asked again, it is answered in the
# same words and moves nothing.
TABLES = """
DROP VIEW finance.budgets;
DROP TABLE tollgate.budgets;
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
-- Half of each page is left free: these rows change all the time, and so stay where they are.
CREATE TABLE tollgate.budget_periods (
    account_id  text NOT NULL,
    starts_at   timestamptz NOT NULL,
    ends_at     timestamptz,
    rule_id     text,
    spent_nusd  bigint NOT NULL DEFAULT 0,
    leased_nusd bigint NOT NULL DEFAULT 0 CHECK (leased_nusd >= 0),
    PRIMARY KEY (account_id, starts_at)
) WITH (fillfactor = 50);
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
-- What was booked as spent because the journal that had leased it is lost. Gone when that journal turns up.
CREATE TABLE tollgate.budget_losses (
    journal_id  uuid NOT NULL,
    account_id  text NOT NULL,
    starts_at   timestamptz NOT NULL,
    amount_nusd bigint NOT NULL,
    lost_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX budget_losses_journal ON tollgate.budget_losses (journal_id);
-- What the adjustments of a transaction change, from their insert until its commit. Never seen by another transaction.
CREATE TABLE tollgate.budget_corrections (
    xact        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    account_id  text NOT NULL,
    starts_at   timestamptz NOT NULL,
    amount_nusd numeric NOT NULL
);
CREATE INDEX budget_corrections_xact ON tollgate.budget_corrections (xact);
-- A worker that lives on after its journal was given up as lost must hear of it once, whatever it has noted since.
ALTER TABLE tollgate.journals ADD COLUMN times_lost integer NOT NULL DEFAULT 0;
"""

# Each of an event's holds is [account, beginning of the period in seconds, nano-dollars held, is it
# an overdraft].
EVENTS = """
CREATE FUNCTION tollgate.are_holds(holds jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT jsonb_typeof(holds) = 'array' AND coalesce(bool_and(
        CASE WHEN jsonb_typeof(hold) = 'array' AND jsonb_array_length(hold) = 4
                  AND jsonb_typeof(hold -> 0) = 'string' AND hold ->> 0 <> ''
                  AND hold ->> 1 ~ '^[0-9]{1,11}$' AND jsonb_typeof(hold -> 1) = 'number'
                  AND hold ->> 2 ~ '^[0-9]{1,19}$' AND jsonb_typeof(hold -> 2) = 'number'
                  AND jsonb_typeof(hold -> 3) = 'boolean'
        THEN (hold ->> 1)::numeric <= 32503680000 AND (hold ->> 2)::numeric <= 9223372036854775807
        ELSE false END), true) AND count(*) = count(DISTINCT (hold -> 0, hold -> 1))
    FROM jsonb_array_elements(CASE jsonb_typeof(holds) WHEN 'array' THEN holds ELSE '[]' END) AS hold
    $$;
ALTER TABLE tollgate.usage_events
    ADD COLUMN holds jsonb NOT NULL DEFAULT '[]',
    ADD CONSTRAINT holds_have_their_shape CHECK (holds = '[]' OR tollgate.are_holds(holds));
"""

# As the domain names accounts: in a rule for each owner the owner stands for the star, or behind
# the rule's own name.
RULES = """
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

-- The rule that binds: one for this account alone as soon as it is declared, whatever the worker knows; else the one
-- that it asks under, declared any more or not.
CREATE FUNCTION tollgate.budget_rule_in_force(account text, asked text) RETURNS text
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT rule_id FROM tollgate.budgets WHERE rule_id = asked OR (rule_id = account AND is_current)
    ORDER BY rule_id = account AND is_current DESC LIMIT 1
    $$;

-- When a period ends that no worker has said the end of. Of two midnights the first, as workers say it too.
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
"""

PERIODS = """
CREATE FUNCTION tollgate.lock_budget_period(account text, starts timestamptz, ends timestamptz, rule text)
    RETURNS tollgate.budget_periods
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    locked tollgate.budget_periods;
    found_rule text;
BEGIN
    SELECT * INTO locked FROM tollgate.budget_periods WHERE account_id = account AND starts_at = starts FOR UPDATE;
    IF NOT FOUND THEN
        found_rule := coalesce(rule, tollgate.budget_rule(account));
        INSERT INTO tollgate.budget_periods (account_id, starts_at, ends_at, rule_id)
            VALUES (account, starts, coalesce(ends, tollgate.budget_period_end(found_rule, starts)), found_rule)
            ON CONFLICT DO NOTHING;
        SELECT * INTO locked FROM tollgate.budget_periods WHERE account_id = account AND starts_at = starts FOR UPDATE;
    END IF;
    RETURN locked;
END
$$;
"""

EXCHANGE = """
CREATE FUNCTION tollgate.exchange_slices(journal uuid, asks jsonb, known_losses integer DEFAULT 0)
    RETURNS TABLE (account_id text, starts_s bigint, granted_nusd bigint, limit_nusd bigint, spent_nusd bigint,
                   leased_nusd bigint, outstanding_nusd bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_column
DECLARE
    holder tollgate.journals;
    ask record;
    starts timestamptz;
    rule text;
    period tollgate.budget_periods;
    lease tollgate.leases;
    returned bigint;
    room numeric;
BEGIN
    -- Shared until the commit: whoever drains or loses this journal comes before all of this, or after all of it.
    SELECT * INTO holder FROM tollgate.journals WHERE id = journal FOR SHARE;
    IF NOT FOUND THEN
        INSERT INTO tollgate.journals (id, replica) VALUES (journal, 'unknown') ON CONFLICT DO NOTHING;
        SELECT * INTO holder FROM tollgate.journals WHERE id = journal FOR SHARE;
    END IF;
    IF holder.state <> 'live' OR holder.times_lost <> known_losses THEN
        RAISE EXCEPTION 'the leases of journal % have ended: it was %', journal,
            CASE holder.state WHEN 'live' THEN 'lost' ELSE holder.state END
            USING ERRCODE = 'TGL01', DETAIL = holder.times_lost::text;
    END IF;
    FOR ask IN
        SELECT * FROM jsonb_to_recordset(asks) AS asked (
            account_id text, rule_id text, starts_s bigint, ends_s bigint, turn bigint, returned_nusd bigint,
            least_nusd bigint, needed_nusd bigint, most_nusd bigint, held_nusd bigint)
        ORDER BY account_id, starts_s
    LOOP
        starts := to_timestamp(ask.starts_s);
        rule := tollgate.budget_rule_in_force(ask.account_id, ask.rule_id);
        period := tollgate.lock_budget_period(ask.account_id, starts, to_timestamp(ask.ends_s), rule);
        -- Read behind the lock: only now nobody else moves anything of this period.
        SELECT * INTO lease FROM tollgate.leases
            WHERE journal_id = journal AND account_id = ask.account_id AND starts_at = starts;
        limit_nusd := (SELECT declared.limit_nusd FROM tollgate.budgets AS declared WHERE rule_id = rule) + coalesce((
            SELECT sum(amount_nusd) FROM tollgate.budget_grants WHERE account_id = ask.account_id
                AND starts_at = starts AND (expires_at IS NULL OR expires_at > clock_timestamp())), 0);
        returned := 0;
        IF lease.turn >= ask.turn THEN
            granted_nusd := CASE WHEN lease.turn = ask.turn THEN lease.granted_nusd ELSE 0 END;
            outstanding_nusd := lease.outstanding_nusd;
            leased_nusd := period.leased_nusd;
        ELSE
            returned := least(ask.returned_nusd, coalesce(lease.outstanding_nusd, 0));
            room := limit_nusd::numeric - period.spent_nusd - period.leased_nusd + returned;
            granted_nusd := CASE WHEN ask.least_nusd > 0 AND room >= ask.least_nusd
                THEN least(room, ask.most_nusd, greatest(ask.needed_nusd, div(room, 8))) ELSE 0 END;
            outstanding_nusd := coalesce(lease.outstanding_nusd, 0) - returned + granted_nusd;
            leased_nusd := period.leased_nusd - returned + granted_nusd;
            UPDATE tollgate.budget_periods AS changed
                SET leased_nusd = exchange_slices.leased_nusd, rule_id = coalesce(rule, rule_id),
                    ends_at = coalesce(to_timestamp(ask.ends_s), ends_at)
                WHERE account_id = ask.account_id AND starts_at = starts;
            IF outstanding_nusd = 0 AND ask.held_nusd = 0 THEN
                DELETE FROM tollgate.leases
                    WHERE journal_id = journal AND account_id = ask.account_id AND starts_at = starts;
            ELSE
                INSERT INTO tollgate.leases AS kept
                    (journal_id, account_id, starts_at, outstanding_nusd, held_nusd, turn, granted_nusd)
                    VALUES (journal, ask.account_id, starts, exchange_slices.outstanding_nusd, ask.held_nusd, ask.turn,
                            exchange_slices.granted_nusd)
                    ON CONFLICT (journal_id, account_id, starts_at) DO UPDATE
                    SET outstanding_nusd = excluded.outstanding_nusd, held_nusd = excluded.held_nusd,
                        turn = excluded.turn, granted_nusd = excluded.granted_nusd, renewed_at = now();
            END IF;
        END IF;
        account_id := ask.account_id;
        starts_s := ask.starts_s;
        spent_nusd := period.spent_nusd;
        RETURN NEXT;
    END LOOP;
END
$$;
"""

# `charges` are the costs of the inserted events, by account and period, together with this
# transaction's adjustments, so that every row is locked once and in order.
SETTLE = """
CREATE FUNCTION tollgate.settle_holds(journal uuid, charges jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    move record;
    part bigint;
BEGIN
    FOR move IN
        WITH corrected AS (
            DELETE FROM tollgate.budget_corrections WHERE xact = pg_current_xact_id()
            RETURNING account_id, starts_at, amount_nusd
        )
        SELECT account_id, starts_at, sum(spent_nusd) AS spent_nusd, sum(taken_nusd) AS taken_nusd FROM (
            SELECT account_id, to_timestamp(starts_s) AS starts_at, spent_nusd, taken_nusd
            FROM jsonb_to_recordset(charges)
                AS charge (account_id text, starts_s bigint, spent_nusd numeric, taken_nusd numeric)
            UNION ALL
            SELECT account_id, starts_at, amount_nusd, 0 FROM corrected
        ) AS moves
        GROUP BY account_id, starts_at ORDER BY account_id, starts_at
    LOOP
        PERFORM tollgate.lock_budget_period(move.account_id, move.starts_at, NULL, NULL);
        part := coalesce((
            SELECT least(outstanding_nusd, move.taken_nusd) FROM tollgate.leases
            WHERE journal_id = journal AND account_id = move.account_id AND starts_at = move.starts_at), 0);
        IF part > 0 THEN
            UPDATE tollgate.leases SET outstanding_nusd = outstanding_nusd - part
                WHERE journal_id = journal AND account_id = move.account_id AND starts_at = move.starts_at;
        END IF;
        UPDATE tollgate.budget_periods
            SET spent_nusd = spent_nusd + move.spent_nusd, leased_nusd = leased_nusd - part
            WHERE account_id = move.account_id AND starts_at = move.starts_at;
    END LOOP;
END
$$;
"""

# At the commit, not at the insert: a repricing books for minutes in one transaction, and would hold
# up everybody who needs a slice of the same budgets for as long.
CORRECTIONS = """
CREATE FUNCTION tollgate.note_corrections() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    INSERT INTO tollgate.budget_corrections (account_id, starts_at, amount_nusd)
    SELECT hold ->> 0, to_timestamp((hold ->> 1)::bigint),
           sum(booked.amount_nusd - CASE WHEN booked.settles AND event.cost_nusd IS NULL
                                         THEN coalesce(event.held_nusd, (hold ->> 2)::bigint) ELSE 0 END)
    FROM booked CROSS JOIN LATERAL (
        -- OFFSET: each event is looked up by its key, never all of them read.
        SELECT cost_nusd, held_nusd, holds FROM tollgate.usage_events AS found
        WHERE found.request_id = booked.request_id AND found.attempt = booked.attempt
          AND found.occurred_at = booked.occurred_at OFFSET 0
    ) AS event CROSS JOIN LATERAL jsonb_array_elements(event.holds) AS hold
    GROUP BY 1, 2;
    RETURN NULL;
END
$$;
CREATE TRIGGER adjustments_move_budgets AFTER INSERT ON tollgate.adjustments
    REFERENCING NEW TABLE AS booked FOR EACH STATEMENT EXECUTE FUNCTION tollgate.note_corrections();

CREATE FUNCTION tollgate.apply_corrections() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ BEGIN PERFORM tollgate.settle_holds(NULL, '[]'); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER corrections_are_applied AFTER INSERT ON tollgate.budget_corrections
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tollgate.apply_corrections();
"""

# Whoever calls these has changed the journal's row in the same transaction, and so holds it.
ENDS = """
CREATE FUNCTION tollgate.end_leases(journal uuid, is_lost boolean)
    RETURNS TABLE (account_id text, starts_at timestamptz, outstanding_nusd bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
#variable_conflict use_column
BEGIN
    FOR account_id, starts_at IN
        SELECT account_id, starts_at FROM tollgate.leases WHERE journal_id = journal ORDER BY account_id, starts_at
    LOOP
        PERFORM tollgate.lock_budget_period(end_leases.account_id, end_leases.starts_at, NULL, NULL);
        DELETE FROM tollgate.leases AS ended
            WHERE journal_id = journal AND ended.account_id = end_leases.account_id
              AND ended.starts_at = end_leases.starts_at
            RETURNING ended.outstanding_nusd INTO outstanding_nusd;
        UPDATE tollgate.budget_periods AS period
            SET leased_nusd = leased_nusd - end_leases.outstanding_nusd,
                spent_nusd = spent_nusd + CASE WHEN is_lost THEN end_leases.outstanding_nusd ELSE 0 END
            WHERE period.account_id = end_leases.account_id AND period.starts_at = end_leases.starts_at;
        IF is_lost AND end_leases.outstanding_nusd > 0 THEN
            INSERT INTO tollgate.budget_losses (journal_id, account_id, starts_at, amount_nusd)
                VALUES (journal, end_leases.account_id, end_leases.starts_at, end_leases.outstanding_nusd);
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- The journal has turned up and all of it is written: what its events cost is known, so what was booked for them goes.
CREATE FUNCTION tollgate.undo_losses(journal uuid) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    loss record;
    undone integer := 0;
BEGIN
    FOR loss IN
        WITH found AS (
            DELETE FROM tollgate.budget_losses WHERE journal_id = journal RETURNING account_id, starts_at, amount_nusd
        )
        SELECT account_id, starts_at, sum(amount_nusd) AS amount_nusd FROM found
        GROUP BY account_id, starts_at ORDER BY account_id, starts_at
    LOOP
        PERFORM tollgate.lock_budget_period(loss.account_id, loss.starts_at, NULL, NULL);
        UPDATE tollgate.budget_periods SET spent_nusd = spent_nusd - loss.amount_nusd
            WHERE account_id = loss.account_id AND starts_at = loss.starts_at;
        undone := undone + 1;
    END LOOP;
    RETURN undone;
END
$$;
"""

# One statement, and so one snapshot: concurrent writes are in both sums or in neither.
CHECKS = """
CREATE FUNCTION tollgate.budget_mistakes() RETURNS TABLE (account_id text, starts_at timestamptz, what text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    WITH counted AS (
        SELECT hold ->> 0 AS account_id, to_timestamp((hold ->> 1)::bigint) AS starts_at,
               coalesce(cost_nusd, held_nusd, (hold ->> 2)::bigint)::numeric AS amount_nusd
        FROM tollgate.usage_events CROSS JOIN LATERAL jsonb_array_elements(holds) AS hold WHERE holds <> '[]'
        UNION ALL
        SELECT hold ->> 0, to_timestamp((hold ->> 1)::bigint),
               booked.amount_nusd::numeric - CASE WHEN booked.settles AND event.cost_nusd IS NULL
                                                  THEN coalesce(event.held_nusd, (hold ->> 2)::bigint) ELSE 0 END
        FROM tollgate.adjustments AS booked
        JOIN tollgate.usage_events AS event ON event.request_id = booked.request_id AND event.attempt = booked.attempt
            AND event.occurred_at = booked.occurred_at AND event.holds <> '[]'
        CROSS JOIN LATERAL jsonb_array_elements(event.holds) AS hold
        UNION ALL
        SELECT account_id, starts_at, amount_nusd FROM tollgate.budget_losses
    ), spent AS (
        SELECT account_id, starts_at, sum(amount_nusd) AS nusd FROM counted GROUP BY account_id, starts_at
    ), leased AS (
        SELECT account_id, starts_at, sum(outstanding_nusd) AS nusd FROM tollgate.leases GROUP BY account_id, starts_at
    )
    SELECT account_id, starts_at,
           format('spent is %s nano-dollars, its events and adjustments say %s',
                  coalesce(period.spent_nusd, 0), coalesce(spent.nusd, 0))
    FROM tollgate.budget_periods AS period FULL JOIN spent USING (account_id, starts_at)
    WHERE coalesce(period.spent_nusd, 0) <> coalesce(spent.nusd, 0)
    UNION ALL
    SELECT account_id, starts_at,
           format('leased is %s nano-dollars, its leases say %s',
                  coalesce(period.leased_nusd, 0), coalesce(leased.nusd, 0))
    FROM tollgate.budget_periods AS period FULL JOIN leased USING (account_id, starts_at)
    WHERE coalesce(period.leased_nusd, 0) <> coalesce(leased.nusd, 0)
    UNION ALL
    SELECT lease.account_id, lease.starts_at,
           format('%s nano-dollars are leased to journal %s, which is %s',
                  lease.outstanding_nusd, lease.journal_id, coalesce(holder.state, 'unknown'))
    FROM tollgate.leases AS lease LEFT JOIN tollgate.journals AS holder ON holder.id = lease.journal_id
    WHERE coalesce(holder.state, 'unknown') <> 'live'
    ORDER BY 1, 2, 3
    $$;
"""

VIEWS = """
CREATE VIEW finance.budget_grants AS
SELECT grant_id, account_id AS account, starts_at, amount_nusd * 0.000000001 AS amount_usd, expires_at, reason, author,
       created_at, expires_at <= now() IS TRUE AS is_expired
FROM tollgate.budget_grants;

CREATE VIEW finance.budgets AS
WITH accounts AS (
    SELECT account_id, starts_at, ends_at, spent_nusd, leased_nusd, rule_id FROM tollgate.budget_periods
    UNION ALL
    SELECT rule_id, NULL, NULL, 0, 0, rule_id FROM tollgate.budgets AS declared
    WHERE owner <> '*' AND is_current
      AND NOT EXISTS (SELECT FROM tollgate.budget_periods AS used WHERE used.account_id = declared.rule_id)
)
SELECT account.account_id AS account, coalesce(rule.rule_id, account.rule_id) AS rule, rule.scope, rule.team,
       tollgate.budget_owner(account.account_id, rule.rule_id, rule.owner) AS owner, rule.period, rule.kind,
       rule.time_zone, account.starts_at, account.ends_at,
       rule.limit_nusd * 0.000000001 AS limit_usd, granted.nusd * 0.000000001 AS granted_usd,
       account.spent_nusd * 0.000000001 AS spent_usd, account.leased_nusd * 0.000000001 AS leased_usd,
       held.nusd * 0.000000001 AS held_usd,
       -- Not greatest(): that passes over NULL, but of a limit that is not known nothing is known to remain.
       CASE WHEN rule.limit_nusd + granted.nusd >= account.spent_nusd + account.leased_nusd
            THEN rule.limit_nusd + granted.nusd - account.spent_nusd - account.leased_nusd
            WHEN rule.limit_nusd IS NOT NULL THEN 0 END * 0.000000001 AS remaining_usd,
       coalesce(rule.is_current, false) AS is_current
FROM accounts AS account
LEFT JOIN LATERAL (
    -- As `budget_rule_in_force`, which a reader may not call.
    SELECT * FROM tollgate.budgets AS found
    WHERE found.rule_id = account.rule_id OR (found.rule_id = account.account_id AND found.is_current)
    ORDER BY found.rule_id = account.account_id AND found.is_current DESC LIMIT 1
) AS rule ON true
CROSS JOIN LATERAL (
    SELECT coalesce(sum(amount_nusd), 0) FROM tollgate.budget_grants AS given
    WHERE given.account_id = account.account_id AND given.starts_at = account.starts_at
      AND (given.expires_at IS NULL OR given.expires_at > now())
) AS granted (nusd)
CROSS JOIN LATERAL (
    SELECT coalesce(sum(held_nusd), 0) FROM tollgate.leases AS lease
    WHERE lease.account_id = account.account_id AND lease.starts_at = account.starts_at
) AS held (nusd);
"""

# The gateway reads all of it and moves money by the functions alone; rules and grants are not its
# to make.
GRANTS = """
GRANT SELECT ON finance.budgets, finance.budget_grants TO tollgate_reader;
GRANT SELECT ON tollgate.budgets, tollgate.budget_periods, tollgate.leases, tollgate.budget_grants,
    tollgate.budget_losses TO tollgate_gateway;
REVOKE ALL ON FUNCTION tollgate.lock_budget_period(text, timestamptz, timestamptz, text),
    tollgate.exchange_slices(uuid, jsonb, integer), tollgate.settle_holds(uuid, jsonb),
    tollgate.end_leases(uuid, boolean), tollgate.undo_losses(uuid), tollgate.budget_mistakes() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tollgate.exchange_slices(uuid, jsonb, integer), tollgate.settle_holds(uuid, jsonb),
    tollgate.end_leases(uuid, boolean), tollgate.undo_losses(uuid), tollgate.budget_mistakes() TO tollgate_gateway;
"""

STEPS = (TABLES, EVENTS, RULES, PERIODS, EXCHANGE, SETTLE, CORRECTIONS, ENDS, CHECKS, VIEWS, GRANTS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
