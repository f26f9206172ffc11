-- The schema `closed`: the views of `finance` as they were when a version of a month was closed.
-- The schemas `team` and `team_closed`: the views of `finance` and `closed`, with the rows of some
-- teams alone.

-- ---- closed months; a reader asks for a version as `2026-10-01/1`

-- An event is found by its own month, and a late one by the index of late events.
CREATE VIEW closed.usage_events AS
SELECT request_id, attempt, occurred_at, started_at, recorded_at, posted_period, team, project, cost_centre, key_id,
       end_user, tags, route, deployment, provider, model, region, is_self_hosted, data_class, policy_version,
       operation, outcome, http_status, streamed, input_tokens, cached_input_tokens, cache_write_tokens,
       output_tokens, reasoning_tokens, usage_detail, usage_source, reported_usage, service_tier, price_id,
       is_stand_in_price, lines, cost_usd, held_usd, ttft_s, tpot_s, duration_s, overhead_s, finish_reason,
       client_request_id, upstream_request_id, is_suspect, features, decision,
       (cost_usd IS NULL AND NOT EXISTS (
           SELECT FROM tollgate.adjustments AS found
           WHERE found.settles AND found.request_id = shown.request_id AND found.attempt = shown.attempt
             AND found.created_at <= (
                 SELECT closed_at FROM tollgate.month_closes
                 WHERE month = split_part(current_setting('tollgate.as_closed'), '/', 1)::date
                   AND version = split_part(current_setting('tollgate.as_closed'), '/', 2)::integer))) AS is_unsettled,
       queue_s, max_gap_s, engine_queue_s, degraded, written_by
FROM finance.usage_events AS shown
WHERE posted_period = split_part(current_setting('tollgate.as_closed'), '/', 1)::date
  AND recorded_at <= (
      SELECT closed_at FROM tollgate.month_closes
      WHERE month = split_part(current_setting('tollgate.as_closed'), '/', 1)::date
        AND version = split_part(current_setting('tollgate.as_closed'), '/', 2)::integer)
  AND occurred_at >= (split_part(current_setting('tollgate.as_closed'), '/', 1)::date::timestamp AT TIME ZONE 'UTC')
  AND occurred_at < ((split_part(current_setting('tollgate.as_closed'), '/', 1)::date + interval '1 month')
                     AT TIME ZONE 'UTC')
UNION ALL
SELECT request_id, attempt, occurred_at, started_at, recorded_at, posted_period, team, project, cost_centre, key_id,
       end_user, tags, route, deployment, provider, model, region, is_self_hosted, data_class, policy_version,
       operation, outcome, http_status, streamed, input_tokens, cached_input_tokens, cache_write_tokens,
       output_tokens, reasoning_tokens, usage_detail, usage_source, reported_usage, service_tier, price_id,
       is_stand_in_price, lines, cost_usd, held_usd, ttft_s, tpot_s, duration_s, overhead_s, finish_reason,
       client_request_id, upstream_request_id, is_suspect, features, decision,
       (cost_usd IS NULL AND NOT EXISTS (
           SELECT FROM tollgate.adjustments AS found
           WHERE found.settles AND found.request_id = shown.request_id AND found.attempt = shown.attempt
             AND found.created_at <= (
                 SELECT closed_at FROM tollgate.month_closes
                 WHERE month = split_part(current_setting('tollgate.as_closed'), '/', 1)::date
                   AND version = split_part(current_setting('tollgate.as_closed'), '/', 2)::integer))) AS is_unsettled,
       queue_s, max_gap_s, engine_queue_s, degraded, written_by
FROM finance.usage_events AS shown
WHERE posted_period = split_part(current_setting('tollgate.as_closed'), '/', 1)::date
  AND recorded_at <= (
      SELECT closed_at FROM tollgate.month_closes
      WHERE month = split_part(current_setting('tollgate.as_closed'), '/', 1)::date
        AND version = split_part(current_setting('tollgate.as_closed'), '/', 2)::integer)
  AND posted_period <> (date_trunc('month', occurred_at AT TIME ZONE 'UTC'))::date
  AND occurred_at < (split_part(current_setting('tollgate.as_closed'), '/', 1)::date::timestamp AT TIME ZONE 'UTC');
