-- The books: re-allocations, currencies, providers' bills, alerts of spending, and statements by
-- schedule.

-- ---- re-allocations between cost centres; their tables are with the adjustments that reference them

-- As the owner, whose functions still see the login as session_user: a login that the caller could
-- state would prove nothing.
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
CREATE TRIGGER reallocations_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.reallocations
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('reallocation', 'add', 'reallocation_id');
CREATE TRIGGER reallocations_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.reallocations
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('reallocation');
CREATE TRIGGER approvals_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.reallocation_approvals
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('reallocation', 'approve', 'reallocation_id');
CREATE TRIGGER approvals_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.reallocation_approvals
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('reallocation');

CREATE VIEW finance.reallocations AS
SELECT entry.reallocation_id, entry.month, side.cost_centre, side.amount_nusd * 0.000000001 AS amount_usd,
       CASE WHEN approval.reallocation_id IS NULL THEN 'proposed' ELSE 'approved' END AS state, entry.reason,
       entry.author_login, entry.author, entry.created_at, approval.approver_login, approval.approver,
       approval.reason AS approval_reason, approval.approved_at, approval.posted_period
FROM tollgate.reallocations AS entry
LEFT JOIN tollgate.reallocation_approvals AS approval USING (reallocation_id)
CROSS JOIN LATERAL (VALUES (from_cost_centre, -amount_nusd), (to_cost_centre, amount_nusd))
    AS side (cost_centre, amount_nusd);

-- ---- currencies

-- Of several rates from one day the newest counts. A month that is closed keeps its rates: only a
-- currency that had none there may get its first.
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
SELECT tollgate.make_immutable('tollgate.currency_rates');
-- A rate waits for a close and a close for a rate, so that its moment tells on which side it is.
CREATE FUNCTION tollgate.check_currency_rate() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    closed date;
BEGIN
    LOCK TABLE tollgate.lock_months IN ROW SHARE MODE;
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
CREATE TRIGGER currency_rates_are_checked BEFORE INSERT ON tollgate.currency_rates
    FOR EACH ROW EXECUTE FUNCTION tollgate.check_currency_rate();
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

-- ---- providers' bills, and the true-ups that bring the ledger to them

-- A day of an account and a kind of export counts as the newest import has it; nothing is deleted.
-- `project` and `key` are NULL if the export has no such member.
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
SELECT tollgate.make_immutable('tollgate.provider_bill_imports');
SELECT tollgate.make_immutable('tollgate.provider_bill_lines');
SELECT tollgate.make_immutable('tollgate.true_ups');
-- The one change is that a day is replaced, once.
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

-- With the event's fields, so that an adjustment can be split by all of its event's dimensions. The
-- events are found by the key of each: beside many adjustments the planner joined with the whole
-- ledger, every month of it, to show those of one month. OFFSET keeps the lookup a lookup, in the
-- partition of the event's month. A true-up has no event: provider and model are those of its bill.
-- Late bills belong to a deployment's GPU cost, and to no total of charges.
CREATE VIEW finance.adjustments AS
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

-- ---- alerts

-- Reached thresholds of budgets, once a period each. An alert's content is kept as it was when it was raised:
-- tomorrow's retry posts the same as the first try. The deliveries are in `alert_deliveries`; the
-- columns of the one delivery stay for gateways of an earlier release, which deliver their own
-- alerts by them.
CREATE TABLE tollgate.budget_alerts (
    alert_id     uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    account_id   text NOT NULL,
    starts_at    timestamptz NOT NULL,
    threshold    numeric NOT NULL CHECK (threshold > 0),
    ends_at      timestamptz,
    rule_id      text NOT NULL,
    scope        text NOT NULL,
    team         text,
    owner        text NOT NULL,
    kind         text NOT NULL,
    period       text NOT NULL,
    time_zone    text NOT NULL,
    limit_nusd   bigint NOT NULL,
    granted_nusd bigint NOT NULL,
    spent_nusd   bigint NOT NULL,
    raised_at    timestamptz NOT NULL,
    announced_at timestamptz,
    tries        integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    next_try_at  timestamptz,
    last_error   text,
    delivered_at timestamptz,
    given_up_at  timestamptz,
    PRIMARY KEY (account_id, starts_at, threshold)
);
CREATE INDEX budget_alerts_next_try_at ON tollgate.budget_alerts (next_try_at) WHERE next_try_at IS NOT NULL;
CREATE INDEX budget_alerts_unannounced ON tollgate.budget_alerts (raised_at) WHERE announced_at IS NULL;
CREATE INDEX budget_alerts_raised_at ON tollgate.budget_alerts (raised_at);

-- Deliveries of alerts, one for each channel that had a receiver. `next_try_at` is NULL once nothing is left to do.
CREATE TABLE tollgate.alert_deliveries (
    alert_id     uuid NOT NULL,
    channel      text NOT NULL CHECK (channel IN ('webhook', 'email')),
    tries        integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    next_try_at  timestamptz,
    last_error   text,
    delivered_at timestamptz,
    given_up_at  timestamptz,
    PRIMARY KEY (alert_id, channel),
    CONSTRAINT delivery_has_one_end CHECK (num_nonnulls(delivered_at, given_up_at, next_try_at) = 1)
);
CREATE INDEX alert_deliveries_next_try_at ON tollgate.alert_deliveries (channel, next_try_at)
    WHERE next_try_at IS NOT NULL;
