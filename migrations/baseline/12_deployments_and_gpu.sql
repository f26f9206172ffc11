-- Deployments and engines: ejections, samples, probes, and what GPUs cost.

-- ---- ejections

-- Deployments whose upstream reported another place than promised, until a person looks. One at a
-- time is in force for a deployment; earlier ones stay for the auditor.
CREATE TABLE tollgate.ejections (
    ejection_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    deployment    text NOT NULL,
    promised      text NOT NULL,
    stated        text NOT NULL,
    request_id    uuid NOT NULL,
    attempt       smallint NOT NULL,
    ejected_at    timestamptz NOT NULL DEFAULT now(),
    readmitted_at timestamptz,
    readmitted_by text,
    reason        text,
    CHECK ((readmitted_at IS NULL) = (readmitted_by IS NULL) AND (readmitted_at IS NULL) = (reason IS NULL))
);
CREATE UNIQUE INDEX ejections_in_force ON tollgate.ejections (deployment) WHERE readmitted_at IS NULL;
CREATE TRIGGER ejections_changed AFTER INSERT OR UPDATE OR DELETE ON tollgate.ejections
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.notify_change();
CREATE TRIGGER ejections_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.ejections
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('deployment', 'eject', 'deployment');
CREATE TRIGGER ejections_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.ejections
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('deployment');

-- ---- engines

-- Samples are small and kept for weeks; the hours that they prove are added to `gpu_hours`, with
-- the rate then in force.
CREATE TABLE tollgate.engine_samples (
    deployment        text NOT NULL,
    at                timestamptz NOT NULL,
    is_watched        boolean NOT NULL,
    is_up             boolean NOT NULL,
    started_at        timestamptz,
    prompt_tokens     bigint,
    generation_tokens bigint,
    running           bigint,
    waiting           bigint,
    kv_use            double precision,
    prefix_hit_rate   double precision,
    ttft_p50_s        double precision,
    ttft_p95_s        double precision,
    tpot_p50_s        double precision,
    tpot_p95_s        double precision,
    pressure          double precision,
    PRIMARY KEY (deployment, at)
);
CREATE INDEX engine_samples_at ON tollgate.engine_samples USING brin (at);

-- The newest sample of each engine. A deployment that left the policy has a last sample that is not
-- watched.
CREATE VIEW finance.engines AS
SELECT deployment, at, is_up, running, waiting AS queue, kv_use, prefix_hit_rate,
       ttft_p50_s, ttft_p95_s, tpot_p50_s, tpot_p95_s, pressure
FROM (SELECT DISTINCT ON (deployment) * FROM tollgate.engine_samples
      ORDER BY deployment, at DESC) AS newest
WHERE is_watched;

-- Probes of engines: their tokens are in the engines' counters, and no team may be charged for
-- them. Written before a probe is sent. Without figures as long as its tokens are unknown.
CREATE TABLE tollgate.engine_probes (
    probe_id          uuid PRIMARY KEY,
    deployment        text NOT NULL,
    sent_at           timestamptz NOT NULL,
    ended_at          timestamptz,
    prompt_tokens     bigint CHECK (prompt_tokens >= 0),
    generation_tokens bigint CHECK (generation_tokens >= 0),
    CONSTRAINT figures_come_together CHECK ((prompt_tokens IS NULL) = (generation_tokens IS NULL))
);
CREATE INDEX engine_probes_sent ON tollgate.engine_probes (deployment, sent_at);

CREATE TABLE tollgate.gpu_hours (
    deployment       text NOT NULL,
    hour             timestamptz NOT NULL,
    policy_version   integer NOT NULL,
    gpu_type         text,
    gpu_count        integer,
    usd_per_gpu_hour numeric,
    basis            text NOT NULL CHECK (basis IN ('seen', 'always')),
    watched_ms       bigint NOT NULL,
    up_ms            bigint NOT NULL,
    billed_ms        bigint NOT NULL,
    bill_nusd        bigint,
    PRIMARY KEY (deployment, hour, policy_version),
    CONSTRAINT up_is_within_watched CHECK (0 <= up_ms AND up_ms <= watched_ms),
    CONSTRAINT gpus_have_a_rate CHECK ((gpu_count IS NULL) = (usd_per_gpu_hour IS NULL)
                                       AND (gpu_count IS NULL) = (bill_nusd IS NULL))
);
CREATE INDEX gpu_hours_hour ON tollgate.gpu_hours (hour);

