-- Limits: windows of the last 60 seconds and slots for running requests, shared by all workers. Claims of idempotency
-- keys, and counts of refusals.

-- ---- limits

-- Unlogged: nothing here is older than a minute, and no write waits for a disk. A crash of Postgres
-- empties them, so that windows begin anew; workers tell of the slots they use within seconds. Each
-- tick of a window is a row that is written for a moment and deleted a minute later: without early
-- vacuuming the dead ones would be most of the table.
CREATE UNLOGGED TABLE tollgate.limit_windows (
    limit_id   text NOT NULL,
    measure    text NOT NULL CHECK (measure IN ('requests', 'tokens', 'concurrent')),
    used       bigint NOT NULL DEFAULT 0,
    touched_at timestamptz NOT NULL,
    PRIMARY KEY (limit_id, measure)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.2);

CREATE UNLOGGED TABLE tollgate.limit_ticks (
    limit_id text NOT NULL,
    measure  text NOT NULL,
    tick     bigint NOT NULL,
    units    bigint NOT NULL CHECK (units >= 0),
    PRIMARY KEY (limit_id, measure, tick)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.2);

CREATE UNLOGGED TABLE tollgate.limit_slots (
    limit_id   text NOT NULL,
    worker     uuid NOT NULL,
    slots      bigint NOT NULL CHECK (slots >= 0),
    renewed_at timestamptz NOT NULL,
    PRIMARY KEY (limit_id, worker)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.2);

