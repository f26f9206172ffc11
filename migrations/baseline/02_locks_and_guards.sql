-- What the tables of every concern use: locks, notifications, and triggers that refuse changes.

-- Locks need a right: each is a table that only the roles which need it may lock. Postgres lets
-- every login take every advisory lock, so a reader kept keys from being revoked, policies from
-- being applied and alerts from being sent.
CREATE TABLE tollgate.lock_policies ();
CREATE TABLE tollgate.lock_price_entries ();
CREATE TABLE tollgate.lock_deployment_prices ();
CREATE TABLE tollgate.lock_provider_bills ();
CREATE TABLE tollgate.lock_gpu_bills ();
CREATE TABLE tollgate.lock_adjustments ();
CREATE TABLE tollgate.lock_demo_organisations ();
CREATE TABLE tollgate.lock_engine_samples ();
CREATE TABLE tollgate.lock_audit_log ();
CREATE TABLE tollgate.lock_months ();
CREATE TABLE tollgate.lock_policies_applied ();
CREATE TABLE tollgate.lock_ensure_month ();
-- Hours, days and months have a lock each, so that one process sums days while another sums hours.
CREATE TABLE tollgate.lock_refresh_hours ();
CREATE TABLE tollgate.lock_refresh_days ();
CREATE TABLE tollgate.lock_refresh_months ();
CREATE TABLE tollgate.lock_leader_engines ();
CREATE TABLE tollgate.lock_leader_budget_alerts ();
CREATE TABLE tollgate.lock_leader_statements ();

-- The block of an exception that is caught gives its locks back.
CREATE FUNCTION tollgate.try_lock(name text, mode text) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    EXECUTE format('LOCK TABLE tollgate.%I IN %s MODE NOWAIT', 'lock_' || name, mode);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;

CREATE FUNCTION tollgate.wait_for_lock(name text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    EXECUTE format('LOCK TABLE tollgate.%I IN EXCLUSIVE MODE', 'lock_' || name);
    RAISE EXCEPTION 'give the lock back' USING ERRCODE = 'TG002';
EXCEPTION WHEN SQLSTATE 'TG002' THEN
    RETURN;
END
$$;

CREATE FUNCTION tollgate.notify_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$ BEGIN PERFORM pg_notify('tollgate_changes', TG_TABLE_NAME); RETURN NULL; END $$;

-- Rows of the ledger never change. A row trigger on a partitioned table is copied to every
-- partition, those attached later included; TRUNCATE has none, so each partition gets one of its
-- own.
CREATE FUNCTION tollgate.refuse_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION '% on %: the ledger is never changed', TG_OP, TG_RELID::regclass
        USING ERRCODE = 'restrict_violation', HINT = 'Book a correction: tollgate reconcile resolve, or an adjustment.';
END
$$;

CREATE FUNCTION tollgate.make_immutable(ledger regclass) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF NOT (SELECT relispartition FROM pg_class WHERE oid = ledger) THEN
        EXECUTE format('CREATE TRIGGER rows_never_change BEFORE UPDATE OR DELETE ON %s '
                       'FOR EACH ROW EXECUTE FUNCTION tollgate.refuse_change()', ledger);
    END IF;
    EXECUTE format('CREATE TRIGGER rows_stay BEFORE TRUNCATE ON %s '
                   'FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_change()', ledger);
END
$$;
