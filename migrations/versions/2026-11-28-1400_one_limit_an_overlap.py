"""A budget's windows that overlap share one limit.

A window is one budget's period from one beginning. A change of the time zone, of the first month of
the year or of a named budget's period moves the beginning: the new window began empty, beside the
old one. Now the room of a window is its limit less the spending of the windows that overlap it, as
far as it lies in the overlap, and less their leases.

Nothing moves between windows: an event stays in the one that its hold names, and `spent` stays the
sum of the window's events. So a change back finds its own sums, and counts nothing twice.
"""

from __future__ import annotations

from alembic import op

revision = "20261128_1400"
down_revision = "20261127_1990"
branch_labels = None
depends_on = None

# `outside_nusd` is the part of the earlier window's `spent` whose attempts began before the later
# window. It is noted once, and corrected by the adjustments of these attempts. Rows are only added:
# a long repricing locks none of them.
TABLES = """
CREATE TABLE tollgate.budget_accounts (
    account_id text PRIMARY KEY
);
CREATE TABLE tollgate.budget_overlaps (
    account_id   text NOT NULL,
    starts_at    timestamptz NOT NULL,
    earlier_at   timestamptz NOT NULL,
    outside_nusd numeric NOT NULL
);
CREATE INDEX budget_overlaps_window ON tollgate.budget_overlaps (account_id, starts_at, earlier_at);
CREATE INDEX budget_periods_account_ends ON tollgate.budget_periods (account_id, ends_at);
"""

# A gateway's clock may differ by five minutes before it leases nothing. So long before the window's
# beginning an attempt counts as inside.
CUT = "interval '5 minutes'"

# The sums that a window takes over from those that overlap it. An end that is not known never comes. A grant
# to another window counts until it expires; one without an end counts in its own window alone.
CARRIED = """
    SELECT coalesce(sum(greatest(other.spent_nusd - before.nusd, 0)), 0) AS spent_nusd,
           coalesce(sum(other.leased_nusd), 0) AS leased_nusd, coalesce(sum(given.nusd), 0) AS granted_nusd
    FROM tollgate.budget_periods AS other
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(noted.outside_nusd), 0) FROM tollgate.budget_overlaps AS noted
        WHERE noted.account_id = other.account_id AND noted.starts_at = {starts} AND noted.earlier_at = other.starts_at
    ) AS before (nusd)
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(amount_nusd), 0) FROM tollgate.budget_grants AS given
        WHERE given.account_id = other.account_id AND given.starts_at = other.starts_at
          AND given.expires_at > {now}
    ) AS given (nusd)
    WHERE other.account_id = {account} AND other.starts_at <> {starts}
      AND (other.ends_at IS NULL OR other.ends_at > {starts}) AND other.starts_at < coalesce({ends}, 'infinity')
"""

# The account's row is locked while one of its windows is opened: of two windows that are opened at
# once the second sees the first. All accounts are locked before any window is.
OPENING = """
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

-- As before, but it opens the window as above.
CREATE OR REPLACE FUNCTION tollgate.lock_budget_period(account text, starts timestamptz, ends timestamptz, rule text)
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
"""

# An attempt belongs to the window of its intent, which is not before its request's moment.
# `scanned` tells whether `most` rows were enough.
OVERLAPS = f"""
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

-- The shorter side of the beginning is read. If even that has too many events, the window takes over all that the
-- earlier one spent, or all but the part that was read: never too little.
CREATE FUNCTION tollgate.budget_outside(account text, earlier timestamptz, starts timestamptz) RETURNS numeric
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    most constant bigint := 300000;
    cut constant timestamptz := starts - {CUT};
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

-- Not while an adjustment is on its way: its part of the earlier window is not known. The window then takes over all of
-- it, and the next exchange tries again, as it does when this one has taken long enough.
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

CREATE FUNCTION tollgate.budget_carried(account text, starts timestamptz, ends timestamptz)
    RETURNS TABLE (spent_nusd numeric, leased_nusd numeric, granted_nusd numeric)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ {CARRIED.format(account="account", starts="starts", ends="ends", now="clock_timestamp()")} $$;
"""  # noqa: S608 - constants