-- ---- imported GPU bills

-- Lines are kept as they were imported. Their pieces, one for each clock hour, are what counts: a
-- newer import replaces pieces, and inserts the parts of them that it does not cover.
CREATE TABLE tollgate.gpu_bill_imports (
    import_id   uuid PRIMARY KEY,
    file_name   text NOT NULL,
    sha256      text NOT NULL CONSTRAINT sha256_is_hex CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    rows        integer NOT NULL CONSTRAINT imports_have_rows CHECK (rows > 0),
    amount_nusd bigint NOT NULL,
    author      text NOT NULL,
    imported_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE tollgate.gpu_bill_lines (
    import_id   uuid NOT NULL REFERENCES tollgate.gpu_bill_imports,
    line        integer NOT NULL CONSTRAINT lines_are_numbered CHECK (line > 0),
    deployment  text NOT NULL,
    starts_at   timestamptz NOT NULL,
    ends_at     timestamptz NOT NULL,
    gpu_ms      bigint NOT NULL CONSTRAINT line_hours_are_not_negative CHECK (gpu_ms >= 0),
    amount_nusd bigint NOT NULL,
    invoice_id  text NOT NULL CONSTRAINT lines_have_an_invoice CHECK (invoice_id <> ''),
    PRIMARY KEY (import_id, line),
    CONSTRAINT lines_end_after_they_begin CHECK (starts_at < ends_at)
);
CREATE INDEX gpu_bill_lines_invoice ON tollgate.gpu_bill_lines (deployment, invoice_id);
CREATE TABLE tollgate.gpu_bill_hours (
    piece_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    import_id   uuid NOT NULL,
    line        integer NOT NULL,
    deployment  text NOT NULL,
    hour        timestamptz NOT NULL,
    starts_at   timestamptz NOT NULL,
    ends_at     timestamptz NOT NULL,
    gpu_ms      bigint NOT NULL CONSTRAINT piece_hours_are_not_negative CHECK (gpu_ms >= 0),
    amount_nusd bigint NOT NULL,
    replaced_by uuid REFERENCES tollgate.gpu_bill_imports,
    FOREIGN KEY (import_id, line) REFERENCES tollgate.gpu_bill_lines,
    CONSTRAINT pieces_lie_in_their_hour CHECK (
        date_trunc('hour', starts_at, 'UTC') = hour AND starts_at < ends_at
        AND ends_at <= hour + interval '1 hour')
);
CREATE INDEX gpu_bill_hours_in_force ON tollgate.gpu_bill_hours (deployment, hour) WHERE replaced_by IS NULL;
CREATE INDEX gpu_bill_hours_line ON tollgate.gpu_bill_hours (import_id, line);
SELECT tollgate.make_immutable('tollgate.gpu_bill_imports');
SELECT tollgate.make_immutable('tollgate.gpu_bill_lines');
-- The one change is that a piece is replaced, once.
CREATE TRIGGER rows_are_replaced_once BEFORE UPDATE ON tollgate.gpu_bill_hours FOR EACH ROW
    WHEN (OLD.replaced_by IS NOT NULL OR NEW.replaced_by IS NULL
          OR (OLD.piece_id, OLD.import_id, OLD.line, OLD.deployment, OLD.hour, OLD.starts_at, OLD.ends_at,
              OLD.gpu_ms, OLD.amount_nusd)
             IS DISTINCT FROM
             (NEW.piece_id, NEW.import_id, NEW.line, NEW.deployment, NEW.hour, NEW.starts_at, NEW.ends_at,
              NEW.gpu_ms, NEW.amount_nusd))
    EXECUTE FUNCTION tollgate.refuse_change();
CREATE TRIGGER rows_stay BEFORE DELETE OR TRUNCATE ON tollgate.gpu_bill_hours
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_change();

CREATE TRIGGER gpu_bill_imports_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.gpu_bill_imports
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('gpu_bill', 'import', 'import_id');
-- Lines and pieces come in thousands: those of one import are one act, with their number and their
-- sum.
CREATE FUNCTION tollgate.audit_gpu_bill() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM tollgate.note_audit(TG_ARGV[0], import_id::text, '{}', entries => count(*), amount_nusd => sum(amount_nusd))
    FROM noted GROUP BY import_id ORDER BY import_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER gpu_bill_lines_noted_for_audit AFTER INSERT ON tollgate.gpu_bill_lines
    REFERENCING NEW TABLE AS noted FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_gpu_bill('gpu_bill.lines');
CREATE TRIGGER gpu_bill_hours_noted_for_audit AFTER INSERT ON tollgate.gpu_bill_hours
    REFERENCING NEW TABLE AS noted FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_gpu_bill('gpu_bill.hours');
CREATE TRIGGER gpu_bill_replacing_noted_for_audit AFTER UPDATE ON tollgate.gpu_bill_hours
    REFERENCING NEW TABLE AS noted FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_gpu_bill('gpu_bill.replace');

CREATE VIEW finance.gpu_bills AS
SELECT line.import_id, line.line, line.deployment, line.invoice_id, line.starts_at, line.ends_at,
       round(line.gpu_ms / 3600000.0, 12) AS gpu_hours, line.amount_nusd * 0.000000001 AS amount_usd,
       coalesce(kept.nusd, 0) * 0.000000001 AS counted_usd,
       import.file_name, import.sha256 AS file_hash, import.author, import.imported_at
FROM tollgate.gpu_bill_lines AS line
JOIN tollgate.gpu_bill_imports AS import USING (import_id)
LEFT JOIN (
    SELECT import_id, line, sum(amount_nusd) AS nusd FROM tollgate.gpu_bill_hours
    WHERE replaced_by IS NULL GROUP BY import_id, line
) AS kept ON kept.import_id = line.import_id AND kept.line = line.line;

-- ---- the cost of an hour

-- Adjustments count in the hour of their request. A charge that comes after the close of its hour's
-- month is not in the GPU bill of that hour: the hours of a closed month stand as they were kept,
-- and beside them a late event or correction made the closed bill larger than it is. It counts
-- again in a reopened month. Sums by hour do not know when an event was recorded, so late events
-- are taken out one by one: they are few, and have an index.
CREATE VIEW finance.gpu_applied AS
SELECT hour, deployment, team, cost_centre, sum(attempts)::bigint AS attempts, sum(usd) AS applied_usd
FROM (
    SELECT hour, deployment, team, cost_centre, attempts, coalesce(cost_usd, 0) AS usd
    FROM finance.spend_hourly_detail WHERE is_self_hosted
    UNION ALL
    SELECT date_trunc('hour', occurred_at, 'UTC'), deployment, team, cost_centre, -1,
           coalesce(cost_nusd, 0) * -0.000000001
    FROM tollgate.usage_events AS late
    JOIN tollgate.month_closes AS done
        ON done.month = (date_trunc('month', occurred_at AT TIME ZONE 'UTC'))::date AND done.reopened_at IS NULL
        AND done.closed_at < late.recorded_at
    WHERE late.posted_period <> (date_trunc('month', occurred_at AT TIME ZONE 'UTC'))::date
      AND late.is_self_hosted AND NOT late.is_demo
    UNION ALL
    SELECT date_trunc('hour', occurred_at, 'UTC'), deployment, team, cost_centre, 0, amount_usd
    FROM finance.adjustments AS booked
    WHERE is_self_hosted AND NOT EXISTS (
        SELECT FROM tollgate.month_closes AS done
        WHERE done.month = (date_trunc('month', occurred_at AT TIME ZONE 'UTC'))::date
          AND done.reopened_at IS NULL AND done.closed_at < booked.created_at)
) AS amounts
GROUP BY hour, deployment, team, cost_centre
HAVING sum(attempts) <> 0 OR sum(usd) <> 0;

CREATE TABLE tollgate.busy_rollup (
    hour       timestamptz,
    deployment text,
    busy_ms    bigint
);
CREATE INDEX busy_rollup_hour ON tollgate.busy_rollup (hour);

-- The milliseconds of an hour in which at least one of its requests' attempts was in flight: the
-- union of their spans, up to the end of the hour that their cost counts in. An attempt that
-- provably was not served (a refused connection) kept no engine busy. Busy time has one definition,
-- for the roll-up and for the hours that are read beside it, which is put together here.
DO $busy$
DECLARE
    in_ms constant text := 'floor(extract(epoch FROM event.started_at - event.hour) * 1000)::bigint';
    span constant text := format(
        'int8range(greatest(%1$s, 0), '
        'greatest(least(%1$s + round(event.duration_s * 1000)::bigint, 3600000), greatest(%1$s, 0)))', in_ms);
    busy constant text := $$SELECT event.hour, event.deployment, (
        SELECT coalesce(sum(upper(part) - lower(part)), 0)::bigint FROM unnest(range_agg({span}) FILTER (
            WHERE event.usage_source <> 'none' AND event.duration_s > 0)) AS part
    ) AS busy_ms
    FROM {hours} CROSS JOIN LATERAL (
        SELECT found.deployment, found.started_at, found.duration_s, found.usage_source, wanted.bucket AS hour
        FROM tollgate.usage_events AS found
        WHERE found.occurred_at >= wanted.bucket AND found.occurred_at < wanted.bucket + interval '1 hour'
            AND found.is_self_hosted AND NOT found.is_demo OFFSET 0
    ) AS event
    GROUP BY event.hour, event.deployment$$;
    busy_of_span constant text := replace(busy, '{span}', span);
    dirty constant text := '(SELECT DISTINCT hour AS bucket FROM tollgate.dirty_hours) AS wanted';
BEGIN
    EXECUTE format($function$
CREATE FUNCTION tollgate.busy_rollup_of(buckets timestamptz[]) RETURNS SETOF tollgate.busy_rollup
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$ %s $$;
$function$, replace(busy_of_span, '{hours}', 'unnest(buckets) AS wanted (bucket)'));

    -- The arithmetic of `gateway.domain.deployments.gpu_bills.split_hour`, in whole nano-dollars. div() is exact;
    -- numeric division is not. Joined by UNION ALL and not by FULL JOIN: so a filter on the hour reaches the index of
    -- every table. For each hour and deployment applied + idle + variance = bill, exactly. An unknown bill is NULL, and
    -- so is its rest.
    EXECUTE replace($view$
CREATE VIEW tollgate.live_gpu_cost AS
WITH known AS (
    SELECT hour, deployment, sum(watched_ms) AS watched_ms, sum(up_ms) AS up_ms, sum(billed_ms) AS billed_ms,
           sum(billed_ms * gpu_count) AS estimated_gpu_ms,
           CASE WHEN min(usd_per_gpu_hour) = max(usd_per_gpu_hour) AND count(usd_per_gpu_hour) = count(*)
                THEN min(usd_per_gpu_hour) END AS usd_per_gpu_hour,
           CASE WHEN count(bill_nusd) = count(*) THEN sum(bill_nusd) END AS estimate,
           NULL::numeric AS imported_gpu_ms, NULL::numeric AS imported, NULL::numeric AS imported_ms,
           NULL::numeric AS attempts, NULL::numeric AS applied, NULL::bigint AS busy_ms
    FROM tollgate.gpu_hours GROUP BY hour, deployment
    UNION ALL
    SELECT hour, deployment, NULL, NULL, NULL, NULL, NULL, NULL, sum(gpu_ms), sum(amount_nusd),
           (SELECT sum(extract(epoch FROM upper(part) - lower(part))) * 1000
            FROM unnest(range_agg(tstzrange(starts_at, ends_at))) AS part), NULL, NULL, NULL
    FROM tollgate.gpu_bill_hours WHERE replaced_by IS NULL GROUP BY hour, deployment
    UNION ALL
    SELECT hour, deployment, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           sum(attempts), round(sum(applied_usd) * 1000000000), NULL
    FROM finance.gpu_applied GROUP BY hour, deployment
    UNION ALL
    SELECT hour, deployment, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, busy_ms
    FROM tollgate.busy_rollup AS done
    WHERE NOT EXISTS (SELECT FROM tollgate.dirty_hours AS dirty WHERE dirty.hour = done.hour)
    UNION ALL
    SELECT hour, deployment, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, busy_ms
    FROM ({busy}) AS live
), facts AS (
    -- Each source has at most one row for an hour and a deployment.
    SELECT hour, deployment, coalesce(sum(attempts), 0) AS attempts, coalesce(sum(applied), 0) AS applied,
           sum(estimate) AS estimate, sum(imported) AS imported, coalesce(sum(imported), sum(estimate)) AS bill,
           coalesce(sum(imported_gpu_ms), sum(estimated_gpu_ms)) AS gpu_ms,
           max(usd_per_gpu_hour) AS usd_per_gpu_hour,
           coalesce(sum(imported_ms), sum(billed_ms), 0) AS present_ms, coalesce(sum(busy_ms), 0) AS busy_ms,
           sum(up_ms) AS up_ms, sum(watched_ms) AS watched_ms, sum(estimated_gpu_ms) AS estimated_gpu_ms
    FROM known GROUP BY hour, deployment
), valued AS (
    SELECT *, CASE WHEN bill IS NOT NULL THEN greatest(0, CASE
        WHEN imported IS NULL OR usd_per_gpu_hour IS NULL OR attempts = 0 THEN bill
        ELSE div(2 * gpu_ms * usd_per_gpu_hour * 1000000000 + 3600000, 7200000) END - applied) END AS idle
    FROM facts
), divided AS (
    SELECT *, CASE WHEN attempts = 0 OR present_ms = 0 THEN idle
        ELSE div(2 * idle * greatest(present_ms - busy_ms, 0) + present_ms, 2 * present_ms) END AS empty
    FROM valued
)
SELECT hour, deployment, applied * 0.000000001 AS applied_usd, bill * 0.000000001 AS bill_usd,
       idle * 0.000000001 AS idle_usd, (bill - applied - idle) * 0.000000001 AS variance_usd,
       round(gpu_ms / 3600000.0, 12) AS gpu_hours,
       CASE WHEN imported IS NULL THEN usd_per_gpu_hour END AS usd_per_gpu_hour,
       round(up_ms / 3600000.0, 12) AS up_hours, round(watched_ms / 3600000.0, 12) AS watched_hours,
       empty * 0.000000001 AS empty_usd, (idle - empty) * 0.000000001 AS underfilled_usd,
       estimate * 0.000000001 AS estimated_usd, imported * 0.000000001 AS imported_usd,
       round(estimated_gpu_ms / 3600000.0, 12) AS estimated_gpu_hours,
       round(busy_ms / 3600000.0, 12) AS busy_hours
FROM divided
$view$, '{busy}', replace(busy_of_span, '{hours}', dirty));
END
$busy$;

-- The hours of a closed month stand as they were kept. A late bill is variance in the first hour of
-- the month that it is posted to.
CREATE VIEW finance.gpu_cost AS
SELECT hour, deployment, applied_usd, bill_usd, idle_usd, variance_usd, gpu_hours, usd_per_gpu_hour, up_hours,
       watched_hours, empty_usd, underfilled_usd, estimated_usd, imported_usd, estimated_gpu_hours, busy_hours
FROM tollgate.live_gpu_cost
WHERE date_trunc('month', hour, 'UTC') NOT IN (
    SELECT month::timestamp AT TIME ZONE 'UTC' FROM tollgate.periods WHERE state = 'closed')
UNION ALL
SELECT hour, deployment, applied_usd, bill_usd, idle_usd, variance_usd, gpu_hours, usd_per_gpu_hour, up_hours,
       watched_hours, empty_usd, underfilled_usd, estimated_usd, imported_usd, estimated_gpu_hours, busy_hours
FROM tollgate.closed_gpu_hours AS kept
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

-- ---- the split of idle cost

-- A function and not a view: its bounds reach the index of every table, although the weights of a
-- day are read once for all its hours. Weights are a day's, so a night without requests is borne by
-- those who used the day. Largest remainder, in whole nano-dollars; div() and mod() are exact.
CREATE FUNCTION tollgate.live_idle_costs(from_time timestamptz, until_time timestamptz)
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

-- The idle cost of a closed month stands as it was kept. Closed months follow one another.
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
