-- The ledger of `python -m bench.gpu_reports`: attempts of three months in the order of their time, two thirds of them on
-- own engines. All that varies comes from one hash of the row's number.
INSERT INTO tollgate.usage_events (
    request_id, attempt, occurred_at, started_at, posted_period, team, cost_centre, key_id, route, deployment, provider,
    model, region, is_self_hosted, data_class, policy_version, operation, outcome, http_status, streamed, input_tokens,
    cached_input_tokens, output_tokens, usage_source, lines, cost_nusd, ttft_s, tpot_s, duration_s, overhead_s,
    features, decision, digest
)
WITH drawn AS MATERIALIZED (
    SELECT n, hashint8extended(n, 0) & 9223372036854775807 AS hash,
           %(since_ms)s::bigint + n * %(span_ms)s::bigint / %(events)s AS at_ms
    FROM generate_series(0::bigint, %(events)s - 1) AS n
), asked AS (
    SELECT *, (lpad(to_hex(at_ms), 12, '0') || '7' || left(md5(n::text), 3) || '8' || substr(md5(n::text), 4, 15))::uuid
           AS id, hash %% 3 AS place, 500 + hash / 64 %% 9973 AS input, 20 + hash / 4096 %% 1511 AS output
    FROM drawn
)
SELECT id, 1, tollgate.uuid7_time(id), tollgate.uuid7_time(id),
       date_trunc('month', tollgate.uuid7_time(id) AT TIME ZONE 'UTC')::date, 'team-' || hash / 7 %% 8, 'CC-1', 'key',
       'assistant', (ARRAY['own-a', 'own-b', 'api'])[1 + place],
       CASE place WHEN 2 THEN 'openai_compatible' ELSE 'vllm' END, 'm', 'eu-de', place < 2, 'internal', 1, 'chat', 'ok',
       200, n %% 2 = 0, input, hash %% 480, output, 'provider', '[]', input * 250 + output * 1000, 0.1, 0.01, 1.5,
       0.0004, '{}', '{}', sha256(int8send(n))
FROM asked;
