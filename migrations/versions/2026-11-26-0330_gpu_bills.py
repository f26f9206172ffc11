"""Imported GPU bills, the time in which attempts were in flight, and the split of an hour's bill."""

from __future__ import annotations

from alembic import op

revision = "20261126_0330"
down_revision = "20261124_1730"
branch_labels = None
depends_on = None

# Lines are kept as they were imported. Their pieces, one for each clock hour, are what counts: a
# newer import replaces pieces, and inserts the parts of them that it does not cover.
TABLES = """
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
"""

# The one change is that a piece is replaced, once.
NEVER_CHANGED = """
SELECT tollgate.make_immutable('tollgate.gpu_bill_imports');
SELECT tollgate.make_immutable('tollgate.gpu_bill_lines');
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

-- Lines and pieces come in thousands: those of one import are one act, with their number and their sum.
CREATE FUNCTION tollgate.audit_gpu_bill() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM tollgate.note_audit(TG_ARGV[0], import_id::text, '{}', entries => count(*), amount_nusd => sum(amount_nusd))
    FROM noted GROUP BY import_id ORDER BY import_id;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION tollgate.audit_gpu_bill() FROM PUBLIC;
CREATE TRIGGER gpu_bill_lines_noted_for_audit AFTER INSERT ON tollgate.gpu_bill_lines
    REFERENCING NEW TABLE AS noted FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_gpu_bill('gpu_bill.lines');
CREATE TRIGGER gpu_bill_hours_noted_for_audit AFTER INSERT ON tollgate.gpu_bill_hours
    REFERENCING NEW TABLE AS noted FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_gpu_bill('gpu_bill.hours');
CREATE TRIGGER gpu_bill_replacing_noted_for_audit AFTER UPDATE ON tollgate.gpu_bill_hours
    REFERENCING NEW TABLE AS noted FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_gpu_bill('gpu_bill.replace');
"""

# The milliseconds of an hour in which at least one of its requests' attempts was in flight: the
# union of their spans, up to the end of the hour that their cost counts in. An attempt that
# provably was not served (a refused connection) kept no engine busy.
IN_MS = "floor(extract(epoch FROM {moment} - event.hour) * 1000)::bigint"
SPAN = (
    f"int8range(greatest({IN_MS.format(moment='event.started_at')}, 0),"
    f" greatest(least({IN_MS.format(moment='event.started_at')} + round(event.duration_s * 1000)::bigint, 3600000),"
    f" greatest({IN_MS.format(moment='event.started_at')}, 0)))"
)
EVENTS_OF = """{hours} CROSS JOIN LATERAL (
        SELECT found.deployment, found.started_at, found.duration_s, found.usage_source, wanted.bucket AS hour
        FROM tollgate.usage_events AS found
        WHERE found.occurred_at >= wanted.bucket AND found.occurred_at < wanted.bucket + interval '1 hour'
            AND found.is_self_hosted AND NOT found.is_demo OFFSET 0
    ) AS event"""


def _busy(hours: str) -> str:
    """Return the only definition of busy time, for the roll-up and for the hours read beside it."""
    return f"""SELECT event.hour, event.deployment, (
        SELECT coalesce(sum(upper(part) - lower(part)), 0)::bigint FROM unnest(range_agg({SPAN}) FILTER (
            WHERE event.usage_source <> 'none' AND event.duration_s > 0)) AS part
    ) AS busy_ms
    FROM {EVENTS_OF.format(hours=hours)}
    GROUP BY event.hour, event.deployment"""  # noqa: S608 - constants


BUSY = f"""
CREATE TABLE tollgate.busy_rollup (
    hour       timestamptz,
    deployment text,
    busy_ms    bigint
);
CREATE INDEX busy_rollup_hour ON tollgate.busy_rollup (hour);
CREATE FUNCTION tollgate.busy_rollup_of(buckets timestamptz[]) RETURNS SETOF tollgate.busy_rollup
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$ {_busy("unnest(buckets) AS wanted (bucket)")} $$;
REVOKE ALL ON FUNCTION tollgate.busy_rollup_of(timestamptz[]) FROM PUBLIC;
INSERT INTO tollgate.busy_rollup SELECT * FROM tollgate.busy_rollup_of(ARRAY(
    SELECT DISTINCT hour FROM tollgate.spend_rollup WHERE is_self_hosted AND NOT is_demo));
"""  # noqa: S608 - constants

# As before, with the busy time of the same hours.
REFRESH = """
CREATE OR REPLACE FUNCTION tollgate.refresh_hours(most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    hours timestamptz[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('tollgate.refresh_rollups')) THEN
        RETURN 0;
    END IF;
    WITH taken AS (
        DELETE FROM tollgate.dirty_hours
        WHERE hour IN (SELECT DISTINCT hour FROM tollgate.dirty_hours ORDER BY hour LIMIT most) RETURNING hour
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
"""

# Adjustments count in the hour of their request, as before.
APPLIED = """
CREATE VIEW finance.gpu_applied AS
SELECT hour, deployment, team, cost_centre, sum(attempts)::bigint AS attempts, sum(usd) AS applied_usd
FROM (
    SELECT hour, deployment, team, cost_centre, attempts, coalesce(cost_usd, 0) AS usd
    FROM finance.spend_hourly WHERE is_self_hosted
    UNION ALL
    SELECT date_trunc('hour', occurred_at, 'UTC'), deployment, team, cost_centre, 0, amount_usd
    FROM finance.adjustments WHERE is_self_hosted
) AS amounts
GROUP BY hour, deployment, team, cost_centre;
"""

# The arithmetic of `gateway.domain.deployments.gpu_bills.split_hour`, in whole nano-dollars. div()
# is exact; numeric division is not. Joined by UNION ALL and not by FULL JOIN: so a filter on the
# hour reaches the index of every table.
GPU_COST = f"""
CREATE OR REPLACE VIEW finance.gpu_cost AS
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
    FROM ({_busy("(SELECT DISTINCT hour AS bucket FROM tollgate.dirty_hours) AS wanted")}) AS live
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
FROM divided;
"""  # noqa: S608 - constants

BILLS = """
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
"""

GRANTS = """
GRANT SELECT ON tollgate.busy_rollup TO tollgate_gateway;
GRANT EXECUTE ON FUNCTION tollgate.busy_rollup_of(timestamptz[]) TO tollgate_gateway, tollgate_admin;
GRANT INSERT ON tollgate.gpu_bill_imports, tollgate.gpu_bill_lines, tollgate.gpu_bill_hours TO tollgate_admin;
GRANT UPDATE (replaced_by) ON tollgate.gpu_bill_hours TO tollgate_admin;
"""

STEPS: tuple[str, ...] = (
    TABLES,
    NEVER_CHANGED,
    BUSY,
    REFRESH,
    APPLIED,
    GPU_COST,
    BILLS,
    GRANTS,
)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
