-- The audit log: one line for every administrative act, each bound to the one before it by a hash.
-- The tables themselves record people's changes, whatever program they use.

-- `line` is the hashed text, word by word: a checker of the chain formats nothing. The columns are
-- its parts, for queries.
CREATE TABLE tollgate.audit_log (
    seq      bigint PRIMARY KEY CHECK (seq > 0),
    at       timestamptz NOT NULL,
    db_user  text NOT NULL,
    operator text,
    reason   text,
    action   text NOT NULL,
    subject  text NOT NULL,
    details  jsonb NOT NULL,
    line     text NOT NULL,
    previous text NOT NULL,
    hash     text NOT NULL
);
CREATE INDEX audit_log_at ON tollgate.audit_log (at);
-- An act's notes stay here from their insert until the commit, and no other session ever sees them;
-- so nothing is lost with an unlogged table.
CREATE UNLOGGED TABLE tollgate.audit_notes (
    note_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xact        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    is_first    boolean NOT NULL,
    action      text NOT NULL,
    subject     text NOT NULL,
    details     jsonb NOT NULL,
    entries     bigint,
    amount_nusd numeric
);
CREATE INDEX audit_notes_xact ON tollgate.audit_notes (xact);

-- The lock is held until the commit: so numbers have no gaps, and rows are in the order of their
-- commits.
CREATE FUNCTION tollgate.append_audit(action text, subject text, details jsonb) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    last tollgate.audit_log;
    fresh tollgate.audit_log;
BEGIN
    LOCK TABLE tollgate.lock_audit_log IN EXCLUSIVE MODE;
    SELECT * INTO last FROM tollgate.audit_log ORDER BY seq DESC LIMIT 1;
    fresh.seq := coalesce(last.seq, 0) + 1;
    fresh.at := clock_timestamp();
    fresh.db_user := session_user;
    fresh.operator := nullif(current_setting('tollgate.operator', true), '');
    fresh.reason := nullif(current_setting('tollgate.reason', true), '');
    fresh.action := append_audit.action;
    fresh.subject := append_audit.subject;
    fresh.details := append_audit.details;
    fresh.previous := coalesce(last.hash, repeat('0', 64));
    fresh.line := format(
        '{"seq": %s, "at": "%s", "db_user": %s, "operator": %s, "reason": %s, "action": %s, "subject": %s, '
        '"details": %s}',
        fresh.seq, to_char(fresh.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), to_json(fresh.db_user),
        coalesce(to_json(fresh.operator), 'null'), coalesce(to_json(fresh.reason), 'null'), to_json(fresh.action),
        to_json(fresh.subject), fresh.details);
    fresh.hash := encode(sha256(convert_to(fresh.previous || E'\n' || fresh.line, 'UTF8')), 'hex');
    INSERT INTO tollgate.audit_log SELECT fresh.*;
    RETURN fresh.seq;
END
$$;

-- Appended at the commit, not at the note: the lock is the last that is waited for, and is held for
-- a moment. Only the first note of a transaction brings the trigger: a repricing notes a month of
-- adjustments one by one, and each of as many triggers would read past all of them.
CREATE FUNCTION tollgate.note_audit(
    action text, subject text, details jsonb, entries bigint DEFAULT NULL, amount_nusd numeric DEFAULT NULL
) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    INSERT INTO tollgate.audit_notes (is_first, action, subject, details, entries, amount_nusd)
    SELECT NOT EXISTS (SELECT FROM tollgate.audit_notes WHERE xact = pg_current_xact_id()), action, subject, details,
           entries, amount_nusd
    $$;

