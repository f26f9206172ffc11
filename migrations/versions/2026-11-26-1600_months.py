"""Months that can be closed: versions with a hash, kept GPU hours, and triggers that refuse later
facts.

Months close oldest first and only the newest closed one reopens. So the closed ones end at one
month, and everything late is posted to the month after it.
"""

from __future__ import annotations

from alembic import op

revision = "20261126_1600"
down_revision = "20261126_1500"
branch_labels = None
depends_on = None

# The month of an event's own moment, in UTC.
OWN_MONTH = "(date_trunc('month', occurred_at AT TIME ZONE 'UTC'))::date"

GPU_COLUMNS = {
    "hour": "timestamptz",
    "deployment": "text",
    "applied_usd": "numeric",
    "bill_usd": "numeric",
    "idle_usd": "numeric",
    "variance_usd": "numeric",
    "gpu_hours": "numeric",
    "usd_per_gpu_hour": "numeric",
    "up_hours": "numeric",
    "watched_hours": "numeric",
    "empty_usd": "numeric",
    "underfilled_usd": "numeric",
    "estimated_usd": "numeric",
    "imported_usd": "numeric",
    "estimated_gpu_hours": "numeric",
    "busy_hours": "numeric",
}
GPU_NAMES = ", ".join(GPU_COLUMNS)

# A late bill has a deployment and no team. The deferred key keeps hours of a close that was never
# finished from being committed.
TABLES = f"""
ALTER TABLE tollgate.adjustments
    ADD COLUMN deployment text,
    ADD CONSTRAINT late_bills_have_a_deployment CHECK (kind <> 'late_bill' OR (deployment IS NOT NULL AND team IS NULL));
ALTER TABLE tollgate.periods ADD COLUMN reopened_at timestamptz;
ALTER TABLE tollgate.journals ADD COLUMN lost_at timestamptz;
CREATE TABLE tollgate.month_closes (
    month         date NOT NULL REFERENCES tollgate.periods,
    version       integer NOT NULL CONSTRAINT versions_begin_at_1 CHECK (version > 0),
    closed_at     timestamptz NOT NULL,
    author        text NOT NULL,
    operator      text,
    accepted      jsonb NOT NULL CONSTRAINT accepted_is_an_object CHECK (jsonb_typeof(accepted) = 'object'),
    parts         jsonb NOT NULL CONSTRAINT parts_are_an_array CHECK (jsonb_typeof(parts) = 'array'),
    sha256        text NOT NULL CONSTRAINT closes_have_a_sha256 CHECK (sha256 ~ '^[0-9a-f]{{64}}$'),
    events        bigint NOT NULL,
    adjustments   bigint NOT NULL,
    total_nusd    numeric NOT NULL,
    reopened_at   timestamptz,
    reopened_by   text,
    reopen_reason text,
    PRIMARY KEY (month, version),
    CONSTRAINT a_reopening_has_its_reason CHECK (
        (reopened_at IS NULL) = (reopened_by IS NULL) AND (reopened_at IS NULL) = (reopen_reason IS NULL))
);
CREATE TABLE tollgate.closed_gpu_hours (
    month   date NOT NULL,
    version integer NOT NULL,
    {", ".join(f"{name} {kind}" for name, kind in GPU_COLUMNS.items())},
    FOREIGN KEY (month, version) REFERENCES tollgate.month_closes DEFERRABLE INITIALLY DEFERRED
);
CREATE INDEX closed_gpu_hours_version ON tollgate.closed_gpu_hours (month, version, hour);
CREATE TABLE tollgate.closed_idle_costs (
    month       date NOT NULL,
    version     integer NOT NULL,
    hour        timestamptz,
    deployment  text,
    team        text,
    cost_centre text,
    idle_usd    numeric,
    FOREIGN KEY (month, version) REFERENCES tollgate.month_closes DEFERRABLE INITIALLY DEFERRED
);
CREATE INDEX closed_idle_costs_version ON tollgate.closed_idle_costs (month, version, hour);
CREATE INDEX usage_events_late ON tollgate.usage_events (posted_period) WHERE posted_period <> {OWN_MONTH};
CREATE INDEX usage_events_to_check ON tollgate.usage_events (posted_period)
    WHERE cost_nusd IS NULL OR is_suspect OR is_stand_in_price OR (price_id IS NULL AND usage_source <> 'none');
"""

