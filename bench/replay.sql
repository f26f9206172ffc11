-- The past of `python -m bench.replay`: one row an attempt, from the tables `kinds` and `places`.
--
-- All that varies comes from one hash of the row's number and the seed, so that the same seed makes the same past. One
-- request in a hundred failed somewhere before it was answered, where its route has a second place; of one in a thousand
-- nobody knows what it cost.
INSERT INTO tollgate.usage_events (
    request_id, attempt, occurred_at, started_at, posted_period, team, project, cost_centre, key_id, tags, route,
    deployment, provider, model, region, is_self_hosted, data_class, policy_version, operation, outcome, http_status,
    streamed, input_tokens, cached_input_tokens, output_tokens, usage_source, price_id, lines, cost_nusd, held_nusd,
    ttft_s, tpot_s, duration_s, overhead_s, finish_reason, features, decision, digest
)
WITH drawn AS MATERIALIZED (
    SELECT n, hashint8extended(n, %(seed)s) & 9223372036854775807 AS hash,
           %(since_ms)s::bigint + n * %(span_ms)s::bigint / %(events)s AS at_ms
    FROM generate_series(0::bigint, %(events)s - 1) AS n
), asked AS (
    SELECT n, at_ms, md5(hash::text) AS digits, hash / 4096 AS hash, kinds.*, n %% 3 = 0 AS is_stream,
           CASE WHEN n %% 100 = 0 THEN jsonb_array_length(decision -> 'ranked') ELSE 1 END AS tries
    FROM drawn JOIN kinds ON kinds.number = hash %% (SELECT count(*) FROM kinds)
), tried AS (
    SELECT *, (lpad(to_hex(at_ms), 12, '0') || '7' || left(digits, 3) || '8' || substr(digits, 4, 15))::uuid AS id,
           decision -> 'ranked' ->> (attempt - 1) AS deployment, 500 + hash %% 9973 AS whole,
           CASE WHEN attempt < tries THEN 'failed' WHEN n %% 1000 = 1 THEN 'cut' ELSE 'ok' END AS state
    FROM asked CROSS JOIN LATERAL generate_series(1, tries) AS attempt
), used AS (
    SELECT *, tollgate.uuid7_time(id) AS at,
           CASE state WHEN 'ok' THEN whole - hash %% 480 WHEN 'failed' THEN 0 END AS plain,
           CASE state WHEN 'ok' THEN hash %% 480 WHEN 'failed' THEN 0 END AS cached,
           CASE state WHEN 'ok' THEN 20 + hash / 16 %% 1511 WHEN 'failed' THEN 0 END AS output
    FROM tried JOIN places USING (deployment)
)
SELECT id, attempt, at, at, date_trunc('month', at AT TIME ZONE 'UTC')::date, team, project, cost_centre, key_id,
       '{"env": "production"}', route, deployment, 'openai_compatible', deployment || '-1', region, false, data_class,
       1, 'chat', CASE state WHEN 'failed' THEN 'upstream_error' WHEN 'cut' THEN 'upstream_cut' ELSE 'ok' END,
       CASE state WHEN 'failed' THEN 503 ELSE 200 END, is_stream, plain + cached, cached, output,
       CASE state WHEN 'failed' THEN 'none' WHEN 'cut' THEN 'unknown' ELSE 'provider' END, price_id,
       CASE state WHEN 'ok' THEN format(
           '[{"kind": "input", "tokens": %%s, "usd_per_mtok": "%%s", "cost_nusd": %%s}, '
           '{"kind": "cached_input", "tokens": %%s, "usd_per_mtok": "%%s", "cost_nusd": %%s}, '
           '{"kind": "output", "tokens": %%s, "usd_per_mtok": "%%s", "cost_nusd": %%s}]',
           plain, plain_usd, plain * plain_nusd, cached, cached_usd, cached * cached_nusd,
           output, output_usd, output * output_nusd)::jsonb ELSE '[]' END,
       plain * plain_nusd + cached * cached_nusd + output * output_nusd,
       CASE state WHEN 'cut' THEN whole * plain_nusd + 2048 * output_nusd END,
       CASE WHEN is_stream AND state = 'ok' THEN 0.1 + hash %% 97 / 100.0 END,
       CASE WHEN is_stream AND state = 'ok' THEN 0.01 + hash %% 13 / 1000.0 END, 1.5, 0.0004,
       CASE state WHEN 'ok' THEN 'stop' END,
       jsonb_build_object('max_output_tokens', CASE WHEN n %% 2 = 0 THEN 2048 END, 'input_bound_tokens', 4 * whole,
                          'capabilities', capabilities, 'features', '[]'::jsonb, 'class_source', class_source),
       decision, sha256(int8send(n))
FROM used