# As before. The windows that overlap the asked ones are locked with them, in the one order. A
# worker gets the sums of all of them.
EXCHANGE = """
CREATE OR REPLACE FUNCTION tollgate.exchange_slices(journal uuid, asks jsonb, known_losses integer DEFAULT 0)
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
    carried record;
    lease tollgate.leases;
    returned bigint;
    room numeric;
    most constant numeric := 9223372036854775807;
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
    PERFORM tollgate.open_budget_windows(asks);
    PERFORM FROM jsonb_to_recordset(asks) AS asked (account_id text, starts_s bigint, ends_s bigint)
        JOIN tollgate.budget_periods AS period ON period.account_id = asked.account_id
            AND (period.ends_at IS NULL OR period.ends_at > to_timestamp(asked.starts_s))
            AND period.starts_at < coalesce(to_timestamp(asked.ends_s), 'infinity')
        ORDER BY period.account_id, period.starts_at FOR UPDATE OF period;
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
        PERFORM tollgate.note_budget_overlaps(ask.account_id, starts);
        SELECT * INTO carried FROM tollgate.budget_carried(
            ask.account_id, starts, greatest(to_timestamp(ask.ends_s), period.ends_at));
        limit_nusd := least(
            (SELECT declared.limit_nusd FROM tollgate.budgets AS declared WHERE rule_id = rule) + coalesce((
                SELECT sum(amount_nusd) FROM tollgate.budget_grants WHERE account_id = ask.account_id
                    AND starts_at = starts AND (expires_at IS NULL OR expires_at > clock_timestamp())), 0)
            + carried.granted_nusd, CASE WHEN rule IS NOT NULL THEN most END);
        returned := 0;
        IF lease.turn >= ask.turn THEN
            granted_nusd := CASE WHEN lease.turn = ask.turn THEN lease.granted_nusd ELSE 0 END;
            outstanding_nusd := lease.outstanding_nusd;
            leased_nusd := period.leased_nusd;
        ELSE
            returned := least(ask.returned_nusd, coalesce(lease.outstanding_nusd, 0));
            room := limit_nusd::numeric - period.spent_nusd - period.leased_nusd + returned
                - carried.spent_nusd - carried.leased_nusd;
            granted_nusd := CASE WHEN ask.least_nusd > 0 AND room >= ask.least_nusd
                THEN least(room, ask.most_nusd, greatest(ask.needed_nusd, div(room, 8))) ELSE 0 END;
            outstanding_nusd := coalesce(lease.outstanding_nusd, 0) - returned + granted_nusd;
            leased_nusd := period.leased_nusd - returned + granted_nusd;
            UPDATE tollgate.budget_periods AS changed
                SET leased_nusd = exchange_slices.leased_nusd, rule_id = coalesce(rule, rule_id),
                    ends_at = greatest(to_timestamp(ask.ends_s), ends_at)
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
        spent_nusd := least(greatest(period.spent_nusd + carried.spent_nusd, -most - 1), most);
        leased_nusd := least(leased_nusd + carried.leased_nusd, most);
        RETURN NEXT;
    END LOOP;
END
$$;
"""

