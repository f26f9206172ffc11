-- The ledger: months, workers' journals, adjustments, and the events of usage.

-- ---- months

CREATE TABLE tollgate.periods (
    month       date PRIMARY KEY CHECK (extract(day FROM month) = 1),
    state       text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'provisional', 'closed')),
    opened_at   timestamptz NOT NULL DEFAULT now(),
    reopened_at timestamptz
);

-- As the owner: a row can only be locked by who may update it, and the gateway must not close or
-- reopen a month. Closed months end at one month, so the oldest month that is not closed is the one
-- after it.
CREATE FUNCTION tollgate.posting_months(months date[]) RETURNS TABLE (own date, posted date)
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

-- ---- journals and dead letters

CREATE TABLE tollgate.journals (
    id             uuid PRIMARY KEY,
    replica        text NOT NULL,
    started_at     timestamptz NOT NULL DEFAULT now(),
    heartbeat      timestamptz NOT NULL DEFAULT now(),
    written        bigint NOT NULL DEFAULT 0,
    state          text NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'drained', 'lost')),
    note           text,
    -- A worker that lives on after its journal was given up as lost must hear of it once, whatever it has noted since.
    times_lost     integer NOT NULL DEFAULT 0,
    -- The version that a live worker serves from; both or none.
    policy_version integer,
    policy_seen_at timestamptz,
    lost_at        timestamptz,
    CONSTRAINT a_version_was_seen_some_time CHECK ((policy_version IS NULL) = (policy_seen_at IS NULL))
);
CREATE FUNCTION tollgate.note_loss() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$ BEGIN NEW.lost_at := now(); RETURN NEW; END $$;
CREATE TRIGGER journals_note_their_loss BEFORE UPDATE ON tollgate.journals
    FOR EACH ROW WHEN (NEW.state = 'lost' AND OLD.state <> 'lost') EXECUTE FUNCTION tollgate.note_loss();

-- A gateway gives up a silent journal by rule; only an operator's declaration is an act.
CREATE FUNCTION tollgate.audit_journal() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF NOT tollgate.is_gateway() THEN
        PERFORM tollgate.note_audit(
            'journal.lost', NEW.id::text, jsonb_strip_nulls(jsonb_build_object(
                'replica', NEW.replica, 'note', NEW.note, 'heartbeat', OLD.heartbeat, 'written', OLD.written)));
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER journals_noted_for_audit AFTER UPDATE ON tollgate.journals
    FOR EACH ROW WHEN (NEW.state = 'lost' AND OLD.state <> 'lost') EXECUTE FUNCTION tollgate.audit_journal();
CREATE TRIGGER journals_removal_noted_for_audit AFTER DELETE ON tollgate.journals
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('journal', '', 'id');
CREATE TRIGGER journals_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.journals
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('journal');

-- Bytes, not text: what lies here may be text that Postgres cannot hold.
CREATE TABLE tollgate.dead_letters (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    journal_id  uuid,
    document    bytea NOT NULL,
    error       text NOT NULL,
    digest      bytea NOT NULL UNIQUE,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    resolved_at timestamptz,
    resolved_by text,
    resolution  text
);
-- A document that the ledger could not take may be of a request whose claim is to be closed.
CREATE INDEX dead_letters_journal_id ON tollgate.dead_letters (journal_id);
CREATE TRIGGER dead_letters_noted_for_audit AFTER UPDATE OR DELETE ON tollgate.dead_letters
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('dead_letter', '', 'id', 'document');
CREATE TRIGGER dead_letters_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.dead_letters
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('dead_letter');

CREATE VIEW finance.journals AS
SELECT id, replica, started_at, heartbeat, written, state, note, lost_at FROM tollgate.journals;

-- ---- adjustments