# An update of a close is its reopening, once.
NEVER_CHANGED = """
CREATE TRIGGER rows_are_reopened_once BEFORE UPDATE ON tollgate.month_closes FOR EACH ROW
    WHEN (OLD.reopened_at IS NOT NULL OR NEW.reopened_at IS NULL
          OR (OLD.month, OLD.version, OLD.closed_at, OLD.author, OLD.operator, OLD.accepted, OLD.parts, OLD.sha256,
              OLD.events, OLD.adjustments, OLD.total_nusd)
             IS DISTINCT FROM
             (NEW.month, NEW.version, NEW.closed_at, NEW.author, NEW.operator, NEW.accepted, NEW.parts, NEW.sha256,
              NEW.events, NEW.adjustments, NEW.total_nusd))
    EXECUTE FUNCTION tollgate.refuse_change();
CREATE TRIGGER rows_stay BEFORE DELETE OR TRUNCATE ON tollgate.month_closes
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_change();
SELECT tollgate.make_immutable('tollgate.closed_gpu_hours');
SELECT tollgate.make_immutable('tollgate.closed_idle_costs');

CREATE FUNCTION tollgate.note_loss() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$ BEGIN NEW.lost_at := now(); RETURN NEW; END $$;
CREATE TRIGGER journals_note_their_loss BEFORE UPDATE ON tollgate.journals
    FOR EACH ROW WHEN (NEW.state = 'lost' AND OLD.state <> 'lost') EXECUTE FUNCTION tollgate.note_loss();
"""

# Locks the month until the commit: a close waits for its facts. `recorded` is the beginning of the
# fact's transaction. One that began before the month was reopened would look like a fact of the
# version before.
FACTS = """
CREATE FUNCTION tollgate.refuse_fact() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    recorded timestamptz;
BEGIN
    IF TG_ARGV[0] = 'recorded_at' THEN
        recorded := NEW.recorded_at;
    ELSE
        recorded := NEW.created_at;
    END IF;
    LOOP
        PERFORM FROM tollgate.periods
            WHERE month = NEW.posted_period AND state <> 'closed' AND coalesce(reopened_at < recorded, true) FOR SHARE;
        EXIT WHEN FOUND;
        IF EXISTS (SELECT FROM tollgate.periods WHERE month = NEW.posted_period AND state = 'closed') THEN
            RAISE EXCEPTION 'month % is closed: it takes no more facts', to_char(NEW.posted_period, 'YYYY-MM')
                USING ERRCODE = 'restrict_violation', HINT = 'Post it to the oldest month that is not closed.';
        END IF;
        IF EXISTS (SELECT FROM tollgate.periods WHERE month = NEW.posted_period) THEN
            RAISE EXCEPTION 'month % was reopened after this transaction began', to_char(NEW.posted_period, 'YYYY-MM')
                USING ERRCODE = 'serialization_failure', HINT = 'Run it again.';
        END IF;
        INSERT INTO tollgate.periods (month) VALUES (NEW.posted_period) ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN NULL;
END
$$;
-- The running month and those after it are never closed: their events, which are nearly all, do not pay for the look.
-- After the row, not before: a row trigger before it would keep COPY from writing rows together.
CREATE TRIGGER closed_months_take_no_events AFTER INSERT ON tollgate.usage_events FOR EACH ROW
    WHEN (NOT NEW.is_demo AND NEW.posted_period < date_trunc('month', now() AT TIME ZONE 'UTC')::date)
    EXECUTE FUNCTION tollgate.refuse_fact('recorded_at');
CREATE TRIGGER closed_months_take_no_adjustments AFTER INSERT ON tollgate.adjustments FOR EACH ROW
    EXECUTE FUNCTION tollgate.refuse_fact('created_at');
"""

