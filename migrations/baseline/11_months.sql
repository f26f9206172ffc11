-- Months that can be closed: versions with a hash, kept GPU hours, and triggers that refuse later
-- facts.
--
-- Months close oldest first and only the newest closed one reopens. So the closed ones end at one
-- month, and everything late is posted to the month after it.

-- `reason` is the one that `month close` was given.
CREATE TABLE tollgate.month_closes (
    month         date NOT NULL REFERENCES tollgate.periods,
    version       integer NOT NULL CONSTRAINT versions_begin_at_1 CHECK (version > 0),
    closed_at     timestamptz NOT NULL,
    author        text NOT NULL,
    operator      text,
    accepted      jsonb NOT NULL CONSTRAINT accepted_is_an_object CHECK (jsonb_typeof(accepted) = 'object'),
    parts         jsonb NOT NULL CONSTRAINT parts_are_an_array CHECK (jsonb_typeof(parts) = 'array'),
    sha256        text NOT NULL CONSTRAINT closes_have_a_sha256 CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    events        bigint NOT NULL,
    adjustments   bigint NOT NULL,
    total_nusd    numeric NOT NULL,
    reopened_at   timestamptz,
    reopened_by   text,
    reopen_reason text,
    reason        text DEFAULT nullif(current_setting('tollgate.reason', true), ''),
    PRIMARY KEY (month, version),
    CONSTRAINT a_reopening_has_its_reason CHECK (
        (reopened_at IS NULL) = (reopened_by IS NULL) AND (reopened_at IS NULL) = (reopen_reason IS NULL))
);
-- An update of a close is its reopening, once.
CREATE TRIGGER rows_are_reopened_once BEFORE UPDATE ON tollgate.month_closes FOR EACH ROW
    WHEN (OLD.reopened_at IS NOT NULL OR NEW.reopened_at IS NULL
          OR (OLD.month, OLD.version, OLD.closed_at, OLD.author, OLD.operator, OLD.accepted, OLD.parts, OLD.sha256,
              OLD.events, OLD.adjustments, OLD.total_nusd, OLD.reason)
             IS DISTINCT FROM
             (NEW.month, NEW.version, NEW.closed_at, NEW.author, NEW.operator, NEW.accepted, NEW.parts, NEW.sha256,
              NEW.events, NEW.adjustments, NEW.total_nusd, NEW.reason))
    EXECUTE FUNCTION tollgate.refuse_change();
CREATE TRIGGER rows_stay BEFORE DELETE OR TRUNCATE ON tollgate.month_closes
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_change();