-- A re-allocation is one row, so its two sides always sum to 0. Its adjustments are inserted by the
-- approval alone, and reference it.
CREATE TABLE tollgate.reallocations (
    reallocation_id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    month            date NOT NULL CONSTRAINT reallocations_month_check CHECK (EXTRACT(day FROM month) = 1),
    from_cost_centre text NOT NULL CONSTRAINT reallocations_have_an_origin CHECK (from_cost_centre <> ''),
    to_cost_centre   text NOT NULL CONSTRAINT reallocations_have_a_target CHECK (to_cost_centre <> ''),
    amount_nusd      bigint NOT NULL CONSTRAINT reallocations_move_money CHECK (amount_nusd > 0),
    reason           text NOT NULL CONSTRAINT reallocations_have_a_reason CHECK (reason <> ''),
    author_login     text NOT NULL DEFAULT session_user,
    author           text DEFAULT nullif(current_setting('tollgate.person', true), ''),
    created_at       timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT reallocations_have_two_sides CHECK (from_cost_centre <> to_cost_centre)
);

CREATE TABLE tollgate.reallocation_approvals (
    reallocation_id uuid PRIMARY KEY REFERENCES tollgate.reallocations,
    reason          text NOT NULL CONSTRAINT approvals_have_a_reason CHECK (reason <> ''),
    approver_login  text NOT NULL DEFAULT session_user,
    approver        text DEFAULT nullif(current_setting('tollgate.person', true), ''),
    approved_at     timestamptz NOT NULL DEFAULT now(),
    posted_period   date NOT NULL
);

-- `settles`: the attempt's cost was unknown, and this is the adjustment that lets its hold go.
-- There is at most one. A charge that is for no team's usage is booked without a team. A late bill
-- has a deployment and no team.
CREATE TABLE tollgate.adjustments (
    adjustment_id   uuid PRIMARY KEY,
    request_id      uuid,
    attempt         smallint,
    team            text,
    cost_centre     text,
    posted_period   date NOT NULL,
    occurred_at     timestamptz NOT NULL,
    amount_nusd     bigint NOT NULL,
    kind            text NOT NULL,
    reason          text NOT NULL,
    author          text NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    digest          bytea,
    settles         boolean NOT NULL DEFAULT false,
    reallocation_id uuid REFERENCES tollgate.reallocation_approvals,
    -- The transaction that wrote the row, so that an incremental export misses no row and repeats none.
    written_by      xid8 NOT NULL DEFAULT pg_current_xact_id(),
    deployment      text,
    CONSTRAINT requests_have_a_team CHECK (team IS NOT NULL OR request_id IS NULL),
    CONSTRAINT reallocations_are_named CHECK ((kind = 'reallocation') = (reallocation_id IS NOT NULL)),
    CONSTRAINT late_bills_have_a_deployment CHECK (
        kind <> 'late_bill' OR (deployment IS NOT NULL AND team IS NULL))
);
CREATE UNIQUE INDEX adjustments_one_a_document
    ON tollgate.adjustments (request_id, attempt, kind, digest) WHERE digest IS NOT NULL;
CREATE UNIQUE INDEX adjustments_settle_once ON tollgate.adjustments (request_id, attempt) WHERE settles;
CREATE UNIQUE INDEX adjustments_resolve_once
    ON tollgate.adjustments (request_id, attempt) WHERE kind = 'resolution';
CREATE INDEX adjustments_request_id ON tollgate.adjustments (request_id, attempt);
CREATE INDEX adjustments_posted_period ON tollgate.adjustments (posted_period);
CREATE UNIQUE INDEX adjustments_one_a_side ON tollgate.adjustments (reallocation_id, cost_centre)
    WHERE reallocation_id IS NOT NULL;
CREATE INDEX adjustments_written_by ON tollgate.adjustments (written_by);
SELECT tollgate.make_immutable('tollgate.adjustments');