# Closed months end at one month, so the oldest month that is not closed is the one after it.
POSTING = """
CREATE OR REPLACE FUNCTION tollgate.posting_months(months date[]) RETURNS TABLE (own date, posted date)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    first_open date;
BEGIN
    -- Shared until the commit: whoever closes a month waits for the events that are on their way into it, and events
    -- that come while it is being closed wait here and then see its new state.
    LOOP
        SELECT max(month) + interval '1 month' INTO first_open FROM tollgate.periods WHERE state = 'closed';
        INSERT INTO tollgate.periods (month)
            SELECT DISTINCT greatest(wanted, first_open) AS needed FROM unnest(months) AS wanted ORDER BY needed
            ON CONFLICT DO NOTHING;
        PERFORM FROM tollgate.periods
            WHERE month >= (SELECT min(greatest(wanted, first_open)) FROM unnest(months) AS wanted)
            ORDER BY month FOR SHARE;
        EXIT WHEN first_open IS NOT DISTINCT FROM
            (SELECT (max(month) + interval '1 month')::date FROM tollgate.periods WHERE state = 'closed');
    END LOOP;
    FOR own IN SELECT DISTINCT wanted FROM unnest(months) AS wanted ORDER BY wanted LOOP
        posted := greatest(own, first_open);
        RETURN NEXT;
    END LOOP;
END
$$;
"""