-- The deferred keys keep hours of a close that was never finished from being committed.
CREATE TABLE tollgate.closed_gpu_hours (
    month               date NOT NULL,
    version             integer NOT NULL,
    hour                timestamptz,
    deployment          text,
    applied_usd         numeric,
    bill_usd            numeric,
    idle_usd            numeric,
    variance_usd        numeric,
    gpu_hours           numeric,
    usd_per_gpu_hour    numeric,
    up_hours            numeric,
    watched_hours       numeric,
    empty_usd           numeric,
    underfilled_usd     numeric,
    estimated_usd       numeric,
    imported_usd        numeric,
    estimated_gpu_hours numeric,
    busy_hours          numeric,
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
SELECT tollgate.make_immutable('tollgate.closed_gpu_hours');
SELECT tollgate.make_immutable('tollgate.closed_idle_costs');
-- A row that is of no use to another transaction; the next close removes it.
CREATE TABLE tollgate.closes_begun (
    xact      xid8 PRIMARY KEY DEFAULT pg_current_xact_id(),
    month     date NOT NULL,
    closed_at timestamptz NOT NULL
);

-- ---- closing and reopening

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

-- `begin_close` locks the month and keeps its GPU hours; the caller then checks and hashes it, and
-- `finish_close` records the version, in one transaction.
DO $closing$
DECLARE
    gpu_columns constant text := 'hour, deployment, applied_usd, bill_usd, idle_usd, variance_usd, gpu_hours, '
        'usd_per_gpu_hour, up_hours,
    watched_hours, empty_usd, underfilled_usd, estimated_usd, imported_usd, estimated_gpu_hours, busy_hours';
BEGIN
    EXECUTE replace($function$
CREATE FUNCTION tollgate.begin_close(wanted date) RETURNS TABLE (version integer, closed_at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    LOCK TABLE tollgate.lock_months IN EXCLUSIVE MODE;
    PERFORM tollgate.require_next_close(wanted);
    -- Each policy that is on its way was applied before: wait for it, and let later ones pass.
    PERFORM tollgate.wait_for_lock('policies_applied');
    INSERT INTO tollgate.periods (month) VALUES (wanted) ON CONFLICT DO NOTHING;
    PERFORM FROM tollgate.periods WHERE month = wanted FOR UPDATE;
    closed_at := clock_timestamp();
    version := (SELECT coalesce(max(found.version), 0) + 1 FROM tollgate.month_closes AS found WHERE month = wanted);
    INSERT INTO tollgate.closed_gpu_hours (month, version, {gpu columns})
        SELECT wanted, begin_close.version, {gpu columns} FROM finance.gpu_cost
        WHERE hour >= wanted::timestamp AT TIME ZONE 'UTC' AND hour < (wanted + interval '1 month') AT TIME ZONE 'UTC';
    INSERT INTO tollgate.closed_idle_costs (month, version, hour, deployment, team, cost_centre, idle_usd)
        SELECT wanted, begin_close.version, idle.hour, idle.deployment, idle.team, idle.cost_centre, idle.idle_usd
        FROM finance.idle_costs(wanted::timestamp AT TIME ZONE 'UTC', (wanted + interval '1 month') AT TIME ZONE 'UTC')
            AS idle;
    DELETE FROM tollgate.closes_begun;
    INSERT INTO tollgate.closes_begun (month, closed_at) VALUES (wanted, begin_close.closed_at);
    RETURN NEXT;
END
$$
$function$, '{gpu columns}', gpu_columns);
END
$closing$;

CREATE FUNCTION tollgate.finish_close(
    wanted date, at timestamptz, accepted jsonb, parts jsonb, sha256 text, events bigint, adjustments bigint,
    total_nusd numeric) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    LOCK TABLE tollgate.lock_months IN EXCLUSIVE MODE;
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

-- A month closes at the moment of its own `begin_close`. The login of finance may call both
-- functions: a close without its beginning kept no GPU hours, and one of another moment left out
-- facts that every report shows.
CREATE FUNCTION tollgate.require_begun_close() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    DELETE FROM tollgate.closes_begun AS begun
        WHERE xact = pg_current_xact_id() AND month = NEW.month AND begun.closed_at = NEW.closed_at;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this transaction did not begin to close % at that moment', to_char(NEW.month, 'YYYY-MM')
            USING ERRCODE = 'TG001';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER closes_are_begun BEFORE INSERT ON tollgate.month_closes
    FOR EACH ROW EXECUTE FUNCTION tollgate.require_begun_close();

-- The late bills of its hours count in them again: they are reversed in the months that have them.
CREATE FUNCTION tollgate.reopen_month(wanted date, why text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    LOCK TABLE tollgate.lock_months IN EXCLUSIVE MODE;
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

-- `reopen_month` marks the close before the month. Whoever changes the month alone is refused, the
-- owner too: a month reopened so has no reason and no version, and its late bills count twice.
CREATE FUNCTION tollgate.refuse_reopening() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF EXISTS (SELECT FROM tollgate.month_closes WHERE month = OLD.month AND reopened_at IS NULL) THEN
        RAISE EXCEPTION 'month % is closed: it reopens by its function alone', to_char(OLD.month, 'YYYY-MM')
            USING ERRCODE = 'restrict_violation', HINT = 'tollgate month reopen MONTH --reason R does it.';
    END IF;
    RETURN coalesce(NEW, OLD);
END
$$;
CREATE TRIGGER months_reopen_by_function BEFORE UPDATE ON tollgate.periods FOR EACH ROW
    WHEN (OLD.state = 'closed') EXECUTE FUNCTION tollgate.refuse_reopening();
CREATE TRIGGER closed_months_stay BEFORE DELETE ON tollgate.periods FOR EACH ROW
    WHEN (OLD.state = 'closed') EXECUTE FUNCTION tollgate.refuse_reopening();
CREATE TRIGGER rows_stay BEFORE TRUNCATE ON tollgate.periods
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_change();

-- Closing and reopening are one act each. A change of a month by hand is `month.update`.
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
CREATE TRIGGER periods_noted_for_audit AFTER UPDATE OR DELETE ON tollgate.periods
    FOR EACH ROW WHEN (NOT tollgate.is_closing(OLD.month)) EXECUTE FUNCTION tollgate.audit_row('month', '', 'month');
CREATE TRIGGER closed_periods_noted_for_audit AFTER INSERT ON tollgate.periods
    FOR EACH ROW WHEN (NEW.state <> 'open') EXECUTE FUNCTION tollgate.audit_row('month', 'create', 'month');
CREATE TRIGGER periods_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.periods
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('month');

-- ---- facts of a closed month

-- Locks the month until the commit: a close waits for its facts. `recorded` is the beginning of the
-- fact's transaction. One that began before the month was reopened would look like a fact of the
-- version before.
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
-- The running month and those after it are never closed: their events, which are nearly all, do not
-- pay for the look. After the row, not before: a row trigger before it would keep COPY from writing
-- rows together. The clock is that of the row: `now()` of an open
-- transaction can lie in a month that has closed since.
CREATE TRIGGER closed_months_take_no_events AFTER INSERT ON tollgate.usage_events FOR EACH ROW
    WHEN (NOT NEW.is_demo AND NEW.posted_period < date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date)
    EXECUTE FUNCTION tollgate.refuse_fact('recorded_at');
CREATE TRIGGER closed_months_take_no_adjustments AFTER INSERT ON tollgate.adjustments FOR EACH ROW
    EXECUTE FUNCTION tollgate.refuse_fact('created_at');

-- What shares cost, converts it and explains a true-up is part of a closed month too. A policy
-- counts from its day, so only one that is dated in a month that was ever closed could change it.
CREATE FUNCTION tollgate.refuse_policy() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    LOCK TABLE tollgate.lock_policies_applied IN ROW SHARE MODE;
    IF date_trunc('month', NEW.applied_at, 'UTC') = date_trunc('month', clock_timestamp(), 'UTC') THEN
        RETURN NEW;
    END IF;
    -- A close may wait for this transaction, so this one does not wait for it.
    IF NOT tollgate.try_lock('months', 'ROW SHARE') THEN
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
    LOCK TABLE tollgate.lock_months IN ROW SHARE MODE;
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

-- ---- views

CREATE VIEW finance.month_closes AS
SELECT month, version, closed_at, author, operator, accepted, parts, sha256, events, adjustments,
       total_nusd * 0.000000001 AS total_usd, reopened_at, reopened_by, reopen_reason
FROM tollgate.month_closes;

-- No job makes a month provisional: it is one as soon as it is over. The close in force is one
-- value each, without a join: who may not write to the view learns that, and not that it is a join.
CREATE VIEW finance.periods AS
SELECT month, CASE WHEN state = 'open' AND now() >= (month + interval '1 month') AT TIME ZONE 'UTC'
                   THEN 'provisional' ELSE state END AS state, opened_at,
       (SELECT version FROM tollgate.month_closes AS done
        WHERE done.month = period.month AND done.reopened_at IS NULL) AS version,
       (SELECT sha256 FROM tollgate.month_closes AS done
        WHERE done.month = period.month AND done.reopened_at IS NULL) AS sha256,
       (SELECT closed_at FROM tollgate.month_closes AS done
        WHERE done.month = period.month AND done.reopened_at IS NULL) AS closed_at,
       (SELECT author FROM tollgate.month_closes AS done
        WHERE done.month = period.month AND done.reopened_at IS NULL) AS closed_by,
       (SELECT reason FROM tollgate.month_closes AS done
        WHERE done.month = period.month AND done.reopened_at IS NULL) AS reason,
       (SELECT events FROM tollgate.month_closes AS done
        WHERE done.month = period.month AND done.reopened_at IS NULL) AS events,
       (SELECT adjustments FROM tollgate.month_closes AS done
        WHERE done.month = period.month AND done.reopened_at IS NULL) AS adjustments,
       (SELECT total_nusd * 0.000000001 FROM tollgate.month_closes AS done
        WHERE done.month = period.month AND done.reopened_at IS NULL) AS total_usd
FROM tollgate.periods AS period;