CREATE VIEW closed.adjustments AS
SELECT adjustment_id, request_id, attempt, team, cost_centre, posted_period, occurred_at, amount_usd, kind, reason,
       author, created_at, settles,
       (kind = 'expired_hold' AND NOT EXISTS (
           SELECT FROM tollgate.adjustments AS later
           WHERE later.kind = 'resolution' AND later.request_id = shown.request_id AND later.attempt = shown.attempt
             AND later.created_at <= (
                 SELECT closed_at FROM tollgate.month_closes
                 WHERE month = split_part(current_setting('tollgate.as_closed'), '/', 1)::date
                   AND version = split_part(current_setting('tollgate.as_closed'), '/', 2)::integer))) AS is_expected,
       project, key_id, end_user, tags, route, deployment, provider, model, region, is_self_hosted, data_class,
       outcome, usage_source, written_by
FROM finance.adjustments AS shown
WHERE posted_period = split_part(current_setting('tollgate.as_closed'), '/', 1)::date
  AND created_at <= (
      SELECT closed_at FROM tollgate.month_closes
      WHERE month = split_part(current_setting('tollgate.as_closed'), '/', 1)::date
        AND version = split_part(current_setting('tollgate.as_closed'), '/', 2)::integer);
CREATE VIEW closed.gpu_cost AS
SELECT hour, deployment, applied_usd, bill_usd, idle_usd, variance_usd, gpu_hours, usd_per_gpu_hour, up_hours,
       watched_hours, empty_usd, underfilled_usd, estimated_usd, imported_usd, estimated_gpu_hours, busy_hours
FROM tollgate.closed_gpu_hours
WHERE month = split_part(current_setting('tollgate.as_closed'), '/', 1)::date
  AND version = split_part(current_setting('tollgate.as_closed'), '/', 2)::integer;
CREATE VIEW closed.prices AS SELECT * FROM finance.prices;

CREATE VIEW closed.cost_centre_shares AS SELECT * FROM finance.cost_centre_shares;
CREATE VIEW closed.currency_rates AS
SELECT currency, first_day, lead(first_day) OVER (PARTITION BY currency ORDER BY first_day) AS next_day, usd_per_unit,
       source, author, created_at
FROM (
    SELECT DISTINCT ON (currency, first_day) * FROM tollgate.currency_rates
    WHERE created_at <= (
        SELECT closed_at FROM tollgate.month_closes
        WHERE month = split_part(current_setting('tollgate.as_closed'), '/', 1)::date
          AND version = split_part(current_setting('tollgate.as_closed'), '/', 2)::integer)
    ORDER BY currency, first_day, rate_id DESC
) AS newest;
DO $closed$
BEGIN
    EXECUTE format($function$
CREATE FUNCTION closed.idle_costs(from_time timestamptz, until_time timestamptz)
    RETURNS TABLE (hour timestamptz, deployment text, team text, cost_centre text, idle_usd numeric)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT hour, deployment, team, cost_centre, idle_usd FROM tollgate.closed_idle_costs
    WHERE month = %s AND version = %s AND hour >= from_time AND hour < until_time
    $$;
$function$, $$split_part(current_setting('tollgate.as_closed'), '/', 1)::date$$,
        $$split_part(current_setting('tollgate.as_closed'), '/', 2)::integer$$);
END
$closed$;

-- ---- teams

-- Each view of `finance` and `closed` has one of its name in `team` or `team_closed`. `condition`
-- is of its rows; `hidden` are columns that are NULL there. Later steps call this for each view
-- that they add or give columns.
CREATE FUNCTION tollgate.show_to_teams(shown regclass, condition text, hidden text[] DEFAULT '{}') RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    own record;
    columns text;
    target text;