# `begin_close` locks the month and keeps its GPU hours; the caller then checks and hashes it, and
# `finish_close` records the version, in one transaction.
CLOSING = f"""
CREATE FUNCTION tollgate.require_next_close(wanted date) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    newest date := (SELECT max(month) FROM tollgate.periods WHERE state = 'closed');
    oldest date := coalesce(newest + interval '1 month', (SELECT min(month) FROM tollgate.periods), wanted);
BEGIN
    IF EXISTS (SELECT FROM tollgate.periods WHERE month = wanted AND state = 'closed') THEN
        RAISE EXCEPTION 'month % is closed already', to_char(wanted, 'YYYY-MM') USING ERRCODE = 'TG001';
    ELSIF now() < (wanted + interval '1 month') AT TIME ZONE 'UTC' THEN
        RAISE EXCEPTION 'month % is not over', to_char(wanted, 'YYYY-MM') USING ERRCODE = 'TG001';
    ELSIF wanted <> oldest THEN
        RAISE EXCEPTION 'months close oldest first: % comes next', to_char(oldest, 'YYYY-MM') USING ERRCODE = 'TG001';
    END IF;
END
$$;
CREATE FUNCTION tollgate.begin_close(wanted date) RETURNS TABLE (version integer, closed_at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('tollgate.months'));
    PERFORM tollgate.require_next_close(wanted);
    -- Each policy that is on its way was applied before: wait for it, and let later ones pass.
    PERFORM pg_advisory_lock(hashtext('tollgate.policies_applied'));
    PERFORM pg_advisory_unlock(hashtext('tollgate.policies_applied'));
    INSERT INTO tollgate.periods (month) VALUES (wanted) ON CONFLICT DO NOTHING;
    PERFORM FROM tollgate.periods WHERE month = wanted FOR UPDATE;
    closed_at := clock_timestamp();
    version := (SELECT coalesce(max(found.version), 0) + 1 FROM tollgate.month_closes AS found WHERE month = wanted);
    INSERT INTO tollgate.closed_gpu_hours (month, version, {GPU_NAMES})
        SELECT wanted, begin_close.version, {GPU_NAMES} FROM finance.gpu_cost
        WHERE hour >= wanted::timestamp AT TIME ZONE 'UTC' AND hour < (wanted + interval '1 month') AT TIME ZONE 'UTC';
    INSERT INTO tollgate.closed_idle_costs (month, version, hour, deployment, team, cost_centre, idle_usd)
        SELECT wanted, begin_close.version, idle.hour, idle.deployment, idle.team, idle.cost_centre, idle.idle_usd
        FROM finance.idle_costs(wanted::timestamp AT TIME ZONE 'UTC', (wanted + interval '1 month') AT TIME ZONE 'UTC')
            AS idle;
    RETURN NEXT;
END
$$;
CREATE FUNCTION tollgate.finish_close(
    wanted date, at timestamptz, accepted jsonb, parts jsonb, sha256 text, events bigint, adjustments bigint,
    total_nusd numeric) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('tollgate.months'));
    PERFORM tollgate.require_next_close(wanted);
    INSERT INTO tollgate.month_closes
        (month, version, closed_at, author, operator, accepted, parts, sha256, events, adjustments, total_nusd)
        SELECT wanted, (SELECT coalesce(max(found.version), 0) + 1 FROM tollgate.month_closes AS found
                        WHERE found.month = wanted),
               at, session_user, nullif(current_setting('tollgate.operator', true), ''),
               finish_close.accepted, finish_close.parts, finish_close.sha256, finish_close.events,
               finish_close.adjustments, finish_close.total_nusd;
    UPDATE tollgate.periods SET state = 'closed' WHERE month = wanted;
END
$$;
-- The late bills of its hours count in them again: they are reversed in the months that have them.
CREATE FUNCTION tollgate.reopen_month(wanted date, why text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('tollgate.months'));
    IF coalesce(btrim(why), '') = '' THEN
        RAISE EXCEPTION 'a month is reopened for a reason' USING ERRCODE = 'TG001';
    ELSIF wanted IS DISTINCT FROM (SELECT max(month) FROM tollgate.periods WHERE state = 'closed') THEN
        RAISE EXCEPTION '% is not the newest closed month', to_char(wanted, 'YYYY-MM') USING ERRCODE = 'TG001';
    END IF;
    PERFORM FROM tollgate.periods WHERE month >= wanted ORDER BY month FOR UPDATE;
    UPDATE tollgate.month_closes SET reopened_at = clock_timestamp(), reopened_by = session_user, reopen_reason = why
        WHERE month = wanted AND reopened_at IS NULL;
    UPDATE tollgate.periods SET state = 'open', reopened_at = clock_timestamp() WHERE month = wanted;
    INSERT INTO tollgate.adjustments
        (adjustment_id, deployment, posted_period, occurred_at, amount_nusd, kind, reason, author)
        SELECT gen_random_uuid(), deployment, posted_period, min(occurred_at), -sum(amount_nusd), 'late_bill',
               format('month %s was reopened: the bill counts in its hours', to_char(wanted, 'YYYY-MM')), session_user
        FROM tollgate.adjustments
        WHERE kind = 'late_bill' AND occurred_at >= wanted::timestamp AT TIME ZONE 'UTC'
          AND occurred_at < (wanted + interval '1 month') AT TIME ZONE 'UTC'
        GROUP BY deployment, posted_period HAVING sum(amount_nusd) <> 0;
END
$$;
"""  # noqa: S608 - constants