-- Days that stand out.
CREATE TABLE tollgate.spike_alerts (
    alert_id     uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    team         text NOT NULL,
    day          date NOT NULL,
    model        text,
    key_id       text,
    spent_nusd   numeric NOT NULL,
    usual_nusd   numeric NOT NULL,
    driver_nusd  numeric NOT NULL,
    raised_at    timestamptz NOT NULL,
    announced_at timestamptz,
    PRIMARY KEY (team, day)
);
CREATE INDEX spike_alerts_raised_at ON tollgate.spike_alerts (raised_at);
CREATE INDEX spike_alerts_unannounced ON tollgate.spike_alerts (raised_at) WHERE announced_at IS NULL;
CREATE TABLE tollgate.spike_days (
    day       date PRIMARY KEY,
    looked_at timestamptz NOT NULL
);

CREATE VIEW finance.alert_deliveries AS
SELECT alert_id, channel, tries, next_try_at, last_error, delivered_at, given_up_at FROM tollgate.alert_deliveries;

CREATE VIEW finance.spike_alerts AS
SELECT alert_id, team, day, model, key_id, spent_nusd * 0.000000001 AS spent_usd, usual_nusd * 0.000000001 AS usual_usd,
       driver_nusd * 0.000000001 AS driver_usd, raised_at
FROM tollgate.spike_alerts;
-- Of several channels: delivered by the first, waiting while one waits.
CREATE VIEW finance.budget_alerts AS
SELECT alert_id, account_id AS account, rule_id AS rule, scope, team, owner, kind, period, starts_at, ends_at,
       threshold, limit_nusd * 0.000000001 AS limit_usd, granted_nusd * 0.000000001 AS granted_usd,
       spent_nusd * 0.000000001 AS spent_usd, raised_at, sent.tries, sent.next_try_at, sent.last_error,
       sent.delivered_at, sent.given_up_at
FROM tollgate.budget_alerts CROSS JOIN LATERAL (
    SELECT coalesce(sum(one.tries), 0)::integer AS tries, min(one.next_try_at) AS next_try_at,
           string_agg(one.last_error, ' ' ORDER BY one.channel DESC) AS last_error,
           min(one.delivered_at) AS delivered_at, max(one.given_up_at) AS given_up_at
    FROM tollgate.alert_deliveries AS one WHERE one.alert_id = budget_alerts.alert_id
) AS sent;

-- ---- statements by schedule

-- The receiver may hold a token, so the log and the views have `sent_to`, which does not.
CREATE TABLE tollgate.report_schedules (
    schedule_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name        text NOT NULL CONSTRAINT schedules_have_one_name UNIQUE,
    cost_centre text,
    every       text NOT NULL CHECK (every = 'month'),
    receiver    text NOT NULL,
    sent_to     text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    author      text NOT NULL DEFAULT session_user
);
CREATE TRIGGER report_schedules_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.report_schedules
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('report_schedule', 'add', 'name', 'receiver');
CREATE TRIGGER report_schedules_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.report_schedules
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('report_schedule');
-- A row for each closed version of a month that a schedule sends. It outlives its schedule.
CREATE TABLE tollgate.statement_deliveries (
    schedule_id  uuid NOT NULL,
    month        date NOT NULL,
    version      integer NOT NULL,
    delivery_id  uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    name         text NOT NULL,
    sent_to      text NOT NULL,
    opened_at    timestamptz NOT NULL,
    tries        integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    next_try_at  timestamptz,
    last_error   text,
    delivered_at timestamptz,
    given_up_at  timestamptz,
    PRIMARY KEY (schedule_id, month, version),
    CONSTRAINT statement_delivery_has_one_end CHECK (num_nonnulls(delivered_at, given_up_at, next_try_at) = 1)
);
CREATE INDEX statement_deliveries_next_try_at ON tollgate.statement_deliveries (next_try_at)
    WHERE next_try_at IS NOT NULL;

CREATE VIEW finance.report_schedules AS
SELECT schedule.name, coalesce(schedule.cost_centre, 'all') AS cost_centre, schedule.every, schedule.sent_to,
       schedule.created_at, schedule.author, last.month AS last_month, last.version AS last_version, last.tries,
       last.next_try_at, last.last_error, last.delivered_at, last.given_up_at
FROM tollgate.report_schedules AS schedule
LEFT JOIN LATERAL (
    SELECT * FROM tollgate.statement_deliveries AS one WHERE one.schedule_id = schedule.schedule_id
    ORDER BY one.opened_at DESC, one.month DESC LIMIT 1
) AS last ON true;

CREATE VIEW finance.statement_deliveries AS
SELECT delivery_id, name, sent_to, month, version, opened_at, tries, next_try_at, last_error, delivered_at, given_up_at
FROM tollgate.statement_deliveries;