# As before; every window that is missing is opened before any other is locked.
SETTLE = """
CREATE OR REPLACE FUNCTION tollgate.settle_holds(journal uuid, charges jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    move record;
    part bigint;
BEGIN
    PERFORM tollgate.open_budget_windows(charges);
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

# As before, and the changes of the part outside by adjustments. The INSERT locks the table against
# `note_budget_overlaps` until the commit, also if it adds no row.
CORRECTIONS = f"""
CREATE OR REPLACE FUNCTION tollgate.note_corrections() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    WITH charged AS MATERIALIZED (
        SELECT hold ->> 0 AS account_id, to_timestamp((hold ->> 1)::bigint) AS starts_at, event.intended_at,
               booked.amount_nusd - CASE WHEN booked.settles AND event.cost_nusd IS NULL
                                         THEN coalesce(event.held_nusd, (hold ->> 2)::bigint) ELSE 0 END AS amount_nusd
        FROM booked CROSS JOIN LATERAL (
            -- OFFSET: each event is looked up by its key, never all of them read.
            SELECT cost_nusd, held_nusd, holds, greatest(occurred_at, started_at) AS intended_at
            FROM tollgate.usage_events AS found
            WHERE found.request_id = booked.request_id AND found.attempt = booked.attempt
              AND found.occurred_at = booked.occurred_at OFFSET 0
        ) AS event CROSS JOIN LATERAL jsonb_array_elements(event.holds) AS hold
    ), noted AS (
        INSERT INTO tollgate.budget_overlaps (account_id, starts_at, earlier_at, outside_nusd)
        SELECT overlap.account_id, overlap.starts_at, overlap.earlier_at, sum(charged.amount_nusd)
        FROM charged
        JOIN (SELECT DISTINCT account_id, starts_at, earlier_at FROM tollgate.budget_overlaps) AS overlap
            ON overlap.account_id = charged.account_id AND overlap.earlier_at = charged.starts_at
            AND charged.intended_at < overlap.starts_at - {CUT}
        GROUP BY 1, 2, 3
    )
    INSERT INTO tollgate.budget_corrections (account_id, starts_at, amount_nusd)
    SELECT account_id, starts_at, sum(amount_nusd) FROM charged GROUP BY 1, 2;
    RETURN NULL;
END
$$;
"""  # noqa: S608 - constants

# As before, and the parts outside: never more than the events say.
CHECKS = f"""
CREATE OR REPLACE FUNCTION tollgate.budget_mistakes() RETURNS TABLE (account_id text, starts_at timestamptz, what text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    WITH counted AS (
        SELECT hold ->> 0 AS account_id, to_timestamp((hold ->> 1)::bigint) AS starts_at,
               greatest(occurred_at, started_at) AS intended_at,
               coalesce(cost_nusd, held_nusd, (hold ->> 2)::bigint)::numeric AS amount_nusd
        FROM tollgate.usage_events CROSS JOIN LATERAL jsonb_array_elements(holds) AS hold WHERE holds <> '[]'
        UNION ALL
        SELECT hold ->> 0, to_timestamp((hold ->> 1)::bigint), greatest(event.occurred_at, event.started_at),
               booked.amount_nusd::numeric - CASE WHEN booked.settles AND event.cost_nusd IS NULL
                                                  THEN coalesce(event.held_nusd, (hold ->> 2)::bigint) ELSE 0 END
        FROM tollgate.adjustments AS booked
        JOIN tollgate.usage_events AS event ON event.request_id = booked.request_id AND event.attempt = booked.attempt
            AND event.occurred_at = booked.occurred_at AND event.holds <> '[]'
        CROSS JOIN LATERAL jsonb_array_elements(event.holds) AS hold
        UNION ALL
        SELECT account_id, starts_at, NULL, amount_nusd FROM tollgate.budget_losses
    ), spent AS (
        SELECT account_id, starts_at, sum(amount_nusd) AS nusd FROM counted GROUP BY account_id, starts_at
    ), leased AS (
        SELECT account_id, starts_at, sum(outstanding_nusd) AS nusd FROM tollgate.leases GROUP BY account_id, starts_at
    ), noted AS (
        SELECT account_id, starts_at, earlier_at, sum(outside_nusd) AS nusd FROM tollgate.budget_overlaps
        GROUP BY account_id, starts_at, earlier_at
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
    SELECT overlap.account_id, overlap.starts_at,
           format('%s nano-dollars of the window of %s count as spent before, its events and adjustments say %s',
                  overlap.nusd, overlap.earlier_at, outside.nusd)
    FROM noted AS overlap
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(amount_nusd), 0) FROM counted WHERE counted.account_id = overlap.account_id
            AND counted.starts_at = overlap.earlier_at AND counted.intended_at < overlap.starts_at - {CUT}
    ) AS outside (nusd)
    WHERE overlap.nusd > greatest(outside.nusd, 0)
    UNION ALL
    SELECT lease.account_id, lease.starts_at,
           format('%s nano-dollars are leased to journal %s, which is %s',
                  lease.outstanding_nusd, lease.journal_id, coalesce(holder.state, 'unknown'))
    FROM tollgate.leases AS lease LEFT JOIN tollgate.journals AS holder ON holder.id = lease.journal_id
    WHERE coalesce(holder.state, 'unknown') <> 'live'
        AND NOT EXISTS (SELECT FROM tollgate.dead_letters AS letter
                        WHERE letter.id = lease.journal_id AND letter.resolved_at IS NULL)
    ORDER BY 1, 2, 3
    $$;