# What shares cost, converts it and explains a true-up is part of a closed month too. A policy counts
# from its day, so only one that is dated in a month that was ever closed could change it.
OTHER_FACTS = """
CREATE FUNCTION tollgate.refuse_policy() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('tollgate.policies_applied'));
    IF date_trunc('month', NEW.applied_at, 'UTC') = date_trunc('month', clock_timestamp(), 'UTC') THEN
        RETURN NEW;
    END IF;
    -- A close may wait for this transaction, so this one does not wait for it.
    IF NOT pg_try_advisory_xact_lock_shared(hashtext('tollgate.months')) THEN
        RAISE EXCEPTION 'a month is being closed' USING ERRCODE = 'serialization_failure', HINT = 'Run it again.';
    END IF;
    IF NEW.applied_at < (SELECT (max(month) + interval '1 month') AT TIME ZONE 'UTC' FROM tollgate.month_closes) THEN
        RAISE EXCEPTION 'a policy of % would change a closed month', (NEW.applied_at AT TIME ZONE 'UTC')::date
            USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_months_keep_their_policies';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER closed_months_keep_their_policies BEFORE INSERT ON tollgate.policies
    FOR EACH ROW EXECUTE FUNCTION tollgate.refuse_policy();

CREATE FUNCTION tollgate.refuse_allocation() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    -- Those that come with their policy waited with it.
    IF NOT EXISTS (SELECT FROM added JOIN tollgate.policies AS policy ON policy.version = added.policy_version
                   WHERE policy.xmin <> pg_current_xact_id()::xid) THEN
        RETURN NULL;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(hashtext('tollgate.months'));
    IF EXISTS (SELECT FROM added JOIN tollgate.policies AS policy ON policy.version = added.policy_version
               WHERE policy.applied_at <
                     (SELECT (max(month) + interval '1 month') AT TIME ZONE 'UTC' FROM tollgate.month_closes)) THEN
        RAISE EXCEPTION 'shares and idle rules of a policy of a closed month would change it'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_months_keep_their_shares';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER closed_months_keep_their_shares AFTER INSERT ON tollgate.policy_cost_centres
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_allocation();
CREATE TRIGGER closed_months_keep_their_rules AFTER INSERT ON tollgate.policy_idle_rules
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_allocation();

CREATE FUNCTION tollgate.refuse_true_up() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM FROM tollgate.periods AS period JOIN tollgate.adjustments AS booked ON booked.posted_period = period.month
        WHERE booked.adjustment_id = NEW.adjustment_id FOR SHARE OF period;
    IF EXISTS (SELECT FROM tollgate.adjustments AS booked JOIN tollgate.month_closes AS done
                   ON done.month = booked.posted_period AND done.closed_at >= booked.created_at
               WHERE booked.adjustment_id = NEW.adjustment_id) THEN
        RAISE EXCEPTION 'adjustment % is of a closed month', NEW.adjustment_id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER closed_months_take_no_true_ups AFTER INSERT ON tollgate.true_ups
    FOR EACH ROW EXECUTE FUNCTION tollgate.refuse_true_up();

-- As before, but a rate waits for a close and a close for a rate, so that its moment tells on which side it is.
CREATE OR REPLACE FUNCTION tollgate.check_currency_rate() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    closed date;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('tollgate.months'));
    NEW.created_at := clock_timestamp();
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
"""

