"""A dead letter keeps its own lease: its attempt's hold stays reserved until the letter is
resolved.

The lease is a row of `tollgate.leases` whose `journal_id` is the letter's id.
"""

from __future__ import annotations

from alembic import op

revision = "20261123_0215"
down_revision = "20261123_0145"
branch_labels = None
depends_on = None

# Whoever calls it has changed the journal's row and made the letter in the same transaction. A hold
# that was not leased (a soft budget's, an overdraft) has nothing to move.
SET_ASIDE = """
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
REVOKE ALL ON FUNCTION tollgate.set_aside(uuid, uuid, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tollgate.set_aside(uuid, uuid, jsonb) TO tollgate_gateway;
"""

# As before, but for the leases of dead letters that wait.
CHECKS = """
CREATE OR REPLACE FUNCTION tollgate.budget_mistakes() RETURNS TABLE (account_id text, starts_at timestamptz, what text)
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
        AND NOT EXISTS (SELECT FROM tollgate.dead_letters AS letter
                        WHERE letter.id = lease.journal_id AND letter.resolved_at IS NULL)
    ORDER BY 1, 2, 3
    $$;
"""

VIEW = """
CREATE OR REPLACE VIEW finance.dead_letters AS
SELECT id, journal_id, error, digest, recorded_at, resolved_at, resolved_by, resolution,
       coalesce((SELECT max(outstanding_nusd) FROM tollgate.leases WHERE journal_id = letter.id), 0) * 0.000000001
           AS set_aside_usd
FROM tollgate.dead_letters AS letter;
"""

STEPS = (SET_ASIDE, CHECKS, VIEW)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