"""  # noqa: S608 - constants

# As before, and the last column. Only the windows that run take something over: of an ended one the
# rows of the past add up to all spending.
VIEW = f"""
CREATE OR REPLACE VIEW finance.budgets AS
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
       CASE WHEN rule.limit_nusd + granted.nusd >= account.spent_nusd + account.leased_nusd + taken.nusd
            THEN rule.limit_nusd + granted.nusd - account.spent_nusd - account.leased_nusd - taken.nusd
            WHEN rule.limit_nusd IS NOT NULL THEN 0 END * 0.000000001 AS remaining_usd,
       coalesce(rule.is_current, false) AS is_current, taken.nusd * 0.000000001 AS taken_over_usd
FROM accounts AS account
LEFT JOIN LATERAL (
    -- As `budget_rule_in_force`, which a reader may not call.
    SELECT * FROM tollgate.budgets AS found
    WHERE found.rule_id = account.rule_id OR (found.rule_id = account.account_id AND found.is_current)
    ORDER BY found.rule_id = account.account_id AND found.is_current DESC LIMIT 1
) AS rule ON true
CROSS JOIN LATERAL (
    SELECT spent_nusd + leased_nusd, granted_nusd FROM ({
    CARRIED.format(
        account="account.account_id",
        starts="account.starts_at",
        ends="account.ends_at",
        now="now()",
    )
}
      AND account.starts_at <= now() AND (account.ends_at IS NULL OR account.ends_at > now())) AS carried
) AS taken (nusd, granted_nusd)
CROSS JOIN LATERAL (
    SELECT coalesce(sum(amount_nusd), 0) + taken.granted_nusd FROM tollgate.budget_grants AS given
    WHERE given.account_id = account.account_id AND given.starts_at = account.starts_at
      AND (given.expires_at IS NULL OR given.expires_at > now())
) AS granted (nusd)
CROSS JOIN LATERAL (
    SELECT coalesce(sum(held_nusd), 0) FROM tollgate.leases AS lease
    WHERE lease.account_id = account.account_id AND lease.starts_at = account.starts_at
) AS held (nusd);
"""  # noqa: S608 - constants

OWN = "team = ANY ((SELECT nullif(current_setting('tollgate.teams', true), '')::text[])::text[])"
SHOW = "SELECT tollgate.show_to_teams('finance.budgets', %s, '{}')"

GRANTS = """
REVOKE ALL ON FUNCTION tollgate.open_budget_windows(jsonb),
    tollgate.budget_charged(text, timestamptz, timestamptz, timestamptz, timestamptz, bigint),
    tollgate.budget_outside(text, timestamptz, timestamptz), tollgate.note_budget_overlaps(text, timestamptz),
    tollgate.budget_carried(text, timestamptz, timestamptz) FROM PUBLIC;
GRANT SELECT ON tollgate.budget_overlaps TO tollgate_gateway;
GRANT EXECUTE ON FUNCTION tollgate.open_budget_windows(jsonb) TO tollgate_admin;
GRANT EXECUTE ON FUNCTION tollgate.budget_carried(text, timestamptz, timestamptz) TO tollgate_gateway;
"""

STEPS = (TABLES, OPENING, OVERLAPS, EXCHANGE, SETTLE, CORRECTIONS, CHECKS, VIEW, GRANTS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
    cursor.execute(SHOW, (OWN,))