# Closing and reopening are one act each. A late bill has neither a request nor a team.
AUDIT = """
CREATE FUNCTION tollgate.audit_month() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM tollgate.note_audit(
        CASE TG_OP WHEN 'INSERT' THEN 'month.close' ELSE 'month.reopen' END, to_char(NEW.month, 'YYYY-MM'),
        CASE TG_OP WHEN 'INSERT' THEN jsonb_build_object('version', NEW.version, 'sha256', NEW.sha256,
                                                         'accepted', NEW.accepted)
                   ELSE jsonb_build_object('version', NEW.version, 'why', NEW.reopen_reason) END);
    RETURN NULL;
END
$$;
CREATE TRIGGER month_closes_noted_for_audit AFTER INSERT OR UPDATE ON tollgate.month_closes
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_month();
CREATE FUNCTION tollgate.is_closing(wanted date) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT EXISTS (SELECT FROM tollgate.audit_notes WHERE xact = pg_current_xact_id()
                   AND action IN ('month.close', 'month.reopen') AND subject = to_char(wanted, 'YYYY-MM'))
    $$;
-- A change of a month by hand is `month.update`, as before.
DROP TRIGGER periods_noted_for_audit ON tollgate.periods;
CREATE TRIGGER periods_noted_for_audit AFTER UPDATE OR DELETE ON tollgate.periods
    FOR EACH ROW WHEN (NOT tollgate.is_closing(OLD.month)) EXECUTE FUNCTION tollgate.audit_row('month', '', 'month');

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
                         WHEN 'lost_journal' THEN coalesce(substring(reason FROM '^journal ([0-9a-f-]{36}): '), team,
                                                           to_char(posted_period, 'YYYY-MM'))
                         ELSE coalesce(request_id || '/' || attempt, team, cost_centre, deployment,
                                       'unallocated') END AS subject,
               CASE WHEN kind IN ('reprice', 'lost_journal') THEN NULL ELSE reason END AS reason
        FROM booked
        -- A gateway's own bookings are its daily work: its rules decided them.
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

ADJUSTMENT_COLUMNS = """adjustment_id, request_id, attempt, team, cost_centre, posted_period, occurred_at, amount_usd,
    kind, reason, author, created_at, settles, is_expected, project, key_id, end_user, tags, route, deployment,
    provider, model, region, is_self_hosted, data_class, outcome, usage_source, written_by"""

# As before, without late bills: they belong to a deployment's GPU cost, and to no total of charges.
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
       event.data_class, event.outcome, event.usage_source, tollgate.writer_of(booked) AS written_by
FROM tollgate.adjustments AS booked
LEFT JOIN LATERAL (
    SELECT found.project, found.key_id, found.end_user, found.tags, found.route, found.deployment, found.provider,
           found.model, found.region, found.is_self_hosted, found.data_class, found.outcome, found.usage_source
    FROM tollgate.usage_events AS found
    WHERE found.request_id = booked.request_id AND found.attempt = booked.attempt
      AND found.occurred_at = booked.occurred_at OFFSET 0
) AS event ON true
LEFT JOIN tollgate.true_ups AS true_up ON true_up.adjustment_id = booked.adjustment_id
WHERE booked.kind <> 'late_bill';

CREATE VIEW finance.late_bills AS
SELECT adjustment_id, deployment, posted_period, occurred_at, amount_nusd * 0.000000001 AS amount_usd, reason, author,
       created_at
FROM tollgate.adjustments WHERE kind = 'late_bill';

-- No job makes a month provisional: it is one as soon as it is over.
CREATE OR REPLACE VIEW finance.periods AS
SELECT month, CASE WHEN state = 'open' AND now() >= (month + interval '1 month') AT TIME ZONE 'UTC'
                   THEN 'provisional' ELSE state END AS state, opened_at
FROM tollgate.periods;

CREATE VIEW finance.month_closes AS
SELECT month, version, closed_at, author, operator, accepted, parts, sha256, events, adjustments,
       total_nusd * 0.000000001 AS total_usd, reopened_at, reopened_by, reopen_reason
FROM tollgate.month_closes;

CREATE OR REPLACE VIEW finance.journals AS
SELECT id, replica, started_at, heartbeat, written, state, note, lost_at FROM tollgate.journals;
"""

# The hours of a closed month stand as they were kept. A late bill is variance in the first hour of
# the month that it is posted to.
GPU_COST = f"""
ALTER VIEW finance.gpu_cost RENAME TO live_gpu_cost;
ALTER VIEW finance.live_gpu_cost SET SCHEMA tollgate;
REVOKE ALL ON tollgate.live_gpu_cost FROM tollgate_reader;
CREATE VIEW finance.gpu_cost AS
SELECT {GPU_NAMES} FROM tollgate.live_gpu_cost
WHERE date_trunc('month', hour, 'UTC') NOT IN (
    SELECT month::timestamp AT TIME ZONE 'UTC' FROM tollgate.periods WHERE state = 'closed')
UNION ALL
SELECT {GPU_NAMES} FROM tollgate.closed_gpu_hours AS kept
WHERE EXISTS (SELECT FROM tollgate.month_closes AS done
              WHERE done.month = kept.month AND done.version = kept.version AND done.reopened_at IS NULL)
UNION ALL
SELECT booked.posted_period::timestamp AT TIME ZONE 'UTC', booked.deployment, 0::numeric,
       sum(booked.amount_nusd) * 0.000000001, 0::numeric, sum(booked.amount_nusd) * 0.000000001,
       NULL, NULL, NULL, NULL, 0::numeric, 0::numeric, NULL, NULL, NULL, NULL
FROM tollgate.adjustments AS booked
JOIN tollgate.periods AS period ON period.month = booked.posted_period AND period.state <> 'closed'
WHERE booked.kind = 'late_bill'
GROUP BY booked.posted_period, booked.deployment;
GRANT SELECT ON finance.gpu_cost TO tollgate_reader;
"""  # noqa: S608 - constants