BEGIN
    SELECT nspname, relname INTO STRICT own FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE pg_class.oid = shown;
    target := format('%I.%I', CASE own.nspname WHEN 'finance' THEN 'team' WHEN 'closed' THEN 'team_closed' END,
                     own.relname);
    SELECT string_agg(CASE WHEN attname = ANY(hidden) THEN format('NULL::%s AS %I', format_type(atttypid, atttypmod),
                                                                  attname)
                           ELSE format('shown.%I', attname) END, ', ' ORDER BY attnum)
        INTO columns FROM pg_attribute WHERE attrelid = shown AND attnum > 0 AND NOT attisdropped;
    EXECUTE format('DROP VIEW IF EXISTS %s', target);
    EXECUTE format('CREATE VIEW %s WITH (security_barrier) AS SELECT %s FROM %s AS shown WHERE %s', target, columns,
                   shown, condition);
    EXECUTE format('GRANT SELECT ON %s TO tollgate_team_reader', target);
END
$$;

-- The rows that a team sees of each view: its own, all (facts of the organisation that name no
-- team) or none. A view that is not listed here shows none. Hidden are the whole organisation's
-- totals, and the people of finance.
DO $teams$
DECLARE
    -- The sub-SELECT is evaluated once a query. Without the setting it is NULL, and no row is shown.
    own constant text := $$team = ANY ((SELECT nullif(current_setting('tollgate.teams', true), '')::text[])::text[])$$;
    own_rows constant text[] := '{usage_events, demo_usage_events, spend_hourly, spend_hourly_detail,
        demo_spend_hourly_detail, spend_daily_detail, demo_spend_daily_detail, spend_daily_by_key,
        spend_daily_by_end_user, spend_daily_by_tag, spend_monthly_detail, spend_monthly_by_key,
        spend_monthly_by_end_user, spend_monthly_by_tag, adjustments, budgets, budget_alerts, spike_alerts, overdrafts,
        refusals, gpu_applied, cost_centre_shares, api_keys, team_limits}';
    all_rows constant text[] := '{periods, policy_days, dirty_hours, demo_ledger, prices, deployment_prices,
        currency_rates, month_closes, watermark}';
    hidden constant jsonb := jsonb_build_object(
        'demo_ledger', '{author}',
        'currency_rates', '{author}',
        'periods', '{sha256, closed_by, reason, events, adjustments, total_usd}',
        'month_closes', '{author, operator, accepted, parts, sha256, events, adjustments, total_usd, reopened_by,
            reopen_reason}');
    shown record;
BEGIN
    FOR shown IN
        SELECT pg_class.oid::regclass AS id, relname AS name
        FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname IN ('finance', 'closed') AND relkind = 'v' ORDER BY nspname, relname
    LOOP
        PERFORM tollgate.show_to_teams(
            shown.id,
            CASE WHEN shown.name = ANY (own_rows) THEN own
                 WHEN shown.name = ANY (all_rows) THEN 'true'
                 WHEN shown.name = 'budget_grants'
                     THEN format('account IN (SELECT account FROM finance.budgets WHERE %s)', own)
                 ELSE 'false' END,
            coalesce((hidden ->> shown.name)::text[], '{}'));
    END LOOP;
END
$teams$;

-- Of the whole GPU bill a team sees its own share of idle cost, by the policy's rules.
CREATE FUNCTION team.idle_costs(from_time timestamptz, until_time timestamptz)
    RETURNS TABLE (hour timestamptz, deployment text, team text, cost_centre text, idle_usd numeric)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT hour, deployment, team, cost_centre, idle_usd FROM finance.idle_costs(from_time, until_time)
          WHERE team = ANY ((SELECT nullif(current_setting('tollgate.teams', true), '')::text[])::text[]) $$;

CREATE FUNCTION team_closed.idle_costs(from_time timestamptz, until_time timestamptz)
    RETURNS TABLE (hour timestamptz, deployment text, team text, cost_centre text, idle_usd numeric)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$ SELECT hour, deployment, team, cost_centre, idle_usd FROM closed.idle_costs(from_time, until_time)
          WHERE team = ANY ((SELECT nullif(current_setting('tollgate.teams', true), '')::text[])::text[]) $$;
