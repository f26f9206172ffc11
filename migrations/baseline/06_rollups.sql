-- Sums of events by hour, and of the hours by day, key, end user, tag and month: a page on a month
-- then reads some thousand rows, for any number of events.

-- Writers only append to the logs of marked buckets: a row each, without waiting for any row. The
-- time shows how long a bucket has waited.
CREATE TABLE tollgate.dirty_hours (
    hour     timestamptz NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE tollgate.dirty_days (day date NOT NULL, noted_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE tollgate.dirty_months (
    month    date NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT now()
);

CREATE VIEW finance.dirty_hours AS
SELECT hour, min(noted_at) AS noted_at FROM tollgate.dirty_hours GROUP BY 1;

-- A sum has one definition: for the function that fills a roll-up, and for the views, which read
-- the events of the hours that are not summed yet in one statement and so in one snapshot. So the
-- statements are put together here from named pieces. `{more of events}` in a statement stands for
-- the piece of that name.
DO $rollups$
DECLARE
    -- The columns of sums. `{first}` stands for their names, `{first columns}` for their declaration, `{first added}`
    -- for their sums over rows of a roll-up, `{first times}` for those sums if each row counts `times` times, and
    -- `{first bare}` for the sums without names. Sums of money and tokens are numeric: two of the largest figures
    -- together are more than 64 bits hold.
    sums constant text[] := ARRAY[
        ['first', 'attempts bigint, known_attempts bigint, unknown_attempts bigint, derived_attempts bigint,
            failed_attempts bigint, unreported_attempts bigint, input_tokens numeric, cached_input_tokens numeric,
            cache_write_tokens numeric, output_tokens numeric, reasoning_tokens numeric,
            uncached_input_tokens numeric, plain_output_tokens numeric, total_tokens numeric, cost_nusd numeric,
            held_nusd numeric'],
        ['requests', 'requests bigint'],
        ['more', 'requests bigint, error_attempts bigint, degraded_attempts bigint, ttft_bound_s double precision,
            ttft_bound_attempts bigint, ttft_missed bigint, cost_bound_attempts bigint, retry_attempts bigint,
            retry_nusd numeric, failed_nusd numeric, ttft_measured bigint, cost_missed bigint'],
        ['savings', 'cache_saving_nusd numeric, unknown_saving_attempts bigint, split_input_tokens numeric'],
        -- The events without a tag are a difference of sums, which is 0 also if no figure in it is known.
        ['known', 'cached_input_known bigint, cache_write_known bigint, output_known bigint, reasoning_known bigint,
            total_known bigint']];
    -- Counts of waiting times by size: `{ttft counts}` over events, `{ttft added}` over rows.
    times constant text[] := '{ttft, tpot, duration, gap, queue, overhead}';
    sizes constant integer := 56;

    -- Lists of columns: each becomes one line.
    lists constant text[] := ARRAY[
        ['hour groups', 'team, project, cost_centre, route, deployment, provider, model, region, is_self_hosted,
            data_class, outcome, usage_source'],
        ['key groups', 'team, project, cost_centre, key_id, route, model, is_self_hosted'],
        ['user groups', 'team, project, cost_centre, end_user, route, model, is_self_hosted'],
        ['tag groups', 'team, project, cost_centre, tag_key, tag, is_repeat, route, model, is_self_hosted'],
        ['places', 'deployment, provider, region'],
        ['endings', 'data_class, outcome, usage_source'],

        ['first of events', $$coalesce(sum(1), 0)::bigint AS attempts,
            coalesce(sum(1) FILTER (WHERE cost_nusd IS NOT NULL), 0)::bigint AS known_attempts,
            coalesce(sum(1) FILTER (WHERE {is unsettled}), 0)::bigint AS unknown_attempts,
            coalesce(sum(1) FILTER (WHERE usage_source IN ('derived', 'estimated')), 0)::bigint AS derived_attempts,
            coalesce(sum(1) FILTER (WHERE outcome <> 'ok'), 0)::bigint AS failed_attempts,
            coalesce(sum(1) FILTER (WHERE input_tokens IS NULL), 0)::bigint AS unreported_attempts,
            sum(input_tokens) AS input_tokens,
            sum(cached_input_tokens) AS cached_input_tokens,
            sum(cache_write_tokens) AS cache_write_tokens,
            sum(output_tokens) AS output_tokens,
            sum(reasoning_tokens) AS reasoning_tokens,
            sum(input_tokens::numeric - coalesce(cached_input_tokens, 0) - coalesce(cache_write_tokens, 0))
            AS uncached_input_tokens,
            sum(output_tokens::numeric - coalesce(reasoning_tokens, 0)) AS plain_output_tokens,
            sum(input_tokens::numeric + output_tokens) AS total_tokens,
            sum(cost_nusd) AS cost_nusd,
            sum(held_nusd) FILTER (WHERE {is unsettled}) AS held_nusd$$],
        -- A request is counted by its first attempt: the counts of two hours can then be added.
        ['requests of events', 'coalesce(sum(1) FILTER (WHERE attempt = 1), 0)::bigint AS requests'],
        ['more of events', $$coalesce(sum(1) FILTER (WHERE attempt = 1), 0)::bigint AS requests,
            coalesce(sum(1) FILTER (WHERE outcome NOT IN ('ok', 'client_gone', 'gateway_stopped')), 0)::bigint
            AS error_attempts,
            coalesce(sum(1) FILTER (WHERE degraded IS NOT NULL), 0)::bigint AS degraded_attempts,
            min(({ttft bound})) AS ttft_bound_s,
            coalesce(sum(1) FILTER (WHERE ttft_s IS NOT NULL AND ({ttft bound}) IS NOT NULL), 0)::bigint
            AS ttft_bound_attempts,
            coalesce(sum(1) FILTER (WHERE ttft_s > ({ttft bound})), 0)::bigint AS ttft_missed,
            coalesce(sum(1) FILTER (WHERE cost_nusd IS NOT NULL AND ({cost bound}) IS NOT NULL), 0)::bigint
            AS cost_bound_attempts,
            coalesce(sum(1) FILTER (WHERE attempt > 1), 0)::bigint AS retry_attempts,
            sum(cost_nusd) FILTER (WHERE attempt > 1) AS retry_nusd,
            sum(cost_nusd) FILTER (WHERE outcome <> 'ok') AS failed_nusd,
            coalesce(sum(1) FILTER (WHERE ttft_s IS NOT NULL), 0)::bigint AS ttft_measured,
            coalesce(sum(1) FILTER (WHERE cost_nusd > ({cost bound})), 0)::bigint AS cost_missed$$],
        -- An event never changes: a bound of another shape must not make every sum fail for ever.
        ['ttft bound', $$CASE WHEN jsonb_typeof(decision -> 'bounds' -> 'ttft_p95_s') = 'number'
            THEN (decision -> 'bounds' ->> 'ttft_p95_s')::double precision END$$],
        ['cost bound', $$CASE WHEN jsonb_typeof(decision -> 'bounds' -> 'max_cost_nusd') = 'number'
            THEN (decision -> 'bounds' ->> 'max_cost_nusd')::numeric END$$],
        -- The prompts whose cached part is known: a share of all input would count unknown as 0.
        ['savings of events', $$sum(saving_nusd) AS cache_saving_nusd,
            coalesce(sum(1) FILTER (WHERE saving_nusd IS NULL), 0)::bigint AS unknown_saving_attempts,
            sum(input_tokens) FILTER (WHERE cached_input_tokens IS NOT NULL) AS split_input_tokens$$],
        ['known of events', $$coalesce(sum(1) FILTER (WHERE cached_input_tokens IS NOT NULL), 0)::bigint
            AS cached_input_known,
            coalesce(sum(1) FILTER (WHERE cache_write_tokens IS NOT NULL), 0)::bigint AS cache_write_known,
            coalesce(sum(1) FILTER (WHERE output_tokens IS NOT NULL), 0)::bigint AS output_known,
            coalesce(sum(1) FILTER (WHERE reasoning_tokens IS NOT NULL), 0)::bigint AS reasoning_known,
            coalesce(sum(1) FILTER (WHERE input_tokens::numeric + output_tokens IS NOT NULL), 0)::bigint
            AS total_known$$],

        ['early buckets', 'ttft_buckets, tpot_buckets, duration_buckets'],
        ['late buckets', 'gap_buckets, queue_buckets, overhead_buckets'],
        ['early counts', '{ttft counts} AS ttft_buckets, {tpot counts} AS tpot_buckets,
            {duration counts} AS duration_buckets'],
        ['late counts', '{gap counts} AS gap_buckets, {queue counts} AS queue_buckets,
            {overhead counts} AS overhead_buckets'],
        ['early added', '{ttft added} AS ttft_buckets, {tpot added} AS tpot_buckets,
            {duration added} AS duration_buckets'],
        ['late added', '{gap added} AS gap_buckets, {queue added} AS queue_buckets,
            {overhead added} AS overhead_buckets'],
        ['figures added', '{first bare}, {more bare}, {savings bare}, {ttft added}, {tpot added}, {duration added},
            {gap added}, {queue added}, {overhead added}'],
        ['tag figures bare', '{first bare}, {requests bare}, {savings bare}, {known bare}'],

        ['hour names', 'hour, {hour groups}, posted_period, is_demo, {first}, {early buckets}, {more}, {late buckets},
            key_id, {savings}'],
        ['day names', '{hour groups}, posted_period, is_demo, {first}, {early buckets}, {more}, {late buckets},
            {savings}'],
        ['key names', '{key groups}, posted_period, is_demo, {first}, {places}, {endings}, {more}, {early buckets},
            {late buckets}, {savings}'],
        ['user names', '{user groups}, posted_period, is_demo, {first}, {places}, {requests}, {savings}'],
        ['tag names', '{tag groups}, posted_period, is_demo, {first}, {requests}, {places}, {savings}, {known}'],
        ['month figures', '{first}, {more}, {savings}, {early buckets}, {late buckets}'],
        ['user figures', '{first}, {requests}, {savings}'],
        ['tag figures', '{first}, {requests}, {savings}, {known}'],
        ['hour month', '{hour groups}, posted_period'],
        ['key month', '{key groups}, posted_period, {places}, {endings}'],
        ['user month', '{user groups}, posted_period, {places}'],
        ['tag month', '{tag groups}, posted_period, {places}'],
        ['month names', '{hour month}, {month figures}'],
        ['month and key names', '{key month}, {month figures}'],
        ['month and user names', '{user month}, {user figures}'],
        ['month and tag names', '{tag month}, {tag figures}'],

        -- As the views show them: money in USD.
        ['first shown', 'attempts, known_attempts, unknown_attempts, derived_attempts, failed_attempts,
            unreported_attempts, input_tokens, cached_input_tokens, cache_write_tokens, output_tokens,
            reasoning_tokens, uncached_input_tokens, plain_output_tokens, total_tokens'],
        ['money shown', 'cost_nusd * 0.000000001 AS cost_usd, held_nusd * 0.000000001 AS held_usd'],
        ['more shown', 'requests, error_attempts, degraded_attempts, ttft_bound_s, ttft_bound_attempts, ttft_missed,
            cost_bound_attempts, retry_attempts, ttft_measured, cost_missed, {early buckets}, {late buckets},
            retry_nusd * 0.000000001 AS retry_usd, failed_nusd * 0.000000001 AS failed_usd'],
        ['savings shown', 'cache_saving_nusd * 0.000000001 AS cache_saving_usd, unknown_saving_attempts,
            split_input_tokens'],
        -- Of a day's events the sums by end user and by tag need these; read once for both.
        ['needed', 'day, team, project, cost_centre, end_user, tags, route, deployment, provider, model, region,
            is_self_hosted, posted_period, is_demo, request_id, attempt, outcome, usage_source, input_tokens,
            cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens, cost_nusd, held_nusd,
            saving_nusd'],

        -- Upper edges in seconds, each 1.3 times the last, from 0.5 ms to 12 minutes: a percentile that is read from
        -- the counts lies within the same size as the true one.
        ['edges', 'ARRAY[0.000500000, 0.000650000, 0.000845000, 0.001098500, 0.001428050, 0.001856465, 0.002413405,
            0.003137426, 0.004078654, 0.005302250, 0.006892925, 0.008960802, 0.011649043, 0.015143755,
            0.019686882, 0.025592947, 0.033270830, 0.043252080, 0.056227703, 0.073096015, 0.095024819,
            0.123532265, 0.160591944, 0.208769527, 0.271400385, 0.352820501, 0.458666651, 0.596266646,
            0.775146640, 1.007690632, 1.309997822, 1.702997168, 2.213896319, 2.878065215, 3.741484779,
            4.863930213, 6.323109276, 8.220042059, 10.686054677, 13.891871080, 18.059432404, 23.477262125,
            30.520440763, 39.676572992, 51.579544890, 67.053408357, 87.169430864, 113.320260123,
            147.316338160, 191.511239607, 248.964611490, 323.653994936, 420.750193417, 546.975251443,
            711.067826875]'],
        ['sizes', 'width_bucket(ttft_s, {edges}) AS ttft_bucket, width_bucket(tpot_s, {edges}) AS tpot_bucket,
            width_bucket(duration_s, {edges}) AS duration_bucket, width_bucket(max_gap_s, {edges}) AS gap_bucket,
            width_bucket(queue_s, {edges}) AS queue_bucket, width_bucket(overhead_s, {edges}) AS overhead_bucket'],
        ['as input', $$'cache_write', 'cache_write_12h', 'cache_write_1h', 'cache_write_30m', 'cached_input'$$],
        ['at input rate', 'CASE WHEN cached.input_tokens > 0
            THEN cached.input_tokens * coalesce(cached.input_rate, {input listed}) * 1000 ELSE 0 END'],
        ['at audio rate', 'CASE WHEN cached.audio_input_tokens > 0
            THEN cached.audio_input_tokens * coalesce(cached.audio_input_rate, {audio listed}) * 1000 ELSE 0 END'],
        ['tier', $$lower(nullif(found.service_tier, ''))$$]];

    -- Parts of statements.
    parts constant text[] := ARRAY[
        ['is unsettled', $$(cost_nusd IS NULL AND NOT EXISTS (
            SELECT FROM tollgate.adjustments AS found
            WHERE found.settles AND found.request_id = event.request_id AND found.attempt = event.attempt))$$],

        -- The rate of a kind in an event's stored price: a prompt that was cached as a whole has no line of its own.
        ['input listed', $$(SELECT rate.usd_per_mtok FROM tollgate.prices AS price CROSS JOIN LATERAL
            jsonb_to_recordset(price.rates) AS rate ({rate columns})
            WHERE price.price_id = found.price_id AND rate.kind = 'input'
                {of tier}$$],
        ['audio listed', $$(SELECT rate.usd_per_mtok FROM tollgate.prices AS price CROSS JOIN LATERAL
            jsonb_to_recordset(price.rates) AS rate ({rate columns})
            WHERE price.price_id = found.price_id AND rate.kind = 'audio_input'
                {of tier}$$],
        ['rate columns', 'kind text, usd_per_mtok numeric, service_tier text, from_input_tokens bigint'],
        ['of tier', $$AND rate.service_tier IS NOT DISTINCT FROM
                    CASE WHEN {tier} NOT IN ('auto', 'default', 'on_demand', 'standard') THEN {tier} END
                AND rate.from_input_tokens <= found.input_tokens
            ORDER BY rate.from_input_tokens DESC LIMIT 1)$$],
        -- The arithmetic of `gateway.domain.pricing.pricing.cache_saving_nusd`, in exact nano-dollars. Reading the
        -- lines is its largest cost, and most events of some teams cache nothing. OFFSET: else Postgres would compute
        -- the amount again wherever its rounding names it.
        ['saving', $$CASE
    WHEN found.cost_nusd IS NULL OR found.cached_input_tokens IS NULL THEN NULL
    WHEN found.cached_input_tokens > 0 OR found.cache_write_tokens > 0 THEN (
        SELECT CASE WHEN exact.cost_nusd IS NULL THEN 0
            WHEN exact.nusd - floor(exact.nusd) = 0.5 AND floor(exact.nusd) % 2 = 0
                THEN floor(exact.nusd) - exact.cost_nusd
            ELSE round(exact.nusd) - exact.cost_nusd END
        FROM (
            SELECT cached.cost_nusd, {at input rate} + {at audio rate} AS nusd
            FROM (
                SELECT sum(line.cost_nusd) FILTER (WHERE line.kind IN ({as input}, 'cached_audio_input')) AS cost_nusd,
                    sum(line.tokens) FILTER (WHERE line.kind IN ({as input})) AS input_tokens,
                    max(line.usd_per_mtok) FILTER (WHERE line.kind = 'input') AS input_rate,
                    sum(line.tokens) FILTER (WHERE line.kind = 'cached_audio_input') AS audio_input_tokens,
                    max(line.usd_per_mtok) FILTER (WHERE line.kind = 'audio_input') AS audio_input_rate
                FROM jsonb_to_recordset(found.lines) AS line ({line columns})
            ) AS cached OFFSET 0
        ) AS exact)
    ELSE 0 END AS saving_nusd$$],
        ['line columns', 'kind text, usd_per_mtok numeric, tokens numeric, cost_nusd numeric'],

        -- LATERAL with its OFFSET makes the planner look each hour up for itself. Left to choose, it reads a whole
        -- month to find one hour of it. It also keeps a computed column from being written out once for each counter
        -- that uses it.
        ['of the hour', $$CROSS JOIN LATERAL (
        SELECT found.*, wanted.bucket AS hour, {sizes}, {saving} FROM tollgate.usage_events AS found
        WHERE found.occurred_at >= wanted.bucket AND found.occurred_at < wanted.bucket + interval '1 hour' OFFSET 0
    ) AS event$$],
        ['of the day', $$CROSS JOIN LATERAL (
        SELECT found.*, wanted.bucket AS day, {saving} FROM tollgate.usage_events AS found
        WHERE found.occurred_at >= wanted.bucket::timestamp AT TIME ZONE 'UTC'
            AND found.occurred_at < (wanted.bucket + 1)::timestamp AT TIME ZONE 'UTC' OFFSET 0
    ) AS event$$],

        ['select hours', 'SELECT hour, {hour groups}, posted_period, is_demo, {first of events}, {early counts}, '
            '{more of events}, {late counts}, key_id, {savings of events} FROM'],
        ['by hour', 'GROUP BY hour, {hour groups}, posted_period, is_demo, key_id'],
        -- A day is the sum of its hours. An hour that is not summed yet makes its day wait, see the views. An hour's
        -- rows know their key, so those of a day and a key are made of them without reading an event again. A row by
        -- key knows everything that a row by day does, and they are an eighth of the hours' rows.
        ['keys summed', 'SELECT day, {key groups}, posted_period, is_demo, {first added}, {places}, {endings}, '
            '{more added}, {early added}, {late added}, {savings added} '
            'FROM (SELECT (hour AT TIME ZONE ''UTC'')::date AS day, * FROM tollgate.spend_rollup '
            'WHERE hour >= first AND hour < past) AS done '
            'GROUP BY day, {key groups}, posted_period, is_demo, {places}, {endings}'],
        ['days summed', 'SELECT day, {hour groups}, posted_period, is_demo, {first added}, {early added}, '
            '{more added}, {late added}, {savings added} FROM tollgate.spend_rollup_by_key WHERE day = ANY(days) '
            'GROUP BY day, {hour groups}, posted_period, is_demo'],
        ['select users', 'SELECT day, {user groups}, posted_period, is_demo, {first of events}, {places}, '
            '{requests of events}, {savings of events} FROM'],
        ['by user', 'GROUP BY day, {user groups}, posted_period, is_demo, {places}'],
        -- Rows of one end user lie together: a page about one reads a month of them. In the order of their hashes,
        -- one end user's month of 2,578 rows lay on 2,511 pages, which took three seconds to read from a disk. In a
        -- query of its own, or Postgres would sort the events to find the groups.
        ['users together', 'SELECT * FROM ({select users} event {by user}) AS summed ORDER BY end_user'],
        -- An event is in the row of each of its tags, and once in the row of no tag if it has none. Its repeated counts
        -- are taken off in one more row, so that the rows of a split add up to the events. Events with equal tags are
        -- added up first: each of their tags is then one row, not one an event.
        ['select tags', 'SELECT day, {tag groups}, posted_period, is_demo, {first times}, {requests times}, {places}, '
            '{savings times}, {known times} FROM (SELECT {alike}, {first of events}, {requests of events}, '
            '{savings of events}, {known of events} FROM'],
        ['alike', 'day, team, project, cost_centre, route, model, is_self_hosted, posted_period, is_demo, {places}, '
            'tags'],
        ['by tag', $$GROUP BY {alike}) AS alike CROSS JOIN LATERAL (
        SELECT member.key AS tag_key, member.key || '=' || member.value AS tag, false AS is_repeat, 1 AS times
        FROM jsonb_each_text(alike.tags) AS member
        UNION ALL SELECT NULL, NULL, count(*) > 0, {repeats} FROM jsonb_each_text(alike.tags) HAVING count(*) <> 1
    ) AS pair GROUP BY day, {tag groups}, posted_period, is_demo, {places}$$],
        ['repeats', '1 - count(*)::integer'],

        -- Events of one group are equal in all of its sixteen columns, and a sort compares each of them many times:
        -- 10.8 us an event of an hour, 8.1 with a hash. Postgres' estimates prefer the sort. On disk a sort takes
        -- longer than to add up: so `work_mem`.
        ['settings', $$LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET work_mem = '64MB'
    SET enable_sort = off$$],
        -- A day that changes makes the months wait that its facts are posted to, before and after.
        ['note months', 'INSERT INTO tollgate.dirty_months (month) SELECT DISTINCT posted_period
        FROM tollgate.spend_rollup_by_day WHERE day = ANY(days) AND NOT is_demo;'],

        ['is dirty hour', 'EXISTS (SELECT FROM tollgate.dirty_hours AS dirty WHERE dirty.hour = done.hour)'],
        ['dirty days', 'SELECT day FROM tollgate.dirty_days
            UNION SELECT (hour AT TIME ZONE ''UTC'')::date FROM tollgate.dirty_hours'],
        -- An array is made once, and several processes can then read the sums together.
        ['is clean day', 'done.day <> ALL (ARRAY({dirty days}))'],
        -- A month waits if one of its days changed since, or is about to be summed again.
        ['dirty months', 'SELECT month FROM tollgate.dirty_months
            UNION SELECT posted_period FROM tollgate.spend_rollup_by_day WHERE day = ANY (ARRAY({dirty days}))'],
        ['live hours', '{select hours} (SELECT DISTINCT hour AS bucket FROM tollgate.dirty_hours) AS wanted
            {of the hour} {by hour}'],
        ['live day', '(SELECT day AS bucket FROM ({dirty days}) AS dirty) AS wanted {of the day}'],
        ['hours of dirty days', '({dirty days}) AS wanted CROSS JOIN LATERAL (
                SELECT * FROM tollgate.spend_rollup AS found
                WHERE found.hour >= wanted.day::timestamp AT TIME ZONE ''UTC''
                    AND found.hour < (wanted.day + 1)::timestamp AT TIME ZONE ''UTC'' OFFSET 0
            ) AS done WHERE NOT {is dirty hour}'],
        -- Hours that are summed come from the roll-up, all others from their events.
        ['hours', 'SELECT {hour names} FROM tollgate.spend_rollup AS done WHERE NOT {is dirty hour}
            UNION ALL {live hours}'],
        ['hours shown', 'hour, {hour groups}, posted_period, {first shown}, {money shown}, {more shown}, key_id,
            {savings shown}'],
        -- Days without a sum come from the sums of their hours, and an hour without one from its events.
        ['days', 'SELECT day, {day names} FROM tollgate.spend_rollup_by_day AS done WHERE {is clean day}
            UNION ALL SELECT wanted.day, {day names} FROM {hours of dirty days}
            UNION ALL SELECT (hour AT TIME ZONE ''UTC'')::date, {day names} FROM ({live hours}) AS live'],
        ['days shown', 'day, {hour groups}, posted_period, {first shown}, {money shown}, {more shown},
            {savings shown}'],
        -- The days of a month that waits. They are found for each such month, so that without any no day is looked at.
        ['late months', 'unnest(ARRAY({dirty months})) AS late (month) CROSS JOIN LATERAL (SELECT * FROM'],
        ['of the late month', 'AS found WHERE found.posted_period = late.month OFFSET 0) AS done
            WHERE NOT is_demo AND {is clean day}']];

    statements constant text[] := ARRAY[
        -- ---- tables
        $$CREATE TABLE tollgate.spend_rollup (
            hour timestamptz, team text, project text, cost_centre text, route text, deployment text, provider text,
            model text, region text, is_self_hosted boolean, data_class text, outcome text, usage_source text,
            posted_period date, is_demo boolean, {first columns}, {early columns}, {more columns}, {late columns},
            key_id text, {savings columns})$$,
        'CREATE INDEX spend_rollup_hour ON tollgate.spend_rollup (hour)',
        -- Every report has a note on idle GPU cost, which reads a month's charges by hour: from the index alone, and
        -- added up once.
        'CREATE INDEX spend_rollup_self_hosted ON tollgate.spend_rollup (hour, deployment)
            INCLUDE (team, cost_centre, attempts, cost_nusd, is_demo, is_self_hosted) WHERE is_self_hosted',
        -- `key_id` and `end_user` have separate sums by day.
        $$CREATE TABLE tollgate.spend_rollup_by_key (
            day date, team text, project text, cost_centre text, key_id text, route text, model text,
            is_self_hosted boolean, posted_period date, is_demo boolean, {first columns}, deployment text,
            provider text, region text, data_class text, outcome text, usage_source text, {more columns},
            {early columns}, {late columns}, {savings columns})$$,
        'CREATE INDEX spend_rollup_by_key_day ON tollgate.spend_rollup_by_key (day)',
        -- The day of a row is for the sums of some days, the month that it is posted to for reports.
        'CREATE INDEX spend_rollup_by_key_month ON tollgate.spend_rollup_by_key (posted_period)',
        $$CREATE TABLE tollgate.spend_rollup_by_end_user (
            day date, team text, project text, cost_centre text, end_user text, route text, model text,
            is_self_hosted boolean, posted_period date, is_demo boolean, {first columns}, deployment text,
            provider text, region text, {requests columns}, {savings columns})$$,
        'CREATE INDEX spend_rollup_by_end_user_day ON tollgate.spend_rollup_by_end_user (day)',
        'CREATE INDEX spend_rollup_by_end_user_month ON tollgate.spend_rollup_by_end_user (posted_period)',
        -- A month has as many rows as users and days.
        'CREATE INDEX spend_rollup_by_end_user_user ON tollgate.spend_rollup_by_end_user (end_user, day)',
        $$CREATE TABLE tollgate.spend_rollup_by_day (
            day date, team text, project text, cost_centre text, route text, deployment text, provider text,
            model text, region text, is_self_hosted boolean, data_class text, outcome text, usage_source text,
            posted_period date, is_demo boolean, {first columns}, {early columns}, {more columns}, {late columns},
            {savings columns})$$,
        'CREATE INDEX spend_rollup_by_day_day ON tollgate.spend_rollup_by_day (day)',
        'CREATE INDEX spend_rollup_by_day_month ON tollgate.spend_rollup_by_day (posted_period)',
        $$CREATE TABLE tollgate.spend_rollup_by_tag (
            day date, team text, project text, cost_centre text, tag_key text, tag text, is_repeat boolean,
            route text, model text, is_self_hosted boolean, posted_period date, is_demo boolean, {first columns},
            {requests columns}, deployment text, provider text, region text, {savings columns}, {known columns})$$,
        'CREATE INDEX spend_rollup_by_tag_day ON tollgate.spend_rollup_by_tag (day)',
        'CREATE INDEX spend_rollup_by_tag_month ON tollgate.spend_rollup_by_tag (posted_period)',
        -- Demo events have no sums by month: they are few. The types are those of the sums by day.
        'CREATE TABLE tollgate.spend_rollup_by_month AS
            SELECT {month names} FROM tollgate.spend_rollup_by_day WITH NO DATA',
        'CREATE INDEX spend_rollup_by_month_month ON tollgate.spend_rollup_by_month (posted_period)',
        'CREATE TABLE tollgate.spend_rollup_by_month_and_key AS
            SELECT {month and key names} FROM tollgate.spend_rollup_by_key WITH NO DATA',
        'CREATE INDEX spend_rollup_by_month_and_key_month
            ON tollgate.spend_rollup_by_month_and_key (posted_period)',
        'CREATE TABLE tollgate.spend_rollup_by_month_and_end_user AS
            SELECT {month and user names} FROM tollgate.spend_rollup_by_end_user WITH NO DATA',
        'CREATE INDEX spend_rollup_by_month_and_end_user_month
            ON tollgate.spend_rollup_by_month_and_end_user (posted_period)',
        -- A user's months are found without those of all others.
        'CREATE INDEX spend_rollup_by_month_and_end_user_user
            ON tollgate.spend_rollup_by_month_and_end_user (end_user, posted_period)',
        'CREATE TABLE tollgate.spend_rollup_by_month_and_tag AS
            SELECT {month and tag names} FROM tollgate.spend_rollup_by_tag WITH NO DATA',
        'CREATE INDEX spend_rollup_by_month_and_tag_month
            ON tollgate.spend_rollup_by_month_and_tag (posted_period)',

        -- ---- functions
        'CREATE FUNCTION tollgate.spend_rollup_of(buckets timestamptz[]) RETURNS SETOF tollgate.spend_rollup
            LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
            AS $$ {select hours} unnest(buckets) AS wanted (bucket) {of the hour} {by hour} $$',

        -- `before` leaves out what is still being written: `demo-data` writes days while earlier ones are summed.
        -- Each statement of these functions sees what was committed before it. An event that is committed between the
        -- DELETE and the sums has its own line in the log, which this run did not take: at worst its hour is summed
        -- once more. Only days that are over: summing the running one again and again would cost a day's events each
        -- time. A day whose hours change meanwhile has a new row in `dirty_days`, and waits.
        $function$CREATE FUNCTION tollgate.refresh_days(most integer, before date DEFAULT 'infinity') RETURNS integer
    {settings}
    AS $$
DECLARE
    days date[];
    first timestamptz;
    past timestamptz;
BEGIN
    IF NOT tollgate.try_lock('refresh_days', 'EXCLUSIVE') THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM tollgate.dirty_days WHERE day IN (
            SELECT DISTINCT day FROM tollgate.dirty_days
            WHERE day < least(before, (now() AT TIME ZONE 'UTC')::date) ORDER BY day LIMIT most)
        RETURNING day
    )
    SELECT coalesce(array_agg(DISTINCT day), '{}') INTO days FROM taken;
    {note months}
    DELETE FROM tollgate.spend_rollup_by_end_user WHERE day = ANY(days);
    DELETE FROM tollgate.spend_rollup_by_tag WHERE day = ANY(days);
    WITH event AS MATERIALIZED (
        SELECT {needed} FROM unnest(days) AS wanted (bucket) {of the day}
    ), by_end_user AS (
        INSERT INTO tollgate.spend_rollup_by_end_user (day, {user names}) {users together}
    )
    INSERT INTO tollgate.spend_rollup_by_tag (day, {tag names}) {select tags} event {by tag};
    DELETE FROM tollgate.spend_rollup_by_key WHERE day = ANY(days);
    DELETE FROM tollgate.spend_rollup_by_day WHERE day = ANY(days);
    FOR first IN SELECT wanted::timestamp AT TIME ZONE 'UTC' FROM unnest(days) AS wanted LOOP
        past := first + interval '24 hours';
        INSERT INTO tollgate.spend_rollup_by_key (day, {key names}) {keys summed};
    END LOOP;
    INSERT INTO tollgate.spend_rollup_by_day (day, {day names}) {days summed};
    {note months}
    RETURN cardinality(days);
END
$$$function$,

        $function$CREATE FUNCTION tollgate.refresh_months(most integer, before date DEFAULT 'infinity') RETURNS integer
    {settings}
    AS $$
DECLARE
    months date[];
BEGIN
    IF NOT tollgate.try_lock('refresh_months', 'EXCLUSIVE') THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM tollgate.dirty_months WHERE month IN (
            SELECT DISTINCT month FROM tollgate.dirty_months
            WHERE month < date_trunc('month', before::timestamp) ORDER BY month DESC LIMIT most)
        RETURNING month
    )
    SELECT coalesce(array_agg(DISTINCT month), '{}') INTO months FROM taken;
    DELETE FROM tollgate.spend_rollup_by_month WHERE posted_period = ANY(months);
    INSERT INTO tollgate.spend_rollup_by_month ({month names})
        SELECT {hour month}, {figures added} FROM tollgate.spend_rollup_by_day
        WHERE posted_period = ANY(months) AND NOT is_demo GROUP BY {hour month};
    DELETE FROM tollgate.spend_rollup_by_month_and_key WHERE posted_period = ANY(months);
    INSERT INTO tollgate.spend_rollup_by_month_and_key ({month and key names})
        SELECT {key month}, {figures added} FROM tollgate.spend_rollup_by_key
        WHERE posted_period = ANY(months) AND NOT is_demo GROUP BY {key month};
    DELETE FROM tollgate.spend_rollup_by_month_and_end_user WHERE posted_period = ANY(months);
    INSERT INTO tollgate.spend_rollup_by_month_and_end_user ({month and user names})
        SELECT {user month}, {first bare}, {requests bare}, {savings bare} FROM tollgate.spend_rollup_by_end_user
        WHERE posted_period = ANY(months) AND NOT is_demo GROUP BY {user month};
    DELETE FROM tollgate.spend_rollup_by_month_and_tag WHERE posted_period = ANY(months);
    INSERT INTO tollgate.spend_rollup_by_month_and_tag ({month and tag names})
        SELECT {tag month}, {tag figures bare} FROM tollgate.spend_rollup_by_tag
        WHERE posted_period = ANY(months) AND NOT is_demo GROUP BY {tag month};
    RETURN cardinality(months);
END
$$$function$,

        -- ---- views
        'CREATE VIEW finance.spend_hourly_detail AS SELECT {hours shown} FROM ({hours}) AS summed WHERE NOT is_demo',
        'CREATE VIEW finance.demo_spend_hourly_detail AS SELECT {hours shown} FROM ({hours}) AS summed WHERE is_demo',
        'CREATE VIEW finance.spend_daily_detail AS SELECT {days shown} FROM ({days}) AS summed WHERE NOT is_demo',
        'CREATE VIEW finance.demo_spend_daily_detail AS SELECT {days shown} FROM ({days}) AS summed WHERE is_demo',
        'CREATE VIEW finance.spend_daily_by_key AS
            SELECT day, {key groups}, posted_period, {first shown}, {money shown}, {places}, {endings}, {more shown},
                {savings shown}
            FROM (
                SELECT day, {key names} FROM tollgate.spend_rollup_by_key AS done WHERE {is clean day}
                UNION ALL SELECT wanted.day, {key names} FROM {hours of dirty days}
                UNION ALL SELECT (hour AT TIME ZONE ''UTC'')::date, {key names} FROM ({live hours}) AS live
            ) AS summed WHERE NOT is_demo',
        -- By end user and by tag, days without a sum come from their events.
        'CREATE VIEW finance.spend_daily_by_end_user AS
            SELECT day, {user groups}, posted_period, {first shown}, {money shown}, {places}, {requests},
                {savings shown}
            FROM (
                SELECT day, {user names} FROM tollgate.spend_rollup_by_end_user AS done WHERE {is clean day}
                UNION ALL {select users} {live day} {by user}
            ) AS summed WHERE NOT is_demo',
        'CREATE VIEW finance.spend_daily_by_tag AS
            SELECT day, {tag groups}, posted_period, {first shown}, {requests}, {money shown}, {places},
                {savings shown}, {known}
            FROM (
                SELECT day, {tag names} FROM tollgate.spend_rollup_by_tag AS done WHERE {is clean day}
                UNION ALL {select tags} {live day} {by tag}
            ) AS summed WHERE NOT is_demo',
        -- A month's sums; the days of a month that waits; and of every month the days that have no sum yet.
        'CREATE VIEW finance.spend_monthly_detail AS
            SELECT {hour month}, {first shown}, {money shown}, {more shown}, {savings shown} FROM (
                SELECT {month names} FROM tollgate.spend_rollup_by_month AS done
                WHERE posted_period <> ALL (ARRAY({dirty months}))
                UNION ALL SELECT {hour groups}, late.month, {month figures}
                FROM {late months} tollgate.spend_rollup_by_day {of the late month}
                UNION ALL SELECT {month names} FROM {hours of dirty days} AND NOT is_demo
                UNION ALL SELECT {month names} FROM ({live hours}) AS live WHERE NOT is_demo
            ) AS summed',
        'CREATE VIEW finance.spend_monthly_by_key AS
            SELECT {key month}, {first shown}, {money shown}, {more shown}, {savings shown} FROM (
                SELECT {month and key names} FROM tollgate.spend_rollup_by_month_and_key AS done
                WHERE posted_period <> ALL (ARRAY({dirty months}))
                UNION ALL SELECT {key groups}, late.month, {places}, {endings}, {month figures}
                FROM {late months} tollgate.spend_rollup_by_key {of the late month}
                UNION ALL SELECT {month and key names} FROM {hours of dirty days} AND NOT is_demo
                UNION ALL SELECT {month and key names} FROM ({live hours}) AS live WHERE NOT is_demo
            ) AS summed',
        'CREATE VIEW finance.spend_monthly_by_end_user AS
            SELECT {user month}, {first shown}, {money shown}, {requests}, {savings shown} FROM (
                SELECT {month and user names} FROM tollgate.spend_rollup_by_month_and_end_user AS done
                WHERE posted_period <> ALL (ARRAY({dirty months}))
                UNION ALL SELECT {user groups}, late.month, {places}, {user figures}
                FROM {late months} tollgate.spend_rollup_by_end_user {of the late month}
                UNION ALL SELECT {month and user names} FROM ({select users} {live day} {by user}) AS live
                WHERE NOT is_demo
            ) AS summed',
        'CREATE VIEW finance.spend_monthly_by_tag AS
            SELECT {tag month}, {first shown}, {money shown}, {requests}, {savings shown}, {known} FROM (
                SELECT {month and tag names} FROM tollgate.spend_rollup_by_month_and_tag AS done
                WHERE posted_period <> ALL (ARRAY({dirty months}))
                UNION ALL SELECT {tag groups}, late.month, {places}, {tag figures}
                FROM {late months} tollgate.spend_rollup_by_tag {of the late month}
                UNION ALL SELECT {month and tag names} FROM ({select tags} {live day} {by tag}) AS live
                WHERE NOT is_demo
            ) AS summed'];

    -- The adoption of a restored ledger makes `written_by` anew, so that no view may depend on it.
    event_columns constant text := (
        SELECT string_agg(format('found.%I', attname), ', ' ORDER BY attnum) FROM pg_attribute
        WHERE attrelid = 'tollgate.usage_events'::regclass AND attnum > 0 AND NOT attisdropped
            AND attname <> 'written_by');
    pieces text[] := parts;
    piece text[];
    waiting_time text;
    added text;
    statement text;
    before text;
BEGIN
    FOREACH piece SLICE 1 IN ARRAY lists LOOP
        pieces := pieces || ARRAY[[piece[1], regexp_replace(piece[2], '\s*\n\s*', ' ', 'g')]];
    END LOOP;
    FOREACH piece SLICE 1 IN ARRAY sums LOOP
        piece[2] := regexp_replace(piece[2], '\s*\n\s*', ' ', 'g');
        added := regexp_replace(piece[2], '(\w+) bigint', 'sum(\1)::bigint AS \1', 'g');
        added := regexp_replace(added, '(\w+) numeric', 'sum(\1) AS \1', 'g');
        added := regexp_replace(added, '(\w+) double precision', 'min(\1) AS \1', 'g');
        pieces := pieces || ARRAY[
            [piece[1], regexp_replace(piece[2], ' (bigint|numeric|double precision)', '', 'g')],
            [piece[1] || ' columns', piece[2]],
            [piece[1] || ' added', added],
            [piece[1] || ' times', regexp_replace(added, '\((\w+)\)', '(\1 * times)', 'g')],
            [piece[1] || ' bare', regexp_replace(added, ' AS \w+', '', 'g')]];
    END LOOP;
    FOREACH waiting_time IN ARRAY times LOOP
        pieces := pieces || ARRAY[
            [waiting_time || ' counts', (
                SELECT 'ARRAY[' || string_agg(format('count(*) FILTER (WHERE %s_bucket = %s)', waiting_time, n), ', '
                                              ORDER BY n) || ']::integer[]'
                FROM generate_series(0, sizes - 1) AS n)],
            [waiting_time || ' added', (
                SELECT 'ARRAY[' || string_agg(format('coalesce(sum(%s_buckets[%s]), 0)', waiting_time, n), ', '
                                              ORDER BY n) || ']::integer[]'
                FROM generate_series(1, sizes) AS n)]];
    END LOOP;
    pieces := pieces || ARRAY[
        ['early columns', 'ttft_buckets integer[], tpot_buckets integer[], duration_buckets integer[]'],
        ['late columns', 'gap_buckets integer[], queue_buckets integer[], overhead_buckets integer[]']];
    FOREACH statement IN ARRAY statements LOOP
        LOOP
            before := statement;
            FOREACH piece SLICE 1 IN ARRAY pieces LOOP
                statement := replace(statement, '{' || piece[1] || '}', piece[2]);
            END LOOP;
            EXIT WHEN statement = before;
        END LOOP;
        IF starts_with(statement, 'CREATE VIEW') THEN
            statement := replace(statement, 'found.*', event_columns);
        END IF;
        EXECUTE statement;
    END LOOP;
END
$rollups$;

CREATE FUNCTION tollgate.refresh_hours(most integer, before timestamptz DEFAULT 'infinity') RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET work_mem = '64MB'
    SET enable_sort = off
    AS $$
DECLARE
    hours timestamptz[];
BEGIN
    IF NOT tollgate.try_lock('refresh_hours', 'EXCLUSIVE') THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM tollgate.dirty_hours WHERE hour IN (
            SELECT DISTINCT hour FROM tollgate.dirty_hours WHERE hour < before ORDER BY hour LIMIT most)
        RETURNING hour
    )
    SELECT coalesce(array_agg(DISTINCT hour), '{}') INTO hours FROM taken;
    INSERT INTO tollgate.dirty_days (day)
        SELECT DISTINCT (taken AT TIME ZONE 'UTC')::date FROM unnest(hours) AS taken;
    DELETE FROM tollgate.spend_rollup WHERE hour = ANY(hours);
    INSERT INTO tollgate.spend_rollup SELECT * FROM tollgate.spend_rollup_of(hours);
    DELETE FROM tollgate.busy_rollup WHERE hour = ANY(hours);
    INSERT INTO tollgate.busy_rollup SELECT * FROM tollgate.busy_rollup_of(hours);
    RETURN cardinality(hours);
END
$$;

-- For readers of a few columns.
CREATE VIEW finance.spend_hourly AS
SELECT hour, team, project, cost_centre, route, deployment, provider, model, region, is_self_hosted,
       sum(attempts)::bigint AS attempts,
       sum(unknown_attempts)::bigint AS unknown_attempts,
       sum(input_tokens) AS input_tokens,
       sum(cached_input_tokens) AS cached_input_tokens,
       sum(output_tokens) AS output_tokens,
       sum(reasoning_tokens) AS reasoning_tokens,
       sum(cost_usd) AS cost_usd,
       sum(held_usd) AS held_usd
FROM finance.spend_hourly_detail
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10;

-- The rank is that of percentile_cont. Within a bucket the values are taken as evenly spread by
-- their ratio, in the first one by their difference. The last one has no upper edge: its lower one
-- is returned.
CREATE FUNCTION finance.time_quantile(counts bigint[], share double precision) RETURNS double precision
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    total bigint := (SELECT sum(one) FROM unnest(counts) AS one);
    wanted double precision := share * (total - 1) + 0.5;
    below bigint := 0;
    part double precision;
BEGIN
    IF coalesce(total, 0) = 0 THEN
        RETURN NULL;
    END IF;
    FOR bucket IN 1..cardinality(counts) LOOP
        IF counts[bucket] > 0 AND below + counts[bucket] >= wanted THEN
            part := (wanted - below) / counts[bucket];
            IF bucket = 1 THEN
                RETURN 0.0005 * part;
            ELSIF bucket = cardinality(counts) THEN
                RETURN 0.0005 * 1.3 ^ (bucket - 2);
            END IF;
            RETURN 0.0005 * 1.3 ^ (bucket - 2 + part);
        END IF;
        below := below + counts[bucket];
    END LOOP;
    RETURN NULL;
END
$$;