CREATE UNLOGGED TABLE tollgate.limit_workers (
    worker   uuid PRIMARY KEY,
    number   bigint NOT NULL,
    answer   jsonb,
    heard_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Needs are [units, times]: each is granted whole or not at all, in order. Only if all of them are
-- granted are units added for later, fewer near the limit: an eighth of the remainder, for all
-- workers together.
CREATE FUNCTION tollgate.units_granted(units_left bigint, needs jsonb, ahead bigint, workers bigint) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    need    record;
    met     bigint;
    granted bigint := 0;
BEGIN
    FOR need IN
        SELECT (value ->> 0)::bigint AS units, (value ->> 1)::bigint AS times
        FROM jsonb_array_elements(needs) WITH ORDINALITY AS listed(value, place) ORDER BY place
    LOOP
        met := least(need.times, greatest(units_left - granted, 0) / need.units);
        granted := granted + met * need.units;
        IF met < need.times THEN
            ahead := 0;
        END IF;
    END LOOP;
    RETURN granted + greatest(least(ahead, (units_left - granted) / (8 * workers)), 0);
END
$$;

CREATE FUNCTION tollgate.forget_idle_limits() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    idle record;
BEGIN
    FOR idle IN
        SELECT limit_id, measure FROM tollgate.limit_windows
        WHERE touched_at < clock_timestamp() - interval '2 minutes' LIMIT 1000 FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM tollgate.limit_ticks AS old WHERE old.limit_id = idle.limit_id AND old.measure = idle.measure;
        IF idle.measure = 'concurrent' THEN
            DELETE FROM tollgate.limit_slots AS old WHERE old.limit_id = idle.limit_id;
        END IF;
        DELETE FROM tollgate.limit_windows AS old WHERE old.limit_id = idle.limit_id AND old.measure = idle.measure;
    END LOOP;
    DELETE FROM tollgate.limit_workers WHERE worker IN (
        SELECT worker FROM tollgate.limit_workers
        WHERE heard_at < clock_timestamp() - interval '10 minutes' FOR UPDATE SKIP LOCKED);
END
$$;

-- A tick is 25 ms of the server's clock; 60 seconds are 2,400. A unit counts in its own tick and
-- the 2,400 after it, so for 60 seconds and at most one tick more. Rows are locked in the order of
-- their names, and the clock is read after the lock: one worker's units are in the window of the
-- next.
CREATE FUNCTION tollgate.exchange_units(asking uuid, exchange bigint, asks jsonb) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    known      record;
    ask        record;
    correction record;
    slide      record;
    workers    bigint;
    moment     timestamptz;
    now_ms     bigint;
    now_tick   bigint;
    in_use     bigint;
    changed    bigint;
    granted    bigint;
    sliding    bigint;
    slides     jsonb;
    answers    jsonb := '[]';
    all_of_it  jsonb;
BEGIN
    INSERT INTO tollgate.limit_workers AS worker (worker, number, heard_at)
        VALUES (asking, exchange, clock_timestamp())
        ON CONFLICT (worker) DO UPDATE SET heard_at = excluded.heard_at
        RETURNING worker.number, worker.answer INTO known;
    -- The answer to this very question was lost on its way: once more, without taking anything again.
    IF known.answer IS NOT NULL AND known.number = exchange THEN
        RETURN known.answer || '{"is_repeat": true}';
    END IF;
    SELECT count(*) INTO workers FROM tollgate.limit_workers WHERE heard_at > clock_timestamp() - interval '15 s';

    FOR ask IN
        SELECT * FROM jsonb_to_recordset(asks) AS asked(limit_id text, measure text, most bigint, needs jsonb,
                                                        ahead bigint, kept bigint, corrections jsonb)
        ORDER BY limit_id COLLATE "C", measure COLLATE "C"
    LOOP
        INSERT INTO tollgate.limit_windows AS held (limit_id, measure, touched_at)
            VALUES (ask.limit_id, ask.measure, clock_timestamp())
            ON CONFLICT (limit_id, measure) DO UPDATE SET touched_at = excluded.touched_at
            RETURNING held.used INTO in_use;
        moment := clock_timestamp();
        now_ms := floor(extract(epoch FROM moment) * 1000);
        now_tick := now_ms / 25;
        slides := '[]';

        IF ask.measure = 'concurrent' THEN
            DELETE FROM tollgate.limit_slots AS slot
                WHERE slot.limit_id = ask.limit_id AND slot.renewed_at < moment - interval '15 s';
            SELECT coalesce(sum(slots), 0) INTO in_use FROM tollgate.limit_slots AS slot
                WHERE slot.limit_id = ask.limit_id AND slot.worker <> asking;
            granted := ask.kept
                + tollgate.units_granted(ask.most - in_use - ask.kept, ask.needs, ask.ahead, workers);
            INSERT INTO tollgate.limit_slots AS slot (limit_id, worker, slots, renewed_at)
                VALUES (ask.limit_id, asking, granted, moment)
                ON CONFLICT (limit_id, worker) DO UPDATE SET slots = excluded.slots, renewed_at = excluded.renewed_at;
            in_use := in_use + granted;
        ELSE
            -- Later than now are those of a clock that was set back since: they would fill the window for as long.
            WITH gone AS (
                DELETE FROM tollgate.limit_ticks AS old
                WHERE old.limit_id = ask.limit_id AND old.measure = ask.measure
                  AND (old.tick < now_tick - 2400 OR old.tick > now_tick + 40)
                RETURNING old.units
            ) SELECT coalesce(sum(units), 0) INTO changed FROM gone;
            in_use := in_use - changed;

            FOR correction IN
                SELECT (value ->> 0)::bigint AS tick, (value ->> 1)::bigint AS units
                FROM jsonb_array_elements(ask.corrections)
            LOOP
                IF correction.units > 0 THEN
                    -- 0: taken by a worker that had never heard from here.
                    IF correction.tick = 0 OR correction.tick > now_tick THEN
                        correction.tick := now_tick;
                    END IF;
                    CONTINUE WHEN correction.tick < now_tick - 2400;
                    INSERT INTO tollgate.limit_ticks AS taken (limit_id, measure, tick, units)
                        VALUES (ask.limit_id, ask.measure, correction.tick, correction.units)
                        ON CONFLICT (limit_id, measure, tick) DO UPDATE SET units = taken.units + excluded.units;
                    in_use := in_use + correction.units;
                ELSE
                    WITH old AS (
                        SELECT units FROM tollgate.limit_ticks AS before
                        WHERE before.limit_id = ask.limit_id AND before.measure = ask.measure
                          AND before.tick = correction.tick
                    ), given AS (
                        UPDATE tollgate.limit_ticks AS taken
                        SET units = greatest(taken.units + correction.units, 0)
                        WHERE taken.limit_id = ask.limit_id AND taken.measure = ask.measure
                          AND taken.tick = correction.tick
                        RETURNING taken.units
                    ) SELECT coalesce(sum(old.units - given.units), 0) INTO changed FROM old, given;
                    in_use := in_use - changed;
                END IF;
            END LOOP;

            granted := tollgate.units_granted(ask.most - in_use, ask.needs, ask.ahead, workers);
            IF granted > 0 THEN
                INSERT INTO tollgate.limit_ticks AS taken (limit_id, measure, tick, units)
                    VALUES (ask.limit_id, ask.measure, now_tick, granted)
                    ON CONFLICT (limit_id, measure, tick) DO UPDATE SET units = taken.units + excluded.units;
            END IF;
            in_use := in_use + granted;
            UPDATE tollgate.limit_windows AS held SET used = in_use
                WHERE held.limit_id = ask.limit_id AND held.measure = ask.measure;

            -- As many of the next to slide out as the largest need is short of, so that it can be told when to come.
            sliding := in_use - ask.most
                + (SELECT coalesce(max((value ->> 0)::bigint), 1) FROM jsonb_array_elements(ask.needs));
            FOR slide IN
                SELECT tick, units FROM tollgate.limit_ticks AS next
                WHERE next.limit_id = ask.limit_id AND next.measure = ask.measure AND next.units > 0
                ORDER BY next.tick LIMIT 200
            LOOP
                slides := slides || jsonb_build_array(
                    jsonb_build_array((slide.tick + 2401) * 25 - now_ms, slide.units));
                sliding := sliding - slide.units;
                EXIT WHEN sliding <= 0;
            END LOOP;
        END IF;
        answers := answers || jsonb_build_array(jsonb_build_object(
            'limit_id', ask.limit_id, 'measure', ask.measure, 'tick', now_tick, 'granted', granted,
            'used', in_use, 'slides', slides));
    END LOOP;

    -- Nobody waits for this: what is locked is in use.
    IF jsonb_array_length(asks) = 0 THEN
        PERFORM tollgate.forget_idle_limits();
    END IF;
    all_of_it := jsonb_build_object(
        'workers', workers, 'now_ms', floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, 'answers', answers);
    UPDATE tollgate.limit_workers AS worker SET number = exchange, answer = all_of_it
        WHERE worker.worker = asking;
    RETURN all_of_it;
END
$$;

-- ---- idempotency keys

-- Which request of a team has a key, and whether it has ended. Keyed hashes, never the key or the
-- body. No answer is kept either.
CREATE TABLE tollgate.idempotency_claims (
    team        text NOT NULL,
    key_hash    bytea NOT NULL,
    body_hash   bytea NOT NULL,
    request_id  uuid NOT NULL,
    journal_id  uuid NOT NULL,
    state       text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished')),
    claimed_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (team, key_hash),
    CONSTRAINT hashes_are_whole CHECK (length(key_hash) = 32 AND length(body_hash) = 32),
    CONSTRAINT finished_has_its_time CHECK ((state = 'finished') = (finished_at IS NOT NULL))
);
CREATE INDEX idempotency_claims_claimed_at ON tollgate.idempotency_claims (claimed_at);
-- Those that a worker leaves behind, found by its journal.
CREATE INDEX idempotency_claims_running ON tollgate.idempotency_claims (journal_id) WHERE state = 'running';

-- ---- refusals

-- Requests that were decided against leave no attempt; how many there were, and by which rules, is
-- kept. A worker writes how many it has refused in an hour so far, not how many more: written
-- twice, it is the same.
--
-- Counted by project, key and rule in `refusal_counts`; gateways of an earlier release write into
-- `refusals`, by its own primary key. The view adds up both. It shows at most 1,000 rows of a team
-- and hour, however many workers counted: 950 by name, and the rest by code, under the rule
-- `other`.
CREATE TABLE tollgate.refusals (
    journal_id uuid NOT NULL,
    hour       timestamptz NOT NULL CHECK (hour = date_trunc('hour', hour, 'UTC')),
    team       text NOT NULL,
    route      text NOT NULL,
    data_class text NOT NULL,
    code       text NOT NULL,
    rules      text[] NOT NULL,
    requests   bigint NOT NULL CHECK (requests > 0),
    PRIMARY KEY (hour, team, route, data_class, code, rules, journal_id)
);

CREATE TABLE tollgate.refusal_counts (
    journal_id uuid NOT NULL,
    hour       timestamptz NOT NULL CHECK (hour = date_trunc('hour', hour, 'UTC')),
    team       text NOT NULL,
    project    text NOT NULL,
    key_id     text NOT NULL,
    route      text NOT NULL,
    data_class text NOT NULL,
    code       text NOT NULL,
    rules      text[] NOT NULL,
    rule       text NOT NULL,
    requests   bigint NOT NULL CHECK (requests > 0),
    PRIMARY KEY (hour, team, project, key_id, route, data_class, code, rules, rule, journal_id)
);
CREATE VIEW finance.refusals AS
SELECT hour, team, route, data_class, code, rules, sum(requests)::bigint AS requests, project, key_id, rule
FROM (SELECT hour, team, code, requests,
             CASE WHEN is_named THEN nullif(route, '') END AS route,
             CASE WHEN is_named THEN nullif(data_class, '') END AS data_class,
             CASE WHEN is_named THEN rules ELSE '{}' END AS rules,
             CASE WHEN is_named THEN nullif(project, '') END AS project,
             CASE WHEN is_named THEN nullif(key_id, '') END AS key_id,
             CASE WHEN is_named THEN nullif(rule, '') ELSE 'other' END AS rule
      FROM (SELECT *, rule <> 'other' AND row_number() OVER (
                PARTITION BY hour, team
                ORDER BY rule = 'other', code, rule, route, key_id, project, data_class, rules) <= 950
                AS is_named
            FROM (SELECT hour, team, project, key_id, route, data_class, code, rules, rule,
                         sum(requests) AS requests
                  FROM (SELECT hour, team, project, key_id, route, data_class, code, rules, rule, requests
                        FROM tollgate.refusal_counts
                        UNION ALL
                        SELECT hour, team, '', '', route, data_class, code, rules, coalesce(rules[1], ''), requests
                        FROM tollgate.refusals) AS every
                  GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9) AS counted) AS ranked) AS shown
GROUP BY hour, team, route, data_class, code, rules, project, key_id, rule;