# The idle cost of a closed month stands as it was kept. Closed months follow one another.
IDLE = """
ALTER FUNCTION finance.idle_costs(timestamptz, timestamptz) RENAME TO live_idle_costs;
ALTER FUNCTION finance.live_idle_costs(timestamptz, timestamptz) SET SCHEMA tollgate;
REVOKE ALL ON FUNCTION tollgate.live_idle_costs(timestamptz, timestamptz) FROM tollgate_reader;
CREATE FUNCTION finance.idle_costs(from_time timestamptz, until_time timestamptz)
    RETURNS TABLE (hour timestamptz, deployment text, team text, cost_centre text, idle_usd numeric)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    WITH closed AS MATERIALIZED (
        SELECT min(month)::timestamp AT TIME ZONE 'UTC' AS begins,
               (max(month) + interval '1 month') AT TIME ZONE 'UTC' AS ends
        FROM tollgate.periods WHERE state = 'closed'
    )
    SELECT before.* FROM closed, tollgate.live_idle_costs(from_time, least(until_time, closed.begins)) AS before
    UNION ALL
    SELECT kept.hour, kept.deployment, kept.team, kept.cost_centre, kept.idle_usd
    FROM tollgate.closed_idle_costs AS kept JOIN tollgate.month_closes AS done USING (month, version)
    WHERE done.reopened_at IS NULL AND kept.hour >= from_time AND kept.hour < until_time
    UNION ALL
    SELECT later.*
    FROM closed, tollgate.live_idle_costs(greatest(from_time, coalesce(closed.ends, 'infinity')), until_time) AS later
    $$;
REVOKE ALL ON FUNCTION finance.idle_costs(timestamptz, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION finance.idle_costs(timestamptz, timestamptz) TO tollgate_reader;
"""

# ---- the schema `closed`: the views of `finance` as they were when a version of a month was closed

EVENT_COLUMNS = """request_id, attempt, occurred_at, started_at, recorded_at, posted_period, team, project, cost_centre,
    key_id, end_user, tags, route, deployment, provider, model, region, is_self_hosted, data_class, policy_version,
    operation, outcome, http_status, streamed, input_tokens, cached_input_tokens, cache_write_tokens, output_tokens,
    reasoning_tokens, usage_detail, usage_source, reported_usage, service_tier, price_id, is_stand_in_price, lines,
    cost_usd, held_usd, ttft_s, tpot_s, duration_s, overhead_s, finish_reason, client_request_id, upstream_request_id,
    is_suspect, features, decision, is_unsettled, queue_s, max_gap_s, engine_queue_s, degraded, written_by"""
# The version that a reader asks for, as `2026-10-01/1`.
MONTH = "split_part(current_setting('tollgate.as_closed'), '/', 1)::date"
VERSION = "split_part(current_setting('tollgate.as_closed'), '/', 2)::integer"
CLOSED_AT = (
    f"(SELECT closed_at FROM tollgate.month_closes WHERE month = {MONTH} AND version = {VERSION})"  # noqa: S608
)
STARTS, ENDS = (
    f"({MONTH}::timestamp AT TIME ZONE 'UTC')",
    f"(({MONTH} + interval '1 month') AT TIME ZONE 'UTC')",
)


def _as_of_close(columns: str, **replaced: str) -> str:
    """Return the columns of a view, with other expressions for some of them."""
    names = [name.strip() for name in columns.split(",")]
    return ", ".join(f"{replaced[name]} AS {name}" if name in replaced else name for name in names)