-- Adjustments come in thousands: those of one kind are one act, with their number and their sum. A
-- re-allocation is noted by its entry and its approval. A late bill has neither a request nor a
-- team.
CREATE FUNCTION tollgate.audit_adjustments() RETURNS trigger
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
-- Its name comes after `adjustments_move_budgets`: so that budgets are locked first, and the audit
-- log last.
CREATE TRIGGER adjustments_noted_for_audit AFTER INSERT ON tollgate.adjustments
    REFERENCING NEW TABLE AS booked FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_adjustments();

-- ---- events

-- The moment inside a UUIDv7. Days and milliseconds are counted in integers: seconds as a float are
-- not exact for far dates, and `timestamp + interval` is immutable where `timestamptz + interval`
-- is not.
CREATE FUNCTION tollgate.uuid7_ms(id uuid) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ('x' || translate(substr(id::text, 1, 13), '-', ''))::bit(48)::bigint;

CREATE FUNCTION tollgate.uuid7_time(id uuid) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (timestamp '1970-01-01'
            + (tollgate.uuid7_ms(id) / 86400000) * interval '1 day'
            + (tollgate.uuid7_ms(id) % 86400000) * interval '1 millisecond') AT TIME ZONE 'UTC';

-- Each of an event's holds is [account, beginning of the period in seconds, nano-dollars held, is
-- it an overdraft].
CREATE FUNCTION tollgate.are_holds(holds jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT jsonb_typeof(holds) = 'array' AND coalesce(bool_and(
        CASE WHEN jsonb_typeof(hold) = 'array' AND jsonb_array_length(hold) = 4
                  AND jsonb_typeof(hold -> 0) = 'string' AND hold ->> 0 <> ''
                  AND hold ->> 1 ~ '^[0-9]{1,11}$' AND jsonb_typeof(hold -> 1) = 'number'
                  AND hold ->> 2 ~ '^[0-9]{1,19}$' AND jsonb_typeof(hold -> 2) = 'number'
                  AND jsonb_typeof(hold -> 3) = 'boolean'
        THEN (hold ->> 1)::numeric <= 32503680000 AND (hold ->> 2)::numeric <= 9223372036854775807
        ELSE false END), true) AND count(*) = count(DISTINCT (hold -> 0, hold -> 1))
    FROM jsonb_array_elements(CASE jsonb_typeof(holds) WHEN 'array' THEN holds ELSE '[]' END) AS hold
    $$;

CREATE TABLE tollgate.usage_events (
    request_id          uuid NOT NULL,
    attempt             smallint NOT NULL,
    occurred_at         timestamptz NOT NULL,
    started_at          timestamptz NOT NULL,
    recorded_at         timestamptz NOT NULL DEFAULT now(),
    posted_period       date NOT NULL,
    team                text NOT NULL,
    project             text,
    cost_centre         text NOT NULL,
    key_id              text NOT NULL,
    end_user            text,
    tags                jsonb NOT NULL DEFAULT '{}',
    route               text NOT NULL,
    deployment          text NOT NULL,
    provider            text NOT NULL,
    model               text NOT NULL,
    region              text NOT NULL,
    is_self_hosted      boolean NOT NULL,
    data_class          text NOT NULL,
    policy_version      integer NOT NULL,
    operation           text NOT NULL,
    outcome             text NOT NULL,
    http_status         smallint,
    streamed            boolean NOT NULL,
    input_tokens        bigint,
    cached_input_tokens bigint,
    cache_write_tokens  bigint,
    output_tokens       bigint,
    reasoning_tokens    bigint,
    usage_source        text NOT NULL,
    price_id            text,
    lines               jsonb NOT NULL,
    cost_nusd           bigint,
    held_nusd           bigint,
    ttft_s              double precision,
    tpot_s              double precision,
    duration_s          double precision,
    overhead_s          double precision,
    finish_reason       text,
    client_request_id   text,
    upstream_request_id text,
    is_suspect          boolean NOT NULL DEFAULT false,
    is_demo             boolean NOT NULL DEFAULT false,
    features            jsonb NOT NULL,
    decision            jsonb NOT NULL,
    digest              bytea NOT NULL,
    service_tier        text,
    reported_usage      jsonb,
    usage_detail        jsonb,
    is_stand_in_price   boolean NOT NULL DEFAULT false,
    holds               jsonb NOT NULL DEFAULT '[]',
    queue_s             double precision,
    max_gap_s           double precision,
    engine_queue_s      double precision,
    degraded            text,
    written_by          xid8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (request_id, attempt, occurred_at),
    -- Ties the partition key to the id: so (request_id, attempt) is unique across all partitions.
    CONSTRAINT occurred_at_is_of_request_id CHECK (occurred_at = tollgate.uuid7_time(request_id)),
    CONSTRAINT posted_period_is_a_month CHECK (extract(day FROM posted_period) = 1),
    -- One list where an object belongs would make every later report by tag fail.
    CONSTRAINT json_has_its_shape CHECK (
        jsonb_typeof(tags) = 'object' AND jsonb_typeof(lines) = 'array'
        AND jsonb_typeof(features) = 'object' AND jsonb_typeof(decision) = 'object'),
    -- Postgres holds later dates than any reader does: one such event would break every report for ever.
    CONSTRAINT moments_can_be_read CHECK (
        substr(request_id::text, 15, 1) = '7' AND occurred_at < '3000-01-01 00:00:00+00'
        AND started_at BETWEEN '1970-01-01 00:00:00+00' AND '3000-01-01 00:00:00+00'),
    CONSTRAINT holds_have_their_shape CHECK (holds = '[]' OR tollgate.are_holds(holds))
) PARTITION BY RANGE (occurred_at);
CREATE INDEX usage_events_team_occurred_at ON tollgate.usage_events (team, occurred_at);
CREATE INDEX usage_events_key_id_occurred_at ON tollgate.usage_events (key_id, occurred_at);
-- Not BRIN, which knows nothing of the pages since the last vacuum. Each search for an hour read
-- all of them: twelve times its events, in a month of ten million that was being written.
CREATE INDEX usage_events_occurred_at ON tollgate.usage_events (occurred_at);
CREATE INDEX usage_events_unknown ON tollgate.usage_events (occurred_at) WHERE cost_nusd IS NULL;
-- A stored response is found by the id that its upstream gave it, among any number of events.
CREATE INDEX usage_events_response ON tollgate.usage_events (upstream_request_id)
    WHERE operation = 'responses' AND upstream_request_id IS NOT NULL;
CREATE INDEX usage_events_late ON tollgate.usage_events (posted_period)
    WHERE posted_period <> (date_trunc('month', occurred_at AT TIME ZONE 'UTC'))::date;
CREATE INDEX usage_events_to_check ON tollgate.usage_events (posted_period)
    WHERE cost_nusd IS NULL OR is_suspect OR is_stand_in_price OR (price_id IS NULL AND usage_source <> 'none');
-- Postgres has no BRIN operators for xid8, and a BRIN index reads all rows since the last vacuum.
-- New numbers go to the last page of a b-tree, and rows of one transaction share an entry: it is
-- small.
CREATE INDEX usage_events_written_by ON tollgate.usage_events (written_by);
CREATE TABLE tollgate.usage_events_default PARTITION OF tollgate.usage_events DEFAULT;
SELECT tollgate.make_immutable('tollgate.usage_events');
SELECT tollgate.make_immutable('tollgate.usage_events_default');

-- The clock is that of the row: `now()` of an open transaction can lie in a month that has closed
-- since.
CREATE FUNCTION tollgate.refuse_later_date() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION 'a fact is dated after its writing'
        USING ERRCODE = 'serialization_failure', HINT = 'Leave its date to Postgres, and run it again.';
END
$$;
CREATE TRIGGER events_are_dated_by_their_writing AFTER INSERT ON tollgate.usage_events FOR EACH ROW
    WHEN (NOT NEW.is_demo AND NEW.recorded_at > clock_timestamp()) EXECUTE FUNCTION tollgate.refuse_later_date();
CREATE TRIGGER adjustments_are_dated_by_their_writing AFTER INSERT ON tollgate.adjustments FOR EACH ROW
    WHEN (NEW.created_at > clock_timestamp()) EXECUTE FUNCTION tollgate.refuse_later_date();

-- ---- a table for each month

-- Runs as the owner: the gateway's role may not create tables. The range bounds the tables that a
-- caller can have created. Attached rather than created as a partition: that does not lock out the
-- readers of the other months. A new partition refuses changes, yet rows may leave the default one.
-- Switching a trigger off is left to the table's owner, which this function runs as, and lasts for
-- a transaction that holds the table for itself: nothing that a caller could set or say opens that
-- door.
CREATE FUNCTION tollgate.ensure_month(month date) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
    AS $$
DECLARE
    first_day date := date_trunc('month', month);
    starts timestamptz := first_day::timestamp AT TIME ZONE 'UTC';
    ends timestamptz := (first_day + interval '1 month') AT TIME ZONE 'UTC';
    partition text := 'usage_events_' || to_char(first_day, 'YYYY_MM');
BEGIN
    IF first_day NOT BETWEEN current_date - interval '10 years' AND current_date + interval '2 years' THEN
        RAISE EXCEPTION 'month % is more than 10 years ago or 2 years ahead', first_day
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOCK TABLE tollgate.lock_ensure_month IN EXCLUSIVE MODE;
    IF to_regclass('tollgate.' || partition) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE format('CREATE TABLE tollgate.%I (LIKE tollgate.usage_events INCLUDING ALL)', partition);
    -- Writers wait at the parent, before they choose a partition: one that had chosen the default partition and waited
    -- there would be refused after the attachment, since its rows belong elsewhere then.
    LOCK TABLE tollgate.usage_events IN SHARE ROW EXCLUSIVE MODE;
    LOCK TABLE ONLY tollgate.usage_events_default IN ACCESS EXCLUSIVE MODE;
    ALTER TABLE tollgate.usage_events_default DISABLE TRIGGER rows_never_change;
    EXECUTE format(
        'WITH moved AS (DELETE FROM tollgate.usage_events_default WHERE occurred_at >= %L AND occurred_at < %L '
        'RETURNING *) INSERT INTO tollgate.%I SELECT * FROM moved', starts, ends, partition);
    ALTER TABLE tollgate.usage_events_default ENABLE TRIGGER rows_never_change;
    EXECUTE format(
        'ALTER TABLE tollgate.usage_events ATTACH PARTITION tollgate.%I FOR VALUES FROM (%L) TO (%L)',
        partition, starts, ends);
    PERFORM tollgate.make_immutable(format('tollgate.%I', partition)::regclass);
    RETURN partition;
END
$$;

-- Attaches the table of a month that was detached, as `ensure_month` attaches a new one. The table
-- has its triggers: a detached partition keeps them. The hours are summed again: the sums may have
-- lost its events meanwhile. No role may call it: only the owner may attach, and is asked for by
-- `tollgate db upgrade`.
CREATE FUNCTION tollgate.attach_month(month date) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '10s'
    AS $$
DECLARE
    first_day date := date_trunc('month', month);
    starts timestamptz := first_day::timestamp AT TIME ZONE 'UTC';
    ends timestamptz := (first_day + interval '1 month') AT TIME ZONE 'UTC';
    partition text := 'usage_events_' || to_char(first_day, 'YYYY_MM');
BEGIN
    LOCK TABLE tollgate.lock_ensure_month IN EXCLUSIVE MODE;
    IF (SELECT relispartition FROM pg_class WHERE oid = to_regclass('tollgate.' || partition)) THEN
        RETURN;
    END IF;
    LOCK TABLE tollgate.usage_events IN SHARE ROW EXCLUSIVE MODE;
    LOCK TABLE ONLY tollgate.usage_events_default IN ACCESS EXCLUSIVE MODE;
    ALTER TABLE tollgate.usage_events_default DISABLE TRIGGER rows_never_change;
    EXECUTE format(
        'WITH moved AS (DELETE FROM tollgate.usage_events_default WHERE occurred_at >= %L AND occurred_at < %L '
        'RETURNING *) INSERT INTO tollgate.%I SELECT * FROM moved', starts, ends, partition);
    ALTER TABLE tollgate.usage_events_default ENABLE TRIGGER rows_never_change;
    EXECUTE format(
        'ALTER TABLE tollgate.usage_events ATTACH PARTITION tollgate.%I FOR VALUES FROM (%L) TO (%L)',
        partition, starts, ends);
    EXECUTE format(
        'INSERT INTO tollgate.dirty_hours (hour) '
        'SELECT DISTINCT date_trunc(''hour'', occurred_at, ''UTC'') FROM tollgate.%I', partition);
END
$$;

-- ---- the transaction that wrote a row

-- The server that these numbers are of: another one counts its own.
CREATE TABLE tollgate.ledger_server (
    is_only           boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    system_identifier bigint NOT NULL,
    adopted_at        timestamptz NOT NULL DEFAULT now()
);
INSERT INTO tollgate.ledger_server (system_identifier) SELECT system_identifier FROM pg_control_system();

-- The views read the column through functions, which Postgres inlines. A view that named the column
-- would keep it from being replaced after a restore, see `adopt_ledger`.
CREATE FUNCTION tollgate.writer_of(event tollgate.usage_events) RETURNS xid8
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT (event).written_by';

CREATE FUNCTION tollgate.writer_of(adjustment tollgate.adjustments) RETURNS xid8
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT (adjustment).written_by';

-- The watermark of the exports rests on the column: a row that states an older transaction would be
-- missed by every later export. A condition on the column itself would keep it from being replaced
-- after a restore.
CREATE FUNCTION tollgate.refuse_writer() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION 'a row states another transaction than the one that writes it'
        USING ERRCODE = 'restrict_violation', HINT = 'Leave written_by to Postgres.';
END
$$;
CREATE TRIGGER writers_are_stated_by_postgres AFTER INSERT ON tollgate.usage_events FOR EACH ROW
    WHEN (tollgate.writer_of(NEW) <> pg_current_xact_id()) EXECUTE FUNCTION tollgate.refuse_writer();
CREATE TRIGGER writers_are_stated_by_postgres AFTER INSERT ON tollgate.adjustments FOR EACH ROW
    WHEN (tollgate.writer_of(NEW) <> pg_current_xact_id()) EXECUTE FUNCTION tollgate.refuse_writer();

-- Rows restored from another server's dump carry its numbers. A new column gives each of them the
-- number of this transaction, at once and without a rewrite. Its index goes with it.
CREATE FUNCTION tollgate.adopt_ledger() RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    here bigint := (SELECT system_identifier FROM pg_control_system());
BEGIN
    IF EXISTS (SELECT FROM tollgate.ledger_server WHERE system_identifier = here) THEN
        RETURN false;
    END IF;
    ALTER TABLE tollgate.usage_events DROP COLUMN written_by;
    ALTER TABLE tollgate.usage_events ADD COLUMN written_by xid8 NOT NULL DEFAULT pg_current_xact_id();
    CREATE INDEX usage_events_written_by ON tollgate.usage_events (written_by);
    ALTER TABLE tollgate.adjustments DROP COLUMN written_by;
    ALTER TABLE tollgate.adjustments ADD COLUMN written_by xid8 NOT NULL DEFAULT pg_current_xact_id();
    CREATE INDEX adjustments_written_by ON tollgate.adjustments (written_by);
    UPDATE tollgate.ledger_server SET system_identifier = here, adopted_at = now();
    RETURN true;
END
$$;

-- A timeline ends where a backup was recovered to a moment, or a standby was promoted: rows that
-- came after it on the old one may not exist here.
CREATE VIEW finance.watermark AS
SELECT here.system_identifier || '-' || own.oid || '-' || left(pg_walfile_name(pg_current_wal_lsn()), 8) AS database,
       pg_current_snapshot() AS snapshot, here.system_identifier <> home.system_identifier AS is_restored
FROM tollgate.ledger_server AS home, pg_control_system() AS here, pg_database AS own
WHERE own.datname = current_database();

-- ---- views

-- Money is multiplied, not divided: numeric division keeps 16 significant digits, and large sums
-- have more.
CREATE VIEW finance.usage_events AS
SELECT request_id, attempt, occurred_at, started_at, recorded_at, posted_period,
       team, project, cost_centre, key_id, end_user, tags,
       route, deployment, provider, model, region, is_self_hosted, data_class, policy_version, operation,
       outcome, http_status, streamed,
       input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens, usage_detail,
       usage_source, reported_usage, service_tier, price_id, is_stand_in_price, lines,
       cost_nusd * 0.000000001 AS cost_usd, held_nusd * 0.000000001 AS held_usd,
       ttft_s, tpot_s, duration_s, overhead_s,
       finish_reason, client_request_id, upstream_request_id, is_suspect, features, decision,
       (cost_nusd IS NULL AND NOT EXISTS (
            SELECT FROM tollgate.adjustments AS found
            WHERE found.settles AND found.request_id = event.request_id AND found.attempt = event.attempt)
       ) AS is_unsettled,
       queue_s, max_gap_s, engine_queue_s, degraded, tollgate.writer_of(event) AS written_by
FROM tollgate.usage_events AS event
WHERE NOT is_demo;

CREATE VIEW finance.demo_usage_events AS
SELECT request_id, attempt, occurred_at, started_at, recorded_at, posted_period,
       team, project, cost_centre, key_id, end_user, tags,
       route, deployment, provider, model, region, is_self_hosted, data_class, policy_version, operation,
       outcome, http_status, streamed,
       input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens, usage_detail,
       usage_source, reported_usage, service_tier, price_id, is_stand_in_price, lines,
       cost_nusd * 0.000000001 AS cost_usd, held_nusd * 0.000000001 AS held_usd,
       ttft_s, tpot_s, duration_s, overhead_s,
       finish_reason, client_request_id, upstream_request_id, is_suspect, features, decision,
       (cost_nusd IS NULL AND NOT EXISTS (
            SELECT FROM tollgate.adjustments AS found
            WHERE found.settles AND found.request_id = event.request_id AND found.attempt = event.attempt)
       ) AS is_unsettled,
       queue_s, max_gap_s, engine_queue_s, degraded, tollgate.writer_of(event) AS written_by
FROM tollgate.usage_events AS event
WHERE is_demo;

CREATE VIEW finance.unpartitioned_hours AS
SELECT date_trunc('hour', occurred_at, 'UTC') AS hour, count(*) AS attempts
FROM ONLY tollgate.usage_events_default GROUP BY 1;

-- ---- demo organisations

-- The demo organisations that were written, and the mark of a ledger that is one. The last day is
-- kept: the same command a month later finds the same events, and adds none.
CREATE TABLE tollgate.demo_organisations (
    organisation text NOT NULL,
    is_ledger    boolean NOT NULL,
    last_day     date NOT NULL,
    author       text NOT NULL DEFAULT session_user,
    begun_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (organisation, is_ledger)
);
CREATE UNIQUE INDEX demo_organisations_one_ledger ON tollgate.demo_organisations (is_ledger) WHERE is_ledger;
SELECT tollgate.make_immutable('tollgate.demo_organisations');
CREATE TRIGGER demo_organisations_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.demo_organisations
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('demo_organisation', 'write', 'organisation');
CREATE TRIGGER demo_organisations_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.demo_organisations
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('demo_organisation');
CREATE VIEW finance.demo_ledger AS
SELECT organisation, last_day, author, begun_at FROM tollgate.demo_organisations WHERE is_ledger;