-- Notes of one action on one subject are one act. Budgets that a policy declares are part of its
-- apply.
CREATE FUNCTION tollgate.append_noted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    act record;
BEGIN
    FOR act IN
        WITH noted AS (
            DELETE FROM tollgate.audit_notes WHERE xact = pg_current_xact_id() RETURNING *
        ), kinds AS (
            SELECT action, subject, details, min(note_id) AS place, sum(entries) AS entries,
                   sum(amount_nusd) AS amount_nusd
            FROM noted
            WHERE action NOT LIKE 'budget_rule.%' OR NOT EXISTS (SELECT FROM noted WHERE action = 'policy.apply')
            GROUP BY action, subject, details
        )
        SELECT action, subject, min(place) AS place, jsonb_strip_nulls(jsonb_build_object(
                   'entries', sum(entries), 'amount_nusd', sum(amount_nusd))) AS sums,
               array_agg(details ORDER BY place) AS details
        FROM kinds GROUP BY action, subject ORDER BY place
    LOOP
        PERFORM tollgate.append_audit(act.action, act.subject, act.sums || (
            SELECT coalesce(jsonb_object_agg(member.key, member.value ORDER BY part.place), '{}')
            FROM unnest(act.details) WITH ORDINALITY AS part (details, place), jsonb_each(part.details) AS member));
    END LOOP;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER notes_are_appended AFTER INSERT ON tollgate.audit_notes
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.is_first) EXECUTE FUNCTION tollgate.append_noted();

CREATE FUNCTION tollgate.refuse_audit_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION '% on %: the audit log is never changed', TG_OP, TG_RELID::regclass
        USING ERRCODE = 'restrict_violation', HINT = 'Every act is one more line. tollgate audit verify checks them.';
END
$$;
CREATE TRIGGER audit_log_never_changes BEFORE UPDATE OR DELETE OR TRUNCATE ON tollgate.audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_audit_change();

-- `current_user` inside these functions is their owner. `role` is the session's role, unless it
-- acts as its login.
CREATE FUNCTION tollgate.is_gateway() RETURNS boolean
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT CASE current_setting('role') WHEN 'none' THEN session_user::text ELSE current_setting('role') END
           = 'tollgate_gateway'
    $$;

CREATE FUNCTION tollgate.audit_changes(was jsonb, becomes jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT jsonb_build_object(
        'was', jsonb_object_agg(key, was -> key), 'becomes', jsonb_object_agg(key, becomes -> key))
    FROM jsonb_object_keys(becomes) AS key WHERE was -> key IS DISTINCT FROM becomes -> key
    $$;

-- A row as the log may show it: columns that are secret or a whole document are named where they
-- change, not shown.
CREATE FUNCTION tollgate.audited(content jsonb, hidden text[]) RETURNS jsonb
    LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT content || coalesce((
        SELECT jsonb_object_agg(name, left(encode(sha256(convert_to(content ->> name, 'UTF8')), 'hex'), 16))
        FROM unnest(hidden) AS name WHERE content ? name), '{}')
    $$;

-- Arguments: the table's subject, the name of an insert, the column that names the subject, hidden
-- columns.
CREATE FUNCTION tollgate.audit_row() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    hidden text[] := TG_ARGV[3:];
    was jsonb := tollgate.audited(to_jsonb(OLD), hidden);
    becomes jsonb := tollgate.audited(to_jsonb(NEW), hidden);
    verb text := CASE TG_OP WHEN 'INSERT' THEN TG_ARGV[1] ELSE lower(TG_OP) END;
BEGIN
    IF was IS DISTINCT FROM becomes THEN
        PERFORM tollgate.note_audit(
            TG_ARGV[0] || '.' || verb, coalesce(was, becomes) ->> TG_ARGV[2],
            CASE TG_OP WHEN 'UPDATE' THEN tollgate.audit_changes(was, becomes)
                       ELSE jsonb_strip_nulls(coalesce(becomes, was) - hidden) END);
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION tollgate.audit_truncate() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM tollgate.note_audit(TG_ARGV[0] || '.truncate', TG_TABLE_NAME, '{}');
    RETURN NULL;
END
$$;

CREATE VIEW finance.audit_log AS
SELECT seq, at, db_user, operator, reason, action, subject, details, line, previous, hash FROM tollgate.audit_log;