SHOWN_EVENTS = _as_of_close(
    EVENT_COLUMNS,
    is_unsettled=f"""(cost_usd IS NULL AND NOT EXISTS (
        SELECT FROM tollgate.adjustments AS found
        WHERE found.settles AND found.request_id = shown.request_id AND found.attempt = shown.attempt
          AND found.created_at <= {CLOSED_AT}))""",
)
SHOWN_ADJUSTMENTS = _as_of_close(
    ADJUSTMENT_COLUMNS,
    is_expected=f"""(kind = 'expired_hold' AND NOT EXISTS (
        SELECT FROM tollgate.adjustments AS later
        WHERE later.kind = 'resolution' AND later.request_id = shown.request_id AND later.attempt = shown.attempt
          AND later.created_at <= {CLOSED_AT}))""",
)
AS_CLOSED = f"""
CREATE SCHEMA closed;
CREATE VIEW closed.usage_events AS
SELECT {SHOWN_EVENTS} FROM finance.usage_events AS shown
WHERE posted_period = {MONTH} AND recorded_at <= {CLOSED_AT} AND occurred_at >= {STARTS} AND occurred_at < {ENDS}
UNION ALL
SELECT {SHOWN_EVENTS} FROM finance.usage_events AS shown
WHERE posted_period = {MONTH} AND recorded_at <= {CLOSED_AT} AND posted_period <> {OWN_MONTH}
  AND occurred_at < {STARTS};
CREATE VIEW closed.adjustments AS
SELECT {SHOWN_ADJUSTMENTS} FROM finance.adjustments AS shown
WHERE posted_period = {MONTH} AND created_at <= {CLOSED_AT};
CREATE VIEW closed.gpu_cost AS
SELECT {GPU_NAMES} FROM tollgate.closed_gpu_hours WHERE month = {MONTH} AND version = {VERSION};
CREATE VIEW closed.prices AS SELECT * FROM finance.prices;
CREATE VIEW closed.cost_centre_shares AS SELECT * FROM finance.cost_centre_shares;
CREATE VIEW closed.currency_rates AS
SELECT currency, first_day, lead(first_day) OVER (PARTITION BY currency ORDER BY first_day) AS next_day, usd_per_unit,
       source, author, created_at
FROM (
    SELECT DISTINCT ON (currency, first_day) * FROM tollgate.currency_rates WHERE created_at <= {CLOSED_AT}
    ORDER BY currency, first_day, rate_id DESC
) AS newest;
CREATE FUNCTION closed.idle_costs(from_time timestamptz, until_time timestamptz)
    RETURNS TABLE (hour timestamptz, deployment text, team text, cost_centre text, idle_usd numeric)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT hour, deployment, team, cost_centre, idle_usd FROM tollgate.closed_idle_costs
    WHERE month = {MONTH} AND version = {VERSION} AND hour >= from_time AND hour < until_time
    $$;
REVOKE ALL ON FUNCTION closed.idle_costs(timestamptz, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION closed.idle_costs(timestamptz, timestamptz) TO tollgate_reader;
"""  # noqa: S608 - constants

GRANTS = """
REVOKE ALL ON FUNCTION tollgate.refuse_fact(), tollgate.note_loss(), tollgate.audit_month(), tollgate.is_closing(date),
    tollgate.refuse_policy(), tollgate.refuse_allocation(), tollgate.refuse_true_up(),
    tollgate.require_next_close(date), tollgate.begin_close(date), tollgate.reopen_month(date, text),
    tollgate.finish_close(date, timestamptz, jsonb, jsonb, text, bigint, bigint, numeric) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tollgate.begin_close(date), tollgate.reopen_month(date, text),
    tollgate.finish_close(date, timestamptz, jsonb, jsonb, text, bigint, bigint, numeric)
    TO tollgate_admin, tollgate_finance;
-- Who closes reads the facts that the hash covers.
GRANT SELECT ON tollgate.usage_events, tollgate.adjustments, tollgate.true_ups, tollgate.prices, tollgate.policies,
    tollgate.month_closes, tollgate.closed_gpu_hours, tollgate.closed_idle_costs, tollgate.currency_rates
    TO tollgate_finance;
GRANT USAGE ON SCHEMA closed TO tollgate_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA closed TO tollgate_reader;
GRANT SELECT ON finance.month_closes, finance.late_bills TO tollgate_reader;
"""

STEPS: tuple[str, ...] = (
    TABLES,
    NEVER_CHANGED,
    FACTS,
    POSTING,
    VIEWS,
    GPU_COST,
    IDLE,
    CLOSING,
    OTHER_FACTS,
    AUDIT,
    AS_CLOSED,
    GRANTS,
)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: many statements at once
    for step in STEPS:
        cursor.execute(step)
