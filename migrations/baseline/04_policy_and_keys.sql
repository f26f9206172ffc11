-- Prices, policies and API keys.

-- ---- prices

CREATE TABLE tollgate.prices (
    price_id   text PRIMARY KEY,
    provider   text NOT NULL,
    model      text NOT NULL,
    source     text NOT NULL,
    rates      jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE tollgate.deployment_prices (
    deployment     text NOT NULL,
    price_id       text NOT NULL REFERENCES tollgate.prices,
    policy_version integer NOT NULL,
    valid_from     timestamptz NOT NULL,
    PRIMARY KEY (deployment, valid_from)
);
-- The price book: dated entries of every kind, with their source. An entry without a price says
-- that from then on there is none: an override withdrawn, a model the list lost. A calibration is
-- the measured throughput of an engine, which prices its tokens.
CREATE TABLE tollgate.price_entries (
    entry_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    origin      text NOT NULL CHECK (origin IN ('list', 'override', 'calibrated')),
    provider    text,
    model       text,
    deployment  text,
    valid_from  timestamptz NOT NULL,
    daily_since time,
    daily_until time,
    price_id    text REFERENCES tollgate.prices,
    source      text NOT NULL,
    author      text NOT NULL,
    reason      text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    calibration jsonb,
    CONSTRAINT a_window_has_two_ends CHECK ((daily_since IS NULL) = (daily_until IS NULL)),
    CONSTRAINT says_what_it_prices CHECK (
        CASE WHEN origin = 'list' THEN provider IS NOT NULL AND model IS NOT NULL AND deployment IS NULL
             ELSE (deployment IS NULL) <> (model IS NULL) AND (provider IS NULL OR model IS NOT NULL) END),
    CONSTRAINT a_calibration_is_of_a_deployment CHECK (
        (origin = 'calibrated') = (calibration IS NOT NULL)
        AND (origin <> 'calibrated' OR deployment IS NOT NULL))
);
CREATE INDEX price_entries_model ON tollgate.price_entries (provider, model);

-- Grants bind the product's roles, the triggers bind the owner too: last quarter must add up next
-- year.
CREATE FUNCTION tollgate.refuse_price_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION '% on %: a price is never changed', TG_OP, TG_RELID::regclass
        USING ERRCODE = 'restrict_violation', HINT = 'Add another dated one: tollgate price add.';
END
$$;
CREATE TRIGGER price_entries_never_change BEFORE UPDATE OR DELETE OR TRUNCATE ON tollgate.price_entries
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_price_change();
CREATE TRIGGER prices_never_change BEFORE UPDATE OR DELETE OR TRUNCATE ON tollgate.prices
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_price_change();
CREATE TRIGGER deployment_prices_never_change BEFORE UPDATE OR DELETE OR TRUNCATE ON tollgate.deployment_prices
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_price_change();
CREATE TRIGGER price_entries_added AFTER INSERT ON tollgate.price_entries
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.notify_change();

-- Prices come in thousands: those of one import are one act, with their number.
CREATE FUNCTION tollgate.audit_prices() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM tollgate.note_audit(
        'price.add', coalesce(deployment, concat_ws('/', provider, model)),
        jsonb_strip_nulls(to_jsonb(added)), entries => 1)
    FROM added WHERE origin <> 'list' ORDER BY entry_id;
    PERFORM tollgate.note_audit('price.import', source, jsonb_build_object('author', author), entries => count(*))
    FROM added WHERE origin = 'list' GROUP BY source, author ORDER BY source;
    RETURN NULL;
END
$$;
CREATE TRIGGER price_entries_noted_for_audit AFTER INSERT ON tollgate.price_entries
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_prices();

CREATE VIEW finance.prices AS
SELECT price_id, provider, model, source, rates, created_at FROM tollgate.prices;

CREATE VIEW finance.deployment_prices AS
SELECT deployment, valid_from, price_id, policy_version FROM tollgate.deployment_prices;

CREATE VIEW finance.price_entries AS
SELECT entry_id, origin, provider, model, deployment, valid_from, daily_since, daily_until, price_id, source, author,
       reason, created_at, calibration
FROM tollgate.price_entries;

-- ---- policies

CREATE TABLE tollgate.policies (
    version    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sha256     text NOT NULL,
    document   text NOT NULL,
    author     text NOT NULL,
    message    text NOT NULL,
    is_demo    boolean NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
CREATE TRIGGER policies_changed AFTER INSERT OR UPDATE OR DELETE ON tollgate.policies
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.notify_change();
CREATE TRIGGER policies_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.policies
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('policy', 'apply', 'version', 'document');
CREATE TRIGGER policies_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.policies
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('policy');

-- Written by each apply: Postgres reads no policy document. Versions of earlier releases have no
-- rows; their teams have one cost centre for all days, which is in the events.
CREATE TABLE tollgate.policy_cost_centres (
    policy_version integer NOT NULL
        CONSTRAINT policy_cost_centres_policy_version_fkey REFERENCES tollgate.policies,
    team           text NOT NULL,
    first_day      date NOT NULL,
    cost_centre    text NOT NULL,
    share          numeric NOT NULL CONSTRAINT shares_are_parts CHECK (share > 0 AND share <= 1),
    PRIMARY KEY (policy_version, team, first_day, cost_centre)
);

CREATE TABLE tollgate.policy_idle_rules (
    policy_version integer NOT NULL
        CONSTRAINT policy_idle_rules_policy_version_fkey REFERENCES tollgate.policies,
    deployment     text NOT NULL,
    rule           text NOT NULL CONSTRAINT idle_rules_are_known CHECK (rule IN ('proportional', 'reserved', 'even')),
    weights        jsonb NOT NULL CONSTRAINT weights_have_their_shape CHECK (jsonb_typeof(weights) = 'object'),
    PRIMARY KEY (policy_version, deployment)
);
-- The limits by the policy in force.
CREATE TABLE tollgate.policy_team_limits (
    policy_version      integer NOT NULL
        CONSTRAINT policy_team_limits_policy_version_fkey REFERENCES tollgate.policies,
    team                text NOT NULL,
    requests_per_minute bigint,
    tokens_per_minute   bigint,
    concurrent          bigint,
    is_shadow           boolean NOT NULL,
    PRIMARY KEY (policy_version, team)
);
SELECT tollgate.make_immutable('tollgate.policy_cost_centres');
SELECT tollgate.make_immutable('tollgate.policy_idle_rules');
SELECT tollgate.make_immutable('tollgate.policy_team_limits');

-- Rows that come with their policy are part of its apply; any others are an act of their own.
CREATE FUNCTION tollgate.audit_allocation() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM tollgate.note_audit('policy.allocate', added.policy_version::text, '{}', entries => count(*))
    FROM added JOIN tollgate.policies AS policy ON policy.version = added.policy_version
    WHERE policy.xmin <> pg_current_xact_id()::xid
    GROUP BY added.policy_version ORDER BY added.policy_version;
    RETURN NULL;
END
$$;
CREATE TRIGGER policy_cost_centres_noted_for_audit AFTER INSERT ON tollgate.policy_cost_centres
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_allocation();
CREATE TRIGGER policy_idle_rules_noted_for_audit AFTER INSERT ON tollgate.policy_idle_rules
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_allocation();

-- At the commit, because the shares of a date come one by one.
CREATE FUNCTION tollgate.check_shares() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF (SELECT sum(share) FROM tollgate.policy_cost_centres
        WHERE policy_version = NEW.policy_version AND team = NEW.team AND first_day = NEW.first_day) <> 1
    THEN
        RAISE EXCEPTION 'the shares of team % from % do not add up to 1', NEW.team, NEW.first_day
            USING ERRCODE = 'check_violation', CONSTRAINT = 'shares_add_up';
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER shares_add_up AFTER INSERT ON tollgate.policy_cost_centres
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tollgate.check_shares();

-- A document names secrets and contains none.
CREATE VIEW finance.policy_versions AS
SELECT version, applied_at, is_demo, document FROM tollgate.policies;

-- A day goes by the last version applied until its end. So a later apply changes no earlier day.
CREATE VIEW finance.policy_days AS
SELECT version, first_day, lead(first_day) OVER (ORDER BY first_day) AS next_day
FROM (
    SELECT DISTINCT ON (first_day) version, first_day
    FROM (SELECT version, (applied_at AT TIME ZONE 'UTC')::date AS first_day FROM tollgate.policies) AS applied
    ORDER BY first_day, version DESC
) AS last_of_day;

CREATE VIEW finance.cost_centre_shares AS
WITH starts AS (
    SELECT policy_version, team, first_day,
           first_day = min(first_day) OVER (PARTITION BY policy_version, team) AS is_first,
           lead(first_day) OVER (PARTITION BY policy_version, team ORDER BY first_day) AS next_day
    FROM (SELECT DISTINCT policy_version, team, first_day FROM tollgate.policy_cost_centres) AS dated
), dated AS (
    SELECT policy_version, team, cost_centre, share,
           -- Days before the first date go by its shares.
           CASE WHEN is_first THEN days.first_day ELSE greatest(days.first_day, starts.first_day) END AS first_day,
           least(days.next_day, starts.next_day) AS next_day,
           first_value(cost_centre) OVER (PARTITION BY policy_version, team, starts.first_day
                                          ORDER BY share DESC, cost_centre COLLATE "C") AS event_cost_centre
    FROM finance.policy_days AS days JOIN starts ON starts.policy_version = days.version
    JOIN tollgate.policy_cost_centres USING (policy_version, team)
    WHERE policy_cost_centres.first_day = starts.first_day
)
SELECT team, first_day, next_day, event_cost_centre, cost_centre, share, policy_version FROM dated
WHERE next_day IS NULL OR first_day < next_day;

CREATE VIEW finance.idle_rules AS
SELECT rule.deployment, days.first_day, days.next_day, rule.rule, rule.weights, rule.policy_version
FROM tollgate.policy_idle_rules AS rule JOIN finance.policy_days AS days ON days.version = rule.policy_version;

CREATE VIEW finance.team_limits AS
SELECT team, requests_per_minute, tokens_per_minute, concurrent, is_shadow, policy_version
FROM tollgate.policy_team_limits WHERE policy_version = (SELECT max(version) FROM tollgate.policies);

-- ---- API keys

-- `replaces`: this key was made by a rotation of that one, which then has an end. A key is replaced
-- once.
CREATE TABLE tollgate.api_keys (
    key_id     text PRIMARY KEY,
    team       text NOT NULL,
    project    text,
    digest     bytea NOT NULL,
    pepper_id  text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    revoked_by text,
    is_demo    boolean NOT NULL DEFAULT false,
    paused_at  timestamptz,
    paused_by  text,
    replaces   text REFERENCES tollgate.api_keys
);
CREATE UNIQUE INDEX api_keys_replaces ON tollgate.api_keys (replaces);
CREATE TABLE tollgate.peppers (
    pepper_id     text PRIMARY KEY,
    first_seen_at timestamptz NOT NULL DEFAULT now()
);

-- `tollgate_admin` may set these columns; only the first revocation counts. Revoking twice changes
-- no row.
CREATE FUNCTION tollgate.refuse_unrevoking() RETURNS trigger LANGUAGE plpgsql SET search_path = '' AS $$
BEGIN
    RAISE EXCEPTION 'key %: a revoked key stays revoked', OLD.key_id
        USING ERRCODE = 'integrity_constraint_violation', HINT = 'Create a new key: tollgate key create';
END
$$;
CREATE TRIGGER stays_revoked BEFORE UPDATE ON tollgate.api_keys FOR EACH ROW
    WHEN (OLD.revoked_at IS NOT NULL AND (OLD.revoked_at, OLD.revoked_by) IS DISTINCT FROM
        (NEW.revoked_at, NEW.revoked_by))
    EXECUTE FUNCTION tollgate.refuse_unrevoking();
CREATE TRIGGER api_keys_changed AFTER INSERT OR UPDATE OR DELETE ON tollgate.api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.notify_change();

-- A rotation makes one key and sets the end of another: one act, recorded for the replaced one.
CREATE FUNCTION tollgate.audit_key() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    hidden text[] := '{digest}';
    was jsonb := tollgate.audited(to_jsonb(OLD), hidden);
    becomes jsonb := tollgate.audited(to_jsonb(NEW), hidden);
BEGIN
    IF TG_OP = 'INSERT' AND NEW.replaces IS NOT NULL THEN
        PERFORM tollgate.note_audit(
            'key.rotate', NEW.replaces, jsonb_build_object('new_key', jsonb_strip_nulls(becomes - 'digest')));
    ELSIF TG_OP = 'INSERT' THEN
        PERFORM tollgate.note_audit('key.create', NEW.key_id, jsonb_strip_nulls(becomes - 'digest'));
    ELSIF TG_OP = 'DELETE' THEN
        PERFORM tollgate.note_audit('key.delete', OLD.key_id, jsonb_strip_nulls(was - 'digest'));
    ELSE
        PERFORM tollgate.note_audit(
            CASE
                WHEN OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL THEN 'key.revoke'
                WHEN OLD.paused_at IS NULL AND NEW.paused_at IS NOT NULL THEN 'key.pause'
                WHEN OLD.paused_at IS NOT NULL AND NEW.paused_at IS NULL THEN 'key.resume'
                WHEN EXISTS (SELECT FROM tollgate.audit_notes WHERE xact = pg_current_xact_id()
                             AND action = 'key.rotate' AND subject = NEW.key_id) THEN 'key.rotate'
                WHEN OLD.expires_at IS DISTINCT FROM NEW.expires_at THEN 'key.expire'
                ELSE 'key.update'
            END, OLD.key_id, jsonb_build_object('team', NEW.team) || tollgate.audit_changes(was, becomes));
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER api_keys_noted_for_audit AFTER INSERT OR DELETE ON tollgate.api_keys
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_key();
CREATE TRIGGER api_keys_change_noted_for_audit AFTER UPDATE ON tollgate.api_keys
    FOR EACH ROW WHEN (OLD IS DISTINCT FROM NEW) EXECUTE FUNCTION tollgate.audit_key();
CREATE TRIGGER api_keys_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('key');
CREATE TRIGGER peppers_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.peppers
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('pepper', 'register', 'pepper_id');
CREATE TRIGGER peppers_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.peppers
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('pepper');

-- A key without its digest.
CREATE VIEW finance.api_keys AS
SELECT key_id, team, project, created_at, expires_at, revoked_at, paused_at, replaces, is_demo FROM tollgate.api_keys;
