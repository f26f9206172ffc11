-- What moves money between budgets and journals: the exchange of slices, settlement, corrections and
-- losses. The check of all of it, and the views of budgets.

-- ---- leases

-- The windows that overlap the asked ones are locked with them, in the one order. A worker gets the
-- sums of all of them, as a BIGINT: beyond its end the exact excess makes no difference.
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

-- `charges` are the costs of the inserted events, by account and period, together with this
-- transaction's adjustments, so that every row is locked once and in order. Every window that is
-- missing is opened before any other is locked.
CREATE FUNCTION tollgate.settle_holds(journal uuid, charges jsonb) RETURNS void
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

-- At the commit, not at the insert: a repricing books for minutes in one transaction, and would
-- hold up everybody who needs a slice of the same budgets for as long. The INSERT locks the table
-- of overlaps against `note_budget_overlaps` until the commit, also if it adds no row.
CREATE FUNCTION tollgate.note_corrections() RETURNS trigger
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
            AND charged.intended_at < overlap.starts_at - interval '5 minutes'
        GROUP BY 1, 2, 3
    )
    INSERT INTO tollgate.budget_corrections (account_id, starts_at, amount_nusd)
    SELECT account_id, starts_at, sum(amount_nusd) FROM charged GROUP BY 1, 2;
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

-- Whoever calls these has changed the journal's row in the same transaction, and so holds it.
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

-- The journal has turned up and all of it is written: what its events cost is known, so what was
-- booked for them goes.
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

-- A dead letter keeps its own lease: its attempt's hold stays reserved until the letter is
-- resolved. The lease is a row of `tollgate.leases` whose `journal_id` is the letter's id. Whoever
-- calls it has changed the journal's row and made the letter in the same transaction. A hold that
-- was not leased (a soft budget's, an overdraft) has nothing to move.
CREATE FUNCTION tollgate.set_aside(journal uuid, letter uuid, holds jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    held record;
    part bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM tollgate.dead_letters
                   WHERE id = letter AND journal_id = journal AND resolved_at IS NULL) THEN
        RETURN;
    END IF;
    FOR held IN
        SELECT hold ->> 0 AS account_id, to_timestamp((hold ->> 1)::bigint) AS starts_at,
               sum((hold ->> 2)::bigint) AS nusd
        FROM jsonb_array_elements(holds) AS hold WHERE NOT coalesce((hold ->> 3)::boolean, false)
        GROUP BY 1, 2 ORDER BY 1, 2
    LOOP
        PERFORM tollgate.lock_budget_period(held.account_id, held.starts_at, NULL, NULL);
        SELECT least(outstanding_nusd, held.nusd) INTO part FROM tollgate.leases
            WHERE journal_id = journal AND account_id = held.account_id AND starts_at = held.starts_at;
        IF coalesce(part, 0) > 0 THEN
            UPDATE tollgate.leases SET outstanding_nusd = outstanding_nusd - part
                WHERE journal_id = journal AND account_id = held.account_id AND starts_at = held.starts_at;
            INSERT INTO tollgate.leases
                (journal_id, account_id, starts_at, outstanding_nusd, held_nusd, turn, granted_nusd)
                VALUES (letter, held.account_id, held.starts_at, part, part, 0, 0);
        END IF;
    END LOOP;
END
$$;
CREATE VIEW finance.dead_letters AS
SELECT id, journal_id, error, digest, recorded_at, resolved_at, resolved_by, resolution,
       coalesce((SELECT max(outstanding_nusd) FROM tollgate.leases WHERE journal_id = letter.id), 0) * 0.000000001
           AS set_aside_usd
FROM tollgate.dead_letters AS letter;

-- One statement, and so one snapshot: concurrent writes are in both sums or in neither. Of the
-- parts outside never more may be noted than the events say.
CREATE FUNCTION tollgate.budget_mistakes() RETURNS TABLE (account_id text, starts_at timestamptz, what text)
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
            AND counted.starts_at = overlap.earlier_at AND counted.intended_at < overlap.starts_at - interval '5 minutes'
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

-- ---- views

CREATE VIEW finance.budget_grants AS
SELECT grant_id, account_id AS account, starts_at, amount_nusd * 0.000000001 AS amount_usd, expires_at, reason, author,
       created_at, expires_at <= now() IS TRUE AS is_expired
FROM tollgate.budget_grants;

-- Only the windows that run take something over: of an ended one the rows of the past add up to all
-- spending.
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
    SELECT spent_nusd + leased_nusd, granted_nusd FROM (
    SELECT coalesce(sum(greatest(other.spent_nusd - before.nusd, 0)), 0) AS spent_nusd,
           coalesce(sum(other.leased_nusd), 0) AS leased_nusd, coalesce(sum(given.nusd), 0) AS granted_nusd
    FROM tollgate.budget_periods AS other
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(noted.outside_nusd), 0) FROM tollgate.budget_overlaps AS noted
        WHERE noted.account_id = other.account_id AND noted.starts_at = account.starts_at
          AND noted.earlier_at = other.starts_at
    ) AS before (nusd)
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(amount_nusd), 0) FROM tollgate.budget_grants AS given
        WHERE given.account_id = other.account_id AND given.starts_at = other.starts_at
          AND given.expires_at > now()
    ) AS given (nusd)
    WHERE other.account_id = account.account_id AND other.starts_at <> account.starts_at
      AND (other.ends_at IS NULL OR other.ends_at > account.starts_at)
      AND other.starts_at < coalesce(account.ends_at, 'infinity')

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

-- Spending without Postgres beyond the leases. Without an index: it is read seldom, and every event
-- would pay for one.
CREATE VIEW finance.overdrafts AS
SELECT event.request_id, event.attempt, event.occurred_at, event.team, event.project, event.key_id, event.cost_centre,
       hold ->> 0 AS account, to_timestamp((hold ->> 1)::bigint) AS starts_at,
       (hold ->> 2)::bigint * 0.000000001 AS held_usd, event.cost_nusd * 0.000000001 AS cost_usd
FROM tollgate.usage_events AS event CROSS JOIN LATERAL jsonb_array_elements(event.holds) AS hold
WHERE event.holds <> '[]' AND (hold ->> 3)::boolean AND NOT event.is_demo;
